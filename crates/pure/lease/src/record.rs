//! Content of the lease in the store, as one line of text that an operator can read.

use crate::TTL_MAX;
use std::{fmt, str::FromStr, time::Duration};

/// Most characters of a holder's name.
pub const HOLDER_LENGTH_MAX: usize = 64;

/// Characters of an invalid record that an error shows.
const TEXT_MAX: usize = 80;

/// Content of the lease in the store.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Record {
    /// Name of the holder: 1 to [`HOLDER_LENGTH_MAX`] characters without a space.
    pub holder: String,
    /// Term in which it leads.
    pub term: u32,
    /// Number of the holder's request that wrote the record. No two records are equal.
    pub write: u64,
    /// Time for which the record must stand before another candidate takes the lease: the holder's
    /// `ttl + margin`, in whole milliseconds.
    pub stands: Duration,
    /// Whether the holder gave the lease back, so that others need not wait.
    pub is_free: bool,
}

/// Text that is not a [`Record`].
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error(
    "invalid lease `{0}`; expected a holder, a term, a number, milliseconds, and `held` or `free`"
)]
pub struct RecordError(String);

impl fmt::Display for Record {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { holder, term, write, stands, is_free } = self;
        let state = if *is_free { "free" } else { "held" };
        write!(f, "{holder} {term} {write} {} {state}", stands.as_millis())
    }
}

impl FromStr for Record {
    type Err = RecordError;

    fn from_str(text: &str) -> Result<Self, RecordError> {
        let parse = || {
            let mut words = text.split(' ');
            let holder = words.next()?;
            let term = words.next()?.parse().ok()?;
            let write = words.next()?.parse().ok()?;
            let stands = Duration::from_millis(words.next()?.parse().ok()?);
            let is_free = match words.next()? {
                "free" => true,
                "held" => false,
                _ => return None,
            };
            let is_valid = (1..=HOLDER_LENGTH_MAX).contains(&holder.len())
                && stands <= 2 * TTL_MAX
                && words.next().is_none();
            is_valid.then(|| Self { holder: holder.to_owned(), term, write, stands, is_free })
        };
        parse().ok_or_else(|| RecordError(text.chars().take(TEXT_MAX).collect()))
    }
}
