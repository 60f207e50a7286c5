use super::*;
use std::collections::HashSet;

/// Returns the limits of the waits, from the first to the longest, which appears three times.
fn limits() -> [Duration; 10] {
    [10, 20, 40, 80, 160, 320, 640, 1000, 1000, 1000].map(Duration::from_millis)
}

#[test]
fn waits_double_up_to_the_longest_and_are_half_as_long_at_least() {
    let mut backoff = Backoff::default();
    for limit in limits() {
        let wait = backoff.wait(None);
        assert!(wait >= limit / 2 && wait <= limit, "{wait:?} of {limit:?}");
    }
}

#[test]
fn clients_that_lost_the_same_server_wait_for_different_times() {
    let waits: HashSet<_> = (0..100).map(|_| Backoff::default().wait(None)).collect();
    assert!(waits.len() > 50, "{waits:?}");
}

#[test]
fn a_connection_that_lived_is_followed_by_the_next_at_once() {
    let mut backoff = Backoff::default();
    for _ in limits() {
        backoff.wait(None);
    }
    assert_eq!(backoff.wait(Some(SETTLED)), Duration::ZERO);
    assert!(backoff.wait(None) <= WAIT_MIN, "and what fails then begins anew");
}

#[test]
fn a_server_that_ends_every_connection_at_once_is_asked_less_and_less_often() {
    let mut backoff = Backoff::default();
    for limit in limits() {
        let wait = backoff.wait(Some(SETTLED - Duration::from_millis(1)));
        assert!(wait >= limit / 2, "{wait:?} of {limit:?}");
    }
}
