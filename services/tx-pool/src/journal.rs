//! File with the transactions of this node's users, which survive a restart.
//!
//! ```text
//!  file   = "tandem transactions 1\n" record*
//!  record = length (u32, little-endian)  CRC-32 of the content (u32)  content: network form
//! ```
//!
//! A record is appended when a transaction is accepted, before its sender is answered. It is in the
//! hands of the operating system then, so it survives the death of the process, not a power cut.
//! Records are not removed. The file is written anew, without those that have no use any more,
//! when they make up most of it. A record that the end of the process cut short ends the file.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, BufReader, BufWriter, Read, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};
use tandem_primitives::Bytes;
use tracing::warn;

const NAME: &str = "transactions.journal";
/// File that the process with the journal has locked. The journal itself is replaced now and then.
const LOCK: &str = "transactions.lock";
const MAGIC: &[u8] = b"tandem transactions 1\n";
const RECORD_HEADER: usize = 8;

/// Bytes of records without use that are not worth writing the file anew.
const WASTE_MIN: u64 = 1 << 20;

/// Journal of transactions.
pub(crate) struct Journal {
    path: PathBuf,
    file: File,
    _lock: File,
    bytes: u64,
    /// Bytes after the last rewrite.
    live: u64,
    /// Whether a record may be incomplete, so that none after it would be read.
    is_broken: bool,
}

impl Journal {
    /// Opens the journal of a data directory, or makes it. Returns it with the transactions in it,
    /// of at most `bytes_max` together and `record_max` each.
    ///
    /// # Errors
    /// Error of the operating system; [`io::ErrorKind::InvalidData`] if the file is another one,
    /// [`io::ErrorKind::ResourceBusy`] while another process has the journal.
    pub fn open(
        folder: &Path,
        bytes_max: usize,
        record_max: usize,
    ) -> io::Result<(Self, Vec<Bytes>)> {
        let (lock, path) = (lock(&folder.join(LOCK))?, folder.join(NAME));
        let mut options = OpenOptions::new();
        let mut file = options.read(true).write(true).create(true).truncate(false).open(&path)?;
        let mut reader = BufReader::new(&file);
        let mut magic = Vec::new();
        (&mut reader).take(MAGIC.len() as u64).read_to_end(&mut magic)?;
        if !MAGIC.starts_with(&magic) {
            let text = format!("{} is not a journal of transactions", path.display());
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        let (mut records, mut end, mut held) = (Vec::new(), MAGIC.len() as u64, 0);
        if magic.len() == MAGIC.len() {
            while let Some(record) = read_record(&mut reader, record_max)? {
                held += record.len();
                if held > bytes_max {
                    warn!(bytes_max, "journal of transactions is too long, its end is dropped");
                    break;
                }
                end += (RECORD_HEADER + record.len()) as u64;
                records.push(record);
            }
        }
        let found = file.metadata()?.len();
        if magic.len() < MAGIC.len() {
            file.set_len(0)?;
            file.rewind()?;
            file.write_all(MAGIC)?;
        } else if found > end {
            warn!(bytes = found - end, "end of the journal of transactions is incomplete, dropped");
            file.set_len(end)?;
        }
        file.seek(SeekFrom::Start(end))?;
        let journal = Self { path, file, _lock: lock, bytes: end, live: end, is_broken: false };
        Ok((journal, records))
    }

    /// Appends a transaction.
    ///
    /// # Errors
    /// Error of the operating system. The journal is then written anew at the next occasion.
    pub fn append(&mut self, raw: &[u8]) -> io::Result<()> {
        let written = self.file.write_all(&record(raw));
        self.bytes += (RECORD_HEADER + raw.len()) as u64;
        self.is_broken |= written.is_err();
        written
    }

    /// Returns whether the file should be written anew, if these many bytes of it are of use.
    pub fn is_wasteful(&self, used: usize) -> bool {
        self.is_broken || self.bytes > WASTE_MIN + 2 * self.live.max(used as u64)
    }

    /// Writes the file anew with these transactions. The old one stays until the new one is
    /// complete and on the disk.
    ///
    /// # Errors
    /// Error of the operating system; the old file stays in use.
    pub fn rewrite<'a>(&mut self, all: impl Iterator<Item = &'a Bytes>) -> io::Result<()> {
        let new = self.path.with_extension("journal.new");
        let mut writer = BufWriter::new(File::create(&new)?);
        let mut bytes = MAGIC.len() as u64;
        writer.write_all(MAGIC)?;
        for raw in all {
            writer.write_all(&record(raw))?;
            bytes += (RECORD_HEADER + raw.len()) as u64;
        }
        let file = writer.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.sync_all()?;
        fs::rename(&new, &self.path)?;
        (self.file, self.bytes, self.live, self.is_broken) = (file, bytes, bytes, false);
        // The name must survive a power cut too.
        self.path.parent().map_or(Ok(()), |folder| File::open(folder)?.sync_all())
    }
}

/// Locks a file until it is dropped, or the process ends.
fn lock(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new().write(true).create(true).truncate(false).open(path)?;
    match file.try_lock() {
        Ok(()) => Ok(file),
        Err(TryLockError::WouldBlock) => {
            let text = format!("another process has locked {}", path.display());
            Err(io::Error::new(io::ErrorKind::ResourceBusy, text))
        }
        Err(TryLockError::Error(error)) => Err(error),
    }
}

fn record(raw: &[u8]) -> Vec<u8> {
    let mut record = Vec::with_capacity(RECORD_HEADER + raw.len());
    // A transaction has far less than 4 GiB.
    record.extend_from_slice(&(raw.len() as u32).to_le_bytes());
    record.extend_from_slice(&crc32fast::hash(raw).to_le_bytes());
    record.extend_from_slice(raw);
    record
}

/// Reads a record. Returns `None` at the end, and for a record that is cut or damaged.
fn read_record(reader: &mut impl Read, record_max: usize) -> io::Result<Option<Bytes>> {
    let mut header = Vec::new();
    reader.take(RECORD_HEADER as u64).read_to_end(&mut header)?;
    let Ok([l0, l1, l2, l3, c0, c1, c2, c3]) = <[u8; RECORD_HEADER]>::try_from(header) else {
        return Ok(None);
    };
    let length = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
    if length > record_max {
        return Ok(None);
    }
    let mut raw = Vec::new();
    reader.take(length as u64).read_to_end(&mut raw)?;
    let checksum = u32::from_le_bytes([c0, c1, c2, c3]);
    let is_whole = raw.len() == length && crc32fast::hash(&raw) == checksum;
    Ok(is_whole.then(|| raw.into()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tempfile::TempDir;

    fn open(folder: &TempDir) -> (Journal, Vec<Bytes>) {
        // Earlier handles stand for dead processes, which have no lock.
        let _ = fs::remove_file(folder.path().join(LOCK));
        Journal::open(folder.path(), 1 << 20, 1 << 16).unwrap()
    }

    fn raw(byte: u8) -> Bytes {
        vec![byte; 10 + usize::from(byte)].into()
    }

    #[test]
    fn what_is_appended_is_read_again_without_a_goodbye() {
        let folder = tempfile::tempdir().unwrap();
        let (mut journal, found) = open(&folder);
        assert!(found.is_empty());
        for byte in 0..50 {
            journal.append(&raw(byte)).unwrap();
            // Another handle sees what a process after a SIGKILL would see.
            let (_, found) = open(&folder);
            assert_eq!(found, (0..=byte).map(raw).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_cut_end_is_dropped_wherever_it_is_cut() {
        let folder = tempfile::tempdir().unwrap();
        let (mut journal, _) = open(&folder);
        (0..3).for_each(|byte| journal.append(&raw(byte)).unwrap());
        let whole = fs::read(&journal.path).unwrap();
        let ends: Vec<_> = (0..=3_usize)
            .map(|count| MAGIC.len() + (0..count).map(|it| 8 + 10 + it).sum::<usize>())
            .collect();
        for length in 0..=whole.len() {
            fs::write(&journal.path, &whole[..length]).unwrap();
            let (mut again, found) = open(&folder);
            let complete = ends.iter().filter(|end| **end <= length).count().saturating_sub(1);
            assert_eq!(found.len(), complete, "{length}");
            // The next record is not behind the damage.
            again.append(&raw(9)).unwrap();
            assert_eq!(open(&folder).1.last(), Some(&raw(9)), "{length}");
        }
        // A flipped bit ends it too.
        let mut damaged = whole.clone();
        damaged[ends[1] + 8] ^= 1;
        fs::write(&journal.path, damaged).unwrap();
        assert_eq!(open(&folder).1, [raw(0)]);
    }

    #[test]
    fn a_rewrite_leaves_out_what_has_no_use() {
        let folder = tempfile::tempdir().unwrap();
        let (mut journal, _) = open(&folder);
        let big = Bytes::from(vec![7; 1 << 15]);
        for _ in 0..31 {
            journal.append(&big).unwrap();
        }
        assert!(!journal.is_wasteful(0), "a megabyte may be wasted");
        journal.append(&big).unwrap();
        journal.append(&big).unwrap();
        assert!(journal.is_wasteful(0) && !journal.is_wasteful(1 << 20));
        journal.rewrite([raw(1), raw(2)].iter()).unwrap();
        assert!(!journal.is_wasteful(0));
        journal.append(&raw(3)).unwrap();
        assert_eq!(open(&folder).1, [raw(1), raw(2), raw(3)]);
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[test]
    fn another_file_and_one_that_is_too_long_are_told_apart() {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join(NAME), "my diary").unwrap();
        let error = Journal::open(folder.path(), 1, 1).err().unwrap();
        assert!(error.to_string().ends_with("is not a journal of transactions"), "{error}");
        fs::remove_file(folder.path().join(NAME)).unwrap();
        let (mut journal, _) = open(&folder);
        (0..5).for_each(|byte| journal.append(&raw(byte)).unwrap());
        drop(journal);
        assert_eq!(Journal::open(folder.path(), 22, 1 << 16).unwrap().1, [raw(0), raw(1)]);
    }

    #[test]
    fn a_second_process_is_refused_while_the_first_one_lives() {
        let folder = tempfile::tempdir().unwrap();
        let (mut journal, _) = open(&folder);
        journal.append(&raw(1)).unwrap();
        journal.rewrite([raw(2)].iter()).unwrap();
        let error = Journal::open(folder.path(), 1 << 20, 1 << 16).err().unwrap();
        assert_eq!(error.kind(), io::ErrorKind::ResourceBusy);
        assert!(error.to_string().contains("another process has locked"), "{error}");
        drop(journal);
        assert_eq!(Journal::open(folder.path(), 1 << 20, 1 << 16).unwrap().1, [raw(2)]);
    }
}
