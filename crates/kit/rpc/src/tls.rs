//! Certificates from files, for both sides of a connection, read again as they change.

use crate::{
    direct, metrics as names,
    roles::{ServerOfRole, format_roles, roles_of, verify_chain},
};
use arc_swap::ArcSwap;
use metrics::{counter, gauge};
use parking_lot::Mutex;
use rustls::{
    ClientConfig, Error, RootCertStore, ServerConfig,
    client::Resumption,
    crypto::{CryptoProvider, ring},
    pki_types::{CertificateDer, PrivateKeyDer, UnixTime, pem, pem::PemObject},
    server::{NoServerSessionStorage, WebPkiClientVerifier},
    version::TLS13,
};
use serde::{Deserialize, Serialize};
use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};
use tokio::{task::spawn_blocking, time::sleep};
use tracing::{info, warn};
use x509_parser::prelude::{FromDer, X509Certificate};

/// Protocol within TLS.
const HTTP2: &[u8] = b"h2";
/// Largest number of bytes read from one file.
const FILE_BYTES_MAX: u64 = 1 << 20;

/// Files of the certificates that services show each other: all three or none.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct TlsConfig {
    /// Certificates (PEM) of the authority that signs for all services.
    pub ca: Option<PathBuf>,
    /// This service's own certificate (PEM), with any intermediates up to the authority.
    pub cert: Option<PathBuf>,
    /// Private key (PEM) of that certificate.
    pub key: Option<PathBuf>,
    /// Time between two checks whether the files have changed, in seconds; 0 for none.
    pub reload_seconds: u64,
}

impl Default for TlsConfig {
    fn default() -> Self {
        Self { ca: None, cert: None, key: None, reload_seconds: 60 }
    }
}

impl TlsConfig {
    /// Returns whether any file is named, so that connections must be encrypted.
    pub fn is_on(&self) -> bool {
        self.ca.is_some() || self.cert.is_some() || self.key.is_some()
    }

    /// Checks that all three files are named, or none, without reading them.
    ///
    /// # Errors
    /// [`TlsError::Incomplete`].
    pub fn check(&self) -> Result<(), TlsError> {
        self.files().map(drop)
    }

    fn files(&self) -> Result<Option<Files>, TlsError> {
        let given = [("ca", &self.ca), ("cert", &self.cert), ("key", &self.key)];
        let missing = given.iter().find(|(_, path)| path.is_none());
        let there = given.iter().find(|(_, path)| path.is_some());
        match (&self.ca, &self.cert, &self.key) {
            (Some(ca), Some(cert), Some(key)) => {
                Ok(Some(Files { ca: ca.clone(), cert: cert.clone(), key: key.clone() }))
            }
            _ => match (there, missing) {
                (Some(&(given, _)), Some(&(missing, _))) => {
                    Err(TlsError::Incomplete { given, missing })
                }
                _ => Ok(None),
            },
        }
    }
}

/// Reason why certificates cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// The settings name some of the three files.
    #[error("`tls.{given}` needs `tls.{missing}` beside it")]
    Incomplete {
        /// File that is named.
        given: &'static str,
        /// File that is missing.
        missing: &'static str,
    },
    /// A file cannot be read.
    #[error("read {path}: {error}")]
    Read {
        /// The file.
        path: PathBuf,
        /// Error of the operating system.
        error: io::Error,
    },
    /// A file has the wrong content.
    #[error("{path}: expected {expected} in PEM form, found {found}")]
    Content {
        /// The file.
        path: PathBuf,
        /// Expected content.
        expected: &'static str,
        /// Content that was found.
        found: String,
    },
    /// The certificate belongs to another service.
    #[error("{path} is the certificate of {found}, this process is {want}")]
    Role {
        /// The file.
        path: PathBuf,
        /// Role of the process.
        want: &'static str,
        /// Roles that the certificate names.
        found: String,
    },
    /// The authority did not sign the certificate, it is not valid now, or the key belongs to
    /// another certificate.
    #[error("{path}: {error}")]
    Invalid {
        /// The file.
        path: PathBuf,
        /// Reason of the fault.
        error: Error,
    },
}

#[derive(Clone, Debug)]
struct Files {
    ca: PathBuf,
    cert: PathBuf,
    key: PathBuf,
}

/// Content of the files.
#[derive(PartialEq, Eq)]
struct Contents {
    ca: Vec<u8>,
    cert: Vec<u8>,
    key: Vec<u8>,
}

/// Parsed certificates and keys from which connections are made.
struct TlsMaterial {
    provider: Arc<CryptoProvider>,
    roots: Arc<RootCertStore>,
    chain: Vec<CertificateDer<'static>>,
    key: PrivateKeyDer<'static>,
    server: Arc<ServerConfig>,
    /// Earliest expiry of a certificate in the chain, in seconds since 1970.
    expires: i64,
}

/// Result of the last check of the files.
#[derive(Default)]
struct LastCheck {
    contents: Option<Contents>,
    /// Reason why they could not be used.
    fault: Option<String>,
}

/// Certificates of a process.
pub struct Tls {
    role: &'static str,
    files: Files,
    every: Duration,
    current: ArcSwap<TlsMaterial>,
    last_check: Mutex<LastCheck>,
}

impl fmt::Debug for Tls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tls").field("role", &self.role).field("files", &self.files).finish()
    }
}

impl Tls {
    /// Reads the files; `None` if none is named.
    ///
    /// # Errors
    /// [`TlsError`].
    pub fn load(role: &'static str, config: &TlsConfig) -> Result<Option<Self>, TlsError> {
        let Some(files) = config.files()? else { return Ok(None) };
        names::describe_tls();
        let contents = files.read()?;
        let material = TlsMaterial::new(role, &files, &contents)?;
        material.publish_expiry();
        let last_check = LastCheck { contents: Some(contents), fault: None };
        Ok(Some(Self {
            role,
            files,
            every: Duration::from_secs(config.reload_seconds),
            current: ArcSwap::from_pointee(material),
            last_check: Mutex::new(last_check),
        }))
    }

    /// Reads the files repeatedly; never ends.
    pub async fn follow(self: &Arc<Self>) {
        if self.every.is_zero() {
            return std::future::pending().await;
        }
        loop {
            sleep(self.every).await;
            let tls = self.clone();
            // A panic in a thread of the pool leaves everything as it was.
            match spawn_blocking(move || tls.check_files()).await.unwrap_or_default() {
                Some(Ok(())) => {
                    counter!(names::RELOADS, "outcome" => "renewed").increment(1);
                    info!(cert = %self.files.cert.display(), "certificates renewed");
                }
                Some(Err(error)) => {
                    counter!(names::RELOADS, "outcome" => "broken").increment(1);
                    warn!(%error, "changed certificates cannot be used; the earlier ones stay");
                }
                None => {}
            }
        }
    }

    /// Reads the files once, and uses their content if it is new and valid. Returns `None` if it is
    /// not new, or if the same fault was found before. Blocks.
    fn check_files(&self) -> Option<Result<(), TlsError>> {
        let mut last_check = self.last_check.lock();
        let read = self.files.read();
        if let (Ok(contents), Some(before)) = (&read, &last_check.contents)
            && contents == before
        {
            return None;
        }
        let renewed = read.and_then(|contents| {
            let material = TlsMaterial::new(self.role, &self.files, &contents);
            // New content is examined only once, valid or not.
            last_check.contents = Some(contents);
            material
        });
        match renewed {
            Ok(material) => {
                material.publish_expiry();
                self.current.store(Arc::new(material));
                last_check.fault = None;
                Some(Ok(()))
            }
            Err(error) => {
                let fault = error.to_string();
                let again = last_check.fault.as_ref() == Some(&fault);
                last_check.fault = Some(fault);
                (!again).then_some(Err(error))
            }
        }
    }

    /// Returns the configuration for accepting connections now.
    pub fn server(&self) -> Arc<ServerConfig> {
        self.current.load().server.clone()
    }

    /// Returns the configuration for connecting to servers of a role now.
    ///
    /// # Errors
    /// Only errors that the certificates already had when they were read.
    pub fn client(&self, server: &'static str) -> Result<ClientConfig, Error> {
        let current = self.current.load();
        let provider = current.provider.clone();
        let verifier =
            ServerOfRole { role: server, roots: current.roots.clone(), provider: provider.clone() };
        let mut config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(&[&TLS13])?
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(verifier))
            .with_client_auth_cert(current.chain.clone(), current.key.clone_key())?;
        config.alpn_protocols = vec![HTTP2.to_vec()];
        config.resumption = Resumption::disabled();
        Ok(config)
    }
}

impl Files {
    fn read(&self) -> Result<Contents, TlsError> {
        Ok(Contents { ca: read(&self.ca)?, cert: read(&self.cert)?, key: read(&self.key)? })
    }
}

fn read(path: &Path) -> Result<Vec<u8>, TlsError> {
    use io::Read;
    let refuse = |error| TlsError::Read { path: path.to_owned(), error };
    let mut bytes = Vec::new();
    let file = std::fs::File::open(path).map_err(refuse)?;
    file.take(FILE_BYTES_MAX).read_to_end(&mut bytes).map_err(refuse)?;
    Ok(bytes)
}

fn certificates(path: &Path, bytes: &[u8]) -> Result<Vec<CertificateDer<'static>>, TlsError> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(bytes).collect();
    let wrong = |found| TlsError::Content { path: path.into(), expected: "a certificate", found };
    match read {
        Ok(found) if found.is_empty() => Err(wrong("none".to_owned())),
        Ok(found) => Ok(found),
        Err(error) => Err(wrong(error.to_string())),
    }
}

fn private_key(path: &Path, bytes: &[u8]) -> Result<PrivateKeyDer<'static>, TlsError> {
    PrivateKeyDer::from_pem_slice(bytes).map_err(|error| {
        let found = match error {
            pem::Error::NoItemsFound => "none".to_owned(),
            error => error.to_string(),
        };
        TlsError::Content { path: path.into(), expected: "a private key", found }
    })
}

/// Returns when a certificate expires, in seconds since 1970; `None` if it is malformed.
fn expiry_of(certificate: &CertificateDer<'_>) -> Option<i64> {
    let (_, parsed) = X509Certificate::from_der(certificate).ok()?;
    Some(parsed.validity().not_after.timestamp())
}

/// Makes ring the cryptography of libraries that take the process's, such as clients of object stores.
/// Does nothing if the process has one already.
pub fn install_ring() {
    // The error is the provider that was there before.
    let _ = ring::default_provider().install_default();
}

impl TlsMaterial {
    fn new(role: &'static str, files: &Files, contents: &Contents) -> Result<Self, TlsError> {
        let invalid = |path: &Path| {
            let path = path.to_owned();
            move |error| TlsError::Invalid { path, error }
        };
        let provider = Arc::new(ring::default_provider());
        let mut roots = RootCertStore::empty();
        for certificate in certificates(&files.ca, &contents.ca)? {
            roots.add(certificate).map_err(invalid(&files.ca))?;
        }
        let roots = Arc::new(roots);
        let chain = certificates(&files.cert, &contents.cert)?;
        let key = private_key(&files.key, &contents.key)?;
        verify_chain(&chain, &roots, &provider, UnixTime::now()).map_err(invalid(&files.cert))?;
        let found = chain.first().map(roles_of).unwrap_or_default();
        if !found.iter().any(|found| found == role) {
            let (path, found) = (files.cert.clone(), format_roles(&found));
            return Err(TlsError::Role { path, want: role, found });
        }
        let callers = WebPkiClientVerifier::builder_with_provider(roots.clone(), provider.clone())
            .build()
            .map_err(|error| Error::General(error.to_string()))
            .map_err(invalid(&files.ca))?;
        let mut server = ServerConfig::builder_with_provider(provider.clone())
            .with_protocol_versions(&[&TLS13])
            .map_err(invalid(&files.cert))?
            .with_client_cert_verifier(callers)
            .with_single_cert(chain.clone(), key.clone_key())
            .map_err(invalid(&files.key))?;
        server.alpn_protocols = vec![HTTP2.to_vec(), direct::PROTOCOL.to_vec()];
        // Connections live long, so a shorter handshake gains nothing. A resumed session would not
        // be asked for its certificate again.
        server.session_storage = Arc::new(NoServerSessionStorage {});
        server.send_tls13_tickets = 0;
        let expires = chain.iter().filter_map(expiry_of).min().unwrap_or(i64::MAX);
        Ok(Self { provider, roots, chain, key, server: Arc::new(server), expires })
    }

    /// Reports in the metrics when the certificate expires.
    fn publish_expiry(&self) {
        gauge!(names::EXPIRES).set(self.expires as f64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::certificates::{Authority, Pem};
    use std::time::SystemTime;

    #[test]
    fn the_end_of_a_certificate_is_known() {
        let now = SystemTime::UNIX_EPOCH + Duration::from_secs(1_700_000_000);
        let Pem { key, .. } = Authority::make(now, 2).unwrap();
        let issued = Authority::of_key(&key).unwrap().issue(&["executor"], now, 1).unwrap();
        let der = CertificateDer::from_pem_slice(issued.certificate.as_bytes()).unwrap();
        assert_eq!(expiry_of(&der), Some(1_700_086_400));
        assert_eq!(expiry_of(&CertificateDer::from(b"no certificate".to_vec())), None);
    }
}
