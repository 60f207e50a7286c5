use crate::{
    Answer, HOLDER_LENGTH_MAX, Held, Lease, Record, Request, Settings, Wish, simulation::Store,
};
use std::time::Duration;

const WISH: Wish = Wish { takes_over: true, begins: true, known_term: 3 };

fn ms(milliseconds: u64) -> Duration {
    Duration::from_millis(milliseconds)
}

fn lease(name: &str) -> Lease {
    Lease::new(name.to_owned(), Settings::new(ms(2_000), ms(200)).unwrap())
}

/// Makes all requests that are due at a moment.
fn run(lease: &mut Lease, store: &mut Store, at: Duration) {
    while let Some((number, request)) = lease.poll(at, WISH) {
        let answer = store.answer(&request);
        lease.answer(at, number, answer);
    }
}

/// Makes the requests of a whole time, each when it is due.
fn run_until(lease: &mut Lease, store: &mut Store, end: u64) {
    while lease.next() <= ms(end) {
        run(lease, store, lease.next());
    }
}

#[test]
fn the_first_holder_begins_in_the_term_that_it_knows_and_stops_by_its_own_clock() {
    let (mut store, mut first) = (Store::default(), lease("a"));
    run_until(&mut first, &mut store, 2_199);
    assert_eq!(first.held(ms(2_199)), None, "a record may have been lost");
    run_until(&mut first, &mut store, 2_200);
    assert_eq!(first.held(ms(2_200)), Some(Held { term: 3, until: ms(4_000) }));
    assert_eq!(first.held(ms(4_000)), None, "nobody had to tell it");
    run_until(&mut first, &mut store, 9_000);
    assert!(first.held(ms(9_000)).is_some_and(|held| held.until > ms(10_000)), "it renews");
}

#[test]
fn a_silent_holder_is_replaced_after_the_longer_of_both_settings() {
    let (mut store, mut second) = (Store::default(), lease("b"));
    let record =
        Record { holder: "a".to_owned(), term: 7, write: 1, stands: ms(5_000), is_free: false };
    store.answer(&Request::Write { expected: 0, record });
    run_until(&mut second, &mut store, 4_999);
    assert_eq!(second.held(ms(4_999)), None);
    run_until(&mut second, &mut store, 5_000);
    assert_eq!(second.held(ms(5_000)).unwrap().term, 8, "above the term of the record");
}

#[test]
fn a_lease_that_is_given_back_is_taken_at_once_and_its_holder_stops_first() {
    let (mut store, mut first, mut second) = (Store::default(), lease("a"), lease("b"));
    run_until(&mut first, &mut store, 3_000);
    run(&mut second, &mut store, ms(3_000));
    assert_eq!(second.held(ms(3_000)), None);
    first.leave(ms(3_000));
    assert_eq!(first.held(ms(3_000)), None);
    assert!(!first.is_given_back(), "the store does not know it yet");
    run(&mut first, &mut store, ms(3_000));
    assert!(first.is_given_back());
    run_until(&mut second, &mut store, 3_700);
    assert_eq!(second.held(ms(3_700)).unwrap().term, 4);
    run_until(&mut first, &mut store, 9_000);
    assert_eq!(first.held(ms(9_000)), None, "it does not come back");
}

#[test]
fn a_candidate_that_left_asks_no_more_often_than_others() {
    let (mut store, mut first) = (Store::default(), lease("a"));
    run_until(&mut first, &mut store, 3_000);
    first.leave(ms(3_000));
    run(&mut first, &mut store, ms(3_000));
    let mut requests = 0;
    while first.next() <= ms(7_000) {
        let now = first.next();
        let (number, request) = first.poll(now, WISH).unwrap();
        first.answer(now, number, store.answer(&request));
        requests += 1;
    }
    assert!((1..=6).contains(&requests), "{requests}");
}

#[test]
fn a_holder_whose_lease_ended_takes_it_up_again_unless_another_candidate_did() {
    let (mut store, mut first, mut second) = (Store::default(), lease("a"), lease("b"));
    run_until(&mut first, &mut store, 2_200);
    // Nothing is answered for a while.
    let (number, _) = first.poll(first.next(), WISH).unwrap();
    first.answer(ms(3_000), number, Answer::Failed);
    assert_eq!(first.held(ms(8_000)), None);
    run(&mut first, &mut store, ms(8_000));
    assert_eq!(first.held(ms(8_000)).unwrap().term, 3, "the term stays");
    run(&mut second, &mut store, ms(8_000));
    run_until(&mut second, &mut store, 10_300);
    assert_eq!(second.held(ms(10_300)).unwrap().term, 4);
    run(&mut first, &mut store, ms(10_300));
    assert_eq!(first.held(ms(10_300)), None);
    assert_eq!(first.record().unwrap().holder, "b");
}

#[test]
fn a_write_without_an_answer_gives_no_time() {
    let (mut store, mut first) = (Store::default(), lease("a"));
    run_until(&mut first, &mut store, 2_199);
    let (number, request) = first.poll(ms(2_200), WISH).unwrap();
    assert_eq!(store.answer(&request), Answer::Written(1));
    first.answer(ms(2_300), number, Answer::Failed);
    assert_eq!(first.held(ms(2_300)), None);
    // It finds its own record, and writes once more.
    run_until(&mut first, &mut store, 2_900);
    let held = first.held(ms(2_900)).unwrap();
    assert!(held.until >= ms(2_866 + 1_800), "{held:?}");
}

#[test]
fn a_store_that_was_away_gives_its_holder_time_to_come_back() {
    let (mut store, mut second) = (Store::default(), lease("b"));
    let record =
        Record { holder: "a".to_owned(), term: 0, write: 1, stands: ms(2_200), is_free: false };
    store.answer(&Request::Write { expected: 0, record });
    run(&mut second, &mut store, ms(0));
    while second.next() < ms(10_000) {
        let now = second.next();
        let (number, _) = second.poll(now, WISH).unwrap();
        second.answer(now, number, Answer::Failed);
    }
    run_until(&mut second, &mut store, 12_000);
    assert_eq!(second.held(ms(12_000)), None, "the wait began again");
    run_until(&mut second, &mut store, 13_000);
    assert!(second.held(ms(13_000)).is_some());
}

#[test]
fn settings_out_of_range_are_refused() {
    let cases = [
        ((2_000, 10), "invalid margin of 10ms for a lease of 2s; expected 1% to 50% of it"),
        ((2_000, 1_001), "invalid margin"),
        ((499, 100), "invalid lease of 499ms; expected 500ms to 600s"),
        ((600_001, 6_100), "invalid lease"),
        ((0, 0), "invalid lease"),
    ];
    for ((ttl, margin), text) in cases {
        let error = Settings::new(ms(ttl), ms(margin)).unwrap_err().to_string();
        assert!(error.starts_with(text), "{error}");
    }
    assert!(Settings::new(ms(2_000), ms(20)).is_ok());
}

#[test]
fn a_record_reads_as_it_was_written_and_other_texts_are_refused() {
    let holder = "h".repeat(HOLDER_LENGTH_MAX);
    for is_free in [false, true] {
        let holder = holder.clone();
        let record = Record { holder, term: 3, write: u64::MAX, stands: ms(2_200), is_free };
        assert_eq!(record.to_string().parse(), Ok(record));
    }
    let long = format!("{holder}h 1 2 3 held");
    let others = ["", "a", "a 1 2 3", "a 1 2 3 held x", " 1 2 3 held", "a -1 2 3 held"];
    for text in others.into_iter().chain(["a 1 2 3 lost", "a 1 2 9999999 held", &long]) {
        assert!(text.parse::<Record>().is_err(), "{text}");
    }
}
