//! Finds the public network of a fork id.

use std::{collections::HashMap, sync::LazyLock};
use tandem_chain::ChainSpec;
use tandem_cluster::Network;
use tandem_discv4::fork_id;
use tandem_primitives::B256;

/// Returns the network of a fork hash: past, present, or scheduled.
pub fn network_of(hash: [u8; 4]) -> Option<Network> {
    static HASHES: LazyLock<HashMap<[u8; 4], Network>> = LazyLock::new(all);
    HASHES.get(&hash).copied()
}

fn all() -> HashMap<[u8; 4], Network> {
    let mut hashes = HashMap::new();
    for network in Network::ALL {
        let Some(spec) = ChainSpec::for_chain_id(network.chain_id()) else { continue };
        let points = spec.fork_points();
        let genesis = (network.genesis_hash(), spec.genesis_header(B256::ZERO).timestamp);
        let blocks = [0].into_iter().chain(points.blocks.iter().copied()).map(|block| (block, 0));
        let times = points.times.iter().map(|&time| (u64::MAX, time));
        for head in blocks.chain(times) {
            hashes.insert(fork_id(genesis, &points.blocks, &points.times, head).hash, network);
        }
    }
    hashes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_fork_of_a_network_is_known_as_its_own() {
        let cases = [
            (0xfc64_ec04, Some(Network::Mainnet)),
            (0x9f3d_2254, Some(Network::Mainnet)),
            (0x07c9_462e, Some(Network::Mainnet)),
            (0xed88_b5fd, Some(Network::Sepolia)),
            (0xbef7_1d30, Some(Network::Hoodi)),
            (0x0000_0000, None),
        ];
        for (hash, network) in cases {
            assert_eq!(network_of(u32::to_be_bytes(hash)), network, "{hash:08x}");
        }
        let hashes = all();
        assert!(Network::ALL.iter().all(|network| hashes.values().any(|of| of == network)));
    }
}
