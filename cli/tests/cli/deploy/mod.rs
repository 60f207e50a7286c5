//! Tests `docker-compose.yml`, `deploy/` and `helm/` against the binary that they are for.
mod compose;
mod helm;
mod image;
mod metrics;
mod services;
mod stack;

use crate::binary;
use serde_json::Value;
use std::{
    fs,
    io::{Read, Write},
    net::TcpStream,
    path::{Path, PathBuf},
    process::{Command, Output},
};
use tandem_cluster_tests::repository;

/// Returns a command of the binary.
fn tandem() -> Command {
    Command::new(binary())
}

/// Returns the contents of a file of the repository.
fn text(path: impl AsRef<Path>) -> String {
    let path = repository().join(path);
    fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// Returns a YAML file of the repository with its anchors and merges resolved.
fn yaml(path: &str) -> Value {
    serde_saphyr::from_str(&text(path)).unwrap_or_else(|error| panic!("{path}: {error}"))
}

/// Returns the files in a folder of the repository.
fn files(folder: &str) -> Vec<PathBuf> {
    let entries = fs::read_dir(repository().join(folder)).unwrap();
    entries.map(|entry| entry.unwrap().path()).collect()
}

/// Returns the path of a program on the PATH or where `./dev` installs tools.
fn program(name: &str) -> Option<PathBuf> {
    let tools = PathBuf::from(std::env::var_os("HOME")?).join(".cache/tandem/tools/bin");
    let path = std::env::var_os("PATH").unwrap_or_default();
    let mut folders = std::env::split_paths(&path).chain([tools]);
    folders.find_map(|folder| Some(folder.join(name)).filter(|file| file.is_file()))
}

/// Reports that something was not tested. Does not use a macro, whose output the harness would
/// hide.
fn skipped(why: &str) {
    let _ = std::io::stderr().write_all(format!("skipped: {why}\n").as_bytes());
}

/// Returns the output of a command, which must succeed.
fn succeeds(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = command.output().unwrap();
    let said = String::from_utf8_lossy(&[stdout, stderr].concat()).into_owned();
    assert!(status.success(), "{command:?}: {status}\n{said}");
    said
}

/// Returns the body of an answer, which must be a success.
fn get(authority: &str, path: &str) -> String {
    let mut stream = TcpStream::connect(authority).unwrap();
    write!(stream, "GET {path} HTTP/1.0\r\nHost: {authority}\r\n\r\n").unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    let (head, body) = answer.split_once("\r\n\r\n").unwrap();
    assert!(
        head.starts_with("HTTP/1.0 200") || head.starts_with("HTTP/1.1 200"),
        "{path}: {answer}"
    );
    body.to_owned()
}
