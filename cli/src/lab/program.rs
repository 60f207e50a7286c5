//! Programs that a node of an experiment can be: this program, another Tandem, another client.

use anyhow::{Context, bail, ensure};
use rustix::thread::{CpuSet as Mask, sched_getaffinity, sched_setaffinity};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A program to start, or one that is there already.
#[derive(Debug, Clone, PartialEq)]
pub enum Program {
    /// This very program.
    Own,
    /// Another binary of Tandem.
    Binary(PathBuf),
    /// Another client.
    Client(Box<Client>),
}

impl Program {
    /// Returns the program that an experiment names.
    pub fn of(binary: Option<&PathBuf>, client: Option<&Client>) -> Self {
        match (client, binary) {
            (Some(client), _) => Self::Client(Box::new(client.clone())),
            (None, Some(binary)) => Self::Binary(binary.clone()),
            (None, None) => Self::Own,
        }
    }

    /// Returns the file to start for a Tandem.
    pub fn tandem(&self) -> anyhow::Result<PathBuf> {
        match self {
            Self::Binary(path) => Ok(path.clone()),
            _ => std::env::current_exe().context("find this program"),
        }
    }

    /// Returns what the report calls the program.
    pub fn describe(&self) -> String {
        match self {
            Self::Own => "this program".to_owned(),
            Self::Binary(path) => path.display().to_string(),
            Self::Client(client) => match (&client.start, &client.engine_url) {
                (Some(start), _) => start.join(" "),
                (None, url) => url.clone().unwrap_or_default(),
            },
        }
    }
}

/// Another client: its commands, or where it listens.
///
/// Commands may contain `{genesis}`, `{datadir}`, `{jwt}`, `{engine_port}`, `{http_port}`,
/// `{p2p_port}`, `{metrics_port}` and `{name}`, and `${VARIABLE}` or `${VARIABLE:-default}` of the
/// environment.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Client {
    /// Command run to its end on the fresh data directory.
    pub init: Option<Vec<String>>,
    /// The client itself; without it, the client is there already.
    pub start: Option<Vec<String>>,
    /// Engine API of the client [default: the loopback interface at `{engine_port}`].
    pub engine_url: Option<String>,
    /// File with its JWT secret [default: `{jwt}`, which the lab writes].
    pub jwt: Option<PathBuf>,
    /// Variables of its environment.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
}

impl Client {
    /// Checks that the commands can be filled in and the client can be reached.
    ///
    /// # Errors
    /// Returns an error that names the part.
    pub fn check(&self) -> anyhow::Result<()> {
        let ports = Places::default();
        for (name, command) in [("init", &self.init), ("start", &self.start)] {
            let Some(command) = command else { continue };
            ensure!(!command.is_empty(), "{name} is empty");
            ports.fill_all(command).with_context(|| name.to_owned())?;
        }
        for value in self.env.values().chain(&self.engine_url) {
            ports.fill(value)?;
        }
        if self.start.is_none() {
            ensure!(self.init.is_none(), "init without start");
            ensure!(self.engine_url.is_some(), "neither start nor engine_url");
            ensure!(self.jwt.is_some(), "engine_url without jwt");
        }
        Ok(())
    }
}

/// Values of the places in a command.
#[derive(Debug, Clone, Default)]
pub struct Places {
    /// Genesis as JSON.
    pub genesis: PathBuf,
    /// Fresh data directory.
    pub datadir: PathBuf,
    /// File with the JWT secret.
    pub jwt: PathBuf,
    /// Name of the node.
    pub name: String,
    /// Ports for the Engine API, HTTP, peers and metrics.
    pub ports: [u16; 4],
}

impl Places {
    /// Returns the arguments with all places filled in.
    ///
    /// # Errors
    /// Returns an error for an unknown place, or a variable that is not set.
    pub fn fill_all(&self, command: &[String]) -> anyhow::Result<Vec<String>> {
        command.iter().map(|argument| self.fill(argument)).collect()
    }

    /// Returns the text with all places filled in. Braces around anything but a name stay, as JSON
    /// has them.
    ///
    /// # Errors
    /// As for [`Places::fill_all`].
    pub fn fill(&self, text: &str) -> anyhow::Result<String> {
        let mut filled = String::with_capacity(text.len());
        let mut rest = text;
        while let Some(at) = rest.find('{') {
            let (before, place) = rest.split_at(at);
            let inside = place[1..].split('}').next().unwrap_or_default();
            let closed = place.len() > inside.len() + 1;
            if let Some(before) = before.strip_suffix('$').filter(|_| closed) {
                filled.push_str(before);
                filled.push_str(&variable(inside)?);
            } else if closed && !inside.is_empty() && inside.bytes().all(is_name) {
                filled.push_str(before);
                filled.push_str(&self.place(inside)?);
            } else {
                filled.push_str(before);
                filled.push('{');
                rest = &place[1..];
                continue;
            }
            rest = &place[inside.len() + 2..];
        }
        filled.push_str(rest);
        Ok(filled)
    }

    fn place(&self, name: &str) -> anyhow::Result<String> {
        let path = |path: &Path| path.display().to_string();
        Ok(match name {
            "genesis" => path(&self.genesis),
            "datadir" => path(&self.datadir),
            "jwt" => path(&self.jwt),
            "name" => self.name.clone(),
            "engine_port" => self.ports[0].to_string(),
            "http_port" => self.ports[1].to_string(),
            "p2p_port" => self.ports[2].to_string(),
            "metrics_port" => self.ports[3].to_string(),
            _ => bail!("unknown place {{{name}}}"),
        })
    }
}

fn is_name(byte: u8) -> bool {
    byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'_'
}

/// Returns a variable of the environment, `NAME` or `NAME:-default`.
fn variable(text: &str) -> anyhow::Result<String> {
    let (name, default) = match text.split_once(":-") {
        Some((name, default)) => (name, Some(default)),
        None => (text, None),
    };
    let value = std::env::var(name).ok().filter(|value| !value.is_empty());
    value.or(default.map(str::to_owned)).with_context(|| format!("{name} is not set"))
}

/// A set of processors, as `taskset -c` takes it: `0`, `0,2-3`.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(try_from = "String", into = "String")]
pub struct CpuSet {
    text: String,
    cpus: Vec<usize>,
}

impl CpuSet {
    /// Runs `start` with the calling thread on these processors. A process that it starts keeps
    /// them. The thread returns to its own ones.
    ///
    /// # Errors
    /// Returns an error if the machine has none of them.
    pub fn starting<T>(&self, start: impl FnOnce() -> anyhow::Result<T>) -> anyhow::Result<T> {
        let own = sched_getaffinity(None).context("read the processors of this thread")?;
        let mut mask = Mask::new();
        self.cpus.iter().for_each(|cpu| mask.set(*cpu));
        sched_setaffinity(None, &mask).with_context(|| format!("use processors {}", self.text))?;
        let started = start();
        sched_setaffinity(None, &own).context("return to all processors")?;
        started
    }
}

impl TryFrom<String> for CpuSet {
    type Error = String;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        let number = |text: &str| text.parse().ok().filter(|cpu| *cpu < Mask::MAX_CPU);
        let range = |part: &str| {
            let (first, last) = part.split_once('-').unwrap_or((part, part));
            Some(number(first)?..=number(last)?).filter(|range| !range.is_empty())
        };
        let ranges: Option<Vec<_>> = text.split(',').map(range).collect();
        let ranges = ranges.ok_or_else(|| format!("{text}: expected processors, 0 or 0,2-3"))?;
        Ok(Self { text, cpus: ranges.into_iter().flatten().collect() })
    }
}

impl From<CpuSet> for String {
    fn from(set: CpuSet) -> Self {
        set.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places() -> Places {
        Places {
            genesis: "/g.json".into(),
            datadir: "/data".into(),
            jwt: "/jwt".into(),
            name: "geth".into(),
            ports: [1, 2, 3, 4],
        }
    }

    #[test]
    fn places_and_variables_are_filled_in() {
        for (text, filled) in [
            ("{genesis}", "/g.json"),
            ("--port={engine_port},{http_port},{p2p_port},{metrics_port}", "--port=1,2,3,4"),
            ("{datadir}/{name}", "/data/geth"),
            ("${LAB_TEST_NOT_SET:-geth}", "geth"),
            ("{\"path\":\"{datadir}/supply\"}", "{\"path\":\"/data/supply\"}"),
            ("{}{", "{}{"),
            ("plain", "plain"),
        ] {
            assert_eq!(places().fill(text).unwrap(), filled, "{text}");
        }
        for (text, part) in [("{port}", "{port}"), ("${LAB_TEST_NOT_SET}", "LAB_TEST_NOT_SET")] {
            assert!(places().fill(text).unwrap_err().to_string().contains(part), "{text}");
        }
    }

    #[test]
    fn a_client_is_a_command_or_an_address() {
        let client = |text: &str| toml::from_str::<Client>(text).unwrap().check();
        assert!(client("start = [\"geth\", \"{datadir}\"]").is_ok());
        assert!(client("engine_url = \"http://127.0.0.1:1\"\njwt = \"jwt.hex\"").is_ok());
        for (text, part) in [
            ("", "neither start"),
            ("start = []", "start is empty"),
            ("engine_url = \"http://127.0.0.1:1\"", "without jwt"),
            ("init = [\"a\"]\nengine_url = \"http://a\"\njwt = \"j\"", "init without start"),
            ("start = [\"{dir}\"]", "start"),
        ] {
            let error = client(text).unwrap_err().to_string();
            assert!(error.contains(part), "{text}: {error}");
        }
    }

    #[test]
    fn processors_are_numbers_and_ranges() {
        let cpus = |text: &str| CpuSet::try_from(text.to_owned()).map(|set| set.cpus);
        assert_eq!(cpus("0"), Ok(vec![0]));
        assert_eq!(cpus("0,2-4"), Ok(vec![0, 2, 3, 4]));
        for wrong in ["", "a", "3-1", "0,", "99999999", "-1"] {
            assert!(cpus(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn a_process_stays_on_the_processors_on_which_it_was_started() {
        let before = sched_getaffinity(None).unwrap();
        let first = (0..Mask::MAX_CPU).find(|cpu| before.is_set(*cpu)).unwrap();
        let set = CpuSet::try_from(first.to_string()).unwrap();
        let command = ["-c", "grep Cpus_allowed_list /proc/self/status"];
        let output =
            set.starting(|| Ok(std::process::Command::new("sh").args(command).output()?));
        let text = String::from_utf8(output.unwrap().stdout).unwrap();
        assert_eq!(text.split_whitespace().last(), Some(first.to_string().as_str()), "{text}");
        assert_eq!(sched_getaffinity(None).unwrap(), before);
        let missing = CpuSet::try_from((Mask::MAX_CPU - 1).to_string()).unwrap();
        assert!(missing.starting(|| Ok(())).is_err());
        assert_eq!(sched_getaffinity(None).unwrap(), before);
    }
}
