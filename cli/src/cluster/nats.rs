//! The NATS server of a cluster.

use super::{Args, plan::Role};
use crate::secrets;
use anyhow::{Context, ensure};
use std::{
    env,
    path::{Path, PathBuf},
};

pub use secrets::nats_password as password_file;

/// Location of the event bus.
pub enum Nats {
    /// No bus.
    None,
    /// A server that runs already.
    Elsewhere(String),
    /// A server to start.
    Own(PathBuf),
}

impl Nats {
    /// Returns the choice of the options, otherwise a server to start if a nats-server is on the
    /// PATH.
    pub fn choose(args: &Args) -> anyhow::Result<Self> {
        if let Some(binary) = &args.nats_server {
            ensure!(binary.is_file(), "{} is not a file", binary.display());
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

/// Flags by which a service logs in, and speaks to a server with certificates of its own.
pub const LOGIN: [&str; 6] = [
    "nats.user",
    "nats.password-file",
    "nats.nkey-seed-file",
    "nats.tls-ca-file",
    "nats.tls-cert-file",
    "nats.tls-key-file",
];

/// Returns the NATS user of a command.
pub fn user(command: &str) -> &str {
    match command {
        "multiproof-worker" => "multiproof-workers",
        // A follower may become one.
        "follower" => "storage-writer",
        command => command,
    }
}

/// Users of a deployment, and the subjects that each may publish and subscribe to.
const DEPLOYED: &str = include_str!("../../../deploy/nats.conf");

/// Plans a server with JetStream, with its store below the data directory. It admits only the users
/// of deploy/nats.conf. Their passwords are made in `passwords` if they are missing.
pub fn role(
    binary: PathBuf,
    port: u16,
    datadir: &Path,
    passwords: &Path,
    log: PathBuf,
) -> anyhow::Result<Role> {
    let store = datadir.join("nats");
    let file = store.join("nats.conf");
    let variables = secrets::write_nats(passwords, &[])?.variables;
    let users = DEPLOYED.find("\nauthorization {").context("deploy/nats.conf lists no users")?;
    let (store, users) = (store.display().to_string(), &DEPLOYED[users..]);
    let config = format!(
        "listen: \"127.0.0.1:{port}\"\n\
         jetstream {{ store_dir: {store:?}, max_memory_store: 16MB, max_file_store: 2GB }}\n\
         {variables}{users}"
    );
    secrets::replace(&file, &config)?;
    Ok(Role {
        name: "nats-server".to_owned(),
        binary,
        arguments: vec!["--config".into(), file.into_os_string()],
        ports: vec![("nats", port)],
        metrics: None,
        is_needed: true,
        log,
        stage: 0,
        unset: Vec::new(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn every_service_logs_in_as_a_user_of_the_server() {
        let folder = tempfile::tempdir().unwrap();
        let passwords = folder.path().join("secrets");
        let log = folder.path().join("log");
        let role = role("nats-server".into(), 4222, folder.path(), &passwords, log).unwrap();
        let config = fs::read_to_string(&role.arguments[1]).unwrap();
        for command in [
            "storage-writer",
            "multiproof-worker",
            "blob-validator",
            "peer-table",
            "peer-sessions",
            "tx-pool",
            "executor",
            "discovery",
        ] {
            let (user, file) = (user(command), password_file(&passwords, user(command)));
            let password = fs::read_to_string(&file).unwrap();
            let variable = format!("{}_password", user.replace('-', "_"));
            assert!(config.contains(&format!("{variable}: {password:?}\n")), "{command}");
            assert!(config.contains(&format!("user: {user}, password: ${variable}")), "{command}");
        }
        assert!(config.contains("listen: \"127.0.0.1:4222\""), "{config}");
        assert!(!config.contains("0.0.0.0"), "{config}");
    }
}
