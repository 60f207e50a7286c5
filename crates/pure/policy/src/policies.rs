use crate::{
    AccessLists, Batching, ChunkPlan, Chunking, Dispatching, Error, ReceiptsRoot, StateReads,
    TransitionFlush, error::quoted,
};
use serde::{Deserialize, Serialize};
use std::{fmt::Display, num::NonZeroU32};

/// Values of all policies, as in the table `[policies]`, where every key is optional.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Policies {
    /// State updates whose keys are requested together.
    pub batching: Batching,
    /// Whether a dispatch is split into chunks.
    pub chunking: Chunking,
    /// Number of keys in a chunk.
    pub chunk_targets: NonZeroU32,
    /// Number of keys above which [`Chunking::WhileIdle`] splits a dispatch even when the workers
    /// are busy; 0 for never.
    pub force_chunk_targets: u32,
    /// Whether a worker takes messages while a batch is read.
    pub dispatch: Dispatching,
    /// Transactions whose changes travel as one update.
    pub transition_flush: TransitionFlush,
    /// Time and place of computing the receipts root.
    pub receipts_root: ReceiptsRoot,
    /// Way in which values that are not in memory are read.
    pub reads: StateReads,
    /// Whether a payload's access list drives its block.
    pub access_lists: AccessLists,
}

impl Default for Policies {
    fn default() -> Self {
        const FIVE: NonZeroU32 = NonZeroU32::MIN.saturating_add(4);
        Self {
            batching: Batching::default(),
            chunking: Chunking::default(),
            chunk_targets: FIVE,
            force_chunk_targets: 300,
            dispatch: Dispatching::default(),
            transition_flush: TransitionFlush::default(),
            receipts_root: ReceiptsRoot::default(),
            reads: StateReads::default(),
            access_lists: AccessLists::default(),
        }
    }
}

impl Policies {
    /// Names of the policies in configuration, command line and calls.
    pub const KEYS: [&'static str; 9] = [
        "batching",
        "chunking",
        "chunk_targets",
        "force_chunk_targets",
        "dispatch",
        "transition_flush",
        "receipts_root",
        "reads",
        "access_lists",
    ];

    /// Sets the policy of this name to the value in the text.
    ///
    /// # Errors
    /// [`Error::Key`], [`Error::Value`]; the policies are then unchanged.
    pub fn set(&mut self, key: &str, value: &str) -> Result<(), Error> {
        match key {
            "batching" => self.batching = value.parse()?,
            "chunking" => self.chunking = value.parse()?,
            "chunk_targets" => {
                let expected = "a number from 1 to 4294967295";
                let wrong = |_| Error::value("chunk_targets", value, expected);
                self.chunk_targets = value.parse().map_err(wrong)?;
            }
            "force_chunk_targets" => {
                let expected = "a number from 0 (never) to 4294967295";
                let wrong = |_| Error::value("force_chunk_targets", value, expected);
                self.force_chunk_targets = value.parse().map_err(wrong)?;
            }
            "dispatch" => self.dispatch = value.parse()?,
            "transition_flush" => self.transition_flush = value.parse()?,
            "receipts_root" => self.receipts_root = value.parse()?,
            "reads" => self.reads = value.parse()?,
            "access_lists" => self.access_lists = value.parse()?,
            _ => return Err(Error::Key { key: quoted(key) }),
        }
        Ok(())
    }

    /// Sets one policy by `KEY=VALUE`.
    ///
    /// # Errors
    /// [`Error`]; the policies are then unchanged.
    pub fn assign(&mut self, text: &str) -> Result<(), Error> {
        let (key, value) =
            text.split_once('=').ok_or_else(|| Error::Assignment { text: quoted(text) })?;
        self.set(key, value)
    }

    /// Returns these policies with the changes from a text: any number of `KEY=VALUE`, separated by
    /// white space. The key of the live settings holds such a text.
    ///
    /// # Errors
    /// [`Error`] of the first invalid setting.
    pub fn with_text(mut self, text: &str) -> Result<Self, Error> {
        text.split_ascii_whitespace().try_for_each(|text| self.assign(text))?;
        Ok(self)
    }

    /// Returns all policies as a text for [`Policies::with_text`] that overrides every value.
    #[must_use]
    pub fn text(&self) -> String {
        self.entries().map(|(key, value)| format!("{key}={value}")).join("\n")
    }

    /// Returns name and value of each policy.
    #[must_use]
    pub fn entries(&self) -> [(&'static str, &dyn Display); 9] {
        let values: [&dyn Display; 9] = [
            &self.batching,
            &self.chunking,
            &self.chunk_targets,
            &self.force_chunk_targets,
            &self.dispatch,
            &self.transition_flush,
            &self.receipts_root,
            &self.reads,
            &self.access_lists,
        ];
        std::array::from_fn(|at| (Self::KEYS[at], values[at]))
    }

    /// Plans how a dispatch of `targets` keys is split while `idle_workers` of the workers are
    /// idle.
    #[must_use]
    pub fn plan_chunks(&self, targets: usize, idle_workers: usize, workers: usize) -> ChunkPlan {
        let (least, forced) = (self.chunk_targets, self.force_chunk_targets);
        self.chunking.plan(least, forced, targets, idle_workers, workers)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_policy_is_set_by_its_name() {
        let mut policies = Policies::default();
        let wanted = [
            "fixed{16,500}",
            "while-idle",
            "60",
            "0",
            "blocking",
            "adaptive{500000,5,2}",
            "background",
            "one-by-one",
            "checked",
        ];
        for (key, value) in Policies::KEYS.into_iter().zip(wanted) {
            policies.assign(&format!("{key}={value}")).unwrap();
        }
        let got = policies.entries().map(|(key, value)| (key, value.to_string()));
        for ((key, value), (name, want)) in got.iter().zip(Policies::KEYS.into_iter().zip(wanted)) {
            assert_eq!((*key, value.as_str()), (name, want));
        }
        let json = serde_json::to_value(policies).unwrap();
        assert_eq!(serde_json::from_value::<Policies>(json.clone()).unwrap(), policies);
        assert_eq!(json["chunk_targets"], 60);
        assert_eq!(json.as_object().unwrap().len(), Policies::KEYS.len());
    }

    #[test]
    fn wrong_settings_are_named_and_change_nothing() {
        let mut policies = Policies::default();
        for (text, reason) in [
            ("batching", "`batching` is not of the form KEY=VALUE"),
            (
                "batchin=none",
                "unknown policy `batchin`; expected one of `batching`, `chunking`, `chunk_targets`, `force_chunk_targets`, `dispatch`, `transition_flush`, `receipts_root`, `reads`, `access_lists`",
            ),
            (
                "chunk_targets=0",
                "invalid value `0` for `chunk_targets`; expected a number from 1 to 4294967295",
            ),
            (
                "chunk_targets=",
                "invalid value `` for `chunk_targets`; expected a number from 1 to 4294967295",
            ),
            (
                "force_chunk_targets=-1",
                "invalid value `-1` for `force_chunk_targets`; expected a number from 0 (never) to 4294967295",
            ),
            (
                "chunking=some",
                "invalid value `some` for `chunking`; expected `always`, `while-idle` or `never`",
            ),
        ] {
            assert_eq!(policies.assign(text).unwrap_err().to_string(), reason);
        }
        assert_eq!(policies, Policies::default());
        for wrong in [r#"{"batchin":"none"}"#, r#"{"batching":1}"#, r#"{"chunk_targets":0}"#] {
            assert!(serde_json::from_str::<Policies>(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_text_sets_what_it_names_and_leaves_the_rest() {
        let configured = Policies { chunk_targets: NonZeroU32::MAX, ..Policies::default() };
        assert_eq!(configured.with_text(" \n"), Ok(configured));
        let changed = configured.with_text("batching=none\n\tchunking=never ").unwrap();
        let want = Policies { batching: Batching::None, chunking: Chunking::Never, ..configured };
        assert_eq!(changed, want);
        assert_eq!(Policies::default().with_text(&want.text()), Ok(want));
        let error = configured.with_text("batching=none chunking = never").unwrap_err();
        assert_eq!(error.to_string(), "`chunking` is not of the form KEY=VALUE");
    }

    #[test]
    fn chunks_follow_the_settings() {
        let policies = Policies::default();
        assert_eq!(policies.plan_chunks(12, 0, 1).chunks(12), 3);
        let policies = Policies { chunking: Chunking::WhileIdle, ..policies };
        assert!(policies.plan_chunks(12, 1, 2).skipped_because_busy);
    }
}
