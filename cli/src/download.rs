//! Downloads a genesis for `tandem init --genesis-url`, bounded in size and time, and compares it
//! with the given digest.

use crate::hashed::Hashed;
use anyhow::{Context, ensure};
use std::{
    fs::{self, File},
    io::{self, Read, Write},
    path::{Path, PathBuf},
    time::Duration,
};
use ureq::{
    Agent,
    tls::{Certificate, PemItem, RootCerts, TlsConfig, parse_pem},
};

/// Longest wait for a connection.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(30);
/// Maximum number of redirects in a row.
const REDIRECTS_MAX: u32 = 5;

/// A remote file.
pub struct Remote<'a> {
    /// Its address, `http://` or `https://`. The latter never redirects to the former.
    pub url: &'a str,
    /// Certificates (PEM) of the authorities that may vouch for the server, instead of the public
    /// ones.
    pub ca: Option<&'a Path>,
    /// Maximum size, in bytes.
    pub bytes_max: u64,
    /// Longest time from the first connection to the last byte.
    pub time_max: Duration,
}

/// A downloaded file, which is removed when this value is dropped.
pub struct Downloaded(PathBuf);

impl Downloaded {
    /// Returns its path.
    pub fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for Downloaded {
    fn drop(&mut self) {
        // A file that could not be removed is overwritten by the next download.
        let _ = fs::remove_file(&self.0);
    }
}

impl Remote<'_> {
    /// Downloads the file to a path and replaces the file there.
    ///
    /// # Errors
    /// Returns an error if there is no successful answer in time, or if there are too many bytes.
    /// Also fails if the file cannot be written, or if its digest is not `sha256`.
    pub fn fetch(&self, to: &Path, sha256: Option<&[u8; 32]>) -> anyhow::Result<Downloaded> {
        let response = self.agent()?.get(self.url).call();
        let response = response.with_context(|| format!("get {}", self.url))?;
        let mut body = response.into_body().into_with_config().limit(u64::MAX).reader();
        let downloaded = Downloaded(to.to_owned());
        let file = File::create(to).with_context(|| format!("create {}", to.display()))?;
        let have = copy(&mut body, file, self.bytes_max)
            .with_context(|| format!("get {} into {}", self.url, to.display()))?;
        if let Some(want) = sha256 {
            same(self.url, &have, want)?;
        }
        Ok(downloaded)
    }

    fn agent(&self) -> anyhow::Result<Agent> {
        let authorities = match self.ca {
            Some(ca) => RootCerts::new_with_certs(&certificates(ca)?),
            None => RootCerts::WebPki,
        };
        let config = Agent::config_builder()
            .tls_config(TlsConfig::builder().root_certs(authorities).build())
            .https_only(self.url.starts_with("https://"))
            .max_redirects(REDIRECTS_MAX)
            .timeout_connect(Some(CONNECT_TIME_MAX))
            .timeout_global(Some(self.time_max))
            .build();
        Ok(config.into())
    }
}

fn certificates(file: &Path) -> anyhow::Result<Vec<Certificate<'static>>> {
    let pem = fs::read(file).with_context(|| format!("read {}", file.display()))?;
    let mut found = Vec::new();
    for item in parse_pem(&pem) {
        if let PemItem::Certificate(certificate) =
            item.with_context(|| format!("read {}", file.display()))?
        {
            found.push(certificate);
        }
    }
    ensure!(
        !found.is_empty(),
        "{}: expected a certificate in PEM form, found none",
        file.display()
    );
    Ok(found)
}

/// Copies at most `bytes_max` bytes and returns their SHA-256.
pub fn copy(from: &mut impl Read, to: impl Write, bytes_max: u64) -> anyhow::Result<[u8; 32]> {
    let mut to = Hashed::new(to);
    let total = io::copy(&mut from.take(bytes_max.saturating_add(1)), &mut to)?;
    ensure!(total <= bytes_max, "more than {bytes_max} bytes (--genesis-bytes-max)");
    Ok(to.finish().1.0)
}

/// Returns an error if the digest of a file is not the expected one.
pub fn same(what: &str, have: &[u8; 32], want: &[u8; 32]) -> anyhow::Result<()> {
    let (have, want) = (const_hex::encode(have), const_hex::encode(want));
    ensure!(have == want, "{what}: its SHA-256 is {have}, not {want}");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        io::{BufRead, BufReader},
        net::TcpListener,
        thread,
    };

    /// Starts a server that gives each connection the next of these answers, then ends. `None` is
    /// silence.
    fn server(answers: Vec<Option<String>>) -> String {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        thread::spawn(move || {
            let mut silent = Vec::new();
            for answer in answers {
                let (stream, _) = listener.accept().unwrap();
                let mut lines = BufReader::new(stream);
                let mut line = String::new();
                while lines.read_line(&mut line).unwrap() > 2 {
                    line.clear();
                }
                match answer {
                    Some(answer) => {
                        // The client may have stopped reading.
                        let _ = lines.get_mut().write_all(answer.as_bytes());
                    }
                    None => silent.push(lines),
                }
            }
            // Until the client gives up.
            for mut lines in silent {
                let _ = lines.read_line(&mut String::new());
            }
        });
        format!("http://{address}")
    }

    fn answer(status: &str, head: &str, body: &str) -> Option<String> {
        let length = body.len();
        Some(format!(
            "HTTP/1.1 {status}\r\nContent-Length: {length}\r\nConnection: close\r\n{head}\r\n{body}"
        ))
    }

    fn remote(url: &str) -> Remote<'_> {
        Remote { url, ca: None, bytes_max: 100, time_max: Duration::from_secs(10) }
    }

    /// FIPS 180-2, appendix B.1.
    const ABC: &str = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";

    fn abc() -> [u8; 32] {
        const_hex::decode_to_array(ABC).unwrap()
    }

    #[test]
    fn a_file_is_there_until_it_is_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("genesis");
        let url = server(vec![answer("200 OK", "", "abc")]);
        let downloaded = remote(&url).fetch(&path, Some(&abc())).unwrap();
        assert_eq!(fs::read(downloaded.path()).unwrap(), b"abc");
        drop(downloaded);
        assert!(!path.exists());
    }

    #[test]
    fn an_answer_may_lead_on() {
        let folder = tempfile::tempdir().unwrap();
        let there = server(vec![answer("200 OK", "", "abc")]);
        let head = format!("Location: {there}/genesis.json\r\n");
        let url = server(vec![answer("302 Found", &head, "")]);
        remote(&url).fetch(&folder.path().join("genesis"), Some(&abc())).unwrap();
    }

    /// Returns the error of a download and checks that no file remains.
    fn refusal(remote: &Remote<'_>, sha256: Option<&[u8; 32]>) -> String {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("genesis");
        let error = remote.fetch(&path, sha256).map(drop).unwrap_err();
        assert!(!path.exists());
        format!("{error:#}")
    }

    #[test]
    fn another_file_too_many_bytes_and_errors_are_refused() {
        let url = server(vec![answer("200 OK", "", "abd")]);
        let said = refusal(&remote(&url), Some(&abc()));
        assert!(said.contains(&url) && said.contains(ABC), "{said}");

        let url = server(vec![answer("200 OK", "", &"x".repeat(101))]);
        let said = refusal(&remote(&url), None);
        assert!(said.contains("more than 100 bytes (--genesis-bytes-max)"), "{said}");

        let url = server(vec![answer("404 Not Found", "", "no")]);
        let said = refusal(&remote(&url), None);
        assert!(said.contains(&url) && said.contains("404"), "{said}");

        let broken = "HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\nabc".to_owned();
        let url = server(vec![Some(broken)]);
        let said = refusal(&remote(&url), None);
        assert!(said.contains(&url), "{said}");
    }

    #[test]
    fn a_silent_server_is_given_up() {
        let url = server(vec![None]);
        let remote = Remote { time_max: Duration::from_millis(200), ..remote(&url) };
        let said = refusal(&remote, None);
        assert!(said.contains(&url) && said.contains("timeout"), "{said}");
    }

    #[test]
    fn other_kinds_of_addresses_are_refused() {
        let said = refusal(&remote("ftp://127.0.0.1/genesis.json"), None);
        assert!(said.contains("ftp://127.0.0.1"), "{said}");
    }

    #[test]
    fn authorities_are_read_from_their_file() {
        let folder = tempfile::tempdir().unwrap();
        let ca = folder.path().join("ca.crt");
        let remote = Remote { ca: Some(&ca), ..remote("https://127.0.0.1:1/genesis.json") };
        let said = refusal(&remote, None);
        assert!(said.contains("ca.crt"), "{said}");
        fs::write(&ca, "nothing").unwrap();
        let said = refusal(&remote, None);
        assert!(said.contains("expected a certificate in PEM form"), "{said}");
    }
}
