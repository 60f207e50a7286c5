//! Knowledge of a member's thread about its connection.

use alloy_primitives::map::B256Set;
use tandem_primitives::B256;

/// Maximum number of codes that are taken for known at a tx-executor.
const CODES_MAX: usize = 10_000;

/// Connection to a tx-executor.
#[derive(Default)]
pub struct Link {
    pub connection: u64,
    /// Number of the newest block on any connection.
    pub session: u64,
    /// Number of the newest ping.
    pub ping: u64,
    /// Pings without an answer.
    pub unanswered: u32,
    /// Codes that were sent over this connection.
    codes: B256Set,
}

impl Link {
    /// Forgets what was sent over an earlier connection.
    pub fn follow(&mut self, connection: u64) {
        if self.connection != connection {
            *self = Self { connection, session: self.session, ..Self::default() };
        }
    }

    /// Returns whether a code is taken for known there.
    pub fn has_code(&self, hash: &B256) -> bool {
        self.codes.contains(hash)
    }

    /// Notes codes that were sent.
    pub fn note_codes(&mut self, hashes: impl Iterator<Item = B256>) {
        if self.codes.len() > CODES_MAX {
            self.codes.clear();
        }
        self.codes.extend(hashes);
    }

    /// Has all codes sent again.
    pub fn forget_codes(&mut self) {
        self.codes.clear();
    }
}
