//! Manifest of a snapshot: what it is of, and the pieces of its files.

use crate::is_database_file;
use anyhow::{Context, bail, ensure};
use serde::{Deserialize, Serialize};
use std::collections::HashSet;
use tandem_primitives::{B256, BlockNumber};
use tandem_storage_writer::SCHEMA_VERSION;

/// Version of the format that this Tandem writes and reads.
pub const FORMAT: u32 = 1;

/// Bytes of a chunk before compression, at most; every chunk but the last one of a file has as many.
pub const CHUNK_BYTES: u64 = 32 << 20;

/// Bytes of a manifest, at most. It takes about 90 for each chunk, so this is enough for some 20 TiB.
pub const MANIFEST_BYTES_MAX: u64 = 64 << 20;

/// Files of a snapshot, at most.
const FILES_MAX: usize = 1 << 20;

/// Block with its state root.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Block {
    /// Height.
    pub number: BlockNumber,
    /// Hash of the header.
    pub hash: B256,
    /// State root in the header.
    pub state_root: B256,
}

/// Database that a snapshot is of.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Subject {
    /// Version of the tables and records; an older Tandem does not open them.
    pub schema_version: u32,
    /// Chain id (EIP-155).
    pub chain_id: u64,
    /// Hash of the genesis block.
    pub genesis: B256,
    /// Head of the chain.
    pub head: Block,
    /// Block whose flat state and tries the tables hold. The blocks from there to the head are pending.
    pub base: Block,
}

/// Part of a file.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Chunk {
    /// BLAKE3 hash of the bytes, which names the chunk.
    pub hash: B256,
    /// Number of bytes before compression.
    pub bytes: u64,
}

/// File of the database.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FileEntry {
    /// Name in the folder of the database; see [`is_database_file`].
    pub name: String,
    /// Number of bytes.
    pub bytes: u64,
    /// The file's parts in order: each of [`CHUNK_BYTES`], except the last one.
    pub chunks: Vec<Chunk>,
}

/// Snapshot in a repository.
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Version of the format, [`FORMAT`].
    pub format: u32,
    /// Time at which the checkpoint was made, in seconds since 1970.
    pub created: u64,
    /// The database.
    pub subject: Subject,
    /// Bytes of all chunks as they are stored, those that other snapshots share included.
    pub stored_bytes: u64,
    /// The files, by name.
    pub files: Vec<FileEntry>,
}

/// The one field that all versions of the format have.
#[derive(Deserialize)]
struct AnyVersion {
    format: u32,
}

impl Manifest {
    /// Reads a manifest and checks that a database can be made of it: names, sizes and versions.
    ///
    /// # Errors
    /// When it is no manifest, is of a later version, or contradicts itself. The error names the file.
    pub fn parse(text: &[u8]) -> anyhow::Result<Self> {
        let AnyVersion { format } = serde_json::from_slice(text).context("not a manifest")?;
        ensure!(format == FORMAT, "format version {format}; this Tandem reads version {FORMAT}");
        let manifest: Self = serde_json::from_slice(text).context("not a manifest")?;
        manifest.check()?;
        Ok(manifest)
    }

    fn check(&self) -> anyhow::Result<()> {
        let schema = self.subject.schema_version;
        ensure!(
            schema <= SCHEMA_VERSION,
            "schema version {schema}; this Tandem opens databases up to version {SCHEMA_VERSION}"
        );
        let count = self.files.len();
        ensure!(count <= FILES_MAX, "{count} files; expected at most {FILES_MAX}");
        let mut names = HashSet::new();
        let mut total = 0u64;
        for file in &self.files {
            let name = &file.name;
            ensure!(is_database_file(name), "{name:?} is not the name of a database's file");
            ensure!(names.insert(name), "{name} is listed twice");
            file.check().with_context(|| name.clone())?;
            let Some(sum) = total.checked_add(file.bytes) else { bail!("files beyond 2^64 bytes") };
            total = sum;
        }
        ensure!(names.contains(&"CURRENT".to_owned()), "the file CURRENT is missing");
        Ok(())
    }

    /// Returns the bytes of all files.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.files.iter().map(|file| file.bytes).sum()
    }

    /// Returns the name of the snapshot: it sorts by height, then by time.
    #[must_use]
    pub fn name(&self) -> String {
        let head = &self.subject.head;
        let digits = const_hex::encode(&head.hash[..4]);
        format!("{:010}-{digits}-{}", head.number, self.created)
    }
}

impl FileEntry {
    fn check(&self) -> anyhow::Result<()> {
        let expected = self.bytes.div_ceil(CHUNK_BYTES);
        let count = self.chunks.len() as u64;
        ensure!(count == expected, "{count} chunks for {} bytes; expected {expected}", self.bytes);
        let mut left = self.bytes;
        for chunk in &self.chunks {
            let want = left.min(CHUNK_BYTES);
            ensure!(chunk.bytes == want, "a chunk of {} bytes; expected {want}", chunk.bytes);
            left -= want;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn block(number: u64) -> Block {
        Block { number, hash: B256::repeat_byte(7), state_root: B256::repeat_byte(8) }
    }

    fn manifest() -> Manifest {
        let chunk = |bytes| Chunk { hash: B256::repeat_byte(1), bytes };
        let file = |name: &str, sizes: &[u64]| FileEntry {
            name: name.to_owned(),
            bytes: sizes.iter().sum(),
            chunks: sizes.iter().map(|bytes| chunk(*bytes)).collect(),
        };
        Manifest {
            format: FORMAT,
            created: 1_700_000_000,
            subject: Subject {
                schema_version: SCHEMA_VERSION,
                chain_id: 1,
                genesis: B256::ZERO,
                head: block(20),
                base: block(4),
            },
            stored_bytes: 10,
            files: vec![file("000007.sst", &[CHUNK_BYTES, 5]), file("CURRENT", &[16])],
        }
    }

    #[test]
    fn a_manifest_survives_and_is_named_by_its_head() {
        let manifest = manifest();
        let text = serde_json::to_vec(&manifest).unwrap();
        assert_eq!(Manifest::parse(&text).unwrap(), manifest);
        assert_eq!(manifest.name(), "0000000020-07070707-1700000000");
        assert_eq!(manifest.bytes(), CHUNK_BYTES + 21);
    }

    #[test]
    fn a_hostile_manifest_is_refused_with_the_reason() {
        let refused = |change: &dyn Fn(&mut Value), reason: &str| {
            let mut value = serde_json::to_value(manifest()).unwrap();
            change(&mut value);
            let error = Manifest::parse(value.to_string().as_bytes()).unwrap_err();
            let text = format!("{error:#}");
            assert!(text.contains(reason), "{text}; expected {reason}");
        };
        refused(&|it| it["format"] = 2.into(), "format version 2; this Tandem reads version 1");
        refused(&|it| it["subject"]["schema_version"] = 99.into(), "schema version 99");
        refused(&|it| it["files"][0]["name"] = "../../x.sst".into(), "\"../../x.sst\" is not");
        refused(&|it| it["files"][0]["name"] = "/etc/passwd".into(), "\"/etc/passwd\" is not");
        refused(&|it| it["files"][0]["name"] = "CURRENT".into(), "CURRENT is listed twice");
        refused(&|it| it["files"][1]["name"] = "000009.sst".into(), "CURRENT is missing");
        refused(&|it| it["files"][0]["bytes"] = u64::MAX.into(), "2 chunks for");
        refused(&|it| it["files"][0]["chunks"][0]["bytes"] = u64::MAX.into(), "a chunk of");
        refused(&|it| it["files"][0]["chunks"][1]["bytes"] = 6.into(), "expected 5");
        refused(&|it| it["files"][0]["chunks"] = json!([]), "0 chunks for");
        refused(&|it| it["files"][0]["chunks"][0]["hash"] = "0x01".into(), "not a manifest");
        refused(&|it| it["surprise"] = 1.into(), "not a manifest");
        refused(&|it| *it = json!([]), "not a manifest");
    }
}
