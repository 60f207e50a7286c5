//! Blocks that are driven by their access list, right or wrong. The results are those of execution
//! in order.

use super::{blocks::Case, *};
pub use crate::ahead::listed::Listed;
use alloy_eips::eip7928::{AccountChanges, BalanceChange, BlockAccessIndex, SlotChanges};
use alloy_rlp::Decodable as _;
use std::sync::atomic::Ordering::Relaxed;
pub use tandem_chain::AccessList;
use tandem_primitives::{Address, U256};

/// Results of a block that its list drives.
struct Driven {
    seen: Seen,
    counts: [u64; 3],
    /// Number of conflicts after which the list was left.
    left_after: Option<u64>,
    /// Number of calls for several keys, and of their keys.
    read: [u64; 2],
}

pub fn encode(entries: &[AccountChanges]) -> AccessList {
    let mut rlp = Vec::new();
    alloy_rlp::encode_list::<_, AccountChanges>(entries, &mut rlp);
    AccessList::decode(rlp.into()).unwrap()
}

pub fn decode(list: &AccessList) -> Vec<AccountChanges> {
    Vec::decode(&mut &list.rlp()[..]).unwrap()
}

/// Returns the case's block with this list.
pub fn with_list(case: &Case, list: &AccessList) -> Arc<Block> {
    let mut block = Block::clone(&case.block);
    block.access_list = Some(list.clone());
    Arc::new(block)
}

/// Executes a case on a list, with state far away or not.
fn drive(case: &Case, list: &AccessList, threads: usize, seed: u64, far: bool) -> Driven {
    let parent = Arc::new(case.state.with(Trouble::Delay, seed).far(far));
    let engine = case.state.with(Trouble::Delay, seed + 1);
    let listed = Listed::of(&with_list(case, list), parent.clone()).unwrap();
    let listed = if far { listed.reading_ahead() } else { listed };
    let ahead = Ahead {
        threads: pool(threads),
        span: tracing::Span::none(),
        parent: parent.clone(),
        block_hashes: Arc::new(block_hash),
        advice: None,
        predictor: None,
        in_rounds: true,
        listed: Some(listed),
        machines: None,
        foreign: Default::default(),
    };
    COUNTS.set([0; 3]);
    LEFT_AFTER.set(None);
    let case = Case {
        spec: case.spec.clone(),
        block: with_list(case, list),
        signers: case.signers.clone(),
        state: Memory::default(),
    };
    let seen = run(&case, &engine, Some(&ahead));
    let read = [parent.calls.load(Relaxed), parent.keys.load(Relaxed)];
    Driven { seen, counts: COUNTS.get(), left_after: LEFT_AFTER.get(), read }
}

/// Returns results without the updates to the workers and the way to them, which differ. After an
/// error, only the error is compared.
pub fn comparable(seen: &Seen) -> (String, Option<&StateDiff>) {
    let text = format!("{:?}", seen.0).replace("is_followed: true", "is_followed: false");
    (text, seen.0.is_ok().then_some(&seen.1))
}

/// Returns whether all results agreed with the list.
fn is_followed(seen: &Seen) -> bool {
    seen.0.as_ref().is_ok_and(|executed| executed.is_followed)
}

/// Returns whether the workers got the changes of the execution, and got them once.
fn foretold(seen: &Seen) -> bool {
    matches!(&seen.2[..], [update] if update.accounts == seen.1.accounts)
}

pub fn cases() -> u64 {
    let cases = std::env::var("TANDEM_SPECULATION_CASES").ok().and_then(|n| n.parse().ok());
    cases.unwrap_or(200)
}

/// Returns valid random blocks with the results of execution in order, and their lists.
pub fn valid_cases(count: u64) -> impl Iterator<Item = (u64, Case, Seen, AccessList)> {
    (0..count).filter_map(|seed| {
        let case = Case::random(&mut Random(seed), Fork::Amsterdam);
        let want = run(&case, &case.state, None);
        let list = want.0.as_ref().ok()?.access_list.clone()?;
        Some((seed, case, want, list))
    })
}

#[test]
fn results_are_those_of_execution_in_order() {
    let (mut committed, mut conflicts, mut right, mut followed, mut total) = (0, 0, 0, 0, 0);
    for (seed, case, want, list) in valid_cases(cases()) {
        let mut random = Random(seed);
        let far = random.one_in(2);
        let got = drive(&case, &list, random.pick(&[1, 2, 4]), seed, far);
        assert_eq!(comparable(&want), comparable(&got.seen), "seed {seed}");
        let deletes = got.seen.1.accounts.iter().any(|update| update.wiped);
        assert!(deletes || foretold(&got.seen), "seed {seed}: the workers got other values");
        committed += got.counts[1];
        conflicts += got.counts[2];
        right += u64::from(foretold(&got.seen));
        followed += u64::from(is_followed(&got.seen));
        total += 1;
    }
    // The cases have an account that is empty and exists, which a touch deletes. No list tells that,
    // and no network has such an account.
    assert!(total > 50 && right * 2 > total, "{right} of {total}");
    assert!(followed * 2 > total, "{followed} of {total}");
    assert!(committed > 200 && conflicts * 20 < committed, "{committed}, {conflicts}");
}

#[test]
fn an_invalid_block_stays_invalid() {
    let mut invalid = 0;
    for seed in 0..cases() {
        let case = Case::random(&mut Random(seed), Fork::Amsterdam);
        let want = run(&case, &case.state, None);
        if want.0.is_ok() {
            continue;
        }
        invalid += 1;
        let got = drive(&case, &encode(&[]), 2, seed, false);
        assert_eq!(comparable(&want), comparable(&got.seen), "seed {seed}");
    }
    assert!(invalid > 10, "{invalid}");
}

/// Changes one thing of a list. Returns false if there is nothing of the kind.
pub fn spoil(list: &mut Vec<AccountChanges>, random: &mut Random) -> bool {
    let at = random.below(list.len());
    let account = &mut list[at];
    let one = U256::from(1);
    match random.below(11) {
        0 => account.balance_changes.iter_mut().for_each(|c| c.post_balance ^= one),
        1 => account.nonce_changes.iter_mut().for_each(|c| c.new_nonce ^= 1),
        2 => account.code_changes.iter_mut().for_each(|c| c.new_code = vec![0x5b].into()),
        3 => {
            let Some(slot) = account.storage_changes.first_mut() else { return false };
            slot.changes[0].new_value ^= one;
        }
        4 => drop(account.balance_changes.pop()),
        5 => drop(account.storage_changes.pop()),
        6 => drop(account.storage_reads.pop()),
        7 => drop(list.remove(at)),
        8 => {
            let (index, slot) = (BlockAccessIndex::new(1), U256::from(0x7777));
            let change = alloy_eips::eip7928::StorageChange::new(index, one);
            account.storage_changes.push(SlotChanges::new(slot, vec![change]));
        }
        9 => {
            let index = BlockAccessIndex::new(1);
            let balance_changes = vec![BalanceChange::new(index, one)];
            let address = Address::repeat_byte(0xff);
            list.push(AccountChanges { address, balance_changes, ..AccountChanges::default() });
        }
        // The last change comes one transaction later.
        _ => {
            let Some(change) = account.balance_changes.last_mut() else { return false };
            change.block_access_index.increment();
        }
    }
    true
}

#[test]
fn a_wrong_list_changes_nothing_but_its_verdict() {
    let mut wrong = 0;
    for (seed, case, want, list) in valid_cases(cases()) {
        let mut random = Random(seed ^ 0xbad);
        let mut entries = decode(&list);
        if !spoil(&mut entries, &mut random) || encode(&entries) == list {
            continue;
        }
        let got = drive(&case, &encode(&entries), random.pick(&[1, 2, 4]), seed, false);
        assert_eq!(comparable(&want), comparable(&got.seen), "seed {seed}");
        let executed = got.seen.0.as_ref().unwrap().access_list.as_ref().unwrap();
        assert_ne!(*executed, encode(&entries), "seed {seed}: the list is found to be wrong");
        wrong += 1;
    }
    assert!(wrong > 20, "{wrong}");
}

/// Returns a block whose transactions are all calls of one counter, in order of their senders.
fn counters(calls: usize) -> (Case, Seen, AccessList) {
    let mut state = Memory::default();
    let counter = Address::repeat_byte(0x77);
    state.insert(counter, 1, 0, &alloy_primitives::hex!("60005460010160005500"));
    let calls = vec![(counter, tandem_primitives::Bytes::new()); calls];
    let case = Case::calls(Fork::Amsterdam, state, &calls, 200_000);
    let want = run(&case, &case.state, None);
    let list = want.0.as_ref().unwrap().access_list.clone().unwrap();
    (case, want, list)
}

#[test]
fn transactions_that_depend_on_one_another_all_hold() {
    let (case, want, list) = counters(60);
    let mut committed = 0;
    for seed in 0..10 {
        let got = drive(&case, &list, 2, seed, false);
        assert_eq!(comparable(&want), comparable(&got.seen));
        let [speculated, held, conflicts] = got.counts;
        assert_eq!((conflicts, speculated), (0, held), "no work is done twice");
        assert!(foretold(&got.seen));
        committed += held;
    }
    assert!(committed > 0, "the engine executed all 600 itself");
}

#[test]
fn a_list_that_is_wrong_at_the_end_costs_no_conflict() {
    let (case, want, list) = counters(60);
    let mut entries = decode(&list);
    let counter = entries.iter_mut().find(|entry| !entry.nonce_changes.is_empty()).unwrap();
    let last = BlockAccessIndex::new(61);
    counter.balance_changes.push(BalanceChange::new(last, U256::from(1)));
    let got = drive(&case, &encode(&entries), 2, 1, false);
    assert_eq!(comparable(&want), comparable(&got.seen));
    assert_eq!(got.counts[2], 0);
    assert!(!foretold(&got.seen), "the workers got a wrong value");
}

#[test]
fn a_list_that_is_wrong_at_once_is_left_at_the_first_conflict() {
    let (case, want, list) = counters(60);
    let mut entries = decode(&list);
    for slot in entries.iter_mut().flat_map(|entry| &mut entry.storage_changes) {
        slot.changes.iter_mut().for_each(|change| change.new_value += U256::from(7));
    }
    let mut left = 0;
    for seed in 0..20 {
        let got = drive(&case, &encode(&entries), 2, seed, false);
        assert_eq!(comparable(&want), comparable(&got.seen));
        // Without a conflict, the engine executed all transactions itself.
        assert_eq!(got.left_after, (got.counts[2] > 0).then_some(1));
        left += u64::from(got.left_after.is_some());
    }
    assert!(left > 0, "the list was never followed");
}

/// Adds slots that the block does not touch to a list.
fn with_untouched(list: &AccessList, slots: u64) -> AccessList {
    let mut entries = decode(list);
    let storage_reads = (0..slots).map(|n| U256::from(1_000_000 + n)).collect();
    let address = Address::repeat_byte(0xfe);
    entries.push(AccountChanges { address, storage_reads, ..AccountChanges::default() });
    entries.sort_by_key(|entry| entry.address);
    encode(&entries)
}

#[test]
fn untouched_slots_cost_a_bounded_number_of_reads() {
    let (case, want, list) = counters(20);
    let usual = drive(&case, &list, 1, 1, true);
    for slots in [1_000, 70_000, 1_000_000] {
        let got = drive(&case, &with_untouched(&list, slots), 1, 1, true);
        assert_eq!(comparable(&want), comparable(&got.seen));
        let [calls, keys] = got.read;
        // The account of the slots is one key more.
        assert!(keys <= usual.read[1] + 1 + slots.min(65_536), "{keys} keys");
        assert!(calls <= usual.read[0] + 1 + slots.min(65_536) / 2_048, "{calls} calls");
    }
}

#[test]
fn more_changes_than_gas_pays_for_are_not_followed() {
    let (case, _, list) = counters(20);
    let mut entries = decode(&list);
    for n in 0..200_000_u64 {
        let balance_changes = vec![BalanceChange::new(BlockAccessIndex::new(1), U256::from(1))];
        let address = Address::left_padding_from(&(n + (1 << 40)).to_be_bytes());
        entries.push(AccountChanges { address, balance_changes, ..AccountChanges::default() });
    }
    entries.sort_by_key(|entry| entry.address);
    let parent = Arc::new(case.state.with(Trouble::Delay, 1));
    assert!(Listed::of(&with_list(&case, &encode(&entries)), parent.clone()).is_none());
    assert!(Listed::of(&with_list(&case, &list), parent).is_some());
}
