//! Health of the database, for callers that check it before they call.

use crate::{Loss, StorageWriter};
use std::sync::atomic::Ordering::Relaxed;

impl StorageWriter {
    /// Returns the loss that was found when the database was opened.
    pub fn loss(&self) -> Option<Loss> {
        self.shared.acknowledged.loss
    }

    /// Returns whether the last write to the database succeeded. A full disk prevents writes.
    pub fn can_write(&self) -> bool {
        !self.shared.store.is_failing()
    }

    /// Returns whether the volume had at least `free_bytes_min` bytes left at the last check.
    pub fn has_room(&self) -> bool {
        self.shared.free_bytes.load(Relaxed) >= self.shared.config.free_bytes_min
    }

    /// Returns the number of writes to the database that failed since it was opened.
    pub fn write_failures(&self) -> u64 {
        self.shared.store.write_failures()
    }
}
