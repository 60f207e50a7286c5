use proptest::{collection::vec, prelude::*};
use prost::Message;
use std::net::IpAddr;
use tandem_primitives::B512;
use tandem_proto::{
    convert::ConvertError,
    event::{Contact, ContactEvent, PeersDiscovered, PeersTarget},
    wire::event::v1 as event,
};

fn contact(index: u8) -> Contact {
    Contact {
        id: B512::repeat_byte(index),
        ip: IpAddr::from([10, 0, 0, index]),
        udp_port: 30303,
        tcp_port: 0,
        enr_seq: index.is_multiple_of(2).then_some(7),
        enr: index.is_multiple_of(3).then(|| vec![index; usize::from(index) + 1].into()),
        event: ContactEvent::Seen,
    }
}

proptest! {
    #[test]
    fn batches_and_targets_survive(indices in vec(0..200u8, 0..20), completion in 0.0..=1.0f64) {
        let batch = PeersDiscovered { contacts: indices.into_iter().map(contact).collect() };
        prop_assert_eq!(PeersDiscovered::decode(&batch.encode()), Some(batch));
        let target = PeersTarget { completion };
        prop_assert_eq!(PeersTarget::decode(&target.encode()), Some(target));
    }
}

#[test]
fn a_mapped_address_arrives_as_what_it_means() {
    let mapped = Contact { ip: "::ffff:1.2.3.4".parse().unwrap(), ..contact(1) };
    let batch = PeersDiscovered { contacts: vec![mapped] };
    let arrived = PeersDiscovered::decode(&batch.encode()).unwrap();
    assert_eq!(arrived.contacts[0].ip, IpAddr::from([1, 2, 3, 4]));
}

#[test]
fn malformed_events_name_the_column() {
    let valid = event::PeersDiscovered::from(&PeersDiscovered {
        contacts: [0, 1, 2].map(contact).to_vec(),
    });
    let refused = |spoil: fn(&mut event::PeersDiscovered)| {
        let mut wire = valid.clone();
        spoil(&mut wire);
        let error: Result<PeersDiscovered, ConvertError> = wire.try_into();
        error.err().map(|error| error.to_string()).unwrap_or_default()
    };
    let expect = [
        (refused(|_| ()), ""),
        (refused(|w| w.ips = vec![0; 47].into()), "ips: 47 bytes are not a multiple of 16"),
        (refused(|w| w.ips = vec![0; 32].into()), "ips: expected 3 items, got 2"),
        (refused(|w| w.udp_ports.truncate(2)), "udp_ports: expected 3 items, got 2"),
        (refused(|w| w.tcp_ports.truncate(2)), "tcp_ports: expected 3 items, got 2"),
        (refused(|w| w.udp_ports[1] = 65_536), "udp_ports[1]: 65536 is not in 0..=65535"),
        (refused(|w| w.tcp_ports[2] = 65_536), "tcp_ports[2]: 65536 is not in 0..=65535"),
        (refused(|w| w.events = vec![1; 2].into()), "events: expected 3 items, got 2"),
        (refused(|w| w.events = vec![1, 0, 1].into()), "events[1]: 0 is not in 1..=5"),
        (refused(|w| w.events = vec![1, 1, 6].into()), "events[2]: 6 is not in 1..=5"),
        (refused(|w| w.flags = vec![0; 4].into()), "flags: expected 3 items, got 4"),
        (refused(|w| w.flags = vec![3, 4, 1].into()), "flags[1]: 4 is not in 0..=3"),
        (refused(|w| w.enr_seqs.truncate(1)), "enr_seqs: expected 2 items, got 1"),
        (refused(|w| w.enr_sizes.push(1)), "enr_sizes: expected 1 items, got 2"),
        (refused(|w| w.enr_sizes[0] = 2), "enrs: expected 2 bytes, got 1"),
        (
            refused(|w| (w.enr_sizes[0], w.enrs) = (301, vec![0; 301].into())),
            "enr_sizes[0]: 301 is not in 1..=300",
        ),
    ];
    for (got, want) in expect {
        let want = if want.is_empty() { String::new() } else { format!("peers_discovered.{want}") };
        assert_eq!(got, want);
    }
}

#[test]
fn a_target_is_a_fraction() {
    for completion in [-0.1, 1.1, f64::NAN, f64::INFINITY] {
        let wire = event::PeersTarget { completion };
        assert_eq!(PeersTarget::decode(&wire.encode_to_vec()), None);
        let error: Result<PeersTarget, ConvertError> = wire.try_into();
        let text = error.unwrap_err().to_string();
        assert_eq!(text, "peers_target.completion: is not between 0 and 1");
    }
}
