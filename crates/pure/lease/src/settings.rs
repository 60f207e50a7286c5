//! Times of a lease.

use std::time::Duration;

/// Shortest lease: a third of it must be enough for a call of the store.
pub const TTL_MIN: Duration = Duration::from_millis(500);

/// Longest lease.
pub const TTL_MAX: Duration = Duration::from_secs(600);

/// Writes of the holder in the time of a lease.
const RENEWALS: u32 = 3;

/// Times of a lease.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Settings {
    ttl: Duration,
    margin: Duration,
}

/// Reason why the times of a lease are of no use.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SettingsError {
    /// The lease is too short for a call of the store, or so long that nothing could take over.
    #[error("invalid lease of {0:?}; expected {TTL_MIN:?} to {TTL_MAX:?}")]
    Ttl(Duration),
    /// The margin admits two holders, or leaves the holder too little time to renew.
    #[error("invalid margin of {margin:?} for a lease of {ttl:?}; expected 1% to 50% of it")]
    Margin {
        /// Time of the lease.
        ttl: Duration,
        /// Margin.
        margin: Duration,
    },
}

impl Settings {
    /// Checks the times: `ttl`, the time of a lease, is between [`TTL_MIN`] and [`TTL_MAX`]. `margin`, by
    /// which the holder stops earlier and others wait longer, is 1% to 50% of it.
    ///
    /// # Errors
    /// [`SettingsError`].
    pub fn new(ttl: Duration, margin: Duration) -> Result<Self, SettingsError> {
        if ttl < TTL_MIN || ttl > TTL_MAX {
            return Err(SettingsError::Ttl(ttl));
        }
        if margin < ttl / 100 || margin > ttl / 2 {
            return Err(SettingsError::Margin { ttl, margin });
        }
        Ok(Self { ttl, margin })
    }

    /// Returns the largest drift of each clock against true time, as a part of it, for which two holders
    /// are excluded. The holder's clock may be slow by this part while the candidate's is fast by it:
    /// `(ttl - margin) / (1 - d) = (ttl + margin) / (1 + d)`.
    pub fn drift_max(&self) -> f64 {
        self.margin.as_secs_f64() / self.ttl.as_secs_f64()
    }

    /// Returns for how long a holder may take writes after the start of its last write to the store.
    pub fn holds(&self) -> Duration {
        self.ttl.saturating_sub(self.margin)
    }

    /// Returns for how long a record must stand before another candidate takes the lease.
    pub fn waits(&self) -> Duration {
        self.ttl + self.margin
    }

    /// Returns the time between two writes of a holder and between two reads of others. It is also the
    /// longest wait for an answer.
    pub fn interval(&self) -> Duration {
        self.ttl / RENEWALS
    }
}
