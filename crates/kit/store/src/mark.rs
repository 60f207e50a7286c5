//! Record of the writes that a database has acknowledged, in a small file beside RocksDB's.
//!
//! RocksDB numbers its writes, and its log ends at the first unreadable record. Later records are
//! lost without notice. The number of the last acknowledged write, kept in this file, distinguishes
//! a log that lost records from a complete one.
//!
//! The file has two slots, written in turn and each with a checksum, so one torn write leaves the
//! other intact.

use crate::{Error, Result};
use alloy_primitives::{B256, keccak256};
use std::{
    fs::{File, OpenOptions},
    io,
    os::unix::fs::FileExt,
    path::{Path, PathBuf},
    sync::Arc,
};
use tandem_primitives::BlockId;

/// Name of the file in the database's folder.
pub const MARK_FILE: &str = "ACKNOWLEDGED";

const MAGIC: &[u8; 8] = b"TNDMACK1";
/// Distance of the slots in bytes, which puts them in different pages.
const SLOT_BYTES: u64 = 4096;
/// Bytes of magic, count, clean, boot, time, two sequence numbers and three blocks.
const BODY_BYTES: usize = 8 + 8 + 1 + 16 + 8 + 8 + 8 + 3 * 40;
const CHECKSUM_BYTES: usize = 8;

/// Acknowledged state of a database.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Mark {
    /// Whether the database was closed after everything was on disk.
    pub clean: bool,
    /// Start of the operating system during which it was written; zeros if that is unknown.
    pub boot: [u8; 16],
    /// Time at which it was written, in seconds since 1970.
    pub time: u64,
    /// RocksDB's number of the last write.
    pub sequence: u64,
    /// Number up to which all writes are known to be on disk.
    pub synced: u64,
    /// Head of the last forkchoice.
    pub head: BlockId,
    /// Block whose state the base had.
    pub base: BlockId,
    /// Block that was committed last.
    pub newest: BlockId,
}

/// Result of reading the file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FoundMark {
    /// There is no file.
    Missing,
    /// Neither slot can be read.
    Damaged,
    /// The mark that was written last.
    Mark(Mark),
}

/// Open mark file.
#[derive(Debug)]
pub struct MarkFile {
    file: Arc<File>,
    path: PathBuf,
    /// Number of marks written so far.
    count: u64,
}

impl MarkFile {
    /// Reads the mark of the database in a folder.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn read(folder: &Path) -> Result<FoundMark> {
        let path = folder.join(MARK_FILE);
        match File::open(&path) {
            Ok(file) => Ok(read_slots(&file).map_err(|source| io_error("read", &path, source))?.0),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(FoundMark::Missing),
            Err(source) => Err(io_error("open", &path, source)),
        }
    }

    /// Opens the file, and creates it if it is missing.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn open(folder: &Path) -> Result<Self> {
        let path = folder.join(MARK_FILE);
        let open = || -> io::Result<(File, u64)> {
            let mut options = OpenOptions::new();
            let file = options.read(true).write(true).create(true).truncate(false).open(&path)?;
            let (_, count) = read_slots(&file)?;
            // Space for both slots is allocated now, while there is some.
            if file.metadata()?.len() < 2 * SLOT_BYTES {
                file.write_all_at(&[0; SLOT_BYTES as usize], 0)?;
                file.write_all_at(&[0; SLOT_BYTES as usize], SLOT_BYTES)?;
            }
            Ok((file, count))
        };
        let (file, count) = open().map_err(|source| io_error("open", &path, source))?;
        Ok(Self { file: Arc::new(file), path, count })
    }

    /// Writes a mark to the operating system, without syncing it.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn write(&mut self, mark: &Mark) -> Result<()> {
        let count = self.count + 1;
        let written = self.file.write_all_at(&encode(mark, count), count % 2 * SLOT_BYTES);
        written.map_err(|source| io_error("write", &self.path, source))?;
        self.count = count;
        Ok(())
    }

    /// Returns the file itself, which can be synced while marks are being written.
    pub fn share(&self) -> Arc<File> {
        self.file.clone()
    }

    /// Waits until everything written is on disk.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn sync(&self) -> Result<()> {
        self.file.sync_data().map_err(|source| io_error("sync", &self.path, source))
    }
}

fn io_error(context: &'static str, path: &Path, source: io::Error) -> Error {
    Error::Io { context, path: path.to_owned(), source }
}

/// Returns the newer of both slots, and its count.
fn read_slots(file: &File) -> io::Result<(FoundMark, u64)> {
    let mut newest: Option<(Mark, u64)> = None;
    for slot in 0..2 {
        let mut bytes = [0; BODY_BYTES + CHECKSUM_BYTES];
        match file.read_exact_at(&mut bytes, slot * SLOT_BYTES) {
            Ok(()) => {}
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => continue,
            Err(error) => return Err(error),
        }
        if let Some((mark, count)) = decode(&bytes)
            && newest.is_none_or(|(_, other)| other < count)
        {
            newest = Some((mark, count));
        }
    }
    Ok(newest.map_or((FoundMark::Damaged, 0), |(mark, count)| (FoundMark::Mark(mark), count)))
}

fn encode(mark: &Mark, count: u64) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(BODY_BYTES + CHECKSUM_BYTES);
    bytes.extend_from_slice(MAGIC);
    bytes.extend_from_slice(&count.to_be_bytes());
    bytes.push(u8::from(mark.clean));
    bytes.extend_from_slice(&mark.boot);
    for number in [mark.time, mark.sequence, mark.synced] {
        bytes.extend_from_slice(&number.to_be_bytes());
    }
    for block in [mark.head, mark.base, mark.newest] {
        bytes.extend_from_slice(&block.number.to_be_bytes());
        bytes.extend_from_slice(block.hash.as_slice());
    }
    let checksum = keccak256(&bytes);
    bytes.extend_from_slice(&checksum[..CHECKSUM_BYTES]);
    bytes
}

fn decode(bytes: &[u8]) -> Option<(Mark, u64)> {
    let (body, checksum) = bytes.split_at_checked(BODY_BYTES)?;
    if keccak256(body)[..CHECKSUM_BYTES] != *checksum {
        return None;
    }
    let rest = body.strip_prefix(MAGIC)?;
    let (count, rest) = take_u64(rest)?;
    let (clean, rest) = rest.split_first()?;
    let (boot, rest) = rest.split_first_chunk::<16>()?;
    let (time, rest) = take_u64(rest)?;
    let (sequence, rest) = take_u64(rest)?;
    let (synced, rest) = take_u64(rest)?;
    let (head, rest) = take_block(rest)?;
    let (base, rest) = take_block(rest)?;
    let (newest, _) = take_block(rest)?;
    let clean = *clean != 0;
    Some((Mark { clean, boot: *boot, time, sequence, synced, head, base, newest }, count))
}

fn take_u64(bytes: &[u8]) -> Option<(u64, &[u8])> {
    let (number, rest) = bytes.split_first_chunk()?;
    Some((u64::from_be_bytes(*number), rest))
}

fn take_block(bytes: &[u8]) -> Option<(BlockId, &[u8])> {
    let (number, rest) = take_u64(bytes)?;
    let (hash, rest) = rest.split_first_chunk::<32>()?;
    Some((BlockId::new(number, B256::from(*hash)), rest))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mark(n: u64) -> Mark {
        let block = |k| BlockId::new(n + k, B256::repeat_byte(n as u8 + k as u8));
        Mark {
            clean: n.is_multiple_of(2),
            boot: [n as u8; 16],
            time: n,
            sequence: 10 * n,
            synced: 9 * n,
            head: block(1),
            base: block(2),
            newest: block(3),
        }
    }

    #[test]
    fn the_last_mark_is_found_and_a_torn_one_leaves_the_one_before() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(MarkFile::read(folder.path()).unwrap(), FoundMark::Missing);
        let mut file = MarkFile::open(folder.path()).unwrap();
        assert_eq!(MarkFile::read(folder.path()).unwrap(), FoundMark::Damaged);
        for n in 1..=5 {
            file.write(&mark(n)).unwrap();
            assert_eq!(MarkFile::read(folder.path()).unwrap(), FoundMark::Mark(mark(n)));
        }
        drop(file);
        let mut file = MarkFile::open(folder.path()).unwrap();
        file.write(&mark(6)).unwrap();
        let path = folder.path().join(MARK_FILE);
        let whole = std::fs::read(&path).unwrap();
        for at in 0..BODY_BYTES + CHECKSUM_BYTES {
            let mut bytes = whole.clone();
            bytes[at] ^= 1;
            std::fs::write(&path, bytes).unwrap();
            assert_eq!(MarkFile::read(folder.path()).unwrap(), FoundMark::Mark(mark(5)), "{at}");
        }
    }
}
