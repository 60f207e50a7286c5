//! Frequent queries do not allocate.
#![allow(clippy::unwrap_used, missing_docs)]

use rand::{SeedableRng, rngs::StdRng};
use std::{alloc::System, net::IpAddr};
use tandem_heap::{Counting, thread::allocations};
use tandem_peer_table::{Config, table::Table};
use tandem_primitives::{B256, B512, Bytes};
use tandem_proto::event::{Contact, ContactEvent};

#[global_allocator]
static ALLOCATOR: Counting<System> = Counting(System);

fn answered(n: u32) -> Contact {
    let [_, a, b, c] = n.to_be_bytes();
    let mut id = B512::ZERO;
    id[..4].copy_from_slice(&n.to_be_bytes());
    Contact {
        id,
        ip: IpAddr::from([20 + a, b, c, 1]),
        udp_port: 30303,
        tcp_port: 30303,
        enr_seq: Some(1),
        enr: Some(Bytes::from(vec![1; 100])).filter(|_| n.is_multiple_of(2)),
        event: ContactEvent::Answered,
    }
}

#[test]
fn sampling_allocates_nothing_and_the_closest_only_their_list() {
    let mut table = Table::new(&Config::default());
    let contacts: Vec<_> = (0..10_000).map(answered).collect();
    table.apply(&contacts, 0);
    let mut rng = StdRng::seed_from_u64(1);
    let (sampling, ()) = allocations(|| {
        for _ in 0..1000 {
            assert!(table.sample_for_lookup(&mut rng).is_some());
            assert!(table.sample_for_enr(&mut rng).is_some());
        }
    });
    assert_eq!(sampling, 0);
    // The two allocations are the list itself, and the one it is made from.
    let (listing, _) = allocations(|| table.closest(B256::repeat_byte(7), 16));
    assert_eq!(listing, 2);
}

#[test]
fn a_full_table_takes_in_strangers_without_growing() {
    let mut table = Table::new(&Config { contacts_max: 1000, ..Config::default() });
    let plain = |n| Contact { enr: None, ..answered(n) };
    let old: Vec<_> = (0..20_000).map(plain).collect();
    let new: Vec<_> = (20_000..40_000).map(plain).collect();
    table.apply(&old, 0);
    // Subnets come and go in a map that may be rearranged now and then.
    let (taken, _) = allocations(|| table.apply(&new, 0));
    assert!(taken < 20, "{taken}");
    assert_eq!(table.counts().proven, 1000);
}
