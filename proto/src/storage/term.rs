//! Terms: which of several storage-writers leads.
//!
//! A chain may have one leading storage-writer and copies that may take its place. Each storage-writer
//! that begins to lead does so in a **term** above every term that it has heard of. The numbers of
//! epochs are ordered by term first, so the rule that fences executors fences storage-writers as well.

use super::{Error, Result};
use tandem_primitives::BlockId;
use tokio::sync::watch;

/// Number of the time in which one storage-writer leads; 0 for the first.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub struct Term(pub u32);

impl Term {
    /// Returns the term of an epoch: the upper half of its number.
    pub const fn of_epoch(number: u64) -> Self {
        Self((number >> 32) as u32)
    }

    /// Returns the number below all epochs of this term. No executor is granted it.
    pub const fn floor(self) -> u64 {
        (self.0 as u64) << 32
    }

    /// Returns the following term, `None` after the last.
    pub fn next(self) -> Option<Self> {
        self.0.checked_add(1).map(Self)
    }
}

/// Role of a storage-writer among the copies of its chain.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Standing {
    /// It leads in this term: executors may write.
    Leads(Term),
    /// It keeps a copy of a leader's chain. It may be promoted.
    Follows,
    /// Another storage-writer leads in this later term, so nothing is written here.
    Superseded(Term),
}

impl Standing {
    /// Returns whether executors may write.
    pub fn leads(self) -> bool {
        matches!(self, Self::Leads(_))
    }

    /// Refuses a write where another storage-writer leads.
    ///
    /// # Errors
    /// [`Error::Unavailable`]: the caller may succeed at another storage-writer.
    pub fn admit(self) -> Result<()> {
        match self {
            Self::Leads(_) => Ok(()),
            Self::Follows => Err(Error::Unavailable(
                "it follows a leader; `tandem promote` makes it lead".to_owned(),
            )),
            Self::Superseded(Term(term)) => Err(Error::Unavailable(format!(
                "another storage-writer leads since term {term}; nothing is written here any more"
            ))),
        }
    }
}

/// Answer to a promotion.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Promotion {
    /// Term in which the storage-writer leads now.
    pub term: Term,
    /// Head of its chain.
    pub head: BlockId,
}

/// Calls by which storage-writers agree on the one that leads.
pub trait Leadership: Send + Sync + 'static {
    /// Returns a channel with the role of this storage-writer.
    fn standing(&self) -> watch::Receiver<Standing>;

    /// Takes note, durably, that another storage-writer leads in this term. If the term is above the
    /// own one, nothing is written here any more. Returns the highest term that is known here.
    ///
    /// # Errors
    /// [`Error::Refused`] when this storage-writer leads in the same term; [`Error::Store`].
    fn hear_term(&self, term: Term) -> Result<Term>;

    /// Makes this storage-writer lead, in a term above all that it has heard of. Does nothing if it
    /// leads already. `force` promotes it although its leader may still lead.
    ///
    /// # Errors
    /// [`Error::Refused`] with the reason why it must not lead; [`Error::Store`].
    fn promote(&self, force: bool) -> Result<Promotion>;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_epoch_of_a_later_term_is_above_all_earlier_ones() {
        let term = Term(7);
        assert_eq!(Term::of_epoch(term.floor()), term);
        assert_eq!(Term::of_epoch(term.floor() + u64::from(u32::MAX)), term);
        assert_eq!(term.floor() + u64::from(u32::MAX) + 1, Term(8).floor());
        assert_eq!((term.next(), Term(u32::MAX).next()), (Some(Term(8)), None));
        assert_eq!(Term::of_epoch(3), Term(0), "epochs of older versions are of the first term");
    }
}
