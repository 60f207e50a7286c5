//! Selection of the spans that are the payload, side A and side B.

use std::fmt;

use serde::{Serialize, Serializer};

/// Pattern of a span name, with `*` for any run of characters. The whole name must match.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern(String);

impl Pattern {
    /// Creates a pattern from its text.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// Returns whether `name` matches.
    pub fn matches(&self, name: &str) -> bool {
        let mut pieces = self.0.split('*');
        // `split` yields at least one piece: the text before the first star.
        let Some(mut rest) = pieces.next().and_then(|first| name.strip_prefix(first)) else {
            return false;
        };
        let pieces: Vec<&str> = pieces.collect();
        let Some((last, middle)) = pieces.split_last() else { return rest.is_empty() };
        for piece in middle {
            match rest.find(piece) {
                Some(at) => rest = &rest[at + piece.len()..],
                None => return false,
            }
        }
        rest.ends_with(last)
    }
}

impl fmt::Display for Pattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Serialize for Pattern {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0)
    }
}

/// Rule for a span without busy intervals of its own.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Busy {
    /// The span is busy for its whole length.
    Whole,
    /// The span is busy while any of its children runs. A span without children was idle. If no
    /// span of the side has children (they were not recorded), all count for their whole length.
    Children,
}

/// Side of the comparison.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Side {
    /// Alternatives in order of preference. The first alternative that matches any span of a
    /// payload is used for it. Each alternative is a list of patterns whose spans are taken
    /// together.
    pub alternatives: Vec<Vec<Pattern>>,
    /// Rule for spans without busy intervals.
    pub busy: Busy,
}

impl Side {
    /// Creates a side with a single alternative.
    pub fn new(patterns: impl IntoIterator<Item = impl Into<String>>, busy: Busy) -> Self {
        Self { alternatives: vec![patterns.into_iter().map(Pattern::new).collect()], busy }
    }

    /// Returns the names of all alternatives for people: `execute_block or payload processor`.
    pub fn label(&self) -> String {
        let alternatives: Vec<String> = self
            .alternatives
            .iter()
            .map(|patterns| patterns.iter().map(Pattern::to_string).collect::<Vec<_>>().join(", "))
            .collect();
        alternatives.join(" or ")
    }
}

/// Known vocabulary of span names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Preset {
    /// Tandem's own names, with busy intervals as events.
    #[default]
    Tandem,
    /// reth's names, of the versions 1.9 to 2.5. Its workers and its coordinator carry no busy
    /// intervals, but have proof calculations and other pieces of work as children. `execute_block`
    /// is preferred for side A, because reth's `payload processor` stays open until the last task
    /// that it spawned has ended.
    Reth,
    /// geth's names, of version 1.17. Its spans show no state-root work beside execution.
    Geth,
}

/// Names of the spans to look for in the traces.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Selection {
    /// Span that is one payload.
    pub root: Pattern,
    /// Payload side.
    pub a: Side,
    /// Proof side.
    pub b: Side,
    /// Spans that do no work but wait for side B. The tail ends with the last of them.
    pub wait: Pattern,
    /// Spans of other hosts that end before the last waiting span, because it waits for their
    /// answer. They bound how far the clocks may be apart.
    pub answered: Vec<Pattern>,
}

impl From<Preset> for Selection {
    fn from(preset: Preset) -> Self {
        let workers = ["storage worker", "account worker"];
        let mut answered = Vec::new();
        let (a, b) = match preset {
            Preset::Tandem => {
                answered.push(Pattern::new("process_block"));
                let execution = ["payload processor", "prewarm", "tx execution"];
                // The lane has the union of the workers' busy intervals, and is all there is at the
                // usual level. At the level of jobs, the workers have the same once more.
                let lane = ["state root, while executing", "state root, after execution"];
                let workers = lane.into_iter().chain(workers).chain(["proof worker"]);
                (Side::new(execution, Busy::Whole), Side::new(workers, Busy::Whole))
            }
            Preset::Reth => {
                let alternatives = vec![
                    vec![Pattern::new("execute_block"), Pattern::new("execute_block_bal")],
                    vec![Pattern::new("payload processor")],
                ];
                // The names have underscores since 2.0. The coordinator is one task since 1.11, and
                // was a call for each batch of proofs before.
                let since_2 = ["storage_worker", "account_worker"];
                let coordinator = ["update_sparse_trie", "sparse_trie_task"];
                let workers = workers.into_iter().chain(since_2).chain(coordinator);
                (Side { alternatives, busy: Busy::Whole }, Side::new(workers, Busy::Children))
            }
            Preset::Geth => {
                let execution = Side::new(["bc.processor.Process"], Busy::Whole);
                (execution, Side::new(["bc.validator.ValidateState"], Busy::Whole))
            }
        };
        let root = Pattern::new(match preset {
            Preset::Tandem | Preset::Reth => "on_new_payload",
            Preset::Geth => "engine.newPayload",
        });
        Self { root, a, b, wait: Pattern::new("await_state_root"), answered }
    }
}

impl Default for Selection {
    fn default() -> Self {
        Preset::default().into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_threads_that_read_paths_are_on_the_proof_side() {
        let own: Selection = Preset::Tandem.into();
        assert_eq!(
            own.b.label(),
            "state root, while executing, state root, after execution, storage worker, \
             account worker, proof worker"
        );
        let reth: Selection = Preset::Reth.into();
        assert_eq!(
            reth.b.label(),
            "storage worker, account worker, storage_worker, account_worker, update_sparse_trie, \
             sparse_trie_task"
        );
    }

    #[test]
    fn star_stands_for_any_run_of_characters() {
        for (pattern, name, expected) in [
            ("storage worker", "storage worker", true),
            ("storage worker", "storage worker 3", false),
            ("storage*", "storage worker", true),
            ("*worker", "storage worker", true),
            ("*age*ker", "storage worker", true),
            ("a*a", "a", false),
            ("a*b*c", "aXbYbZc", true),
            ("*", "", true),
            ("", "", true),
            ("", "x", false),
        ] {
            assert_eq!(Pattern::new(pattern).matches(name), expected, "{pattern} on {name}");
        }
    }
}
