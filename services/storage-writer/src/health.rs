//! How the database fares, for those who ask before they call.

use crate::{Loss, StorageWriter};
use std::sync::atomic::Ordering::Relaxed;

impl StorageWriter {
    /// What the database had lost when it was opened.
    pub fn loss(&self) -> Option<Loss> {
        self.shared.acknowledged.loss
    }

    /// Whether the last write to the database went through, which a full disk prevents.
    pub fn can_write(&self) -> bool {
        !self.shared.store.is_failing()
    }

    /// Whether the volume had room when it was looked at last: at least `free_bytes_min` bytes.
    pub fn has_room(&self) -> bool {
        self.shared.free_bytes.load(Relaxed) >= self.shared.config.free_bytes_min
    }

    /// Writes to the database that failed since it was opened.
    pub fn write_failures(&self) -> u64 {
        self.shared.store.write_failures()
    }
}
