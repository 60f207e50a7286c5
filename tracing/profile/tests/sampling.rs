//! Samples of a process that works, on several threads, inside of the allocator and on its edge.
#![cfg(feature = "sampling")]
#![allow(clippy::unwrap_used)]

use std::{
    hint::black_box,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};
use tandem_profile::{Budget, Profile, SampleError, Sampler};

/// The process has one timer, so the tests take turns.
static TURN: Mutex<()> = Mutex::new(());

#[inline(never)]
fn work_that_the_test_looks_for(stop: &AtomicBool) {
    let mut value = 1u64;
    while !stop.load(Relaxed) {
        for _ in 0..1_000 {
            value = black_box(value.wrapping_mul(6_364_136_223_846_793_005) ^ 1);
        }
    }
}

fn allocate_all_the_time(stop: &AtomicBool) {
    while !stop.load(Relaxed) {
        let vectors: Vec<Vec<u8>> = (1..50).map(|len| vec![1; len * 100]).collect();
        black_box(vectors);
    }
}

/// Samples until there are enough, and for ten seconds at most: processor time is slow to come by on
/// a busy machine.
fn sample(samples_min: u64, frequency: u32) -> Profile {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let start = |name: &str, work: fn(&AtomicBool)| {
            let (stop, name) = (&stop, name.to_owned());
            thread::Builder::new().name(name).spawn_scoped(scope, move || work(stop)).unwrap();
        };
        start("looked-for", work_that_the_test_looks_for);
        start("allocates", allocate_all_the_time);
        let (mut taken, deadline) = (Vec::new(), Instant::now() + Duration::from_secs(10));
        loop {
            let sampler = Sampler::start(frequency).unwrap();
            thread::sleep(Duration::from_millis(500));
            taken.push(sampler.finish().unwrap());
            let samples: u64 = taken.iter().map(Profile::samples).sum();
            if samples >= samples_min || Instant::now() > deadline {
                break;
            }
        }
        stop.store(true, Relaxed);
        Profile::merge(taken).unwrap()
    })
}

#[test]
fn the_function_that_works_is_on_the_stacks_of_its_thread() {
    let _turn = TURN.lock();
    let profile = sample(50, 100);
    assert!(profile.samples() >= 50, "{}", profile.samples());
    let read = Profile::parse(&profile.encode()).unwrap();
    let mut found = 0;
    for stack in read.stacks() {
        let names = stack.functions.iter().map(|number| read.function(*number));
        if names.into_iter().any(|name| name.contains("work_that_the_test_looks_for")) {
            assert_eq!(stack.thread, "looked-for");
            found += stack.samples;
        }
    }
    assert!(found * 5 > read.samples(), "{found} of {}", read.samples());
    let budget = Budget::of(&read);
    assert!(budget.threads.iter().any(|(name, _)| name == "allocates"), "{:?}", budget.threads);
}

#[test]
fn a_process_is_sampled_once_at_a_time() {
    let _turn = TURN.lock();
    let sampler = Sampler::start(10).unwrap();
    assert!(matches!(Sampler::start(10), Err(SampleError::Busy)));
    drop(sampler);
    assert!(Sampler::start(10).is_ok());
    for frequency in [0, 1_001] {
        assert!(matches!(Sampler::start(frequency), Err(SampleError::Frequency(_))));
    }
}
