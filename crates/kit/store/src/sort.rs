//! Sorting of more records than fit into memory: full buffers are sorted and written to files, which
//! are merged in the end.

use crate::{Error, Result};
use std::{
    cmp::Reverse,
    collections::BinaryHeap,
    fs::{File, OpenOptions, remove_file},
    io::{self, BufReader, BufWriter, ErrorKind, Read, Seek, Write},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

/// Bytes of the buffer through which a file is read or written.
const FILE_BUFFER_BYTES: usize = 64 << 10;

/// Number of the next file of this process.
static NEXT_FILE: AtomicU64 = AtomicU64::new(0);

/// Sorter of records by their keys. It holds a bounded number of bytes; what is beyond goes to files
/// that have no name, so nothing is left of them after the process.
///
/// A key has at most 65,535 bytes, and so has a value.
#[derive(Debug)]
pub struct Sorter {
    directory: PathBuf,
    bytes_max: usize,
    /// Keys and values one after the other.
    bytes: Vec<u8>,
    records: Vec<Record>,
    files: Vec<File>,
}

/// Place of a record in the buffer.
#[derive(Clone, Copy, Debug)]
struct Record {
    /// First eight bytes of the key, which decide most comparisons.
    prefix: u64,
    at: u32,
    key_len: u16,
    value_len: u16,
}

impl Record {
    fn key(self, bytes: &[u8]) -> &[u8] {
        &bytes[self.at as usize..][..usize::from(self.key_len)]
    }

    fn value(self, bytes: &[u8]) -> &[u8] {
        &bytes[self.at as usize + usize::from(self.key_len)..][..usize::from(self.value_len)]
    }
}

impl Sorter {
    /// Creates a sorter that holds about `bytes_max` bytes (at most 2 GiB), and writes to files in
    /// `directory`.
    #[must_use]
    pub fn new(directory: &Path, bytes_max: usize) -> Self {
        Self {
            directory: directory.to_owned(),
            bytes_max: bytes_max.min(1 << 31),
            bytes: Vec::new(),
            records: Vec::new(),
            files: Vec::new(),
        }
    }

    /// Adds a record.
    ///
    /// # Errors
    /// [`Error::Io`] if a file cannot be written, or the key or value is too long.
    pub fn push(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let (Ok(key_len), Ok(value_len)) = (u16::try_from(key.len()), u16::try_from(value.len()))
        else {
            return Err(self.failed("sort", ErrorKind::FileTooLarge.into()));
        };
        let held = self.bytes.len() + self.records.len() * size_of::<Record>();
        if held + key.len() + value.len() > self.bytes_max && !self.records.is_empty() {
            self.spill()?;
        }
        let mut prefix = [0; 8];
        let len = key.len().min(8);
        prefix[..len].copy_from_slice(&key[..len]);
        let prefix = u64::from_be_bytes(prefix);
        let at = self.bytes.len() as u32;
        self.records.push(Record { prefix, at, key_len, value_len });
        self.bytes.extend_from_slice(key);
        self.bytes.extend_from_slice(value);
        Ok(())
    }

    /// Passes all records to `sink` in the order of their keys, and is empty then. Records with the
    /// same key come in any order.
    ///
    /// # Errors
    /// The first error of the sink; [`Error::Io`] if a file cannot be read.
    pub fn drain<E: From<Error>>(
        &mut self,
        mut sink: impl FnMut(&[u8], &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        self.sort();
        let drained = match self.files.is_empty() {
            true => self
                .records
                .iter()
                .try_for_each(|record| sink(record.key(&self.bytes), record.value(&self.bytes))),
            false => self.merge(sink),
        };
        self.bytes.clear();
        self.records.clear();
        self.files.clear();
        drained
    }

    fn sort(&mut self) {
        let Self { bytes, records, .. } = self;
        records.sort_unstable_by(|a, b| {
            a.prefix.cmp(&b.prefix).then_with(|| a.key(bytes).cmp(b.key(bytes)))
        });
    }

    /// Writes the buffer to a file.
    fn spill(&mut self) -> Result<()> {
        self.sort();
        let written = self.write_file().map_err(|source| self.failed("write to", source))?;
        self.files.push(written);
        self.bytes.clear();
        self.records.clear();
        Ok(())
    }

    fn write_file(&self) -> io::Result<File> {
        let number = NEXT_FILE.fetch_add(1, Relaxed);
        let path = self.directory.join(format!("sort-{}-{number}", std::process::id()));
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&path)?;
        // The open file lives on without its name.
        remove_file(&path)?;
        let mut writer = BufWriter::with_capacity(FILE_BUFFER_BYTES, file);
        for record in &self.records {
            writer.write_all(&record.key_len.to_le_bytes())?;
            writer.write_all(&record.value_len.to_le_bytes())?;
            writer.write_all(record.key(&self.bytes))?;
            writer.write_all(record.value(&self.bytes))?;
        }
        let mut file = writer.into_inner().map_err(io::IntoInnerError::into_error)?;
        file.rewind()?;
        Ok(file)
    }

    /// Merges the files and the sorted buffer.
    fn merge<E: From<Error>>(
        &mut self,
        mut sink: impl FnMut(&[u8], &[u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let failed = |source| {
            let path = self.directory.clone();
            Error::Io { context: "read a sorted file in", path, source }
        };
        let mut heads = BinaryHeap::with_capacity(self.files.len());
        for file in self.files.drain(..) {
            let mut reader = BufReader::with_capacity(FILE_BUFFER_BYTES, file);
            if let Some((key, value)) = read_record(&mut reader).map_err(failed)? {
                heads.push(Reverse(Head { key, value, reader }));
            }
        }
        let mut buffered = self.records.iter().copied().peekable();
        while let Some(mut head) = heads.peek_mut() {
            while let Some(record) =
                buffered.next_if(|record| record.key(&self.bytes) <= head.0.key.as_slice())
            {
                sink(record.key(&self.bytes), record.value(&self.bytes))?;
            }
            let Head { key, value, reader } = &mut head.0;
            sink(key, value)?;
            match read_record(reader).map_err(failed)? {
                Some(next) => (*key, *value) = next,
                None => drop(std::collections::binary_heap::PeekMut::pop(head)),
            }
        }
        buffered.try_for_each(|record| sink(record.key(&self.bytes), record.value(&self.bytes)))
    }

    fn failed(&self, context: &'static str, source: io::Error) -> Error {
        Error::Io { context, path: self.directory.clone(), source }
    }
}

/// Next record of a sorted file, and the rest of the file.
struct Head {
    key: Vec<u8>,
    value: Vec<u8>,
    reader: BufReader<File>,
}

impl PartialEq for Head {
    fn eq(&self, other: &Self) -> bool {
        self.key == other.key
    }
}

impl Eq for Head {}

impl PartialOrd for Head {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Head {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.key.cmp(&other.key)
    }
}

/// Reads the next record, `None` at the end of the file.
fn read_record(reader: &mut impl Read) -> io::Result<Option<(Vec<u8>, Vec<u8>)>> {
    let mut lens = [0; 4];
    match reader.read_exact(&mut lens[..1]) {
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => return Ok(None),
        read => read?,
    }
    reader.read_exact(&mut lens[1..])?;
    let [a, b, c, d] = lens;
    let mut key = vec![0; usize::from(u16::from_le_bytes([a, b]))];
    let mut value = vec![0; usize::from(u16::from_le_bytes([c, d]))];
    reader.read_exact(&mut key)?;
    reader.read_exact(&mut value)?;
    Ok(Some((key, value)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn drained(sorter: &mut Sorter) -> Vec<(Vec<u8>, Vec<u8>)> {
        let mut records = Vec::new();
        let sink = |key: &[u8], value: &[u8]| {
            records.push((key.to_vec(), value.to_vec()));
            Ok::<_, Error>(())
        };
        sorter.drain(sink).unwrap();
        records
    }

    proptest! {
        /// Keys of few bytes are prefixes of each other, and longer than those that decide first.
        #[test]
        fn records_come_in_order_whether_they_fit_or_not(
            keys in prop::collection::btree_set(prop::collection::vec(0u8..3, 0..12), 0..200),
            order in any::<u64>(),
            bytes_max in prop_oneof![Just(0usize), Just(100), Just(2000), Just(1 << 20)],
        ) {
            let directory = tempfile::tempdir().unwrap();
            let mut sorter = Sorter::new(directory.path(), bytes_max);
            let expected: Vec<_> =
                keys.iter().map(|key| (key.clone(), key.iter().rev().copied().collect())).collect();
            let mut shuffled: Vec<&(Vec<u8>, Vec<u8>)> = expected.iter().collect();
            shuffled.sort_by_key(|(key, _)| key.iter().fold(order, |n, byte| {
                (n ^ u64::from(*byte)).wrapping_mul(0x9e37_79b9_7f4a_7c15).rotate_left(23)
            }));
            for (key, value) in shuffled {
                sorter.push(key, value).unwrap();
            }
            prop_assert_eq!(drained(&mut sorter), expected);
            prop_assert!(drained(&mut sorter).is_empty());
            prop_assert_eq!(directory.path().read_dir().unwrap().count(), 0);
        }
    }

    #[test]
    fn a_sorter_holds_no_more_than_it_may() {
        let directory = tempfile::tempdir().unwrap();
        let mut sorter = Sorter::new(directory.path(), 10_000);
        for n in 0..10_000u32 {
            sorter.push(&n.wrapping_mul(0x9e37_79b9).to_be_bytes(), &[7; 20]).unwrap();
            let held = sorter.bytes.len() + sorter.records.len() * size_of::<Record>();
            assert!(held <= 10_000, "{held}");
        }
        assert!(sorter.files.len() > 10);
        assert_eq!(drained(&mut sorter).len(), 10_000);
    }

    #[test]
    fn an_error_of_the_sink_ends_the_drain_and_a_lost_directory_is_named() {
        let directory = tempfile::tempdir().unwrap();
        let gone = directory.path().join("gone");
        let mut sorter = Sorter::new(&gone, 0);
        sorter.push(b"a", b"").unwrap();
        let error = sorter.push(b"b", b"").unwrap_err().to_string();
        assert!(error.contains("gone"), "{error}");
        let mut calls = 0;
        let failing = |_: &[u8], _: &[u8]| {
            calls += 1;
            Err(Error::Database("enough".to_owned()))
        };
        assert!(sorter.drain(failing).is_err());
        assert_eq!(calls, 1);
        assert!(sorter.push(&[0; 1 << 16], b"").is_err());
    }
}
