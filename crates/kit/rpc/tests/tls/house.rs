//! Authorities, and the files of the services they sign for.

use std::{
    fs,
    path::PathBuf,
    time::{Duration, SystemTime},
};
use tandem_rpc::{
    Identity, TlsConfig,
    certificates::{Authority, Pem},
};
use tempfile::TempDir;

/// Authority of a test.
pub struct House {
    pub certificate: String,
    authority: Authority,
}

impl House {
    pub fn new() -> Self {
        let Pem { certificate, key } = Authority::make(SystemTime::now(), 2).unwrap();
        Self { certificate, authority: Authority::of_key(&key).unwrap() }
    }

    pub fn issue(&self, roles: &[&str]) -> Pem {
        self.authority.issue(roles, SystemTime::now(), 1).unwrap()
    }

    /// Issues a certificate that is no longer valid.
    pub fn issue_expired(&self, role: &str) -> Pem {
        let then = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000_000);
        self.authority.issue(&[role], then, 1).unwrap()
    }

    /// Makes an identity with a certificate of this role that trusts this authority.
    pub fn identity(&self, role: &'static str) -> Identity {
        let files = Files::new();
        files.write(&self.certificate, &self.issue(&[role]));
        // The files are gone when this returns.
        let config = TlsConfig { reload_seconds: 0, ..files.config() };
        Identity::load(role, &config).unwrap()
    }
}

/// Three certificate files of one process.
pub struct Files(TempDir);

impl Files {
    pub fn new() -> Self {
        Self(TempDir::new().unwrap())
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Writes each file by itself, as they may be replaced.
    pub fn write(&self, authorities: &str, Pem { certificate, key }: &Pem) {
        fs::write(self.path("ca.crt"), authorities).unwrap();
        fs::write(self.path("tls.crt"), certificate).unwrap();
        fs::write(self.path("tls.key"), key).unwrap();
    }

    pub fn config(&self) -> TlsConfig {
        let file = |name| Some(self.path(name));
        TlsConfig {
            ca: file("ca.crt"),
            cert: file("tls.crt"),
            key: file("tls.key"),
            reload_seconds: 1,
        }
    }

    pub fn identity(&self, role: &'static str) -> Identity {
        Identity::load(role, &self.config()).unwrap()
    }
}
