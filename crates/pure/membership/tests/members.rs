//! Who is alive, whatever happens to the heartbeats.
#![allow(clippy::unwrap_used)]

use proptest::{collection::vec, prelude::*};
use std::time::Duration;
use tandem_membership::{Heartbeat, MEMBERS_MAX, MISSED_MAX, Members, SILENT_MAX};

const INTERVAL: u64 = 1000;

fn ms(time: u64) -> Duration {
    Duration::from_millis(time)
}

fn beat(worker: usize, sequence: u64) -> Heartbeat {
    Heartbeat {
        id: format!("worker-{worker}").parse().unwrap(),
        incarnation: 1,
        sequence,
        endpoint: format!("http://10.0.0.{worker}:9601"),
        interval: ms(INTERVAL),
        leaving: false,
    }
}

fn alive(members: &Members) -> Vec<String> {
    members.alive().map(|heartbeat| heartbeat.id.to_string()).collect()
}

fn with(workers: usize, at: u64) -> Members {
    let mut members = Members::default();
    for worker in 0..workers {
        assert!(members.hear(ms(at), beat(worker, 0)));
    }
    members
}

#[test]
fn a_worker_is_known_once_and_heard_of_again_without_a_change() {
    let mut members = Members::default();
    assert!(members.hear(ms(0), beat(1, 0)));
    assert!(!members.hear(ms(INTERVAL), beat(1, 1)));
    assert_eq!(alive(&members), ["worker-1"]);
    let moved = Heartbeat { endpoint: "http://10.0.0.9:9601".to_owned(), ..beat(1, 2) };
    assert!(members.hear(ms(2 * INTERVAL), moved));
    let restarted = Heartbeat { incarnation: 2, ..beat(1, 0) };
    assert!(members.hear(ms(3 * INTERVAL), restarted));
    assert_eq!(alive(&members), ["worker-1"]);
}

#[test]
fn one_that_leaves_is_gone_at_once_and_stays_so_in_this_life() {
    let mut members = with(2, 0);
    let goodbye = Heartbeat { leaving: true, ..beat(1, 5) };
    assert!(members.hear(ms(1), goodbye.clone()));
    assert_eq!(alive(&members), ["worker-0"]);
    for late in [beat(1, 4), beat(1, 6), goodbye] {
        assert!(!members.hear(ms(2), late));
    }
    assert_eq!(alive(&members), ["worker-0"]);
    assert!(members.hear(ms(3), Heartbeat { incarnation: 2, ..beat(1, 0) }));
    assert_eq!(alive(&members), ["worker-0", "worker-1"]);
}

#[test]
fn of_two_with_one_name_the_later_counts() {
    let mut members = Members::default();
    let newer = Heartbeat { incarnation: 7, endpoint: "http://b".to_owned(), ..beat(1, 0) };
    assert!(members.hear(ms(0), newer));
    assert!(!members.hear(ms(1), Heartbeat { incarnation: 6, ..beat(1, 900) }));
    assert_eq!(members.alive().next().unwrap().endpoint, "http://b");
}

#[test]
fn one_that_falls_silent_among_others_is_given_up_after_three_intervals() {
    let mut members = with(2, 0);
    let limit = u64::from(MISSED_MAX);
    for n in 1..=limit {
        assert!(!members.hear(ms(n * INTERVAL), beat(0, n)), "{n}");
    }
    assert!(members.hear(ms((limit + 1) * INTERVAL), beat(0, limit + 1)));
    assert_eq!(alive(&members), ["worker-0"]);
    assert!(
        members.hear(ms((limit + 2) * INTERVAL), beat(1, 1)),
        "and comes back when it is heard"
    );
    assert_eq!(alive(&members), ["worker-0", "worker-1"]);
}

#[test]
fn when_all_fall_silent_nobody_is_given_up_for_ten_intervals() {
    let mut members = with(3, 0);
    let limit = u64::from(SILENT_MAX) * INTERVAL;
    assert!(!members.advance(ms(limit)));
    // The bus is back; the three are heard one after the other.
    for worker in 0..3 {
        assert!(!members.hear(ms(limit + worker as u64), beat(worker, 1)));
    }
    assert!(!members.advance(ms(2 * limit)));
    assert!(members.advance(ms(2 * limit + 3)));
    assert_eq!(alive(&members), [""; 0]);
}

#[test]
fn nobody_is_given_up_while_nothing_can_be_heard() {
    let mut members = with(2, 0);
    for n in 0..100 {
        members.hold(ms(n * INTERVAL));
        assert!(!members.advance(ms(n * INTERVAL)));
    }
    assert!(!members.hear(ms(100 * INTERVAL), beat(1, 1)));
    assert_eq!(alive(&members), ["worker-0", "worker-1"]);
}

#[test]
fn a_clock_that_goes_backwards_gives_nobody_up() {
    let mut members = with(2, 50 * INTERVAL);
    assert!(!members.hear(ms(0), beat(0, 1)));
    assert!(!members.advance(ms(0)));
    assert_eq!(alive(&members).len(), 2);
}

#[test]
fn strangers_find_room_only_where_somebody_is_gone() {
    let mut members = with(MEMBERS_MAX, 0);
    assert!(!members.hear(ms(1), beat(MEMBERS_MAX, 0)));
    assert_eq!(alive(&members).len(), MEMBERS_MAX);
    assert!(members.hear(ms(2), Heartbeat { leaving: true, ..beat(3, 1) }));
    assert!(members.hear(ms(3), beat(MEMBERS_MAX, 0)));
    assert_eq!(alive(&members).len(), MEMBERS_MAX);
    assert!(!alive(&members).contains(&"worker-3".to_owned()));
}

/// Heartbeats of some workers in the order in which they are sent, with how late each arrives.
fn deliveries(lateness: u64) -> impl Strategy<Value = Vec<(u64, Heartbeat)>> {
    let worker = (0..INTERVAL, vec(0..lateness, 30));
    vec(worker, 1..6).prop_map(|workers| {
        let mut all = Vec::new();
        for (worker, (offset, late)) in workers.into_iter().enumerate() {
            for (n, late) in (0..).zip(late) {
                all.push((offset + n * INTERVAL + late, beat(worker, n)));
            }
        }
        all.sort_by_key(|(at, _)| *at);
        all
    })
}

proptest! {
    /// Late by less than two intervals, out of order too: whoever was heard once stays.
    #[test]
    fn heartbeats_that_come_keep_everybody(deliveries in deliveries(2 * INTERVAL)) {
        let mut members = Members::default();
        let mut seen = std::collections::BTreeSet::new();
        for (at, heartbeat) in deliveries {
            let new = seen.insert(heartbeat.id.to_string());
            prop_assert_eq!(members.hear(ms(at), heartbeat), new);
            prop_assert_eq!(alive(&members), seen.iter().cloned().collect::<Vec<_>>());
        }
    }

    /// Whatever comes twice or late, once more in any order, changes nothing.
    #[test]
    fn repetition_changes_nothing(
        deliveries in deliveries(INTERVAL), again in vec(any::<prop::sample::Index>(), 0..50),
    ) {
        let mut members = Members::default();
        for (at, heartbeat) in &deliveries {
            members.hear(ms(*at), heartbeat.clone());
        }
        let (end, before) = (deliveries.last().unwrap().0, alive(&members));
        for index in again {
            prop_assert!(!members.hear(ms(end), index.get(&deliveries).1.clone()));
        }
        prop_assert_eq!(alive(&members), before);
    }

    /// One stops, the others go on: it is given up, not before three intervals and not long after,
    /// and nobody else is.
    #[test]
    fn the_silent_one_is_found(deliveries in deliveries(INTERVAL / 2), stops in 0u64..20) {
        let mut members = Members::default();
        let silent = |heartbeat: &Heartbeat| {
            heartbeat.id.as_str() == "worker-0" && heartbeat.sequence > stops
        };
        let others = deliveries.iter().any(|(_, heartbeat)| heartbeat.id.as_str() != "worker-0");
        let (mut last, mut end) = (0, 0);
        for (at, heartbeat) in deliveries.into_iter().filter(|(_, it)| !silent(it)) {
            if heartbeat.id.as_str() == "worker-0" {
                last = at;
            }
            end = at;
            members.hear(ms(at), heartbeat);
            let found = !alive(&members).contains(&"worker-0".to_owned());
            prop_assert!(!found || at < last || at > last + 3 * INTERVAL || last == 0);
        }
        let silence = end.saturating_sub(last);
        let there = alive(&members).contains(&"worker-0".to_owned());
        prop_assert!(!others || silence <= 6 * INTERVAL || !there, "silent for {silence} ms");
    }

    /// Anything at all: no panic, never more than the limit, and those alive have names in order.
    #[test]
    fn nothing_breaks_it(
        steps in vec((any::<u64>(), 0usize..100, 0u64..4, 0u64..4, any::<bool>(), 0u8..8), 0..300),
    ) {
        let mut members = Members::default();
        for (at, worker, incarnation, sequence, leaving, what) in steps {
            match what {
                0 => members.hold(ms(at)),
                1 => { members.advance(ms(at)); }
                _ => {
                    let heartbeat = Heartbeat { incarnation, leaving, ..beat(worker, sequence) };
                    members.hear(ms(at), heartbeat);
                }
            }
            let alive = alive(&members);
            prop_assert!(alive.len() <= MEMBERS_MAX && alive.is_sorted());
        }
    }
}
