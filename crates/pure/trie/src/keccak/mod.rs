//! Keccak-256 of many byte strings, several at a time: one state to each lane of a vector
//! register. A permutation of eight states with AVX-512 takes little longer than that of one.
//!
//! Every lane works through a byte string of its own; when it is done the next one takes its
//! place, so strings of different lengths keep all lanes busy.

#[cfg(target_arch = "x86_64")]
mod x86;

use std::{fmt, ops::Range};
use tandem_primitives::{B256, keccak256};

/// Bytes that one permutation absorbs.
const RATE: usize = 136;

/// A way to compute Keccak-256 of many byte strings. All give the same hashes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Lanes(Kind);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// One after the other.
    Scalar,
    /// Four at a time.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// Eight at a time.
    #[cfg(target_arch = "x86_64")]
    Avx512,
}

impl Lanes {
    /// Those that this processor has, the fastest first.
    pub fn available() -> impl Iterator<Item = Self> {
        let all = [
            #[cfg(target_arch = "x86_64")]
            x86::has_avx512().then_some(Kind::Avx512),
            #[cfg(target_arch = "x86_64")]
            x86::has_avx2().then_some(Kind::Avx2),
            Some(Kind::Scalar),
        ];
        all.into_iter().flatten().map(Self)
    }

    /// The fastest that this processor has.
    #[inline]
    pub fn best() -> Self {
        #[cfg(target_arch = "x86_64")]
        {
            if x86::has_avx512() {
                return Self(Kind::Avx512);
            }
            if x86::has_avx2() {
                return Self(Kind::Avx2);
            }
        }
        Self(Kind::Scalar)
    }

    /// Keccak-256 of each of the byte strings that lie behind one another in `bytes`, each up to
    /// its entry in `ends`. What `hashes` held is gone.
    ///
    /// # Panics
    /// When the ends do not ascend or lie outside of `bytes`.
    pub fn hash(self, bytes: &[u8], ends: &[u32], hashes: &mut Vec<B256>) {
        self.hash_spans(bytes, ends.len(), |at| span(ends, at), hashes);
    }

    /// Permutes so many states (Keccak-f\[1600\], FIPS 202), rounded up to whole vectors of them, and
    /// nothing else: what hashing cannot do without, for benches. Gives a word that depends on all.
    pub fn permute(self, count: usize) -> u64 {
        match self.0 {
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => permute_states(count.div_ceil(8), x86::permute8),
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => permute_states(count.div_ceil(4), x86::permute4),
            // The one at hand absorbs and gives a hash, too.
            Kind::Scalar => {
                let block = std::hint::black_box([0; RATE - 1]);
                (0..count).fold(0, |sum: u64, _| sum.wrapping_add(keccak256(block)[0].into()))
            }
        }
    }

    /// Keccak-256 of so many byte strings, given where in `bytes` each of them lies.
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
            Kind::Avx512 => hash_lanes(bytes, span, hashes, x86::step8),
            #[cfg(target_arch = "x86_64")]
            Kind::Avx2 => hash_lanes(bytes, span, hashes, x86::step4),
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
            Kind::Avx2 => "AVX2, 4 lanes",
            #[cfg(target_arch = "x86_64")]
            Kind::Avx512 => "AVX-512, 8 lanes",
        })
    }
}

/// [`Lanes::hash`] in the way that is fastest for so many.
pub fn hash_batch(bytes: &[u8], ends: &[u32], hashes: &mut Vec<B256>) {
    hash_spans(bytes, ends.len(), |at| span(ends, at), hashes);
}

/// [`hash_batch`] of so many byte strings, given where in `bytes` each of them lies.
pub(crate) fn hash_spans(
    bytes: &[u8],
    count: usize,
    span: impl Fn(usize) -> Range<usize>,
    hashes: &mut Vec<B256>,
) {
    // From two strings on the lanes win, measured on Zen 5: one permutation of eight states takes
    // as long as 0.8 of a scalar one, that of four 1.1.
    let lanes = if count < 2 { Lanes(Kind::Scalar) } else { Lanes::best() };
    lanes.hash_spans(bytes, count, span, hashes);
}

/// Where the byte string at a position lies, of strings behind one another.
#[inline]
fn span(ends: &[u32], at: usize) -> Range<usize> {
    let start = if at == 0 { 0 } else { ends[at - 1] };
    start as usize..ends[at] as usize
}

/// `N` Keccak states side by side: word by word, one lane for each state.
#[repr(align(64))]
struct State<const N: usize>([[u64; N]; 25]);

/// Permutes vectors of states that do not depend on one another.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
fn permute_states<const N: usize>(count: usize, permute: fn(&mut State<N>)) -> u64 {
    let mut states = [0, 1, 2, 3, 4, 5, 6, 7].map(|seed| State([[seed; N]; 25]));
    for at in 0..count {
        permute(&mut states[at % 8]);
    }
    states.iter().fold(0, |all, state| all ^ state.0[0][0])
}

/// What the lanes absorb before one permutation.
struct Blocks<'a, const N: usize> {
    /// The bytes, of which `lens` count; what lies behind them is not looked at.
    bytes: [&'a [u8; RATE]; N],
    /// Bytes that count: [`RATE`], or fewer in the last block of a string, which is padded.
    lens: [usize; N],
    /// All bits set in a lane that goes on, none in one that starts from nothing.
    keep: [u64; N],
}

/// Absorbs a block in every lane, and permutes all states.
type Step<const N: usize> = fn(&mut State<N>, &Blocks<'_, N>);

/// What one lane is working on.
#[derive(Clone, Copy)]
struct Lane {
    /// Position of the string; that of none when there is no more.
    at: usize,
    /// Where in all the bytes its next block starts.
    start: usize,
    end: usize,
}

/// A lane without work hashes nothing over and over.
const IDLE: &[u8; RATE] = &[0; RATE];

// Only the lanes of a vector processor call this.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
fn hash_lanes<const N: usize>(
    bytes: &[u8],
    span: impl Fn(usize) -> Range<usize>,
    hashes: &mut [B256],
    step: Step<N>,
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
    // Blocks at the very end, of which not all 136 bytes lie in `bytes`.
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

    /// Byte strings behind one another.
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
            // What was there must be gone.
            let mut got = vec![B256::repeat_byte(1); 3];
            hash_batch(&self.bytes, &self.ends, &mut got);
            assert_eq!(got, want);
            for lanes in Lanes::available() {
                lanes.hash(&self.bytes, &self.ends, &mut got);
                assert_eq!(got, want, "{lanes}");
            }
        }
    }

    /// Hashes that everybody knows: those of nothing, "abc", and an empty RLP string.
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

    /// The first word of the permutation of zeros, as the Keccak team publishes it.
    #[test]
    fn permuting_alone_is_the_permutation_of_hashing() {
        for lanes in Lanes::available().filter(|lanes| lanes.0 != Kind::Scalar) {
            // Of one vector, that of zeros; what the seven others began with adds up to nothing.
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

    /// A million byte strings, among them 1,000 of every length up to beyond two blocks.
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
