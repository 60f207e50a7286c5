//! Comparison of restored files with their manifest, and of a database with what a manifest says.

use crate::{Block, Restored, Subject};
use anyhow::{Context, bail, ensure};
use tandem_storage_writer::{DatabaseSubject, StateBlock, database_subject, verify};

impl From<&DatabaseSubject> for Subject {
    fn from(subject: &DatabaseSubject) -> Self {
        let block = |block: StateBlock| Block {
            number: block.id.number,
            hash: block.id.hash,
            state_root: block.state_root,
        };
        Self {
            schema_version: subject.schema_version,
            chain_id: subject.chain_id,
            genesis: subject.genesis.hash,
            head: block(subject.head),
            base: block(subject.base),
        }
    }
}

impl Restored {
    /// Compares the files with their manifest. With `whole`, recomputes the state root and checks every
    /// record too, as `tandem verify` does, which reads all of the files.
    ///
    /// # Errors
    /// When they differ, or the files cannot be read.
    pub fn check(&self, whole: bool) -> anyhow::Result<()> {
        let (want, datadir) = (&self.manifest.subject, self.datadir());
        let advice = || format!("remove {} and restore another snapshot", datadir.display());
        let got = Subject::from(&database_subject(&datadir).with_context(advice)?);
        // The version rises when this Tandem opens a database of an earlier one.
        let got = Subject { schema_version: want.schema_version, ..got };
        ensure!(got == *want, "the database is another one than its manifest says; {}", advice());
        if !whole {
            return Ok(());
        }
        let report = verify(&datadir).with_context(advice)?;
        if let Some(first) = &report.first_difference {
            bail!("{} differences, the first: {first}; {}", report.differences, advice());
        }
        Ok(())
    }
}
