//! The NATS server of a cluster.

use super::{Args, plan::Role};
use anyhow::{Context, ensure};
use std::{env, fs, path::PathBuf};

/// Where the event bus is.
pub enum Nats {
    /// There is none.
    None,
    /// It runs already.
    Elsewhere(String),
    /// To be started.
    Own(PathBuf),
}

impl Nats {
    /// What the options say, else a server of our own where there is one.
    pub fn choose(args: &Args) -> anyhow::Result<Self> {
        if let Some(binary) = &args.nats_server {
            ensure!(binary.is_file(), "{} is no file", binary.display());
            return Ok(Self::Own(binary.clone()));
        }
        Ok(match args.nats.as_deref() {
            Some("none") => Self::None,
            Some(url) => Self::Elsewhere(url.to_owned()),
            None => on_path().map_or(Self::None, Self::Own),
        })
    }
}

fn on_path() -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|folder| folder.join("nats-server")).find(|file| file.is_file())
}

/// A server with JetStream, its store below the data directory.
pub fn role(binary: PathBuf, port: u16, args: &Args, log: PathBuf) -> anyhow::Result<Role> {
    let store = args.node.datadir().join("nats");
    fs::create_dir_all(&store).with_context(|| format!("make {}", store.display()))?;
    let arguments = ["--addr", "127.0.0.1", "--port", &port.to_string(), "--jetstream"]
        .map(Into::into)
        .into_iter()
        .chain(["--store_dir".into(), store.into_os_string()])
        .collect();
    let ports = vec![("nats", port)];
    let name = "nats-server".to_owned();
    Ok(Role { name, binary, arguments, ports, metrics: None, log, stage: 0 })
}
