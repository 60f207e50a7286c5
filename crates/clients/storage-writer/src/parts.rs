//! Reads and walks that exceed the limits of one message.

use std::collections::HashSet;
use tandem_primitives::WalkTarget;
use tandem_proto::{
    limits::{READ_ACCOUNTS_MAX, READ_CODES_MAX, READ_SLOTS_MAX, WALK_TARGETS_MAX},
    storage::{Error, ReadState, Result, StateValues, TrieNodes},
};

/// Attempts at a read in parts before it fails because the base moved between the parts.
const ATTEMPTS: usize = 8;

/// Reads all keys, in one part where they fit. All parts are of the same base.
///
/// # Errors
/// The errors of `read`; [`Error::Unavailable`] when the base moved between the parts in every
/// attempt.
pub fn read_state(
    request: &ReadState,
    read: impl Fn(&ReadState) -> Result<StateValues>,
) -> Result<StateValues> {
    let count = [
        request.accounts.len().div_ceil(READ_ACCOUNTS_MAX),
        request.slots.len().div_ceil(READ_SLOTS_MAX),
        request.codes.len().div_ceil(READ_CODES_MAX),
    ];
    let count = count.into_iter().max().unwrap_or(0);
    if count <= 1 {
        return read(request);
    }
    let part = |at| ReadState {
        accounts: chunk(&request.accounts, READ_ACCOUNTS_MAX, at).to_vec(),
        slots: chunk(&request.slots, READ_SLOTS_MAX, at).to_vec(),
        codes: chunk(&request.codes, READ_CODES_MAX, at).to_vec(),
    };
    'attempts: for _ in 0..ATTEMPTS {
        let mut values = read(&part(0))?;
        for at in 1..count {
            let more = read(&part(at))?;
            if more.base != values.base {
                continue 'attempts;
            }
            values.accounts.extend(more.accounts);
            values.slots.extend(more.slots);
            values.codes.extend(more.codes);
        }
        return Ok(values);
    }
    Err(base_moved())
}

/// Walks to all targets, in one part where they fit. All parts are of the same base. A node on the
/// path to targets of several parts is returned once.
///
/// # Errors
/// The errors of `walk`; [`Error::Unavailable`] when the base moved between the parts in every
/// attempt.
pub fn walk_trie(
    targets: &[WalkTarget],
    walk: impl Fn(&[WalkTarget]) -> Result<TrieNodes>,
) -> Result<TrieNodes> {
    if targets.len() <= WALK_TARGETS_MAX {
        return walk(targets);
    }
    'attempts: for _ in 0..ATTEMPTS {
        let mut base = None;
        let (mut nodes, mut seen) = (Vec::new(), HashSet::new());
        for part in targets.chunks(WALK_TARGETS_MAX) {
            let more = walk(part)?;
            if *base.get_or_insert(more.base) != more.base {
                continue 'attempts;
            }
            nodes.extend(
                more.nodes.into_iter().filter(|node| seen.insert((node.owner, node.path.clone()))),
            );
        }
        if let Some(base) = base {
            return Ok(TrieNodes { base, nodes });
        }
    }
    Err(base_moved())
}

/// Returns the items of a part, none where there are no more.
fn chunk<T>(items: &[T], size: usize, at: usize) -> &[T] {
    items.chunks(size).nth(at).unwrap_or_default()
}

fn base_moved() -> Error {
    Error::Unavailable("the base moved during a read in parts".to_owned())
}

#[cfg(test)]
mod tests;
