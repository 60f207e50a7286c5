use super::*;
use alloy_primitives::map::HashMap;
use proptest::{
    collection::vec,
    prelude::{Strategy, prop_assert_eq, prop_oneof, proptest},
    sample::select,
};
use rand::{Rng, SeedableRng, rngs::StdRng};
use std::net::IpAddr;
use tandem_primitives::{B512, Bytes};

const SECOND: u64 = 1000;

fn id(n: u64) -> B512 {
    let mut id = B512::ZERO;
    id[..8].copy_from_slice(&n.to_be_bytes());
    id
}

/// Makes contact `n`, at an address and in a subnet of its own.
fn contact(n: u64, event: ContactEvent) -> Contact {
    let ip = IpAddr::from([20 + (n >> 16) as u8, (n >> 8) as u8, n as u8, 1]);
    Contact { id: id(n), ip, udp_port: 30303, tcp_port: 30303, enr_seq: None, enr: None, event }
}

fn with_record(n: u64, seq: u64) -> Contact {
    let enr = Some(Bytes::from(seq.to_be_bytes()));
    Contact { enr_seq: Some(seq), enr, ..contact(n, ContactEvent::EnrReceived) }
}

fn table_of(contacts_max: usize) -> Table {
    Table::new(&Config { contacts_max, ..Config::default() })
}

fn seen(table: &mut Table, ids: impl IntoIterator<Item = u64>) {
    let contacts: Vec<_> = ids.into_iter().map(|n| contact(n, ContactEvent::Seen)).collect();
    table.apply(&contacts, 0);
}

fn answered(table: &mut Table, ids: impl IntoIterator<Item = u64>) {
    let contacts: Vec<_> = ids.into_iter().map(|n| contact(n, ContactEvent::Answered)).collect();
    table.apply(&contacts, 0);
}

fn known(table: &Table) -> Vec<u64> {
    let number = |id: &B512| u64::from_be_bytes(*id.0.first_chunk().unwrap());
    let ids = table.ids.slots().map(|slot| &table.entries[slot as usize].id);
    let mut ids: Vec<_> = ids.map(number).collect();
    ids.sort_unstable();
    ids
}

/// Returns the expected answer of `closest`, by sorting everything.
fn brute_force(table: &Table, target: B256, count: usize) -> Vec<B512> {
    let mut all: Vec<_> = table.ids.slots().map(|slot| &table.entries[slot as usize]).collect();
    all.retain(|entry| entry.class != Class::Disposed);
    all.sort_by_key(|entry| (entry.class == Class::Unproven, keccak256(entry.id) ^ target));
    let mut subnets: HashMap<_, usize> = HashMap::default();
    all.retain(|entry| {
        table.subnets.of(entry.ip).is_none_or(|subnet| {
            let same = subnets.entry(subnet).or_default();
            *same += 1;
            *same <= table.rules.subnet_answer_max
        })
    });
    all.iter().take(count).map(|entry| entry.id).collect()
}

/// Checks every index against the contacts themselves.
fn check(table: &Table, now: u64) {
    let slots: Vec<_> = table.ids.slots().collect();
    assert_eq!(slots.len() + table.free.len(), table.entries.len());
    assert!(slots.len() <= table.rules.contacts_max);
    let entry = |slot: u32| &table.entries[slot as usize];
    let mut subnets = Subnets::new(&Config::default());
    for &slot in &slots {
        assert_eq!(table.ids.get(&entry(slot).id, &table.entries), Some(slot));
        assert_eq!(table.hashes[slot as usize], keccak256(entry(slot).id));
        assert_eq!(table.lookup.contains(slot), entry(slot).wants_lookup(now));
        assert_eq!(table.enr.contains(slot), entry(slot).wants_enr(now));
        assert!(entry(slot).wake_at <= entry(slot).next_wake(now));
        subnets.add(table.subnets.of(entry(slot).ip));
    }
    let count =
        |wanted: &dyn Fn(&Entry) -> bool| slots.iter().filter(|&&s| wanted(entry(s))).count();
    assert_eq!(table.lookup.len(), count(&|entry| entry.wants_lookup(now)));
    assert_eq!(table.enr.len(), count(&|entry| entry.wants_enr(now)));
    for class in [Class::Disposed, Class::Unproven, Class::Proven] {
        assert_eq!(table.queues.len(class), count(&|entry| entry.class == class));
        let queued: Vec<_> = table.queues.newest_first(class).collect();
        assert_eq!(queued.len(), table.queues.len(class));
        assert!(queued.iter().all(|&slot| entry(slot).class == class));
    }
    assert_eq!(table.subnets.sorted(), subnets.sorted());
    assert!(table.wakes.len() <= 2 * table.entries.len() + 1);
}

#[derive(Clone, Debug)]
enum Step {
    Apply(Vec<Contact>),
    Wait(u64),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    use ContactEvent::{Answered, Asked, EnrReceived, Failed, Seen};
    let event = select(vec![Seen, Answered, Failed, Failed, Asked, EnrReceived]);
    // Ids and subnets are few, some of them private, so that they collide.
    let ip = prop_oneof![
        (0..4u8, 0..8u8).prop_map(|(net, host)| IpAddr::from([20, 0, net, host])),
        (0..8u8).prop_map(|host| IpAddr::from([127, 0, 0, host])),
        (0..2u16, 0..4u16)
            .prop_map(|(net, host)| IpAddr::from([0x2001, 0xdb8, net, 0, 0, 0, 0, host])),
    ];
    let record = proptest::option::of((0..4u64).prop_map(|seq| Bytes::from(seq.to_be_bytes())));
    let contact = (0..60u64, ip, 0..3u16, proptest::option::of(0..4u64), record, event).prop_map(
        |(n, ip, port, enr_seq, enr, event)| Contact {
            id: id(n),
            ip,
            udp_port: port * 1000,
            tcp_port: port,
            enr_seq,
            enr,
            event,
        },
    );
    let wait = select(vec![1, SECOND, 10 * SECOND, 40 * SECOND, 4000 * SECOND]);
    vec(
        prop_oneof![4 => vec(contact, 1..20).prop_map(Step::Apply), 1 => wait.prop_map(Step::Wait)],
        1..60,
    )
}

proptest! {
    #[test]
    fn what_is_kept_on_change_equals_what_the_contacts_say(steps in steps(), target: [u8; 32]) {
        let config = Config {
            contacts_max: 24, subnet_contacts_max: 7, subnet_answer_max: 3, ..Config::default()
        };
        let (mut table, mut now) = (Table::new(&config), 0);
        for step in steps {
            match step {
                Step::Apply(contacts) => table.apply(&contacts, now),
                Step::Wait(millis) => now += millis,
            }
            table.advance(now);
            check(&table, now);
            for count in [1, 5, 16] {
                let closest = table.closest(target.into(), count);
                let ids: Vec<_> = closest.iter().map(|contact| contact.id).collect();
                prop_assert_eq!(ids, brute_force(&table, target.into(), count));
            }
        }
    }

    #[test]
    fn closest_equals_brute_force_in_a_large_table(seed: u64, target: [u8; 32]) {
        let mut rng = StdRng::seed_from_u64(seed);
        let mut table = table_of(2000);
        for _ in 0..30 {
            let contacts: Vec<_> = (0..100).map(|_| {
                let event = [ContactEvent::Seen, ContactEvent::Answered][rng.random_range(0..2)];
                contact(rng.random_range(0..1 << 22), event)
            }).collect();
            table.apply(&contacts, 0);
        }
        let ids: Vec<_> = table.closest(target.into(), 16).iter().map(|contact| contact.id).collect();
        prop_assert_eq!(ids, brute_force(&table, target.into(), 16));
    }
}

#[test]
fn sampling_is_uniform() {
    const CANDIDATES: u64 = 64;
    const DRAWS: usize = 64_000;
    let mut table = table_of(1000);
    answered(&mut table, 0..200);
    // After removals the remaining contacts are in another order than they arrived in.
    let asked: Vec<_> = (0..200 - CANDIDATES).map(|n| contact(n, ContactEvent::Asked)).collect();
    table.apply(&asked, 0);
    let records: Vec<_> = (0..200 - CANDIDATES).map(|n| with_record(n, 1)).collect();
    table.apply(&records, 0);

    let mut rng = StdRng::seed_from_u64(7);
    type Sample = fn(&Table, &mut StdRng) -> Option<Contact>;
    for sample in [(|t, rng| t.sample_for_lookup(rng)) as Sample, |t, rng| t.sample_for_enr(rng)] {
        let mut drawn: HashMap<B512, usize> = HashMap::default();
        for _ in 0..DRAWS {
            *drawn.entry(sample(&table, &mut rng).unwrap().id).or_default() += 1;
        }
        assert_eq!(drawn.len() as u64, CANDIDATES);
        let expected = DRAWS as f64 / CANDIDATES as f64;
        let chi_square: f64 =
            drawn.values().map(|&n| (n as f64 - expected).powi(2) / expected).sum();
        // With 63 degrees of freedom, one uniform sample in a thousand exceeds 103.4.
        assert!(chi_square < 103.4, "{chi_square}");
    }
}

#[test]
fn a_full_table_evicts_the_oldest_unseen_and_never_proven_before_unproven() {
    let mut table = table_of(4);
    answered(&mut table, [1]);
    seen(&mut table, [2, 3, 4]);
    seen(&mut table, [2]);
    seen(&mut table, [5]);
    assert_eq!(known(&table), [1, 2, 4, 5], "3 was unseen for longest");
    answered(&mut table, [6, 7]);
    assert_eq!(known(&table), [1, 5, 6, 7]);
    answered(&mut table, [8]);
    assert_eq!(known(&table), [1, 6, 7, 8]);
    seen(&mut table, [9]);
    assert_eq!(known(&table), [1, 6, 7, 8], "hearsay displaces nobody who answered");
    answered(&mut table, [9]);
    assert_eq!(known(&table), [6, 7, 8, 9]);
    assert_eq!((table.counts().evicted, table.counts().refused), (5, 1));
}

#[test]
fn who_was_given_up_makes_room_first() {
    let mut table = table_of(3);
    seen(&mut table, [1, 2, 3]);
    table.apply(&[contact(3, ContactEvent::Failed), contact(3, ContactEvent::Failed)], 0);
    assert_eq!(table.counts().disposed, 1);
    seen(&mut table, [4]);
    assert_eq!(known(&table), [1, 2, 4]);
}

#[test]
fn a_failed_contact_is_left_alone_for_twice_as_long_each_time() {
    let mut table = table_of(10);
    answered(&mut table, [1]);
    let mut now = 0;
    for wait in [30, 60, 120, 240] {
        table.apply(&[contact(1, ContactEvent::Failed)], now);
        table.advance(now + wait * SECOND - 1);
        assert_eq!(table.counts().lookup_candidates, 0);
        now += wait * SECOND;
        table.advance(now);
        assert_eq!(table.counts().lookup_candidates, 1);
    }
    table.apply(&[contact(1, ContactEvent::Failed)], now);
    assert_eq!((table.counts().proven, table.counts().disposed), (0, 1));
    assert!(table.closest(B256::ZERO, 16).is_empty());
}

#[test]
fn who_was_given_up_returns_by_answering_or_after_a_while_not_by_hearsay() {
    let mut table = table_of(10);
    let failed = [contact(1, ContactEvent::Failed), contact(1, ContactEvent::Failed)];
    seen(&mut table, [1]);
    table.apply(&failed, 0);
    seen(&mut table, [1]);
    assert_eq!((table.counts().unproven, table.counts().disposed), (0, 1));
    answered(&mut table, [1]);
    assert_eq!((table.counts().proven, table.counts().lookup_candidates), (1, 1));

    seen(&mut table, [2]);
    let failed = [contact(2, ContactEvent::Failed), contact(2, ContactEvent::Failed)];
    table.apply(&failed, 0);
    table.advance(3600 * SECOND);
    assert_eq!(known(&table), [1]);
    seen(&mut table, [2]);
    assert_eq!(table.counts().unproven, 1);
}

#[test]
fn who_was_asked_is_asked_again_after_the_interval() {
    let mut table = table_of(10);
    seen(&mut table, [1]);
    table.apply(&[contact(1, ContactEvent::Asked)], 0);
    table.advance(10 * SECOND - 1);
    assert_eq!(table.sample_for_lookup(&mut StdRng::seed_from_u64(1)), None);
    table.advance(10 * SECOND);
    assert!(table.sample_for_lookup(&mut StdRng::seed_from_u64(1)).is_some());
}

#[test]
fn a_record_is_wanted_from_the_proven_while_missing_or_outdated() {
    let mut table = table_of(10);
    let wanted = |table: &Table| table.counts().enr_candidates;
    seen(&mut table, [1]);
    assert_eq!(wanted(&table), 0);
    answered(&mut table, [1]);
    assert_eq!(wanted(&table), 1);
    table.apply(&[with_record(1, 5)], 0);
    assert_eq!(wanted(&table), 0);
    let newer = Contact { enr_seq: Some(6), ..contact(1, ContactEvent::Answered) };
    table.apply(std::slice::from_ref(&newer), 0);
    assert_eq!(wanted(&table), 0, "it has just sent one");
    table.advance(60 * SECOND);
    assert_eq!(wanted(&table), 1);
    table.apply(&[with_record(1, 6)], 61 * SECOND);
    table.advance(1000 * SECOND);
    assert_eq!(wanted(&table), 0);
    assert_eq!(table.closest(B256::ZERO, 1)[0].enr, with_record(1, 6).enr);
}

#[test]
fn hearsay_does_not_move_a_proven_endpoint() {
    let mut table = table_of(10);
    let elsewhere = |event| Contact { ip: IpAddr::from([99, 9, 9, 9]), ..contact(1, event) };
    let ip = |table: &Table| table.closest(B256::ZERO, 1)[0].ip;
    seen(&mut table, [1]);
    table.apply(&[elsewhere(ContactEvent::Seen)], 0);
    assert_eq!(ip(&table), elsewhere(ContactEvent::Seen).ip);
    answered(&mut table, [1]);
    table.apply(&[elsewhere(ContactEvent::Seen), elsewhere(ContactEvent::Failed)], 0);
    assert_eq!(ip(&table), contact(1, ContactEvent::Seen).ip);
    assert_eq!(table.counts().lookup_candidates, 1, "a failure elsewhere says nothing");
    table.apply(&[elsewhere(ContactEvent::Answered)], 0);
    assert_eq!(ip(&table), elsewhere(ContactEvent::Seen).ip);
}

#[test]
fn one_subnet_fills_neither_an_answer_nor_the_table() {
    let mut table = table_of(1000);
    let neighbour = |n: u64| {
        let ip = IpAddr::from([20, 1, 2, n as u8]);
        Contact { ip, ..contact(n, ContactEvent::Answered) }
    };
    let contacts: Vec<_> = (0..400).map(neighbour).collect();
    table.apply(&contacts, 0);
    assert_eq!((table.counts().proven, table.counts().refused), (256, 144));
    assert_eq!(table.closest(B256::ZERO, 16).len(), 10);
    answered(&mut table, 1000..1003);
    assert_eq!(table.closest(B256::ZERO, 16).len(), 13);
    let local: Vec<_> = (2000..2016)
        .map(|n| Contact { ip: IpAddr::from([127, 0, 0, 1]), ..contact(n, ContactEvent::Answered) })
        .collect();
    table.apply(&local, 0);
    assert_eq!(table.closest(B256::ZERO, 29).len(), 29);
}

#[test]
fn contacts_that_no_packet_reaches_are_refused() {
    let mut table = table_of(10);
    let at = |ip: IpAddr| Contact { ip, ..contact(1, ContactEvent::Answered) };
    for ip in ["0.0.0.0", "255.255.255.255", "224.0.0.1", "::", "ff02::1", "::ffff:1.2.3.4"] {
        table.apply(&[at(ip.parse().unwrap())], 0);
    }
    table.apply(&[Contact { udp_port: 0, ..contact(1, ContactEvent::Answered) }], 0);
    assert_eq!((known(&table).len(), table.counts().refused), (0, 7));
}

#[test]
fn the_best_are_the_proven_then_those_that_answered_before() {
    let mut table = table_of(10);
    seen(&mut table, [1]);
    answered(&mut table, [2, 3, 3, 4, 4, 4]);
    let order = |ranked: &[Ranked]| ranked.iter().map(|r| r.contact.id).collect::<Vec<_>>();
    assert_eq!(order(&table.best(10)), [id(4), id(3), id(2)]);
    assert_eq!(order(&table.best(2)), [id(4), id(3)]);

    let mut restored = table_of(2);
    restored.restore(&table.best(10), 0);
    assert_eq!(restored.counts().unproven, 2, "whoever answered in an earlier life is unproven");
    assert_eq!(known(&restored), [3, 4]);
    answered(&mut restored, [3]);
    assert_eq!(order(&restored.best(10)), [id(3), id(4)]);
}
