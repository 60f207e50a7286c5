//! Keccak-256 of many byte strings, several at a time: one state per lane of a vector register. A
//! permutation of eight states with AVX-512 takes little longer than that of one.
//!
//! Each lane works through a byte string of its own. When the string is done, the next one takes
//! its place, so strings of different lengths keep all lanes busy.

#[cfg(target_arch = "x86_64")]
mod x86;

use std::{fmt, ops::Range};
use tandem_primitives::{B256, keccak256};

/// Number of bytes that one permutation absorbs.
const RATE: usize = 136;

/// Method of computing Keccak-256 of many byte strings. All methods give the same hashes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lanes(Kind);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// One string after the other.
    Scalar,
    /// Four strings at a time.
    #[cfg(target_arch = "x86_64")]
    Avx2(x86::Avx2),
    /// Eight strings at a time.
    #[cfg(target_arch = "x86_64")]
    Avx512(x86::Avx512),
}

impl Lanes {
    /// Returns the methods that this processor supports, the fastest first.
    pub fn available() -> impl Iterator<Item = Self> {
        let all = [
            #[cfg(target_arch = "x86_64")]
            x86::Avx512::detect().map(Kind::Avx512),
            #[cfg(target_arch = "x86_64")]
            x86::Avx2::detect().map(Kind::Avx2),
            Some(Kind::Scalar),
        ];
        all.into_iter().flatten().map(Self)
    }

    /// Returns the fastest method that this processor supports.
    #[inline]
    pub fn best() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            if let Some(avx512) = x86::Avx512::detect() {
                return Self(Kind::Avx512(avx512));
            }
            if let Some(avx2) = x86::Avx2::detect() {
                return Self(Kind::Avx2(avx2));
            }
        }
        Self(Kind::Scalar)
    }

    /// Computes Keccak-256 of each of the consecutive byte strings in `bytes`. Each string ends at
    /// its entry in `ends`. The former contents of `hashes` are replaced.
    ///
    /// # Panics
    /// Panics when the ends do not ascend or lie outside of `bytes`.
    pub fn hash(self, bytes: &[u8], ends: &[u32], hashes: &mut Vec<B256>) {
        self.hash_spans(bytes, ends.len(), |at| span(ends, at), hashes);
    }

    /// Permutes `count` states (Keccak-f\[1600\], FIPS 202), rounded up to whole vectors of states.
    /// It does nothing else: this is the floor of hashing, for benches. Returns a word that depends
    /// on all states.
    pub fn permute(self, count: usize) -> u64 {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512(avx512) => {
                permute_states(count.div_ceil(8), |state| avx512.permute(state))
            }
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2(avx2) => permute_states(count.div_ceil(4), |state| avx2.permute(state)),
            // The available scalar function also absorbs, and returns a hash.
            Kind::Scalar => {
                let block = std::hint::black_box([0; RATE - 1]);
                (0..count).fold(0, |sum: u64, _| sum.wrapping_add(keccak256(block)[0].into()))
            }
        }
    }

    /// Computes Keccak-256 of `count` byte strings, given the location of each in `bytes`.
    fn hash_spans(
        self,
        bytes: &[u8],
        count: usize,
        span: impl Fn(usize) -> Range<usize>,
        hashes: &mut Vec<B256>,
    ) {
        hashes.clear();
        hashes.resize(count, B256::ZERO);
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512(avx512) => {
                hash_lanes(bytes, span, hashes, |state, blocks| avx512.step(state, blocks));
            }
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2(avx2) => {
                hash_lanes(bytes, span, hashes, |state, blocks| avx2.step(state, blocks));
            }
            Kind::Scalar => {
                for (at, hash) in hashes.iter_mut().enumerate() {
                    *hash = keccak256(&bytes[span(at)]);
                }
            }
        }
    }
}

impl fmt::Display for Lanes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self.0 {
            Kind::Scalar => "scalar",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2(_) => "AVX2, 4 lanes",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512(_) => "AVX-512, 8 lanes",
        })
    }
}

/// Computes [`Lanes::hash`] with the method that is fastest for this number of strings.
pub fn hash_batch(bytes: &[u8], ends: &[u32], hashes: &mut Vec<B256>) {
    hash_spans(bytes, ends.len(), |at| span(ends, at), hashes);
}

/// Byte strings that are hashed together. Its buffers may be used again.
#[derive(Debug, Default)]
pub struct HashBatch {
    bytes: Vec<u8>,
    /// End of each string in `bytes`.
    ends: Vec<u32>,
    hashes: Vec<B256>,
}

impl HashBatch {
    /// Removes all strings.
    pub fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    /// Adds a string. All together must have less than 4 GiB, or [`HashBatch::hash`] panics.
    pub fn push(&mut self, string: &[u8]) {
        self.bytes.extend_from_slice(string);
        self.ends.push(self.bytes.len() as u32);
    }

    /// Returns Keccak-256 of each string, in their order.
    pub fn hash(&mut self) -> &[B256] {
        hash_batch(&self.bytes, &self.ends, &mut self.hashes);
        &self.hashes
    }
}

/// Computes [`hash_batch`] of `count` byte strings, given the location of each in `bytes`.
pub(crate) fn hash_spans(
    bytes: &[u8],
    count: usize,
    span: impl Fn(usize) -> Range<usize>,
    hashes: &mut Vec<B256>,
) {
    // The lanes win from two strings on, measured on Zen 5. One permutation of eight states takes
    // as long as 0.8 of a scalar one, and that of four as long as 1.1.
    let lanes = if count < 2 { Lanes(Kind::Scalar) } else { Lanes::best() };
    lanes.hash_spans(bytes, count, span, hashes);
}

/// Returns the location of the string at a position among consecutive strings.
#[inline]
fn span(ends: &[u32], at: usize) -> Range<usize> {
    let start = if at == 0 { 0 } else { ends[at - 1] };
    start as usize..ends[at] as usize
}

/// `N` Keccak states side by side: word by word, one lane per state.
#[repr(align(64))]
struct State<const N: usize>([[u64; N]; 25]);

/// Permutes vectors of independent states.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
fn permute_states<const N: usize>(count: usize, permute: impl Fn(&mut State<N>)) -> u64 {
    let mut states = [0, 1, 2, 3, 4, 5, 6, 7].map(|seed| State([[seed; N]; 25]));
    for at in 0..count {
        permute(&mut states[at % 8]);
    }
    states.iter().fold(0, |all, state| all ^ state.0[0][0])
}

/// Input that the lanes absorb before one permutation.
struct Blocks<'a, const N: usize> {
    /// Bytes of each block. Only the first `lens` of them are read.
    bytes: [&'a [u8; RATE]; N],
    /// Number of bytes that count: [`RATE`], or fewer in the last block of a string, which is
    /// padded.
    lens: [usize; N],
    /// All bits set for a lane that continues a string, no bit for a lane that starts one.
    keep: [u64; N],
}

/// String that one lane is working on.
#[derive(Clone, Copy)]
struct Lane {
    /// Position of the string, or the number of strings when none is left.
    at: usize,
    /// Start of the string's next block in all the bytes.
    start: usize,
    end: usize,
}

/// Block of a lane without work: the lane keeps hashing zeros.
const IDLE: &[u8; RATE] = &[0; RATE];

/// Hashes byte strings with `step`, which absorbs a block in every lane and permutes all states.
// Only vector methods call this function.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
fn hash_lanes<const N: usize>(
    bytes: &[u8],
    span: impl Fn(usize) -> Range<usize>,
    hashes: &mut [B256],
    step: impl Fn(&mut State<N>, &Blocks<'_, N>),
) {
    let count = hashes.len();
    let mut next = 0;
    let mut take = || {
        let at = next;
        next = (next + 1).min(count);
        let Range { start, end } = if at < count { span(at) } else { 0..0 };
        Lane { at, start, end }
    };
    let mut state = State([[0; N]; 25]);
    let mut lanes: [Lane; N] = std::array::from_fn(|_| take());
    let mut keep = [0; N];
    // Blocks at the very end, whose 136 bytes do not all lie in `bytes`.
    let mut tails = [[0; RATE]; N];
    while lanes.iter().any(|lane| lane.at < count) {
        let mut blocks = Blocks { bytes: [IDLE; N], lens: [0; N], keep };
        for ((lane, tail), at) in lanes.iter().zip(&mut tails).zip(0..) {
            if lane.at == count {
                continue;
            }
            blocks.lens[at] = (lane.end - lane.start).min(RATE);
            blocks.bytes[at] = match bytes[lane.start..].first_chunk() {
                Some(block) => block,
                None => {
                    let rest = &bytes[lane.start..lane.end];
                    tail[..rest.len()].copy_from_slice(rest);
                    tail
                }
            };
        }
        step(&mut state, &blocks);
        for (at, lane) in lanes.iter_mut().enumerate() {
            if lane.at == count {
                continue;
            }
            keep[at] = u64::MAX;
            if blocks.lens[at] == RATE {
                lane.start += RATE;
                continue;
            }
            for (word, out) in hashes[lane.at].0.chunks_exact_mut(8).enumerate() {
                out.copy_from_slice(&state.0[word][at].to_le_bytes());
            }
            keep[at] = 0;
            *lane = take();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_primitives::b256;
    use rand::{Rng, RngCore, SeedableRng, rngs::StdRng};

    /// Consecutive byte strings.
    #[derive(Default)]
    struct Strings {
        bytes: Vec<u8>,
        ends: Vec<u32>,
    }

    impl Strings {
        fn push(&mut self, len: usize, rng: &mut StdRng) {
            let start = self.bytes.len();
            self.bytes.resize(start + len, 0);
            rng.fill_bytes(&mut self.bytes[start..]);
            self.ends.push(self.bytes.len() as u32);
        }

        fn check(&self) {
            let want: Vec<B256> = (0..self.ends.len())
                .map(|at| keccak256(&self.bytes[span(&self.ends, at)]))
                .collect();
            // The former contents must disappear.
            let mut got = vec![B256::repeat_byte(1); 3];
            hash_batch(&self.bytes, &self.ends, &mut got);
            assert_eq!(got, want);
            for lanes in Lanes::available() {
                lanes.hash(&self.bytes, &self.ends, &mut got);
                assert_eq!(got, want, "{lanes}");
            }
        }
    }

    /// Checks well-known hashes: those of nothing, "abc", and an empty RLP string.
    #[test]
    fn known_hashes() {
        for lanes in Lanes::available() {
            let mut got = Vec::new();
            lanes.hash(b"abc\x80", &[0, 3, 4], &mut got);
            let want = [
                b256!("c5d2460186f7233c927e7db2dcc703c0e500b653ca82273b7bfad8045d85a470"),
                b256!("4e03657aea45a94fc7d47ba826c8d667c0d1e6e33a64a036ec44f58fa12d6c45"),
                tandem_primitives::EMPTY_TRIE_ROOT,
            ];
            assert_eq!(got, want, "{lanes}");
        }
    }

    /// Compares with the first word of the permutation of zeros, as the Keccak team publishes it.
    #[test]
    fn permuting_alone_is_the_permutation_of_hashing() {
        for lanes in Lanes::available().filter(|lanes| lanes.0 != Kind::Scalar) {
            // Only the vector of zeros is permuted. The seeds of the seven others XOR to zero.
            assert_eq!(lanes.permute(1), 0xf125_8f79_40e1_dde7, "{lanes}");
        }
    }

    #[test]
    fn any_number_of_strings_of_any_length() {
        let mut rng = StdRng::seed_from_u64(1);
        for count in (0..40).chain([1000]) {
            let mut strings = Strings::default();
            for _ in 0..count {
                let around = rng.random_range(0..5) * RATE + rng.random_range(0..3);
                let len = if rng.random() { rng.random_range(0..600) } else { around };
                strings.push(len, &mut rng);
            }
            strings.check();
        }
    }

    /// Hashes a million byte strings, among them 1,000 of every length up to beyond two blocks.
    #[test]
    fn a_million_strings_hash_the_same_in_all_lanes() {
        let mut rng = StdRng::seed_from_u64(2);
        for _ in 0..1_000 {
            let mut strings = Strings::default();
            let mut lens: Vec<usize> = (0..2 * RATE + 4).collect();
            while lens.len() < 1_000 {
                lens.push(rng.random_range(0..5 * RATE));
            }
            while !lens.is_empty() {
                let len = lens.swap_remove(rng.random_range(0..lens.len()));
                strings.push(len, &mut rng);
            }
            strings.check();
        }
    }
}
