//! Blocks that are as slow as possible to read from far away.

use super::{blocks::Case, state::Memory, *};
use crate::ahead::speculate::{experience::Experience, rounds};
use alloy_primitives::hex;
use std::sync::atomic::Ordering::Relaxed;
use tandem_primitives::{Address, Bytes, U256};

const CONTRACT: Address = Address::repeat_byte(0x77);
const OTHER: Address = Address::repeat_byte(0x78);

/// Executes a block in rounds and compares it with its execution in order. Returns the number of
/// calls for several keys.
fn check(case: &Case) -> u64 {
    let want = run(case, &case.state, None);
    assert!(want.0.is_ok(), "{:?}", want.0);
    let parent = Arc::new(case.state.with(Trouble::Delay, 1).far(true));
    // Other tests share the pool's thread.
    let threads = Prewarmers::start(1, &CancellationToken::new()).unwrap();
    let ahead = Ahead {
        threads: &threads,
        span: tracing::Span::none(),
        parent: parent.clone(),
        block_hashes: Arc::new(block_hash),
        advice: None,
        predictor: None,
        in_rounds: true,
        listed: None,
        machines: None,
        foreign: Default::default(),
    };
    let got = run(case, &case.state, Some(&ahead));
    assert_eq!(format!("{:?}", want.0), format!("{:?}", got.0));
    assert_eq!((want.1, want.2), (got.1, got.2));
    parent.calls.load(Relaxed)
}

/// Executes a block in rounds on this thread alone. Returns the number of calls for several keys, and
/// of results.
fn work_alone(case: &Case) -> (u64, u64) {
    let parent = Arc::new(case.state.with(Trouble::Delay, 1).far(true));
    let (published, block_hashes) = (Published::new(), Arc::new(block_hash));
    let sources =
        Arc::new(Sources { published, listed: None, parent: parent.clone(), block_hashes });
    let senders = Senders::known(case.block.clone(), &case.signers);
    let env = crate::block::evm::evm_env(&case.spec, &case.block.header);
    let experience = Experience::default();
    let (block, told) = (case.block.clone(), (None, None));
    let job = Job::new(block, senders.share(), env, sources, told, true, &experience);
    let job = Arc::new(job);
    rounds::work(&job, &mut rounds::Stacks::new());
    (parent.calls.load(Relaxed), job.counts.speculated.load(Relaxed))
}

/// Checks that a block's results do not change, and that fibers execute all transactions except the
/// first, which is the engine's, whose values are all missing.
fn check_on_fibers(case: &Case) {
    check(case);
    let (calls, results) = work_alone(case);
    assert!(calls > 0);
    assert_eq!(results, case.block.transactions.len() as u64 - 1);
}

fn word(n: usize) -> Bytes {
    U256::from(n).to_be_bytes::<32>().into()
}

#[test]
fn a_chain_of_pointers_does_not_add_calls_for_other_transactions() {
    let mut state = Memory::default();
    // slot = 1, then slot = storage[slot] until it is zero.
    state.insert(CONTRACT, 1, 0, &hex!("60015b548060025700"));
    for slot in 1..500 {
        state.set_slot(CONTRACT, slot, slot + 1);
    }
    // storage[a] = storage[storage[a]] + 1
    state.insert(OTHER, 1, 0, &hex!("600035545460010160003555"));
    let mut calls = vec![(CONTRACT, Bytes::new())];
    for n in 0..60 {
        state.set_slot(OTHER, n, 1_000 + n);
        calls.push((OTHER, word(n as usize)));
    }
    let calls = check(&Case::calls(Fork::Osaka, state, &calls, 2_000_000));
    // One for each pointer, and a few of the engine at most.
    assert!(calls <= 800, "{calls} calls");
}

#[test]
fn many_dependent_reads_take_few_calls() {
    let mut state = Memory::default();
    // storage[a] = storage[storage[a]] + 1
    state.insert(CONTRACT, 1, 0, &hex!("600035545460010160003555"));
    let mut calls = Vec::new();
    for n in 0..1_400 {
        state.set_slot(CONTRACT, n, 1_000_000 + n);
        calls.push((CONTRACT, word(n as usize)));
    }
    let calls = check(&Case::calls(Fork::Osaka, state, &calls, 60_000));
    // Usually about 20. The engine makes up to three for each if the other thread gets no time.
    assert!(calls <= 4_300, "{calls} calls for 7,000 keys");
}

#[test]
fn slots_of_accounts_that_a_transaction_calls_are_read_together() {
    let mut state = Memory::default();
    // Calls the addresses in the six words, each of which reads slots 1 to 4.
    let call = |word: u8| [&hex!("5f5f5f5f5f60")[..], &[32 * word], &hex!("355af150")].concat();
    state.insert(CONTRACT, 1, 0, &(0..6).flat_map(call).collect::<Vec<_>>());
    let calls: Vec<_> = (0..20u8)
        .map(|transaction| {
            let called = (0..6).map(|word| {
                let address = Address::left_padding_from(&[1, transaction, word, 0]);
                state.insert(address, 1, 0, &hex!("60015450600254506003545060045450"));
                address.into_word()
            });
            (CONTRACT, called.flat_map(|word| word.0).collect::<Vec<u8>>().into())
        })
        .collect();
    let (calls, results) = work_alone(&Case::calls(Fork::Osaka, state, &calls, 1_000_000));
    // One for each of the 24 slots without further guesses.
    assert!(calls <= 10, "{calls} calls");
    assert_eq!(results, 19);
}

#[test]
fn calls_a_thousand_deep_fit_on_the_stack_of_a_fiber() {
    let mut state = Memory::default();
    // Calls itself with all gas, then reads slot `gas`, which is not in memory.
    state.insert(CONTRACT, 1, 0, &hex!("5f5f5f5f5f305af1505a5450"));
    let calls = vec![(CONTRACT, Bytes::new()); 6];
    check_on_fibers(&Case::calls(Fork::Prague, state, &calls, 1 << 42));
}

#[test]
fn precompiles_fit_on_the_stack_of_a_fiber() {
    let mut state = Memory::default();
    // Reads slot 0, which is not in memory, then calls the address in the first word with the rest.
    let code = hex!("5f54506020360360205f375f5f602036035f5f5f355af15f55");
    state.insert(CONTRACT, 1, 0, &code);
    let modexp = [U256::from(64), U256::from(64), U256::from(64)];
    let modexp = modexp.iter().flat_map(U256::to_be_bytes::<32>).chain([0xfe; 192]);
    let blake = [&hex!("0000ffff")[..], &[3; 208], &[1]].concat();
    let inputs: Vec<(u8, Vec<u8>)> = vec![
        (1, vec![1; 128]),
        (2, vec![1; 4_096]),
        (3, vec![1; 4_096]),
        (5, modexp.collect()),
        (6, vec![0; 128]),
        (7, vec![0; 96]),
        (8, vec![0; 192 * 8]),
        (9, blake),
        (10, vec![1; 192]),
        (0x0b, vec![0; 256]),
        (0x0c, vec![0; 160 * 64]),
        (0x0d, vec![0; 512]),
        (0x0e, vec![0; 288 * 64]),
        (0x0f, vec![0; 384 * 16]),
        (0x10, vec![0; 64]),
        (0x11, vec![0; 128]),
    ];
    let calls = inputs.into_iter().map(|(address, input)| {
        let target = Address::with_last_byte(address);
        (CONTRACT, [&target.into_word()[..], &input].concat().into())
    });
    let calls: Vec<_> = calls.collect();
    check_on_fibers(&Case::calls(Fork::Prague, state, &calls, 10_000_000));
}

#[test]
fn the_slots_of_system_calls_take_one_call() {
    let threads = Prewarmers::start(1, &CancellationToken::new()).unwrap();
    let header = Header {
        number: 100,
        timestamp: 20_000,
        parent_beacon_block_root: Some(B256::ZERO),
        requests_hash: Some(B256::ZERO),
        ..Header::default()
    };
    for (in_rounds, is_far, calls) in [(true, true, 1), (true, false, 0), (false, true, 0)] {
        let parent = Arc::new(Memory::default().far(is_far));
        let ahead = Ahead {
            threads: &threads,
            span: tracing::Span::none(),
            parent: parent.clone(),
            block_hashes: Arc::new(block_hash),
            advice: None,
            predictor: None,
            in_rounds,
            listed: None,
            machines: None,
            foreign: Default::default(),
        };
        // The second time they are in memory.
        ahead.read_for_system_calls(&header);
        ahead.read_for_system_calls(&header);
        assert_eq!(parent.calls.load(Relaxed), calls, "rounds {in_rounds}, far {is_far}");
    }
}
