//! Fork ids, EIP-2124: the chain of a node and the forks it has passed, in twelve bytes.

use alloy_primitives::B256;
use alloy_rlp::{RlpDecodable, RlpEncodable};
use crc32fast::Hasher;

/// Statement of a node about its chain.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, RlpEncodable, RlpDecodable)]
#[rlp(trailing)]
pub struct ForkId {
    /// CRC-32 of the genesis hash and all forks passed, big-endian.
    pub hash: [u8; 4],
    /// Next known fork, as block number or time; 0 when there is none.
    pub next: u64,
}

/// Computes the fork id at a head. `block_forks` are the numbers at which forks activate,
/// `time_forks` the times (EIP-6122). Forks at block 0, or at or before the time of genesis, belong
/// to genesis and do not count. Several forks at the same point count once.
pub fn fork_id(
    genesis: (B256, u64),
    block_forks: &[u64],
    time_forks: &[u64],
    head: (u64, u64),
) -> ForkId {
    let ((genesis_hash, genesis_time), (head_number, head_time)) = (genesis, head);
    let mut crc = Hasher::new();
    crc.update(genesis_hash.as_slice());
    let blocks = sorted(block_forks, 0).into_iter().map(|fork| (fork, fork <= head_number));
    let times = sorted(time_forks, genesis_time).into_iter().map(|fork| (fork, fork <= head_time));
    for (fork, passed) in blocks.chain(times) {
        if !passed {
            return ForkId { hash: crc.finalize().to_be_bytes(), next: fork };
        }
        crc.update(&fork.to_be_bytes());
    }
    ForkId { hash: crc.finalize().to_be_bytes(), next: 0 }
}

/// Forks are times from this number on, blocks below it: the time of mainnet's genesis (EIP-6122).
const TIMES_BEGIN: u64 = 1_438_269_973;

/// Returns whether a peer with this fork id is on the own chain, as EIP-2124 decides it: at the same
/// forks, behind and aware of the next fork, or ahead. The other arguments are those of [`fork_id`].
pub fn is_compatible(
    genesis: (B256, u64),
    block_forks: &[u64],
    time_forks: &[u64],
    head: (u64, u64),
    remote: ForkId,
) -> bool {
    let ((genesis_hash, genesis_time), (head_number, head_time)) = (genesis, head);
    let mut crc = Hasher::new();
    crc.update(genesis_hash.as_slice());
    let blocks = sorted(block_forks, 0).into_iter().map(|fork| (fork, fork <= head_number));
    let times = sorted(time_forks, genesis_time).into_iter().map(|fork| (fork, fork <= head_time));
    let mut here = true;
    for (fork, passed) in blocks.chain(times) {
        let same = crc.clone().finalize().to_be_bytes() == remote.hash;
        if same && passed {
            // The peer is behind. It must know the fork that this node has passed next.
            return remote.next == fork;
        }
        if same {
            // The peer is here, or ahead of this node if the fork is not the next one.
            return !here || !passed_by(head, remote.next);
        }
        here &= passed;
        crc.update(&fork.to_be_bytes());
    }
    let same = crc.finalize().to_be_bytes() == remote.hash;
    same && (!here || !passed_by(head, remote.next))
}

/// Returns whether this node has passed a fork that it does not know.
fn passed_by((number, time): (u64, u64), fork: u64) -> bool {
    fork > 0 && if fork >= TIMES_BEGIN { fork <= time } else { fork <= number }
}

fn sorted(forks: &[u64], above: u64) -> Vec<u64> {
    let mut forks: Vec<_> = forks.iter().copied().filter(|&fork| fork > above).collect();
    forks.sort_unstable();
    forks.dedup();
    forks
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_primitives::b256;

    /// Ids that EIP-2124 lists for mainnet, and later ones that follow from the rules.
    #[test]
    fn mainnet_ids_are_those_of_the_eip() {
        let genesis = b256!("0xd4e56740f876aef8c010b86a40d5f56745a118d0906a34e69aec8c0db1cb8fa3");
        let blocks = [
            1_150_000, 1_920_000, 2_463_000, 2_675_000, 4_370_000, 7_280_000, 7_280_000, 9_069_000,
            9_200_000, 12_244_000, 12_965_000, 13_773_000, 15_050_000,
        ];
        let times = [1_681_338_455, 1_710_338_135];
        let expect: [(u64, u64, u32, u64); 11] = [
            (0, 0, 0xfc64_ec04, 1_150_000),
            (1_149_999, 0, 0xfc64_ec04, 1_150_000),
            (1_150_000, 0, 0x97c2_c34c, 1_920_000),
            (1_920_000, 0, 0x91d1_f948, 2_463_000),
            (2_463_000, 0, 0x7a64_da13, 2_675_000),
            (2_675_000, 0, 0x3edd_5b10, 4_370_000),
            (4_370_000, 0, 0xa00b_c324, 7_280_000),
            (7_280_000, 0, 0x668d_b0af, 9_069_000),
            (15_050_000, 0, 0xf0af_d0e3, 1_681_338_455),
            (20_000_000, 1_681_338_455, 0xdce9_6c2d, 1_710_338_135),
            (20_000_000, 1_710_338_135, 0x9f3d_2254, 0),
        ];
        for (number, time, hash, next) in expect {
            let id = fork_id((genesis, 0), &blocks, &times, (number, time));
            assert_eq!(id, ForkId { hash: hash.to_be_bytes(), next }, "at {number}, {time}");
        }
    }

    /// Cases of EIP-2124, section "Test cases", and their like for forks at times.
    #[test]
    fn peers_are_judged_as_the_eip_says() {
        let genesis = b256!("0xd4e56740f876aef8c010b86a40d5f56745a118d0906a34e69aec8c0db1cb8fa3");
        let until_petersburg = [1_150_000, 1_920_000, 2_463_000, 2_675_000, 4_370_000, 7_280_000];
        let times = [1_681_338_455, 1_710_338_135];
        let after = 1_700_000_000;
        let cases: [(u64, u64, u32, u64, bool); 20] = [
            // Same forks, nothing announced, or a fork that this node does not know of.
            (7_987_396, 0, 0x668d_b0af, 0, true),
            (7_987_396, 0, 0x668d_b0af, u64::MAX, true),
            // The peer knows Petersburg, or not yet, or announces something else.
            (7_279_999, 0, 0xa00b_c324, 0, true),
            (7_279_999, 0, 0xa00b_c324, 7_280_000, true),
            (7_279_999, 0, 0xa00b_c324, u64::MAX, true),
            // The peer is behind, and knows the next fork.
            (7_987_396, 0, 0xa00b_c324, 7_280_000, true),
            (7_987_396, 0, 0x3edd_5b10, 4_370_000, true),
            // The peer is ahead.
            (7_279_999, 0, 0x668d_b0af, 0, true),
            (4_369_999, 0, 0xa00b_c324, 0, true),
            (4_369_999, 0, 0x668d_b0af, 7_987_400, true),
            // The peer is behind, and does not know the next fork.
            (7_987_396, 0, 0xa00b_c324, 0, false),
            (7_987_396, 0, 0x5cdd_c0e1, 0, false),
            (7_279_999, 0, 0x5cdd_c0e1, 0, false),
            // The peer is on another chain.
            (7_987_396, 0, 0xafec_6b27, 0, false),
            // The peer has forked where this node has not.
            (88_888_888, 0, 0x668d_b0af, 88_888_888, false),
            (7_279_999, 0, 0xa00b_c324, 7_279_999, false),
            // Forks at times.
            (20_000_000, after, 0x668d_b0af, 1_681_338_455, true),
            (20_000_000, after, 0x668d_b0af, 1_681_338_456, false),
            (20_000_000, after, 0x668d_b0af, 0, false),
            (20_000_000, after, 0x3edd_5b10, 4_370_000, true),
        ];
        for (number, time, hash, next, expected) in cases {
            let remote = ForkId { hash: hash.to_be_bytes(), next };
            let known = if time == 0 { &[][..] } else { &times };
            let got = is_compatible((genesis, 0), &until_petersburg, known, (number, time), remote);
            assert_eq!(got, expected, "at {number}, {time}: {remote:?}");
        }
        let known = [1_150_000, 1_920_000, 2_463_000, 2_675_000, 4_370_000, 7_280_000];
        let ours = |head| fork_id((genesis, 0), &known, &times, head);
        for (head, peer) in [
            ((20_000_000, after), (20_000_000, 1_710_338_135)),
            ((20_000_000, 1_710_338_135), (20_000_000, after)),
            ((20_000_000, after), (20_000_000, after)),
        ] {
            assert!(is_compatible((genesis, 0), &known, &times, head, ours(peer)), "{head:?}");
        }
        let next = after - 1;
        let remote = ForkId { next, ..ours((20_000_000, after)) };
        assert!(!is_compatible((genesis, 0), &known, &times, (20_000_000, after), remote));
    }

    #[test]
    fn forks_of_genesis_do_not_count() {
        let id =
            |blocks: &[u64], times: &[u64]| fork_id((B256::ZERO, 100), blocks, times, (5, 200));
        assert_eq!(id(&[0, 0], &[0, 100]), id(&[], &[]));
        assert_ne!(id(&[], &[101]), id(&[], &[]));
    }
}
