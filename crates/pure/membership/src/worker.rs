use std::{fmt, str::FromStr, time::Duration};

/// Maximum number of bytes in a [`WorkerId`].
pub const ID_BYTES_MAX: usize = 64;

/// Name of a worker: 1 to 64 characters of visible ASCII. The name determines the shards of a
/// worker, so a worker that keeps its name over a restart keeps its shards.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct WorkerId(Box<str>);

/// Error: the text is not a valid [`WorkerId`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("a worker's name has 1 to 64 characters of visible ASCII")]
pub struct IdError;

impl WorkerId {
    /// Returns the name.
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

/// Announcement of a worker that it is alive.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Heartbeat {
    /// Name of the worker.
    pub id: WorkerId,
    /// Start time of the worker, in milliseconds since the Unix epoch. The later of two workers
    /// with one name counts. A restarted worker has empty tries.
    pub incarnation: u64,
    /// Position among the heartbeats of this incarnation.
    pub sequence: u64,
    /// Endpoint of its proof stream: `http://10.0.0.7:9601`.
    pub endpoint: String,
    /// Time until the next heartbeat.
    pub interval: Duration,
    /// Whether the worker stops, so that this is its last heartbeat.
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
