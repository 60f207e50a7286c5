//! The right workers are alive, whatever happens to the heartbeats.
#![allow(clippy::unwrap_used)]

use proptest::{collection::vec, prelude::*};
use std::time::Duration;
use tandem_membership::{
    AHEAD_MAX, FORGOTTEN_AFTER, Heard, Heartbeat, Ignored, MEMBERS_MAX, MISSED_MAX, Members, Now,
    PROBATION, SILENT_MAX, UNPROVEN_MAX,
};

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

/// Hears a heartbeat with equal clocks. Returns whether anything changed.
fn hear(members: &mut Members, at: Duration, heartbeat: Heartbeat) -> bool {
    hear_at(members, at, heartbeat).changed
}

fn hear_at(members: &mut Members, at: Duration, heartbeat: Heartbeat) -> Heard {
    members.hear(Now { elapsed: at, unix_ms: at.as_millis() as u64 }, heartbeat)
}

fn alive(members: &Members) -> Vec<String> {
    members.alive().map(|heartbeat| heartbeat.id.to_string()).collect()
}

fn with(workers: usize, at: u64) -> Members {
    let mut members = Members::default();
    for worker in 0..workers {
        let heartbeat = beat(worker, 0);
        let id = heartbeat.id.clone();
        assert!(hear(&mut members, ms(at), heartbeat));
        members.prove(&id);
    }
    members
}

#[test]
fn a_worker_is_known_once_and_heard_of_again_without_a_change() {
    let mut members = Members::default();
    assert!(hear(&mut members, ms(0), beat(1, 0)));
    assert!(!hear(&mut members, ms(INTERVAL), beat(1, 1)));
    assert_eq!(alive(&members), ["worker-1"]);
    let moved = Heartbeat { endpoint: "http://10.0.0.9:9601".to_owned(), ..beat(1, 2) };
    assert!(hear(&mut members, ms(2 * INTERVAL), moved));
    let restarted = Heartbeat { incarnation: 2, ..beat(1, 0) };
    assert!(hear(&mut members, ms(3 * INTERVAL), restarted));
    assert_eq!(alive(&members), ["worker-1"]);
}

#[test]
fn one_that_leaves_is_gone_at_once_and_stays_so_in_this_life() {
    let mut members = with(2, 0);
    let goodbye = Heartbeat { leaving: true, ..beat(1, 5) };
    assert!(hear(&mut members, ms(1), goodbye.clone()));
    assert_eq!(alive(&members), ["worker-0"]);
    for late in [beat(1, 4), beat(1, 6), goodbye] {
        assert!(!hear(&mut members, ms(2), late));
    }
    assert_eq!(alive(&members), ["worker-0"]);
    assert!(hear(&mut members, ms(3), Heartbeat { incarnation: 2, ..beat(1, 0) }));
    assert_eq!(alive(&members), ["worker-0", "worker-1"]);
}

#[test]
fn of_two_with_one_name_the_later_counts() {
    let mut members = Members::default();
    let newer = Heartbeat { incarnation: 7, endpoint: "http://b".to_owned(), ..beat(1, 0) };
    assert!(hear(&mut members, ms(0), newer));
    assert!(!hear(&mut members, ms(1), Heartbeat { incarnation: 6, ..beat(1, 900) }));
    assert_eq!(members.alive().next().unwrap().endpoint, "http://b");
}

#[test]
fn one_that_falls_silent_among_others_is_given_up_after_three_intervals() {
    let mut members = with(2, 0);
    let limit = u64::from(MISSED_MAX);
    for n in 1..=limit {
        assert!(!hear(&mut members, ms(n * INTERVAL), beat(0, n)), "{n}");
    }
    assert!(hear(&mut members, ms((limit + 1) * INTERVAL), beat(0, limit + 1)));
    assert_eq!(alive(&members), ["worker-0"]);
    assert!(
        hear(&mut members, ms((limit + 2) * INTERVAL), beat(1, 1)),
        "and comes back when it is heard"
    );
    assert_eq!(alive(&members), ["worker-0", "worker-1"]);
}

#[test]
fn when_all_fall_silent_nobody_is_given_up_for_ten_intervals() {
    let mut members = with(3, 0);
    let limit = u64::from(SILENT_MAX) * INTERVAL;
    assert!(!members.advance(ms(limit)));
    // The bus is back, and the three are heard one after another.
    for worker in 0..3 {
        assert!(!hear(&mut members, ms(limit + worker as u64), beat(worker, 1)));
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
    assert!(!hear(&mut members, ms(100 * INTERVAL), beat(1, 1)));
    assert_eq!(alive(&members), ["worker-0", "worker-1"]);
}

#[test]
fn a_clock_that_goes_backwards_gives_nobody_up() {
    let mut members = with(2, 50 * INTERVAL);
    assert!(!hear(&mut members, ms(0), beat(0, 1)));
    assert!(!members.advance(ms(0)));
    assert_eq!(alive(&members).len(), 2);
}

#[test]
fn strangers_find_room_only_where_somebody_is_gone() {
    let mut members = with(MEMBERS_MAX, 0);
    assert!(!hear(&mut members, ms(1), beat(MEMBERS_MAX, 0)));
    assert_eq!(alive(&members).len(), MEMBERS_MAX);
    assert!(hear(&mut members, ms(2), Heartbeat { leaving: true, ..beat(3, 1) }));
    assert!(hear(&mut members, ms(3), beat(MEMBERS_MAX, 0)));
    assert_eq!(alive(&members).len(), MEMBERS_MAX);
    assert!(!alive(&members).contains(&"worker-3".to_owned()));
}

#[test]
fn a_heartbeat_of_the_future_is_refused_and_the_worker_is_heard_once_its_clock_is_right() {
    let (mut members, day) = (Members::default(), 24 * 60 * 60 * 1000);
    let ahead = Heartbeat { incarnation: day, ..beat(1, 0) };
    let heard = hear_at(&mut members, ms(0), ahead);
    assert_eq!(heard.ignored, Some(Ignored::Future { ahead: ms(day) }));
    assert_eq!(heard.ignored.unwrap().name(), "future");
    assert_eq!(alive(&members), [""; 0]);
    // It restarts with the right clock.
    assert!(hear(&mut members, ms(1000), Heartbeat { incarnation: 1000, ..beat(1, 0) }));
    assert_eq!(alive(&members), ["worker-1"]);
    // Clocks are never exactly equal.
    let limit = AHEAD_MAX.as_millis() as u64;
    assert!(hear(&mut members, ms(1000), Heartbeat { incarnation: 1000 + limit, ..beat(2, 0) }));
    assert!(!hear(&mut members, ms(1000), Heartbeat { incarnation: 1001 + limit, ..beat(3, 0) }));
}

#[test]
fn a_worker_that_was_ahead_a_little_is_heard_again_a_minute_after_it_fell_silent() {
    let mut members = with(1, 0);
    assert!(hear(&mut members, ms(0), Heartbeat { incarnation: 9_000, ..beat(1, 0) }));
    let mut back = None;
    for n in 1..100 {
        hear(&mut members, ms(n * INTERVAL), beat(0, n));
        // By the right clock, it started at 1 s.
        let heartbeat = Heartbeat { incarnation: 1_000, ..beat(1, n) };
        let heard = hear_at(&mut members, ms(n * INTERVAL), heartbeat);
        if heard.ignored.is_none() {
            back = Some(n);
            break;
        }
        assert_eq!(heard.ignored, Some(Ignored::Stale { by: ms(8_000) }));
    }
    let longest = FORGOTTEN_AFTER.as_secs() + u64::from(MISSED_MAX) + 2;
    assert!(back.is_some_and(|back| back <= longest), "{back:?}");
    assert_eq!(alive(&members), ["worker-0", "worker-1"]);
}

#[test]
fn invented_names_take_half_of_the_places_and_none_of_a_proven_worker() {
    let mut members = with(3, 0);
    let invented =
        |n: usize, at: u64| Heartbeat { incarnation: at, interval: ms(60_000), ..beat(100 + n, 0) };
    for n in 0..200 {
        hear(&mut members, ms(1), invented(n, 1));
    }
    let count = |members: &Members| {
        let (real, names) = (["worker-0", "worker-1", "worker-2"], alive(members));
        let known = names.iter().filter(|name| real.contains(&name.as_str())).count();
        (known, names.len() - known)
    };
    assert_eq!(count(&members), (3, UNPROVEN_MAX));
    let newcomer = hear_at(&mut members, ms(2), beat(50, 0));
    assert_eq!(newcomer.ignored, Some(Ignored::NoPlace));
    // A real newcomer replaces a worker without a connection.
    let later = PROBATION.as_millis() as u64 + 1;
    for worker in 0..3 {
        hear(&mut members, ms(later), beat(worker, 1));
    }
    assert!(hear(&mut members, ms(later), beat(50, 1)));
    assert!(alive(&members).contains(&"worker-50".to_owned()));
    members.prove(&"worker-50".parse().unwrap());
    for worker in [0, 1, 2, 50] {
        hear(&mut members, ms(2 * later), beat(worker, 2));
    }
    for n in 200..400 {
        let at = 2 * later + n;
        hear(&mut members, ms(at), invented(n as usize, at));
    }
    assert!(alive(&members).contains(&"worker-50".to_owned()));
    assert_eq!(count(&members).0, 3);
}

#[test]
fn an_invented_name_that_falls_silent_is_gone_soon_whatever_interval_it_claims() {
    let mut members = with(1, 0);
    hear(&mut members, ms(0), Heartbeat { interval: ms(60_000), ..beat(9, 0) });
    for n in 1..=20 {
        hear(&mut members, ms(n * INTERVAL), beat(0, n));
    }
    assert_eq!(alive(&members), ["worker-0"]);
}

/// Generates heartbeats of some workers in the order of arrival, each delayed by less than
/// `lateness`.
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
    /// Heartbeats arrive less than two intervals late and out of order: a worker that was heard
    /// stays alive.
    #[test]
    fn heartbeats_that_come_keep_everybody(deliveries in deliveries(2 * INTERVAL)) {
        let mut members = Members::default();
        let mut seen = std::collections::BTreeSet::new();
        for (at, heartbeat) in deliveries {
            let new = seen.insert(heartbeat.id.to_string());
            prop_assert_eq!(hear(&mut members, ms(at), heartbeat), new);
            prop_assert_eq!(alive(&members), seen.iter().cloned().collect::<Vec<_>>());
        }
    }

    /// Repeated heartbeats change nothing, in any order.
    #[test]
    fn repetition_changes_nothing(
        deliveries in deliveries(INTERVAL), again in vec(any::<prop::sample::Index>(), 0..50),
    ) {
        let mut members = Members::default();
        for (at, heartbeat) in &deliveries {
            hear(&mut members, ms(*at), heartbeat.clone());
        }
        let (end, before) = (deliveries.last().unwrap().0, alive(&members));
        for index in again {
            prop_assert!(!hear(&mut members, ms(end), index.get(&deliveries).1.clone()));
        }
        prop_assert_eq!(alive(&members), before);
    }

    /// One worker stops while the others go on. It is given up, neither before three intervals nor
    /// long after. No other worker is given up.
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
            hear(&mut members, ms(at), heartbeat);
            let found = !alive(&members).contains(&"worker-0".to_owned());
            prop_assert!(!found || at < last || at > last + 3 * INTERVAL || last == 0);
        }
        let silence = end.saturating_sub(last);
        let there = alive(&members).contains(&"worker-0".to_owned());
        prop_assert!(!others || silence <= 6 * INTERVAL || !there, "silent for {silence} ms");
    }

    /// Arbitrary steps: no panic, never more workers than the limit, and alive workers sorted by
    /// name.
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
                    hear(&mut members, ms(at), heartbeat);
                }
            }
            let alive = alive(&members);
            prop_assert!(alive.len() <= MEMBERS_MAX && alive.is_sorted());
        }
    }

    /// One arbitrary heartbeat is forged in the name of a worker. The worker goes on, restarts
    /// included, and is alive at the end.
    #[test]
    fn no_single_forgery_keeps_a_worker_out(
        incarnation: u64, near in prop::option::of(0u64..200_000), sequence: u64, leaving: bool,
        forged_at in 0u64..60, restarts_at in 0u64..120,
    ) {
        let mut members = with(2, 0);
        let incarnation = near.unwrap_or(incarnation);
        let mut own = 1;
        for n in 1..200 {
            let at = n * INTERVAL;
            if n == restarts_at {
                own = at;
            }
            if n == forged_at {
                let forged = Heartbeat { incarnation, leaving, ..beat(1, sequence) };
                let heard = hear_at(&mut members, ms(at), forged);
                let limit = at + AHEAD_MAX.as_millis() as u64;
                let is_future = matches!(heard.ignored, Some(Ignored::Future { .. }));
                prop_assert_eq!(is_future, incarnation > limit);
            }
            hear(&mut members, ms(at), beat(0, n));
            hear(&mut members, ms(at), Heartbeat { incarnation: own, ..beat(1, n) });
        }
        prop_assert_eq!(alive(&members), ["worker-0", "worker-1"]);
    }

    /// Invented names come in any number and order: proven workers that are heard stay alive.
    #[test]
    fn no_crowd_drives_a_proven_worker_out(
        crowd in vec((0usize..500, 0u64..100_000, any::<bool>()), 0..400), workers in 1usize..20,
    ) {
        let mut members = with(workers, 0);
        let mut crowd = crowd.into_iter();
        for n in 1..40 {
            for worker in 0..workers {
                hear(&mut members, ms(n * INTERVAL), beat(worker, n));
            }
            for (name, incarnation, leaving) in crowd.by_ref().take(10) {
                let heartbeat = Heartbeat { incarnation, leaving, ..beat(1000 + name, n) };
                hear(&mut members, ms(n * INTERVAL), heartbeat);
            }
            let names = alive(&members);
            for worker in 0..workers {
                prop_assert!(names.contains(&format!("worker-{worker}")), "{worker} at {n}");
            }
            prop_assert!(names.len() <= workers + UNPROVEN_MAX);
        }
    }
}
