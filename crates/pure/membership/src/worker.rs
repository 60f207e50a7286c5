use std::{fmt, str::FromStr, time::Duration};

/// Bytes of a [`WorkerId`] at most.
pub const ID_BYTES_MAX: usize = 64;

/// The name of a worker: 1 to 64 characters of visible ASCII. Shards are dealt out by it, so a
/// worker that keeps its name over a restart keeps its shards.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct WorkerId(Box<str>);

/// A text that is no [`WorkerId`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a worker's name has 1 to 64 characters of visible ASCII")]
pub struct IdError;

impl WorkerId {
    /// The name.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl FromStr for WorkerId {
    type Err = IdError;

    fn from_str(name: &str) -> Result<Self, IdError> {
        let fits = (1..=ID_BYTES_MAX).contains(&name.len());
        if fits && name.bytes().all(|byte| byte.is_ascii_graphic()) {
            Ok(Self(name.into()))
        } else {
            Err(IdError)
        }
    }
}

impl fmt::Display for WorkerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// A worker says that it is there.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Heartbeat {
    /// Who.
    pub id: WorkerId,
    /// When it started, in milliseconds since the Unix epoch: of two that have the same name the
    /// later one counts, and one that came back has empty tries.
    pub incarnation: u64,
    /// Its place among the heartbeats of this incarnation.
    pub sequence: u64,
    /// Where its proof stream is to be had: `http://10.0.0.7:9601`.
    pub endpoint: String,
    /// Until its next one.
    pub interval: Duration,
    /// It stops, and this is the last one.
    pub leaving: bool,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_short_and_visible() {
        for name in ["w", "worker-0.pod_3:9601", &"x".repeat(64)] {
            assert_eq!(name.parse::<WorkerId>().unwrap().to_string(), name);
        }
        for name in ["", "two words", "line\n", "ünter", &"x".repeat(65)] {
            assert_eq!(name.parse::<WorkerId>(), Err(IdError), "{name}");
        }
    }
}
