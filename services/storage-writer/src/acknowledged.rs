//! Record of the acknowledged writes, compared at the start with the contents of the database.
//!
//! **The rule.** After each acknowledged write, its number goes into a small file
//! ([`tandem_store::MarkFile`]). A database that lacks the write with that number has lost
//! something:
//!
//! * After a clean stop, or while the machine has been running since, this is damage. All writes
//!   were on the disk, or with the operating system, which is still running.
//! * After the machine itself went down, writes that had not been synced may be gone. The setting
//!   `sync = false` permits this. The loss of an older write is damage.
//!
//! Damage ends the start with an error that names the blocks, unless the operator accepts the loss.
//! A permitted loss is a warning. Both are counted.

use crate::{Config, Error, chain::Chain, metrics};
use parking_lot::Mutex;
use std::{
    fmt, fs,
    path::Path,
    time::{SystemTime, UNIX_EPOCH},
};
use tandem_primitives::BlockId;
use tandem_store::{FoundMark, Mark, MarkFile, Store};
use tracing::{error, info, warn};

/// File that identifies the current boot of the operating system.
const BOOT_ID: &str = "/proc/sys/kernel/random/boot_id";

/// Reason why writes are missing.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum LossCause {
    /// The database was closed cleanly, so it is damaged.
    AfterCleanStop,
    /// The process died and its machine kept running, so the database is damaged.
    AfterCrash,
    /// The writes were on the disk when the machine went down, so the database is damaged.
    Synced,
    /// The machine went down before the writes were synced.
    PowerCut,
}

/// Acknowledged writes that a database has lost.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Loss {
    /// Reason for the loss.
    pub cause: LossCause,
    /// Mark of the last acknowledged write.
    pub mark: Mark,
    /// Number of the last write in the database.
    pub sequence: u64,
    /// Head that is left.
    pub head: BlockId,
}

impl Loss {
    /// Compares the mark with the contents of a store.
    fn between(mark: &Mark, sequence: u64, boot: [u8; 16], head: BlockId) -> Option<Self> {
        if sequence >= mark.sequence {
            return None;
        }
        let same_boot = boot != [0; 16] && boot == mark.boot;
        let cause = match mark.clean {
            true => LossCause::AfterCleanStop,
            false if same_boot => LossCause::AfterCrash,
            false if sequence < mark.synced => LossCause::Synced,
            false => LossCause::PowerCut,
        };
        Some(Self { cause, mark: *mark, sequence, head })
    }

    /// Returns whether only damage can explain the loss.
    pub fn is_damage(&self) -> bool {
        self.cause != LossCause::PowerCut
    }

    /// Returns the number of lost writes.
    pub fn writes(&self) -> u64 {
        self.mark.sequence.saturating_sub(self.sequence)
    }

    /// Returns the number of heights that had a block and have none that is known to be left. This
    /// is a lower bound, because side chains are not counted.
    pub fn blocks(&self) -> u64 {
        self.mark.head.number.max(self.mark.newest.number).saturating_sub(self.head.number)
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Mark { head, newest, sequence, time, .. } = self.mark;
        write!(
            f,
            "{} acknowledged writes are gone (of {sequence}, the last at {time} s since 1970): head \
             was {head} and is {}, the newest block was {newest}",
            self.writes(),
            self.head,
        )?;
        f.write_str(match self.cause {
            LossCause::AfterCleanStop => "; it was stopped cleanly, so its files are damaged",
            LossCause::AfterCrash => {
                "; the machine has been running since, so the write-ahead log is damaged or removed"
            }
            LossCause::Synced => "; they were on the disk, so the write-ahead log is damaged",
            LossCause::PowerCut => "; the machine went down before they were on the disk",
        })
    }
}

/// Finds the writes that a database has lost, without changing anything.
///
/// # Errors
/// [`Error::Store`] when the mark's file cannot be read.
pub fn find_loss(store: &Store, head: BlockId) -> Result<(FoundMark, Option<Loss>), Error> {
    let (Some(path), Some(sequence)) = (store.path(), store.sequence()) else {
        return Ok((FoundMark::Missing, None));
    };
    let found = MarkFile::read(path)?;
    let loss = match &found {
        FoundMark::Mark(mark) => Loss::between(mark, sequence, boot_id(), head),
        _ => None,
    };
    Ok((found, loss))
}

/// Mark of one open database. Does nothing for a database in memory.
#[derive(Default)]
pub struct Acknowledged {
    open: Option<Mutex<Open>>,
    /// Loss found at the start.
    pub loss: Option<Loss>,
}

struct Open {
    file: MarkFile,
    mark: Mark,
    /// Whether the last attempt to write failed, which was logged.
    failing: bool,
}

impl Acknowledged {
    /// Compares the mark of a database with its contents, and begins a new mark.
    ///
    /// # Errors
    /// [`Error::LostBlocks`] when the database is damaged and the loss is not accepted.
    pub fn open(store: &Store, chain: &Chain, config: &Config) -> Result<Self, Error> {
        let (Some(path), Some(sequence)) = (store.path(), store.sequence()) else {
            return Ok(Self::default());
        };
        let head = chain.forkchoice().head;
        let (found, loss) = find_loss(store, head)?;
        ::metrics::gauge!(metrics::LOST_WRITES).set(loss.map_or(0, |loss| loss.writes()) as f64);
        ::metrics::gauge!(metrics::LOST_BLOCKS).set(loss.map_or(0, |loss| loss.blocks()) as f64);
        let unknown = !matches!(found, FoundMark::Mark(_));
        ::metrics::gauge!(metrics::MARK_MISSING).set(f64::from(u8::from(unknown)));
        match (&loss, found) {
            (Some(loss), _) if loss.is_damage() && !config.accept_lost_blocks => {
                return Err(Error::LostBlocks { path: path.to_owned(), loss: Box::new(*loss) });
            }
            (Some(loss), _) => warn!(
                %loss, writes = loss.writes(), blocks = loss.blocks(),
                accepted = config.accept_lost_blocks, "the database has lost acknowledged writes"
            ),
            (None, FoundMark::Mark(_)) => {}
            (None, found) => warn!(
                ?found, folder = %path.display(),
                "no record of what was acknowledged: whether the database lost blocks is unknown"
            ),
        }
        let mark = Mark {
            clean: false,
            boot: boot_id(),
            time: now(),
            sequence,
            synced: store.synced_sequence(),
            head,
            base: chain.base(),
            newest: chain.ordered().last().map_or(head, |block| block.id),
        };
        let mut file = MarkFile::open(path)?;
        file.write(&mark)?;
        file.sync()?;
        Ok(Self { open: Some(Mutex::new(Open { file, mark, failing: false })), loss })
    }

    /// Creates the mark of a database that was just created and is on the disk.
    ///
    /// # Errors
    /// [`Error::Store`].
    pub fn begin(store: &Store, head: BlockId, base: BlockId) -> Result<(), Error> {
        let (Some(path), Some(sequence)) = (store.path(), store.sequence()) else { return Ok(()) };
        let mark = Mark {
            clean: true,
            boot: boot_id(),
            time: now(),
            sequence,
            synced: sequence,
            head,
            base,
            newest: head,
        };
        let mut file = MarkFile::open(path)?;
        file.write(&mark)?;
        Ok(file.sync()?)
    }

    /// Notes that a block was committed.
    pub fn committed(&self, store: &Store, block: BlockId) {
        self.note(store, |mark| mark.newest = block);
    }

    /// Notes that a forkchoice was written.
    pub fn head(&self, store: &Store, head: BlockId) {
        self.note(store, |mark| mark.head = head);
    }

    /// Notes that the base moved.
    pub fn base(&self, store: &Store, base: BlockId) {
        self.note(store, |mark| mark.base = base);
    }

    fn note(&self, store: &Store, change: impl FnOnce(&mut Mark)) {
        let Some(open) = &self.open else { return };
        let mut open = open.lock();
        let Some(sequence) = store.sequence() else { return };
        let mark = &mut open.mark;
        (mark.sequence, mark.synced) = (sequence, store.synced_sequence());
        (mark.clean, mark.time) = (false, now());
        change(mark);
        open.write();
    }

    /// Waits until the mark is on the disk, so that a power cut leaves a recent one.
    pub fn sync(&self) {
        let Some(open) = &self.open else { return };
        // Synced without the lock: otherwise a commit would wait for the disk.
        let file = open.lock().file.share();
        if let Err(error) = file.sync_data() {
            warn!(%error, "cannot sync the record of what was acknowledged");
        }
    }

    /// Writes everything to the disk, and notes in the mark that it did.
    pub fn close(&self, store: &Store) {
        let Some(open) = &self.open else { return };
        let flushed = store.flush().and_then(|()| store.sync());
        if let Err(error) = flushed {
            error!(%error, "the database could not be flushed; its log has what is missing");
            return;
        }
        let mut open = open.lock();
        let sequence = store.sequence().unwrap_or(open.mark.sequence);
        let mark = &mut open.mark;
        (mark.sequence, mark.synced, mark.clean, mark.time) = (sequence, sequence, true, now());
        open.write();
        let Open { file, mark, .. } = &*open;
        match file.sync() {
            Ok(()) => info!(head = %mark.head, base = %mark.base, "database flushed and closed"),
            Err(error) => warn!(%error, "cannot sync the record of what was acknowledged"),
        }
    }
}

impl Open {
    /// Writes the mark. A mark that cannot be written stays behind the acknowledged writes, which
    /// is safe.
    fn write(&mut self) {
        let written = self.file.write(&self.mark);
        if let (Err(error), false) = (&written, self.failing) {
            warn!(%error, "cannot write the record of what was acknowledged");
        }
        self.failing = written.is_err();
    }
}

fn now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

/// Identifies this boot of the operating system. Returns zeros, which match no boot, when the
/// system gives no identifier.
fn boot_id() -> [u8; 16] {
    let text = fs::read_to_string(Path::new(BOOT_ID)).unwrap_or_default();
    let digits: String = text.chars().filter(char::is_ascii_hexdigit).collect();
    let number = u128::from_str_radix(&digits, 16).unwrap_or_default();
    number.to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_loss_is_damage_unless_the_machine_went_down_with_it() {
        let mark = Mark { sequence: 100, synced: 60, boot: [1; 16], ..Mark::default() };
        let cause = |mark: &Mark, sequence, boot| {
            Loss::between(mark, sequence, boot, BlockId::default()).map(|loss| loss.cause)
        };
        for boot in [[0; 16], [1; 16], [2; 16]] {
            assert_eq!(cause(&mark, 100, boot), None);
            assert_eq!(cause(&mark, 130, boot), None);
            let clean = Mark { clean: true, ..mark };
            assert_eq!(cause(&clean, 99, boot), Some(LossCause::AfterCleanStop));
        }
        assert_eq!(cause(&mark, 99, [1; 16]), Some(LossCause::AfterCrash));
        assert_eq!(cause(&mark, 99, [2; 16]), Some(LossCause::PowerCut));
        assert_eq!(cause(&mark, 60, [2; 16]), Some(LossCause::PowerCut));
        assert_eq!(cause(&mark, 59, [2; 16]), Some(LossCause::Synced));
        let unknown = Mark { boot: [0; 16], ..mark };
        assert_eq!(cause(&unknown, 99, [0; 16]), Some(LossCause::PowerCut));
    }
}
