//! Right to write: which executor holds it, and whether this storage-writer may grant it at all.
//!
//! A storage-writer leads, follows a leader, or was superseded (see [`Standing`]). The database has the
//! newest grant and the highest term of another storage-writer. Both are on the disk before anything
//! depends on them, so a restart changes no answer.

use crate::{
    Error,
    config::StartsAs,
    grant::Grant,
    meta, metrics,
    service::{StorageWriter, store_error},
};
use tandem_proto::storage::{
    self, BaseReads, Epoch, Leadership, Promotion, Result, Standing, Term,
};
use tandem_store::{Durability, View};
use tokio::sync::watch;
use tracing::{info, warn};

/// Everything that decides whether a write is admitted.
pub struct Rights {
    /// Newest grant.
    pub grant: Grant,
    /// Highest term in which another storage-writer leads or led, as far as it is known here.
    heard: Term,
    /// Whether this process keeps a copy of a leader's chain, and was not promoted.
    follows: bool,
}

impl Rights {
    /// Reads the rights of a process that starts with this database.
    ///
    /// # Errors
    /// When the database fails or a record is damaged.
    pub fn load(view: &View<'_>, starts_as: StartsAs, is_copy: bool) -> Result<Self, Error> {
        let (grant, heard) = (meta::grant(view)?, meta::heard_term(view)?);
        let follows = starts_as.follows(is_copy, Term::of_epoch(grant.epoch), heard);
        Ok(Self { grant, heard, follows })
    }

    /// Shows the role in the metrics.
    pub fn gauge(&self) {
        let leads = f64::from(u8::from(self.standing().leads()));
        ::metrics::gauge!(metrics::LEADS).set(leads);
        ::metrics::gauge!(metrics::TERM).set(f64::from(self.term().max(self.heard).0));
    }

    /// Returns the term of the newest grant.
    pub fn term(&self) -> Term {
        Term::of_epoch(self.grant.epoch)
    }

    /// Returns the role of this storage-writer.
    pub fn standing(&self) -> Standing {
        let own = self.term();
        match () {
            () if self.follows => Standing::Follows,
            () if self.heard > own => Standing::Superseded(self.heard),
            () => Standing::Leads(own),
        }
    }

    /// Refuses writes and grants where another storage-writer leads. A follower writes its own copy.
    pub fn admit(&self) -> Result<()> {
        if self.follows { Ok(()) } else { self.standing().admit() }
    }

    /// Rejects an epoch that is not the newest, or that the caller does not prove.
    pub fn check(&self, held: Epoch) -> Result<()> {
        self.admit()?;
        let granted = &self.grant;
        if granted.is_vacant() || held.number != granted.epoch {
            return Err(storage::Error::Fenced { held: held.number, granted: granted.epoch });
        }
        if !granted.is_proven_by(held.token) {
            return Err(storage::Error::Unproven { held: held.number });
        }
        Ok(())
    }
}

impl StorageWriter {
    /// Makes this storage-writer lead, in a term above all that it has heard of and not below `least`.
    /// Every earlier epoch is fenced off. Returns the term; nothing changes if it leads already in
    /// `least` or above.
    ///
    /// # Errors
    /// [`storage::Error::Store`]; [`storage::Error::Refused`] after the last term.
    pub fn lead(&self, least: Term) -> Result<Term> {
        let leads = |standing| match standing {
            Standing::Leads(term) if term >= least => Some(term),
            _ => None,
        };
        // A holder of a lease asks often, and must not wait for a write each time.
        if let Some(term) = leads(*self.standing.borrow()) {
            return Ok(term);
        }
        // Waits for the write that is under way.
        let mut rights = self.rights.write();
        if let Some(term) = leads(rights.standing()) {
            return Ok(term);
        }
        let next = rights.term().max(rights.heard).next();
        let last = || storage::Error::Refused("there is no further term".to_owned());
        let term = next.ok_or_else(last)?.max(least);
        let grant = Grant::bare(term.floor());
        let mut batch = self.shared.store.batch();
        meta::put_grant(&mut batch, &grant)?;
        // This also brings to the disk what a follower had written without waiting.
        self.shared.store.write(batch, Durability::Disk).map_err(store_error)?;
        (rights.grant, rights.follows) = (grant, false);
        self.shared.set_follows(false);
        self.standing.send_replace(rights.standing());
        rights.gauge();
        drop(rights);
        let head = self.checkpoint()?.forkchoice.head;
        info!(term = term.0, %head, "this storage-writer leads");
        Ok(term)
    }

    /// Returns the highest term that is known here.
    pub fn known_term(&self) -> Term {
        let rights = self.rights.read();
        rights.term().max(rights.heard)
    }

    fn promotion(&self, term: Term) -> Result<Promotion> {
        Ok(Promotion { term, head: self.checkpoint()?.forkchoice.head })
    }
}

impl Leadership for StorageWriter {
    fn standing(&self) -> watch::Receiver<Standing> {
        self.standing.subscribe()
    }

    fn hear_term(&self, term: Term) -> Result<Term> {
        let mut rights = self.rights.write();
        let (own, before) = (rights.term(), rights.standing());
        if before == Standing::Leads(term) {
            return Err(storage::Error::Refused(format!(
                "two storage-writers lead in term {}: promote one of them once more",
                term.0
            )));
        }
        let known = rights.heard.max(own);
        if term <= known {
            return Ok(known);
        }
        let mut batch = self.shared.store.batch();
        meta::put_heard_term(&mut batch, term);
        self.shared.store.write(batch, Durability::Disk).map_err(store_error)?;
        rights.heard = term;
        let standing = rights.standing();
        self.standing.send_replace(standing);
        rights.gauge();
        drop(rights);
        if before.leads() {
            warn!(own = own.0, term = term.0, "another storage-writer leads: no more writes here");
        }
        Ok(term)
    }

    fn promote(&self, force: bool) -> Result<Promotion> {
        let standing = self.rights.read().standing();
        match standing {
            Standing::Leads(term) => self.promotion(term),
            Standing::Superseded(Term(term)) if !force => Err(storage::Error::Refused(format!(
                "another storage-writer leads since term {term}, and this one may lack its blocks; \
                 stop the other one and use --force"
            ))),
            Standing::Follows | Standing::Superseded(_) => {
                let term = self.lead(Term::default())?;
                self.promotion(term)
            }
        }
    }
}
