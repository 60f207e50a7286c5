use super::*;
use crossbeam_channel::bounded;
use std::{
    sync::atomic::{AtomicUsize, Ordering::Relaxed},
    thread,
    time::Duration,
};
use tandem_primitives::{B256, BlockId, U256};

fn key(number: u64) -> B256 {
    B256::from(U256::from(number))
}

/// Returns values that identify the keys.
fn answer(request: &ReadState) -> StateValues {
    let value = |hash: &B256| U256::from_be_bytes(hash.0);
    let account = |hash: &B256| {
        Some(tandem_primitives::Account { balance: value(hash), ..Default::default() })
    };
    StateValues {
        base: BlockId::new(7, key(7)),
        accounts: request.accounts.iter().map(account).collect(),
        slots: request.slots.iter().map(|(account, slot)| value(account) + value(slot)).collect(),
        codes: request.codes.iter().map(|hash| Some(hash.to_vec().into())).collect(),
    }
}

fn request(seed: u64) -> ReadState {
    let keys = |count: u64| (0..count).map(move |n| seed * 100 + n);
    ReadState {
        accounts: keys(seed % 3).map(key).collect(),
        slots: keys(seed % 4).map(|n| (key(n), key(n + 1))).collect(),
        codes: keys(seed % 2).map(key).collect(),
    }
}

#[test]
fn everybody_gets_the_answer_to_what_they_asked() {
    let (together, calls) = (ReadCoalescer::default(), AtomicUsize::new(0));
    let call = |all: &ReadState| {
        calls.fetch_add(1, Relaxed);
        thread::sleep(Duration::from_micros(200));
        Ok(answer(all))
    };
    thread::scope(|scope| {
        for reader in 0..16 {
            let (together, call) = (&together, &call);
            scope.spawn(move || {
                for round in 0..100 {
                    let request = request(reader * 1_000 + round);
                    assert_eq!(together.read(&request, call), Ok(answer(&request)));
                }
            });
        }
    });
    let state = together.state.lock();
    assert_eq!((state.calls, state.waiting.len(), state.caller_chosen), (0, 0, false));
    assert!(calls.load(Relaxed) < 1_600, "some reads share a call");
}

#[test]
fn who_waits_while_a_call_is_under_way_shares_the_next_and_its_failure() {
    let (together, calls) = (ReadCoalescer::default(), AtomicUsize::new(0));
    let (began, begun) = bounded(16);
    let (go, gate) = bounded::<()>(16);
    let call = |all: &ReadState| {
        let nth = calls.fetch_add(1, Relaxed);
        if nth < CALLS_MAX {
            began.send(()).unwrap();
            gate.recv().unwrap();
            return Ok(answer(all));
        }
        Err(Error::Unavailable(format!("{} accounts", all.accounts.len())))
    };
    let one = ReadState { accounts: vec![key(1)], ..ReadState::default() };
    thread::scope(|scope| {
        let read = || together.read(&one, call);
        let first: Vec<_> = (0..CALLS_MAX).map(|_| scope.spawn(read)).collect();
        (0..CALLS_MAX).for_each(|_| begun.recv().unwrap());
        let others: Vec<_> = (0..5).map(|_| scope.spawn(read)).collect();
        while together.state.lock().waiting.len() < 5 {
            thread::yield_now();
        }
        (0..CALLS_MAX).for_each(|_| go.send(()).unwrap());
        for reader in first {
            assert_eq!(reader.join().unwrap(), Ok(answer(&one)));
        }
        for reader in others {
            let failed = Err(Error::Unavailable("5 accounts".to_owned()));
            assert_eq!(reader.join().unwrap(), failed);
        }
    });
    assert_eq!(calls.load(Relaxed), CALLS_MAX + 1);
}

#[test]
fn a_reader_that_panics_leaves_nobody_waiting() {
    let (together, calls) = (ReadCoalescer::default(), AtomicUsize::new(0));
    let call = |all: &ReadState| {
        assert!(calls.fetch_add(1, Relaxed) % 7 != 3, "on purpose");
        thread::sleep(Duration::from_micros(100));
        Ok(answer(all))
    };
    thread::scope(|scope| {
        for reader in 0..8 {
            let (together, call) = (&together, &call);
            scope.spawn(move || {
                for round in 0..50 {
                    let request = request(reader * 1_000 + round);
                    let read = std::panic::AssertUnwindSafe(|| together.read(&request, call));
                    match std::panic::catch_unwind(read) {
                        Ok(Ok(values)) => assert_eq!(values, answer(&request)),
                        Ok(Err(error)) => assert!(matches!(error, Error::Unavailable(_))),
                        Err(_) => {}
                    }
                }
            });
        }
    });
    let state = together.state.lock();
    assert_eq!((state.calls, state.waiting.len(), state.caller_chosen), (0, 0, false));
}
