//! History files: those of geth are imported, and those that are exported are geth's, entry by entry.

use crate::binary;
use serde_json::{Value, json};
use snap::read::FrameDecoder;
use std::{
    fs,
    io::Read,
    path::{Path, PathBuf},
    process::{Command, Output},
};
use tandem_testkit::geth::{is_installed, run};

/// Last block before the merge of the chain, and its last block.
const TERMINAL: u64 = 71;
const HEAD: u64 = 500;

fn chain() -> PathBuf {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tools/conformance/fixtures");
    fixtures.join("hivechain/cancun-577be37e0e")
}

fn tandem(arguments: &[&str], paths: &[&Path]) -> Output {
    Command::new(binary()).args(arguments).args(paths).output().unwrap()
}

/// Runs a command that has to succeed, and returns what it says.
fn says(output: Output) -> String {
    let text = String::from_utf8([output.stdout, output.stderr].concat()).unwrap();
    assert!(output.status.success(), "{text}");
    text
}

fn import(data: &Path, from: &Path) -> Output {
    let genesis = chain().join("genesis.json");
    tandem(&["import", "--datadir"], &[data, Path::new("--genesis"), &genesis, from])
}

fn export(data: &Path, format: &str, last: u64, to: &Path) -> Output {
    let last = last.to_string();
    let arguments = ["export-era", "--format", format, "--last", &last, "--datadir"];
    tandem(&arguments, &[data, to])
}

/// Returns the only history file of a directory.
fn file(folder: &Path) -> PathBuf {
    let paths = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files = paths.filter(|path| path.extension().is_some_and(|it| it != "txt"));
    let file = files.next().unwrap();
    assert_eq!(files.next(), None);
    file
}

/// Entry of a file: its offset, type, and content without compression.
type Entry = (u64, u16, Vec<u8>);

fn entries(file: &Path) -> Vec<Entry> {
    let (bytes, mut at, mut entries) = (fs::read(file).unwrap(), 0, Vec::new());
    while at < bytes.len() {
        let kind = u16::from_le_bytes(bytes[at..at + 2].try_into().unwrap());
        let length = u32::from_le_bytes(bytes[at + 2..at + 6].try_into().unwrap()) as usize;
        let content = &bytes[at + 8..at + 8 + length];
        let mut unpacked = Vec::new();
        match kind {
            3 | 4 | 5 | 10 => {
                FrameDecoder::new(content).read_to_end(&mut unpacked).unwrap();
            }
            _ => unpacked.extend(content),
        }
        entries.push((at as u64, kind, unpacked));
        at += 8 + length;
    }
    entries
}

/// Replaces the offsets of the index by the places of the entries, as compression changes them.
fn with_places(mut entries: Vec<Entry>) -> Vec<(u16, Vec<u8>)> {
    let offsets: Vec<u64> = entries.iter().map(|entry| entry.0).collect();
    let (at, kind, index) = entries.last_mut().unwrap();
    let tail = if *kind == 0x3266 { 1 } else { 2 };
    let words = index.len() / 8;
    for word in index.chunks_mut(8).take(words - tail).skip(1) {
        let offset = at.wrapping_add(u64::from_le_bytes((&*word).try_into().unwrap()));
        let place = offsets.binary_search(&offset).unwrap() as u64;
        word.copy_from_slice(&place.to_le_bytes());
    }
    entries.into_iter().map(|(_, kind, content)| (kind, content)).collect()
}

/// Writes the genesis with a blob schedule, which geth needs to read it.
fn with_blob_schedule(folder: &Path) -> PathBuf {
    let genesis = fs::read(chain().join("genesis.json")).unwrap();
    let mut genesis: Value = serde_json::from_slice(&genesis).unwrap();
    genesis["config"]["blobSchedule"] =
        json!({ "cancun": { "target": 3, "max": 6, "baseFeeUpdateFraction": 3_338_477 } });
    let path = folder.join("genesis.json");
    fs::write(&path, genesis.to_string()).unwrap();
    path
}

#[test]
fn history_files_are_those_of_geth() {
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let data = folder.join("data");
    says(import(&data, &chain().join("chain.rlp")));
    let kinds = [("era1", TERMINAL, "import"), ("ere", HEAD, "import-era")];
    for (format, last, _) in kinds {
        says(export(&data, format, last, &folder.join(format)));
    }
    let refused = export(&data, "era1", HEAD, &folder.join("refused"));
    let text = String::from_utf8(refused.stderr).unwrap();
    assert!(text.contains("block 72 is from after the merge"), "{text}");

    // Blocks come back from the files, by either name of the command.
    for (format, last, command) in kinds {
        let (data, genesis) = (folder.join(format!("from-{format}")), chain().join("genesis.json"));
        let paths = [&data, Path::new("--genesis"), &genesis, &folder.join(format)];
        let text = says(tandem(&[command, "--datadir"], &paths));
        assert!(text.contains(&format!("{last} blocks imported, 1 known")), "{text}");
        assert!(text.contains(&format!("head is block {last} ")), "{text}");
        says(tandem(&["verify", "--datadir"], &[&data]));
    }

    // A file with a fault is refused before any of its blocks is imported.
    let ere = file(&folder.join("ere"));
    let bad = folder.join("bad");
    fs::create_dir(&bad).unwrap();
    let mut bytes = fs::read(&ere).unwrap();
    let other_name = bad.join("unknown-00000-01234567-noproofs.ere");
    fs::write(&other_name, &bytes).unwrap();
    let said = |from: &Path| {
        let output = import(&folder.join("none"), from);
        assert!(!output.status.success());
        String::from_utf8(output.stderr).unwrap()
    };
    let text = said(&bad);
    assert!(
        text.contains("the file's name says 01234567") && text.contains("head is block 0 "),
        "{text}"
    );
    fs::write(bad.join("checksums.txt"), "0x00\n").unwrap();
    let text = said(&bad);
    assert!(text.contains("expected 0x00"), "{text}");
    let middle = 4096;
    bytes[middle] ^= 1;
    fs::write(folder.join("damaged.ere"), &bytes).unwrap();
    let text = said(&folder.join("damaged.ere"));
    assert!(text.contains("byte "), "{text}");

    if !is_installed() {
        return;
    }
    run(folder, "geth", "init", &[&with_blob_schedule(folder)]);
    run(folder, "geth", "import", &[&chain().join("chain.rlp")]);
    for (format, last, _) in kinds {
        let theirs = folder.join(format!("geth-{format}"));
        let (flag, last) = (format!("--era.format={format}"), last.to_string());
        let arguments = [flag.as_ref(), &*theirs, "0".as_ref(), last.as_ref()];
        run(folder, "geth", "export-history", &arguments);
        let (ours, theirs) = (file(&folder.join(format)), file(&theirs));
        assert_eq!(ours.file_name(), theirs.file_name());
        let [got, want] = [&ours, &theirs].map(|file| with_places(entries(file)));
        assert_eq!(got.len(), want.len(), "{format}");
        for (index, (got, want)) in got.iter().zip(&want).enumerate() {
            assert_eq!(got, want, "{format}: entry {index}");
        }
        let data = folder.join(format!("from-geth-{format}"));
        let text = says(import(&data, theirs.parent().unwrap()));
        assert!(text.contains(&format!("head is block {last} ")), "{text}");
    }
}
