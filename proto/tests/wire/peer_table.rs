use super::{refused, through};
use proptest::{collection::vec, option, prelude::*, sample::select};
use std::net::{IpAddr, Ipv6Addr};
use tandem_primitives::{B256, B512};
use tandem_proto::{
    event::{Contact, ContactEvent, PeersDiscovered, PeersTarget},
    limits::{CLOSEST_CONTACTS_MAX, DISCOVERED_CONTACTS_MAX, ENR_BYTES_MAX},
    peer_table::{Error, Stats},
    wire::{event::v1 as event, peer_table::v1 as peers},
};
use tonic::{Code, Status};

fn contact() -> impl Strategy<Value = Contact> {
    use ContactEvent::{Answered, Asked, EnrReceived, Failed, Seen};
    let ip = prop_oneof![
        any::<[u8; 4]>().prop_map(IpAddr::from),
        any::<u64>().prop_map(|n| Ipv6Addr::from_bits((0x2001 << 112) | u128::from(n)).into()),
    ];
    let enr = option::of(vec(any::<u8>(), 1..=ENR_BYTES_MAX));
    let event = select(vec![Seen, Answered, Failed, Asked, EnrReceived]);
    (any::<[u8; 32]>(), ip, any::<[u16; 2]>(), option::of(any::<u64>()), enr, event).prop_map(
        |(id, ip, [udp_port, tcp_port], enr_seq, enr, event)| Contact {
            id: B512::from_slice(&[id, id].concat()),
            ip,
            udp_port,
            tcp_port,
            enr_seq,
            enr: enr.map(Into::into),
            event,
        },
    )
}

fn error() -> impl Strategy<Value = Error> {
    prop_oneof![Just(Error::Overloaded), ".{0,200}".prop_map(Error::Unavailable)]
}

fn stats() -> impl Strategy<Value = Stats> {
    (any::<[u64; 7]>(), any::<[u32; 2]>()).prop_map(|(counts, [connected, target])| {
        let [contacts, proven, disposed, lookup_candidates, enr_candidates, evicted, refused] =
            counts;
        Stats {
            contacts,
            proven,
            disposed,
            lookup_candidates,
            enr_candidates,
            evicted,
            refused,
            connected,
            target,
        }
    })
}

proptest! {
    #[test]
    fn calls_and_answers_survive(
        contacts in vec(contact(), 0..6), hash: [u8; 32], count in 1..=CLOSEST_CONTACTS_MAX,
        stats in stats(), connected: u32, completion in 0.0..=1.0f64,
    ) {
        prop_assert_eq!(through::<peers::ApplyBatchRequest, _>(contacts.clone()), contacts.clone());
        prop_assert_eq!(through::<peers::ClosestResponse, _>(contacts.clone()), contacts.clone());
        let one = contacts.first().cloned();
        prop_assert_eq!(through::<peers::SampleForLookupResponse, _>(one.clone()), one.clone());
        prop_assert_eq!(through::<peers::SampleForEnrResponse, _>(one.clone()), one);
        let closest = (B256::from(hash), count);
        prop_assert_eq!(through::<peers::ClosestRequest, _>(closest), closest);
        prop_assert_eq!(through::<peers::GetStatsResponse, _>(stats), stats);
        prop_assert_eq!(through::<peers::SetConnectedRequest, _>(connected), connected);
        let target = PeersTarget { completion };
        prop_assert_eq!(through::<peers::WatchTargetResponse, _>(target), target);
    }

    #[test]
    fn an_error_keeps_its_variant_through_a_status(error in error()) {
        prop_assert_eq!(Error::from(Status::from(error.clone())), error);
    }
}

#[test]
fn malformed_messages_name_the_field() {
    let seen = Contact {
        id: B512::ZERO,
        ip: IpAddr::from([1, 2, 3, 4]),
        udp_port: 1,
        tcp_port: 1,
        enr_seq: None,
        enr: None,
        event: ContactEvent::Seen,
    };
    let many = |count| {
        event::PeersDiscovered::from(&PeersDiscovered { contacts: vec![seen.clone(); count] })
    };
    let short = event::PeersDiscovered { ids: vec![0; 63].into(), ..Default::default() };
    let apply = |contacts| {
        refused::<_, Vec<Contact>>(peers::ApplyBatchRequest { contacts: Some(contacts) })
    };
    let closest = |length, count| {
        let target = vec![0; length].into();
        refused::<_, (B256, usize)>(peers::ClosestRequest { target, count })
    };
    let sample = |contacts| {
        refused::<_, Option<Contact>>(peers::SampleForLookupResponse { contacts: Some(contacts) })
    };
    let expect = [
        (apply(short.clone()), "apply_batch.contacts.ids: 63 bytes are not a multiple of 64"),
        (
            apply(many(DISCOVERED_CONTACTS_MAX + 1)),
            "apply_batch.contacts.ids: 1025 are more than 1024",
        ),
        (sample(many(2)), "sample_for_lookup.contacts.ids: 2 are more than 1"),
        (
            refused::<_, Option<Contact>>(peers::SampleForEnrResponse {
                contacts: Some(short.clone()),
            }),
            "sample_for_enr.contacts.ids: 63 bytes are not a multiple of 64",
        ),
        (
            refused::<_, Vec<Contact>>(peers::ClosestResponse { contacts: Some(short) }),
            "closest.contacts.ids: 63 bytes are not a multiple of 64",
        ),
        (closest(31, 1), "closest.target: expected 32 bytes, got 31"),
        (closest(32, 0), "closest.count: 0 is not in 1..=256"),
        (closest(32, 257), "closest.count: 257 is not in 1..=256"),
        (refused::<_, Error>(peers::Error::default()), "kind: is missing"),
        (
            refused::<_, PeersTarget>(peers::WatchTargetResponse::default()),
            "watch_target.target: is missing",
        ),
        (
            refused::<_, PeersTarget>(peers::WatchTargetResponse {
                target: Some(event::PeersTarget { completion: 1.5 }),
            }),
            "watch_target.target.peers_target.completion: is not between 0 and 1",
        ),
    ];
    expect.iter().for_each(|(got, want)| assert_eq!(got, want));
}

#[test]
fn a_code_says_what_any_client_understands() {
    let code = |error: Error| Status::from(error).code();
    assert_eq!(code(Error::Overloaded), Code::ResourceExhausted);
    assert_eq!(code(Error::Unavailable(String::new())), Code::Unavailable);
    let refused = Error::from(Status::unavailable("connection refused"));
    assert_eq!(refused, Error::Unavailable("Unavailable: connection refused".to_owned()));
}

#[test]
fn the_target_is_reached_by_as_many_as_are_wanted() {
    let completion =
        |connected, target| Stats { connected, target, ..Stats::default() }.completion();
    assert_eq!(completion(0, 50), 0.0);
    assert_eq!(completion(20, 50), 0.4);
    assert_eq!(completion(70, 50), 1.0);
    assert_eq!(completion(0, 0), 1.0, "none are wanted");
}
