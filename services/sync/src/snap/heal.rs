//! Repair of a state whose ranges are of different blocks, as the pivot moved while they came.
//!
//! The tries of what is there were built. From the root down, a range is asked for whose answer is
//! short. If the answer covers all keys below a path, it replaces what is there. If not, its proof has
//! the wanted node at the path, and only the children that differ from the built node are asked for.
//! So a change costs a few answers on the way to it, whatever the size of the state, and both versions
//! of snap can be used, as no request for trie nodes is needed.

use super::{
    check::{self, Fault},
    worker::{Stop, Worker, accounts_part},
};
use futures_util::{StreamExt, stream::FuturesUnordered};
use std::future::Future;
use tandem_primitives::{B256, Bytes, EMPTY_TRIE_ROOT};
use tandem_proto::snap::{StateItems, StatePart, StateRequest};
use tandem_trie::{differing_children, node_at};

/// Size of an answer that is asked for. An answer that does not cover its range was for its proof only.
const ANSWER_BYTES: u64 = 16 << 10;
/// Ranges of accounts, and of the slots of each account, that are asked for at the same time.
const UNDER_WAY_MAX: usize = 16;

/// Path from the root of a trie, one nibble per byte.
type Path = Vec<u8>;

/// Replaces what differs from the state with the worker's root.
///
/// # Errors
/// [`Stop`].
pub async fn heal(worker: &Worker) -> Result<(), Stop> {
    descend(|path| accounts(worker, path)).await
}

/// Calls `below` for the top of a trie, and for the paths that it returns.
async fn descend<F>(below: impl Fn(Path) -> F) -> Result<(), Stop>
where
    F: Future<Output = Result<Vec<Path>, Stop>>,
{
    // The last path first, so few wait: at most 15 of each depth.
    let mut waiting = vec![Path::new()];
    let mut under_way = FuturesUnordered::new();
    loop {
        while under_way.len() < UNDER_WAY_MAX
            && let Some(path) = waiting.pop()
        {
            under_way.push(below(path));
        }
        let Some(found) = under_way.next().await else { return Ok(()) };
        waiting.extend(found?);
    }
}

/// Replaces the accounts below a path, or returns the paths further down that differ.
async fn accounts(worker: &Worker, path: Path) -> Result<Vec<Path>, Stop> {
    let (root, (first, last)) = (worker.root, keys_below(&path));
    let request = StateRequest::Accounts { root, start: first, limit: last, bytes: ANSWER_BYTES };
    let check = move |items: StateItems| {
        let proof = proof_of(&items);
        Ok((check::accounts(root, first, items)?, proof))
    };
    let (mut range, proof) = worker.asker.ask("accounts", request, check).await?;
    let end = range.accounts.last().map(|(key, ..)| *key);
    if range.more && end.is_some_and(|end| end < last) {
        return differing(worker, None, root, path, proof).await;
    }
    range.accounts.retain(|(key, ..)| *key <= last);
    let owners: Vec<B256> = range.accounts.iter().map(|(key, ..)| *key).collect();
    let roots = worker.blocking(move |downloads| downloads.built_roots(&owners)).await?;
    for ((owner, _, root), built) in range.accounts.iter().zip(roots) {
        // Without any slot, those that are there go with the range of accounts.
        if *root != built && *root != EMPTY_TRIE_ROOT {
            descend(|path| slots(worker, *owner, *root, path)).await?;
        }
    }
    worker.codes_of(&range.accounts).await?;
    worker.write(vec![accounts_part(first, last, range.accounts)], None).await?;
    Ok(Vec::new())
}

/// Replaces the slots below a path, or returns the paths further down that differ.
async fn slots(
    worker: &Worker,
    owner: B256,
    storage_root: B256,
    path: Path,
) -> Result<Vec<Path>, Stop> {
    let (first, last) = keys_below(&path);
    let request = StateRequest::Slots {
        root: worker.root,
        accounts: vec![owner],
        start: first,
        limit: last,
        bytes: ANSWER_BYTES,
    };
    let check = move |items: StateItems| {
        let proof = proof_of(&items);
        let range = check::slots(&[(owner, storage_root)], first, items)?.pop();
        Ok((range.ok_or(Fault::Absent)?, proof))
    };
    let (range, proof) = worker.asker.ask("slots", request, check).await?;
    let end = range.slots.last().map(|(key, _)| *key);
    if range.more && end.is_some_and(|end| end < last) {
        return differing(worker, Some(owner), storage_root, path, proof).await;
    }
    let mut slots = range.slots;
    slots.retain(|(key, _)| *key <= last);
    worker.write(vec![StatePart::Slots { owner, first, last, slots }], None).await?;
    Ok(Vec::new())
}

/// Returns the paths one step below this one where the wanted trie differs from the built one.
async fn differing(
    worker: &Worker,
    owner: Option<B256>,
    root: B256,
    path: Path,
    proof: Vec<Bytes>,
) -> Result<Vec<Path>, Stop> {
    let at = path.clone();
    let built = worker.blocking(move |downloads| downloads.built_node(owner, &at)).await?;
    let wanted = node_at(root, &path, &proof);
    let (wanted, built) = (wanted.as_ref().map(|it| &it[..]), built.as_ref().map(|it| &it[..]));
    let children = differing_children(wanted, built);
    Ok(children.into_iter().map(|nibble| [&path[..], &[nibble]].concat()).collect())
}

fn proof_of(items: &StateItems) -> Vec<Bytes> {
    match items {
        StateItems::Accounts { proof, .. } | StateItems::Slots { proof, .. } => proof.clone(),
        StateItems::Codes(_) | StateItems::Nodes(_) => Vec::new(),
    }
}

/// Returns the first and the last key below a path of at most 64 nibbles.
fn keys_below(path: &[u8]) -> (B256, B256) {
    let (mut first, mut last) = (B256::ZERO, B256::repeat_byte(0xff));
    for (at, nibble) in path.iter().enumerate() {
        let shift = if at % 2 == 0 { 4 } else { 0 };
        first[at / 2] |= nibble << shift;
        last[at / 2] &= nibble << shift | 0x0f << (4 - shift);
    }
    (first, last)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_has_its_first_and_last_key() {
        assert_eq!(keys_below(&[]), (B256::ZERO, B256::repeat_byte(0xff)));
        let (first, last) = keys_below(&[0xa, 0x1, 0x3]);
        assert_eq!(first, B256::right_padding_from(&[0xa1, 0x30]));
        assert_eq!((&last[..2], last[31]), (&[0xa1, 0x3f][..], 0xff));
        let key = B256::repeat_byte(0x5c);
        let nibbles: Path = key.iter().flat_map(|byte| [byte >> 4, byte & 0x0f]).collect();
        assert_eq!(keys_below(&nibbles), (key, key));
    }
}
