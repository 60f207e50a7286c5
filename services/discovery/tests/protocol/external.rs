//! The own address as others report it.

use crate::bench::{Bench, Peer, at, peer};
use std::net::SocketAddr;
use tandem_discovery::Config;
use tandem_discv4::{Endpoint, Pong};

/// Checks that a socket for both families is seen under an address of each, and the record has
/// both.
#[test]
fn the_record_gets_an_address_of_each_family_from_those_who_see_it() {
    let config = Config { lookup_fast_ms: 1 << 40, external_votes_min: 3, ..Config::default() };
    let mut bench = Bench::bound(&config, at("[::]:30303"));
    let (four, six) = (at("9.9.9.9:30303"), at("[2001:db8:9::9]:40404"));
    let see = |bench: &mut Bench, index: u16, six: Option<SocketAddr>| {
        let key = peer(u64::from(index)).key;
        let address = match six {
            None => SocketAddr::from(([40, index as u8, 1, 1], 30303)),
            Some(_) => SocketAddr::from(([0x2001, 0xdb8, index, 0, 0, 0, 0, 1], 30303)),
        };
        let peer = Peer { key, address };
        let hash = bench.pinged(&peer);
        let to = Endpoint::new(six.unwrap_or(four), 0);
        let pong = Pong { to, ..bench.pong(hash) };
        bench.send(&peer, pong);
        let enr = bench.state.enr();
        (enr.ip4().zip(enr.udp4()), enr.ip6().zip(enr.udp6()))
    };
    // Two peers see IPv4, many more IPv6: too few for IPv4.
    for index in 1..=2 {
        assert_eq!(see(&mut bench, index, None), (None, None));
    }
    let mut known = (None, None);
    for index in 100..120 {
        known = see(&mut bench, index, Some(six));
    }
    assert_eq!(known, (None, Some(("2001:db8:9::9".parse().unwrap(), 40404))));
    let (both, _) = see(&mut bench, 3, None);
    assert_eq!(both, Some(([9; 4].into(), 30303)));
    assert_eq!(bench.state.enr().seq(), 3, "one change for each address");
    assert_eq!(bench.state.external(), Some(four));
    // The other address stays when one changes.
    let moved = at("[2001:db8:9::10]:40404");
    for index in 200..230 {
        known = see(&mut bench, index, Some(moved));
    }
    assert_eq!(
        known,
        (Some(([9; 4].into(), 30303)), Some(("2001:db8:9::10".parse().unwrap(), 40404)))
    );
}
