//! Recorded payloads, as `corpora/README.md` describes them.

use alloy_primitives::B256;
use flate2::read::MultiGzDecoder;
use serde::Deserialize;
use serde_json::{Value, json};
use std::{
    fs::File,
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
};

/// Returns the root of the repository.
pub fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// A genesis and the payloads of a chain on it.
#[derive(Clone, Debug)]
pub struct Corpus {
    folder: PathBuf,
    /// Number of blocks.
    pub blocks: usize,
    /// Hash of the genesis block.
    pub genesis_hash: B256,
    /// Hash of the last block.
    pub head_hash: B256,
    /// State root of the last block.
    pub head_state_root: B256,
}

/// One newPayload call.
#[derive(Clone, Debug)]
pub struct Recorded {
    /// The method's name.
    pub method: String,
    /// The method's parameters.
    pub params: Value,
    /// Hash of the block.
    pub hash: B256,
}

#[derive(Deserialize)]
struct Description {
    parameters: Parameters,
    genesis_hash: B256,
    head: Head,
}

#[derive(Deserialize)]
struct Parameters {
    blocks: usize,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Head {
    hash: B256,
    state_root: B256,
}

impl Corpus {
    /// Opens the corpus in a folder. Returns `None` if there is no such folder.
    pub fn open(folder: PathBuf) -> Option<Self> {
        let file = File::open(folder.join("corpus.json")).ok()?;
        let description: Description = serde_json::from_reader(BufReader::new(file)).unwrap();
        Some(Self {
            folder,
            blocks: description.parameters.blocks,
            genesis_hash: description.genesis_hash,
            head_hash: description.head.hash,
            head_state_root: description.head.state_root,
        })
    }

    /// Opens the corpus in the repository.
    pub fn demo() -> Self {
        Self::open(repository().join("corpora/demo")).expect("the demo corpus")
    }

    /// Opens the corpus of Amsterdam in the repository.
    pub fn amsterdam() -> Self {
        Self::open(repository().join("corpora/amsterdam")).expect("the corpus of Amsterdam")
    }

    /// Returns the path of the genesis file.
    pub fn genesis(&self) -> PathBuf {
        self.folder.join("genesis.json.gz")
    }

    /// Returns the payloads, read lazily.
    pub fn payloads(&self) -> impl Iterator<Item = Recorded> + use<> {
        let file = File::open(self.folder.join("payloads.jsonl.gz")).expect("the payloads");
        BufReader::new(MultiGzDecoder::new(file)).lines().map(|line| {
            let mut line: Value = serde_json::from_str(&line.unwrap()).unwrap();
            let method = line["method"].as_str().expect("a method").to_owned();
            let hash = serde_json::from_value(line["executionPayload"]["blockHash"].clone());
            let params = json!([
                line["executionPayload"].take(),
                line["versionedHashes"].take(),
                line["parentBeaconBlockRoot"].take(),
                line["executionRequests"].take(),
            ]);
            Recorded { method, params, hash: hash.expect("a block hash") }
        })
    }
}
