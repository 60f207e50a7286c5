//! Login from [`Options`]. Files are read and checked when the bus is made. A wrong file is thus an
//! error with its name at that time, not a refusal by the server later.

use super::{Error, Options};
use async_nats::ConnectOptions;
use nkeys::{KeyPair, KeyPairType};
use std::{fs::File, io::Read, path::Path};

/// Longest file of a secret that is read, in bytes.
const SECRET_BYTES_MAX: u64 = 4096;
/// Longest file of certificates that is read, in bytes.
const PEM_BYTES_MAX: u64 = 1 << 20;

/// Adds login and encryption to the options of a connection.
pub fn apply(options: &Options, mut connect: ConnectOptions) -> Result<ConnectOptions, Error> {
    let needs = |given, missing| Err(Error::Incomplete { given, missing });
    match (&options.user, &options.password_file, &options.nkey_seed_file) {
        (None, None, None) => {}
        (Some(user), Some(path), None) => {
            connect = connect.user_and_password(user.clone(), secret("password_file", path)?);
        }
        (None, None, Some(path)) => connect = connect.nkey(seed(path)?),
        (Some(_), None, None) => return needs("user", "password_file"),
        (None, Some(_), None) => return needs("password_file", "user"),
        (_, _, Some(_)) => return Err(Error::TwoLogins),
    }
    if let Some(path) = &options.tls_ca_file {
        pem("tls_ca_file", path, "a certificate", "CERTIFICATE-----")?;
        connect = connect.add_root_certificates(path.clone()).require_tls(true);
    }
    match (&options.tls_cert_file, &options.tls_key_file) {
        (None, None) => {}
        (Some(cert), Some(key)) => {
            pem("tls_cert_file", cert, "a certificate", "CERTIFICATE-----")?;
            pem("tls_key_file", key, "a private key", "PRIVATE KEY-----")?;
            connect = connect.add_client_certificate(cert.clone(), key.clone()).require_tls(true);
        }
        (Some(_), None) => return needs("tls_cert_file", "tls_key_file"),
        (None, Some(_)) => return needs("tls_key_file", "tls_cert_file"),
    }
    Ok(connect)
}

fn read(option: &'static str, path: &Path, bytes_max: u64) -> Result<String, Error> {
    let refuse = |error| Error::File { option, path: path.into(), error };
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(refuse)?;
    file.take(bytes_max + 1).read_to_end(&mut bytes).map_err(refuse)?;
    let wrong = |found| Error::Content { option, path: path.into(), expected: "a text", found };
    if bytes.len() as u64 > bytes_max {
        return Err(wrong("a file that is too long"));
    }
    String::from_utf8(bytes).map_err(|_| wrong("bytes that are not UTF-8"))
}

fn secret(option: &'static str, path: &Path) -> Result<String, Error> {
    let text = read(option, path, SECRET_BYTES_MAX)?;
    let wrong = |found| Error::Content { option, path: path.into(), expected: "one line", found };
    match text.trim() {
        "" => Err(wrong("nothing")),
        line if line.contains(['\r', '\n']) => Err(wrong("several")),
        line => Ok(line.to_owned()),
    }
}

fn seed(path: &Path) -> Result<String, Error> {
    let option = "nkey_seed_file";
    let seed = secret(option, path)?;
    let expected = "the seed of a user's nkey (SU…)";
    let wrong = |found| Error::Content { option, path: path.into(), expected, found };
    match KeyPair::from_seed(&seed) {
        Ok(pair) if pair.key_pair_type() == KeyPairType::User => Ok(seed),
        Ok(_) => Err(wrong("the seed of another kind of nkey")),
        Err(_) => Err(wrong("something else")),
    }
}

fn pem(option: &'static str, path: &Path, expected: &'static str, mark: &str) -> Result<(), Error> {
    let text = read(option, path, PEM_BYTES_MAX)?;
    let found = "none in PEM form";
    let wrong = Error::Content { option, path: path.into(), expected, found };
    if text.contains(mark) { Ok(()) } else { Err(wrong) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, path::PathBuf};

    struct Files(tempfile::TempDir);

    impl Files {
        fn write(&self, name: &str, content: impl AsRef<[u8]>) -> Option<PathBuf> {
            // Each call makes a new file, as the cases are read after all files are written.
            let count = fs::read_dir(self.0.path()).unwrap().count();
            let path = self.0.path().join(format!("{name}-{count}"));
            fs::write(&path, content).unwrap();
            Some(path)
        }
    }

    fn error(options: &Options) -> String {
        apply(options, ConnectOptions::new()).unwrap_err().to_string()
    }

    #[test]
    fn logins_are_read_from_files() {
        let files = Files(tempfile::tempdir().unwrap());
        apply(&Options::default(), ConnectOptions::new()).unwrap();
        let options = Options {
            user: Some("executor".to_owned()),
            password_file: files.write("password", "very secret\n"),
            ..Options::default()
        };
        apply(&options, ConnectOptions::new()).unwrap();
        let seed = KeyPair::new_user().seed().unwrap();
        let nkey_seed_file = files.write("seed", format!("{seed}\n"));
        let options = Options { nkey_seed_file, ..Options::default() };
        apply(&options, ConnectOptions::new()).unwrap();
    }

    #[test]
    fn files_that_cannot_be_used_are_named_with_the_option_and_not_quoted() {
        let files = Files(tempfile::tempdir().unwrap());
        let password = |content: &[u8]| Options {
            user: Some("executor".to_owned()),
            password_file: files.write("password", content),
            ..Options::default()
        };
        let seed = |content: &str| Options {
            nkey_seed_file: files.write("seed", content),
            ..Options::default()
        };
        let account = KeyPair::new_account().seed().unwrap();
        let missing = Some(files.0.path().join("missing"));
        let cases = [
            (password(b" \n"), "password_file", "expected one line, found nothing"),
            (password(b"secret\nsecret"), "password_file", "expected one line, found several"),
            (password(b"secret\xff"), "password_file", "bytes that are not UTF-8"),
            (password(&[b's'; 5000]), "password_file", "a file that is too long"),
            (seed("secret"), "nkey_seed_file", "the seed of a user's nkey (SU…), found something"),
            (seed(&account), "nkey_seed_file", "found the seed of another kind of nkey"),
            (
                Options { nkey_seed_file: missing.clone(), ..Options::default() },
                "read nkey_seed_file",
                "No such file",
            ),
            (
                Options { tls_ca_file: files.write("ca", "secret"), ..Options::default() },
                "tls_ca_file",
                "expected a certificate, found none in PEM form",
            ),
        ];
        for (options, option, reason) in cases {
            let error = error(&options);
            assert!(error.contains(option) && error.contains(reason), "{error}");
            let folder = files.0.path().to_str().unwrap();
            assert!(error.contains(folder) && !error.contains("secret"), "{error}");
        }
    }

    #[test]
    fn options_that_do_not_fit_together_are_named() {
        let some = || Some(PathBuf::from("/nowhere"));
        let user = || Some("executor".to_owned());
        let none = Options::default;
        let cases = [
            (Options { user: user(), ..none() }, "`user` needs `password_file` beside it"),
            (Options { password_file: some(), ..none() }, "`password_file` needs `user` beside it"),
            (
                Options { user: user(), nkey_seed_file: some(), ..none() },
                "`nkey_seed_file` and `user` exclude each other; set one of them",
            ),
            (
                Options { tls_key_file: some(), ..none() },
                "`tls_key_file` needs `tls_cert_file` beside it",
            ),
        ];
        for (options, want) in cases {
            assert_eq!(error(&options), want);
        }
    }
}
