//! `tandem certificates`: makes the certificates by which services identify each other over gRPC.

use crate::secrets::replace;
use anyhow::Context;
use std::{
    fs,
    path::{Path, PathBuf},
    process::ExitCode,
    time::SystemTime,
};
use tandem_cluster::certificates::{Authority, Pem};
use tandem_proto::access::{FOLLOWER, ROLES, STORAGE_WRITER};

/// Validity of the authority in days. Long, because it must be replaced by hand, in all services at
/// once.
const AUTHORITY_DAYS: u32 = 3650;

/// Directory of the certificate of a follower that may be promoted: it is a storage-writer too.
pub const PROMOTABLE: &str = "promotable-follower";

/// Options of `tandem certificates`.
#[derive(clap::Args)]
pub struct Args {
    /// Directory to write to; created if missing. It holds the authority, `ca.crt` and `ca.key`,
    /// and a directory for each role, such as `executor`, with `ca.crt`, `tls.crt` and `tls.key`. The
    /// directory `promotable-follower` is for followers that may become storage-writer.
    /// No service may have `ca.key`
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// Days for which the certificates of the roles are valid
    #[arg(long, value_name = "DAYS", default_value_t = 365, value_parser = clap::value_parser!(u32).range(1..=3650))]
    days: u32,
    /// Replace existing certificates by new ones of the same authority. Running services load them
    /// by themselves
    #[arg(long)]
    renew: bool,
}

/// Writes missing files; with `--renew`, all except the authority.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let made = write(&args.folder, args.days, args.renew)?;
    let folder = args.folder.display();
    eprintln!("{folder}: {made} certificates made, the others were there");
    Ok(ExitCode::SUCCESS)
}

/// Files of one role.
pub struct Files {
    /// Certificates of the authority that vouches for all services.
    pub ca: PathBuf,
    /// Certificate of the role.
    pub cert: PathBuf,
    /// Private key of that certificate.
    pub key: PathBuf,
}

impl Files {
    /// Returns the paths to which [`write()`] writes them.
    pub fn of(folder: &Path, role: &str) -> Self {
        let file = |name| folder.join(role).join(name);
        Self { ca: file("ca.crt"), cert: file("tls.crt"), key: file("tls.key") }
    }

    fn all_there(&self) -> bool {
        [&self.ca, &self.cert, &self.key].into_iter().all(|file| file.exists())
    }
}

/// Writes missing files, or all except the authority if `renew`. Returns how many certificates were
/// made.
pub fn write(folder: &Path, days: u32, renew: bool) -> anyhow::Result<u32> {
    let (issuer, is_new) = Issuer::open(folder)?;
    let mut made = u32::from(is_new);
    let single = ROLES.iter().map(|role| (*role, std::slice::from_ref(role)));
    for (name, roles) in single.chain([(PROMOTABLE, &[FOLLOWER, STORAGE_WRITER][..])]) {
        let files = Files::of(folder, name);
        if renew || !files.all_there() {
            issuer.issue(&files, roles, days)?;
            made += 1;
        }
    }
    Ok(made)
}

/// Makes a new certificate of several roles in the directory of this name, and what is missing for
/// the other roles. Returns the files of the new certificate.
pub fn write_for(name: &str, roles: &[&str], folder: &Path) -> anyhow::Result<Files> {
    write(folder, AUTHORITY_DAYS, false)?;
    let files = Files::of(folder, name);
    Issuer::open(folder)?.0.issue(&files, roles, AUTHORITY_DAYS)?;
    Ok(files)
}

/// Authority of a directory.
struct Issuer {
    authority: Authority,
    /// Certificates by which others trust the authority.
    certificates: String,
}

impl Issuer {
    /// Reads the authority, or makes it if there is none. Returns whether it was made.
    fn open(folder: &Path) -> anyhow::Result<(Self, bool)> {
        let (ca, ca_key) = (folder.join("ca.crt"), folder.join("ca.key"));
        let is_new = !ca_key.exists();
        if is_new {
            let Pem { certificate, key } = Authority::make(SystemTime::now(), AUTHORITY_DAYS)?;
            replace(&ca, &certificate)?;
            replace(&ca_key, &key)?;
        }
        let read = |path: &Path| {
            fs::read_to_string(path).with_context(|| format!("read {}", path.display()))
        };
        let authority = Authority::of_key(&read(&ca_key)?);
        let authority = authority.with_context(|| format!("use {}", ca_key.display()))?;
        Ok((Self { authority, certificates: read(&ca)? }, is_new))
    }

    fn issue(&self, files: &Files, roles: &[&str], days: u32) -> anyhow::Result<()> {
        let Pem { certificate, key } = self.authority.issue(roles, SystemTime::now(), days)?;
        // A reader in between finds a key that does not match its certificate, and reads again.
        replace(&files.ca, &self.certificates)?;
        replace(&files.key, &key)?;
        replace(&files.cert, &certificate)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;
    use tandem_cluster::TlsConfig;

    fn contents(folder: &Path) -> Vec<String> {
        let files = ROLES.map(|role| Files::of(folder, role)).into_iter();
        let files = files.flat_map(|files| [files.ca, files.cert, files.key]);
        let authority = ["ca.crt", "ca.key"].map(|name| folder.join(name));
        authority.into_iter().chain(files).map(|file| fs::read_to_string(file).unwrap()).collect()
    }

    #[test]
    fn every_role_can_use_its_own_certificate_and_no_other() {
        let folder = tempfile::tempdir().unwrap();
        let made = write(folder.path(), 30, false).unwrap();
        assert_eq!(made as usize, ROLES.len() + 2, "the authority's and that of two roles, too");
        for role in ROLES {
            for of in ROLES {
                let Files { ca, cert, key } = Files::of(folder.path(), of);
                let mode = fs::metadata(&key).unwrap().permissions().mode();
                assert_eq!(mode & 0o777, 0o600, "{of}");
                let (ca, cert, key) = (Some(ca), Some(cert), Some(key));
                let config = TlsConfig { ca, cert, key, ..TlsConfig::default() };
                let identity = tandem_cluster::Identity::load(role, &config);
                assert_eq!(identity.is_ok(), role == of, "{role} as {of}: {identity:?}");
            }
        }
    }

    #[test]
    fn a_follower_that_may_be_promoted_has_both_roles() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), 30, false).unwrap();
        for role in ROLES {
            let Files { ca, cert, key } = Files::of(folder.path(), PROMOTABLE);
            let (ca, cert, key) = (Some(ca), Some(cert), Some(key));
            let config = TlsConfig { ca, cert, key, ..TlsConfig::default() };
            let identity = tandem_cluster::Identity::load(role, &config);
            assert_eq!(identity.is_ok(), [FOLLOWER, STORAGE_WRITER].contains(&role), "{role}");
        }
    }

    #[test]
    fn what_is_there_stays_unless_it_is_to_be_renewed() {
        let folder = tempfile::tempdir().unwrap();
        write(folder.path(), 30, false).unwrap();
        let before = contents(folder.path());
        fs::remove_file(folder.path().join("executor/tls.key")).unwrap();
        assert_eq!(write(folder.path(), 30, false).unwrap(), 1);
        let repaired = contents(folder.path());
        let changed = before.iter().zip(&repaired).filter(|(a, b)| a != b).count();
        assert_eq!(changed, 2, "the executor's certificate and key");
        assert_eq!(write(folder.path(), 30, true).unwrap() as usize, ROLES.len() + 1);
        let renewed = contents(folder.path());
        assert_eq!(renewed[..2], before[..2], "the authority stays");
        let same = repaired[2..].iter().zip(&renewed[2..]).filter(|(a, b)| a == b).count();
        assert_eq!(same, ROLES.len(), "only the authority's certificate of each is the same");
    }
}
