//! Payload files, read one line ahead of the replay.
//!
//! A line is an object of the payload and its parameters, or a whole JSON-RPC request, as expb and
//! benchmarkoor write them. Requests other than newPayload are skipped: the replay makes its own
//! forkchoice updates. A folder of reth-bench has a file for each payload instead.

use anyhow::{Context, bail};
use bytes::Bytes;
use flate2::read::MultiGzDecoder;
use serde::Deserialize;
use serde::de::IgnoredAny;
use serde_json::value::RawValue;
use std::fs::File;
use std::io::{BufRead, BufReader, Read};
use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use tokio::sync::mpsc;

/// Names of a payload file in a corpus directory, in order of preference.
const NAMES: [&str; 2] = ["payloads.jsonl.gz", "payloads.jsonl"];

/// Name of the data directory in a corpus directory.
pub const DATADIR: &str = "datadir";

/// Names of reth-bench's files: a number lies between the two.
const RETH_BENCH: [&str; 2] = ["payload_block_", ".json"];

/// Parameters that reth-bench's files lack, with the values that it sends.
const NO_HASHES: &str = "[]";
const NO_ROOT: &str = "\"0x0000000000000000000000000000000000000000000000000000000000000000\"";

/// A payload ready to be sent.
#[derive(Debug)]
pub struct Entry {
    /// Height of the block.
    pub number: u64,
    /// Hash of the block, as the file has it.
    pub hash: String,
    /// Hash of its parent.
    pub parent_hash: String,
    /// Gas that the block uses.
    pub gas: u64,
    /// Number of its transactions.
    pub transactions: usize,
    /// The newPayload method.
    pub method: String,
    /// Version of that method.
    pub version: u8,
    /// The whole JSON-RPC request.
    pub body: Bytes,
}

/// A payload file, or a folder with a file for each payload.
#[derive(Debug, Clone)]
pub struct Corpus {
    /// The file, or the first one of the folder.
    path: PathBuf,
    /// Files of a payload each, in order. Empty if `path` has all payloads.
    files: Vec<PathBuf>,
}

impl Corpus {
    /// Opens the payload file at this path, or in this directory.
    ///
    /// # Errors
    /// Returns an error if there is none.
    pub fn open(path: &Path) -> anyhow::Result<Self> {
        if !path.is_dir() {
            File::open(path).with_context(|| format!("open {}", path.display()))?;
            return Ok(Self { path: path.into(), files: Vec::new() });
        }
        let mut candidates = NAMES.iter().map(|name| path.join(name));
        if let Some(path) = candidates.find(|path| path.is_file()) {
            return Ok(Self { path, files: Vec::new() });
        }
        let files = files_of_reth_bench(path)?;
        match files.first() {
            Some(first) => Ok(Self { path: first.clone(), files }),
            None => bail!(
                "{} has no {}, nor any {}",
                path.display(),
                NAMES.join(" or "),
                RETH_BENCH.join("N")
            ),
        }
    }

    /// Returns the path of the payload file.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Returns the genesis that the payloads build on: the first of `genesis.json.gz` and
    /// `genesis.json` beside the payload file.
    ///
    /// # Errors
    /// Returns an error if there is neither.
    pub fn genesis(&self) -> anyhow::Result<PathBuf> {
        let names = ["genesis.json.gz", "genesis.json"];
        let mut candidates = names.iter().map(|name| self.path.with_file_name(name));
        candidates
            .find(|path| path.is_file())
            .with_context(|| format!("no {} beside {}", names.join(" or "), self.path.display()))
    }

    /// Returns the data directory with the state that the payloads build on, if there is one: `datadir`
    /// beside the payload file, or what a link of that name leads to. A corpus on a state that is too
    /// large for a genesis file has one.
    pub fn datadir(&self) -> Option<PathBuf> {
        let datadir = self.path.with_file_name(DATADIR);
        tandem_storage_writer::has_database(&datadir).then_some(datadir)
    }

    /// Returns the number of payloads, if `corpus.json` beside the file gives it.
    pub fn len(&self) -> Option<u64> {
        #[derive(Deserialize)]
        struct Description {
            parameters: Parameters,
        }
        #[derive(Deserialize)]
        struct Parameters {
            blocks: u64,
        }
        let file = File::open(self.path.with_file_name("corpus.json")).ok()?;
        let description: Description = serde_json::from_reader(BufReader::new(file)).ok()?;
        Some(description.parameters.blocks)
    }

    /// Reads the payloads of these blocks on a separate thread, one line ahead, so that the whole
    /// file is never in memory. The channel ends after the last payload or the first error.
    pub fn read(&self, blocks: RangeInclusive<u64>) -> mpsc::Receiver<anyhow::Result<Entry>> {
        let (entries, receiver) = mpsc::channel(1);
        let Self { path, files } = self.clone();
        tokio::task::spawn_blocking(move || {
            let read = match files.is_empty() {
                true => read_lines(&path, &blocks, &entries),
                false => read_files(&files, &blocks, &entries),
            };
            if let Err(error) = read {
                let error = error.context(format!("read {}", path.display()));
                // The receiver is gone if the replay has ended.
                let _ = entries.blocking_send(Err(error));
            }
        });
        receiver
    }
}

/// Returns the files that reth-bench has written to a folder, in the order of their numbers.
fn files_of_reth_bench(folder: &Path) -> anyhow::Result<Vec<PathBuf>> {
    let entries = folder.read_dir().with_context(|| format!("list {}", folder.display()))?;
    let number = |path: &Path| -> Option<u64> {
        let name = path.file_name()?.to_str()?;
        name.strip_prefix(RETH_BENCH[0])?.strip_suffix(RETH_BENCH[1])?.parse().ok()
    };
    let mut files: Vec<(u64, PathBuf)> = entries
        .filter_map(|entry| Some(entry.ok()?.path()))
        .filter_map(|path| Some((number(&path)?, path)))
        .collect();
    files.sort_unstable();
    Ok(files.into_iter().map(|(_, path)| path).collect())
}

fn read_files(
    files: &[PathBuf],
    blocks: &RangeInclusive<u64>,
    entries: &mpsc::Sender<anyhow::Result<Entry>>,
) -> anyhow::Result<()> {
    for path in files {
        let parsed = std::fs::read_to_string(path).context("read").and_then(|text| envelope(&text));
        let entry = parsed.with_context(|| path.display().to_string())?;
        if blocks.contains(&entry.number) && entries.blocking_send(Ok(entry)).is_err() {
            break;
        }
    }
    Ok(())
}

fn read_lines(
    path: &Path,
    blocks: &RangeInclusive<u64>,
    entries: &mpsc::Sender<anyhow::Result<Entry>>,
) -> anyhow::Result<()> {
    let file = File::open(path)?;
    let reader: Box<dyn Read> = match path.extension().is_some_and(|extension| extension == "gz") {
        true => Box::new(MultiGzDecoder::new(file)),
        false => Box::new(file),
    };
    let mut reader = BufReader::with_capacity(1 << 20, reader);
    let mut line = String::new();
    for number in 1.. {
        line.clear();
        if reader.read_line(&mut line).with_context(|| format!("line {number}"))? == 0 {
            break;
        }
        if line.trim().is_empty() {
            continue;
        }
        let entry = parse(&line).with_context(|| format!("line {number}"))?;
        let Some(entry) = entry else { continue };
        if entry.number > *blocks.end() {
            break;
        }
        if blocks.contains(&entry.number) && entries.blocking_send(Ok(entry)).is_err() {
            break;
        }
    }
    Ok(())
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Line<'a> {
    method: String,
    #[serde(borrow)]
    execution_payload: &'a RawValue,
    #[serde(borrow)]
    versioned_hashes: Option<&'a RawValue>,
    #[serde(borrow)]
    parent_beacon_block_root: Option<&'a RawValue>,
    #[serde(borrow)]
    execution_requests: Option<&'a RawValue>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct PayloadHead {
    parent_hash: String,
    block_hash: String,
    block_number: String,
    gas_used: String,
    transactions: Vec<IgnoredAny>,
}

/// A JSON-RPC request; other members may be there.
#[derive(Deserialize)]
struct Request<'a> {
    method: String,
    #[serde(borrow)]
    params: Vec<&'a RawValue>,
}

/// A line in either form. A member that the form lacks is none.
#[derive(Deserialize)]
struct Form {
    params: Option<IgnoredAny>,
}

/// Turns a line into a request without changing the payload's text. Returns none for a request
/// other than newPayload.
///
/// # Errors
/// Returns an error if the line has neither form.
pub fn parse(line: &str) -> anyhow::Result<Option<Entry>> {
    let form: Form = serde_json::from_str(line)?;
    if form.params.is_none() {
        return entry(serde_json::from_str(line)?).map(Some);
    }
    let Request { method, params } = serde_json::from_str(line)?;
    if !method.starts_with("engine_newPayload") {
        return Ok(None);
    }
    let mut params = params.into_iter();
    let execution_payload = params.next().context("newPayload without a payload")?;
    let [versioned_hashes, parent_beacon_block_root, execution_requests] =
        [params.next(), params.next(), params.next()];
    entry(Line {
        method,
        execution_payload,
        versioned_hashes,
        parent_beacon_block_root,
        execution_requests,
    })
    .map(Some)
}

/// A file of reth-bench: the answer of engine_getPayload, other members included.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Envelope<'a> {
    #[serde(borrow)]
    execution_payload: &'a RawValue,
    #[serde(borrow)]
    execution_requests: Option<&'a RawValue>,
}

/// Members of a payload that tell its version.
#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Versions {
    withdrawals: Option<IgnoredAny>,
    blob_gas_used: Option<IgnoredAny>,
    block_access_list: Option<IgnoredAny>,
}

/// Turns a file of reth-bench into a request with the parameters that reth-bench sends: no blobs,
/// and a parent beacon block root of zeros.
fn envelope(text: &str) -> anyhow::Result<Entry> {
    let Envelope { execution_payload, execution_requests } = serde_json::from_str(text)?;
    let has: Versions =
        serde_json::from_str(execution_payload.get()).context("executionPayload")?;
    let version = match has {
        Versions { block_access_list: Some(_), .. } => 5,
        _ if execution_requests.is_some() => 4,
        Versions { blob_gas_used: Some(_), .. } => 3,
        Versions { withdrawals: Some(_), .. } => 2,
        _ => 1,
    };
    entry(Line {
        method: format!("engine_newPayloadV{version}"),
        execution_payload,
        versioned_hashes: Some(serde_json::from_str(NO_HASHES)?),
        parent_beacon_block_root: Some(serde_json::from_str(NO_ROOT)?),
        execution_requests,
    })
}

fn entry(line: Line<'_>) -> anyhow::Result<Entry> {
    let head: PayloadHead =
        serde_json::from_str(line.execution_payload.get()).context("executionPayload")?;
    let version = match line.method.strip_prefix("engine_newPayloadV").map(str::parse::<u8>) {
        Some(Ok(version @ 1..)) => version,
        _ => bail!("method {} is not an engine_newPayload", line.method),
    };
    let number = quantity(&head.block_number).context("blockNumber")?;
    let mut params = vec![Some(line.execution_payload)];
    if version >= 3 {
        params.extend([line.versioned_hashes, line.parent_beacon_block_root]);
    }
    if version >= 4 {
        params.push(line.execution_requests);
    }
    let params: Vec<&str> =
        params.into_iter().map(|param| param.map_or("null", RawValue::get)).collect();
    let body = format!(
        r#"{{"jsonrpc":"2.0","id":{number},"method":"{}","params":[{}]}}"#,
        line.method,
        params.join(",")
    );
    Ok(Entry {
        number,
        hash: head.block_hash,
        parent_hash: head.parent_hash,
        gas: quantity(&head.gas_used).context("gasUsed")?,
        transactions: head.transactions.len(),
        method: line.method,
        version,
        body: body.into(),
    })
}

fn quantity(text: &str) -> anyhow::Result<u64> {
    let digits = text.strip_prefix("0x").context("no 0x before the number")?;
    Ok(u64::from_str_radix(digits, 16)?)
}

#[cfg(test)]
pub mod tests {
    use super::*;
    use std::io::Write;

    /// Returns a line of a payload file; block numbers serve as hashes too.
    pub fn line(version: u8, number: u64) -> String {
        format!(
            r#"{{"method":"engine_newPayloadV{version}","executionPayload":{{"parentHash":"0x{:064x}","blockHash":"0x{number:064x}","blockNumber":"{number:#x}","gasUsed":"0xf4240","transactions":["0x01","0x02"]}},"versionedHashes":["0xaa"],"parentBeaconBlockRoot":"0xbb","executionRequests":["0x00cc"]}}"#,
            number - 1
        )
    }

    /// Writes a payload file with these blocks.
    pub fn file(directory: &Path, name: &str, blocks: RangeInclusive<u64>) -> PathBuf {
        let text: String = blocks.map(|number| line(4, number) + "\n").collect();
        let path = directory.join(name);
        let mut file = File::create(&path).unwrap();
        if name.ends_with(".gz") {
            let mut encoder = flate2::write::GzEncoder::new(file, flate2::Compression::default());
            encoder.write_all(text.as_bytes()).unwrap();
            encoder.finish().unwrap();
        } else {
            file.write_all(text.as_bytes()).unwrap();
        }
        path
    }

    async fn numbers(corpus: &Corpus, blocks: RangeInclusive<u64>) -> Vec<u64> {
        let mut entries = corpus.read(blocks);
        let mut numbers = Vec::new();
        while let Some(entry) = entries.recv().await {
            numbers.push(entry.unwrap().number);
        }
        numbers
    }

    #[test]
    fn a_request_has_the_parameters_of_its_version() {
        for (version, tail) in [
            (1, r#"]}]}"#),
            (2, r#"]}]}"#),
            (3, r#"]},["0xaa"],"0xbb"]}"#),
            (4, r#"]},["0xaa"],"0xbb",["0x00cc"]]}"#),
        ] {
            let entry = parse(&line(version, 17)).unwrap().unwrap();
            let body = std::str::from_utf8(&entry.body).unwrap();
            assert!(body.ends_with(tail), "{body}");
            assert!(body.starts_with(&format!(
                r#"{{"jsonrpc":"2.0","id":17,"method":"engine_newPayloadV{version}","params":[{{"#
            )));
            assert_eq!((entry.number, entry.gas, entry.transactions), (17, 1_000_000, 2));
            assert_eq!(entry.version, version);
        }
    }

    #[tokio::test]
    async fn a_folder_of_reth_bench_is_read_in_the_order_of_its_numbers() {
        let directory = tempfile::tempdir().unwrap();
        assert!(Corpus::open(directory.path()).is_err());
        for number in [2, 10, 9] {
            let own: serde_json::Value = serde_json::from_str(&line(4, number)).unwrap();
            let mut payload = own["executionPayload"].clone();
            payload["blobGasUsed"] = "0x0".into();
            let mut envelope =
                serde_json::json!({"executionPayload": payload, "blockValue": "0x1"});
            if number != 2 {
                envelope["executionRequests"] = own["executionRequests"].clone();
            }
            let name = format!("payload_block_{number}.json");
            std::fs::write(directory.path().join(name), envelope.to_string()).unwrap();
        }
        std::fs::write(directory.path().join("payload_block_x.json"), "no number").unwrap();
        let corpus = Corpus::open(directory.path()).unwrap();
        assert_eq!(numbers(&corpus, 0..=u64::MAX).await, [2, 9, 10]);
        assert_eq!(numbers(&corpus, 3..=9).await, [9]);
        let mut entries = corpus.read(0..=u64::MAX);
        let bodies = [entries.recv().await, entries.recv().await].map(|entry| {
            let entry = entry.unwrap().unwrap();
            (entry.version, String::from_utf8(entry.body.to_vec()).unwrap())
        });
        let root = format!("\"0x{:064x}\"", 0);
        assert_eq!(bodies[0].0, 3);
        assert!(bodies[0].1.ends_with(&format!("}},[],{root}]}}")), "{}", bodies[0].1);
        assert_eq!(bodies[1].0, 4);
        assert!(bodies[1].1.ends_with(&format!("}},[],{root},[\"0x00cc\"]]}}")), "{}", bodies[1].1);
        std::fs::write(directory.path().join("payload_block_9.json"), "{}").unwrap();
        let mut entries = corpus.read(3..=u64::MAX);
        let error = format!("{:#}", entries.recv().await.unwrap().unwrap_err());
        assert!(error.contains("payload_block_9.json"), "{error}");
    }

    #[test]
    fn whole_requests_are_the_same_payloads() {
        for version in [1, 3, 4] {
            let own = parse(&line(version, 17)).unwrap().unwrap();
            let request = std::str::from_utf8(&own.body).unwrap();
            // expb adds a member of its own.
            let with_gas = request.replacen('{', "{\"gasUsed\":1000000,", 1);
            for text in [request, with_gas.as_str()] {
                let entry = parse(text).unwrap().unwrap();
                assert_eq!((entry.body, entry.hash), (own.body.clone(), own.hash.clone()));
            }
        }
        let update = r#"{"id":1,"method":"engine_forkchoiceUpdatedV3","params":[{},null]}"#;
        assert!(parse(update).unwrap().is_none());
        let empty = r#"{"id":1,"method":"engine_newPayloadV3","params":[]}"#;
        assert!(parse(empty).is_err());
    }

    #[test]
    fn wrong_lines_are_refused() {
        let good = line(4, 17);
        for bad in [
            "{}".to_owned(),
            "1".to_owned(),
            good.replace("engine_newPayloadV4", "engine_getPayloadV4"),
            good.replace("engine_newPayloadV4", "engine_newPayloadV0"),
            good.replace("\"0x11\"", "\"17\""),
            good.replace("\"0x11\"", "17"),
            good[..good.len() - 1].to_owned(),
        ] {
            assert!(parse(&bad).is_err(), "{bad}");
        }
    }

    #[tokio::test]
    async fn plain_and_compressed_files_and_directories_read_alike() {
        let directory = tempfile::tempdir().unwrap();
        assert!(Corpus::open(directory.path()).is_err());
        for name in NAMES {
            let path = file(directory.path(), name, 1..=5);
            let corpus = Corpus::open(&path).unwrap();
            assert_eq!(numbers(&corpus, 0..=u64::MAX).await, [1, 2, 3, 4, 5]);
            assert_eq!(numbers(&corpus, 2..=3).await, [2, 3]);
            assert_eq!(corpus.len(), None);
        }
        let corpus = Corpus::open(directory.path()).unwrap();
        assert_eq!(corpus.path(), directory.path().join("payloads.jsonl.gz"));
        std::fs::write(directory.path().join("corpus.json"), r#"{"parameters":{"blocks":5}}"#)
            .unwrap();
        assert_eq!(corpus.len(), Some(5));
    }

    #[tokio::test]
    async fn a_broken_line_is_named_after_the_good_ones() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("payloads.jsonl");
        std::fs::write(&path, format!("{}\n\nbroken\n", line(4, 1))).unwrap();
        let mut entries = Corpus::open(&path).unwrap().read(0..=u64::MAX);
        assert!(entries.recv().await.unwrap().is_ok());
        let error = format!("{:#}", entries.recv().await.unwrap().unwrap_err());
        assert!(error.contains("payloads.jsonl: line 3"), "{error}");
        assert!(entries.recv().await.is_none());
    }
}
