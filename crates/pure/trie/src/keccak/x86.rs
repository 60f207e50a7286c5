//! Keccak permutation over vector registers, and loading of bytes into them.

use super::{Blocks, RATE, State};

/// Number of words that one permutation absorbs.
const WORDS: usize = RATE / 8;

/// Round constants of Keccak-f\[1600\] (FIPS 202, section 3.2.5).
const ROUNDS: [u64; 24] = [
    0x0000000000000001,
    0x0000000000008082,
    0x800000000000808a,
    0x8000000080008000,
    0x000000000000808b,
    0x0000000080000001,
    0x8000000080008081,
    0x8000000000008009,
    0x000000000000008a,
    0x0000000000000088,
    0x0000000080008009,
    0x000000008000000a,
    0x000000008000808b,
    0x800000000000008b,
    0x8000000000008089,
    0x8000000000008003,
    0x8000000000008002,
    0x8000000000000080,
    0x000000000000800a,
    0x800000008000000a,
    0x8000000080008081,
    0x8000000000008080,
    0x0000000080000001,
    0x8000000080008008,
];

/// Defines `step` over vectors, given (in scope) `row`, `transpose`, `splat`, `and`, `xor`, `xor3`,
/// `rotate` and `chi`. Steps and offsets of Keccak-f\[1600\] are those of FIPS 202, section 3.2.
macro_rules! permutation {
    ($features:literal, $lanes:literal) => {
        #[target_feature(enable = $features)]
        pub fn step(state: &mut State<$lanes>, blocks: &Blocks<'_, $lanes>) {
            let mut a = load(state);
            let keep = vector(blocks.keep);
            for word in &mut a {
                *word = and(*word, keep);
            }
            let mut first = 0;
            while first + $lanes < WORDS {
                // No closures for `map` and the like: they are compiled without the feature.
                let mut rows = [keep; $lanes];
                for (at, words) in rows.iter_mut().enumerate() {
                    *words = row(blocks.bytes[at], blocks.lens[at], first);
                }
                let words = transpose(rows);
                for (at, word) in words.into_iter().enumerate() {
                    a[first + at] = xor(a[first + at], word);
                }
                first += $lanes;
            }
            a[WORDS - 1] = xor(a[WORDS - 1], vector(last_words(blocks)));
            permute(&mut a);
            store(state, &a);
        }

        #[target_feature(enable = $features)]
        pub fn permute_state(state: &mut State<$lanes>) {
            let mut a = load(state);
            permute(&mut a);
            store(state, &a);
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn permute(a: &mut [Vector; 25]) {
            for round in ROUNDS {
                let c = [
                    column(a[0], a[5], a[10], a[15], a[20]),
                    column(a[1], a[6], a[11], a[16], a[21]),
                    column(a[2], a[7], a[12], a[17], a[22]),
                    column(a[3], a[8], a[13], a[18], a[23]),
                    column(a[4], a[9], a[14], a[19], a[24]),
                ];
                let r = [
                    rotate::<1, 63>(c[0]),
                    rotate::<1, 63>(c[1]),
                    rotate::<1, 63>(c[2]),
                    rotate::<1, 63>(c[3]),
                    rotate::<1, 63>(c[4]),
                ];
                // Theta on one word, then rho. Pi is the order in which the words are taken.
                macro_rules! word {
                    ($x:literal, $y:literal, $left:literal, $right:literal) => {
                        rotate::<$left, $right>(xor3(
                            a[$x + 5 * $y],
                            c[($x + 4) % 5],
                            r[($x + 1) % 5],
                        ))
                    };
                }
                let b = [
                    [
                        xor3(a[0], c[4], r[1]),
                        word!(1, 1, 44, 20),
                        word!(2, 2, 43, 21),
                        word!(3, 3, 21, 43),
                        word!(4, 4, 14, 50),
                    ],
                    [
                        word!(3, 0, 28, 36),
                        word!(4, 1, 20, 44),
                        word!(0, 2, 3, 61),
                        word!(1, 3, 45, 19),
                        word!(2, 4, 61, 3),
                    ],
                    [
                        word!(1, 0, 1, 63),
                        word!(2, 1, 6, 58),
                        word!(3, 2, 25, 39),
                        word!(4, 3, 8, 56),
                        word!(0, 4, 18, 46),
                    ],
                    [
                        word!(4, 0, 27, 37),
                        word!(0, 1, 36, 28),
                        word!(1, 2, 10, 54),
                        word!(2, 3, 15, 49),
                        word!(3, 4, 56, 8),
                    ],
                    [
                        word!(2, 0, 62, 2),
                        word!(3, 1, 55, 9),
                        word!(4, 2, 39, 25),
                        word!(0, 3, 41, 23),
                        word!(1, 4, 2, 62),
                    ],
                ];
                let mut y = 0;
                while y < 5 {
                    let [b0, b1, b2, b3, b4] = b[y];
                    a[5 * y] = chi(b0, b1, b2);
                    a[5 * y + 1] = chi(b1, b2, b3);
                    a[5 * y + 2] = chi(b2, b3, b4);
                    a[5 * y + 3] = chi(b3, b4, b0);
                    a[5 * y + 4] = chi(b4, b0, b1);
                    y += 1;
                }
                a[0] = xor(a[0], splat(round));
            }
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn vector(words: [u64; $lanes]) -> Vector {
            // SAFETY: same size, and every bit pattern is valid for both.
            unsafe { std::mem::transmute::<[u64; $lanes], Vector>(words) }
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn column(a: Vector, b: Vector, c: Vector, d: Vector, e: Vector) -> Vector {
            xor3(xor3(a, b, c), d, e)
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn load(state: &State<$lanes>) -> [Vector; 25] {
            // SAFETY: as in `vector`.
            unsafe { std::mem::transmute::<[[u64; $lanes]; 25], [Vector; 25]>(state.0) }
        }

        #[inline]
        #[target_feature(enable = $features)]
        fn store(state: &mut State<$lanes>, words: &[Vector; 25]) {
            // SAFETY: as in `vector`.
            state.0 = unsafe { std::mem::transmute::<[Vector; 25], [[u64; $lanes]; 25]>(*words) };
        }
    };
}

/// Table of ones for every byte that may count, with zeros behind.
static COUNTED: [u8; 2 * RATE] = {
    let mut bytes = [0; 2 * RATE];
    let mut at = 0;
    while at < RATE {
        bytes[at] = 0xff;
        at += 1;
    }
    bytes
};

/// Table with the first bit of the padding, behind all bytes that may count.
static BEHIND: [u8; 2 * RATE] = {
    let mut bytes = [0; 2 * RATE];
    bytes[RATE] = 0x01;
    bytes
};

/// Returns the window of a table that aligns with a block of which `len` bytes count.
#[inline]
fn window(table: &[u8; 2 * RATE], len: usize) -> &[u8; RATE] {
    table[RATE - len..].first_chunk().unwrap_or(super::IDLE)
}

/// Returns the last word of each padded block.
#[inline]
fn last_words<const N: usize>(blocks: &Blocks<'_, N>) -> [u64; N] {
    std::array::from_fn(|at| {
        let len = blocks.lens[at];
        let word = |of: &[u8; RATE]| of.last_chunk().map_or(0, |word| u64::from_le_bytes(*word));
        let last = if len == RATE { 0 } else { 0x80 << 56 };
        word(blocks.bytes[at]) & word(window(&COUNTED, len)) ^ word(window(&BEHIND, len)) ^ last
    })
}

mod avx2 {
    use super::{BEHIND, Blocks, COUNTED, RATE, ROUNDS, State, WORDS, last_words, window};
    use std::arch::x86_64::{
        __m256i as Vector, _mm256_and_si256 as and, _mm256_andnot_si256, _mm256_or_si256,
        _mm256_permute2x128_si256, _mm256_set1_epi64x, _mm256_slli_epi64, _mm256_srli_epi64,
        _mm256_unpackhi_epi64, _mm256_unpacklo_epi64, _mm256_xor_si256 as xor,
    };

    permutation!("avx2", 4);

    /// Returns four words of a padded block from the word `first`.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn row(block: &[u8; RATE], len: usize, first: usize) -> Vector {
        let counted = and(words(block, first), words(window(&COUNTED, len), first));
        xor(counted, words(window(&BEHIND, len), first))
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn words(block: &[u8; RATE], first: usize) -> Vector {
        let bytes: &[u8; 32] = block[8 * first..].first_chunk().unwrap_or(&[0; _]);
        // SAFETY: same size, and every bit pattern is valid for both.
        unsafe { std::mem::transmute::<[u8; 32], Vector>(*bytes) }
    }

    /// Turns rows of words, one per lane, into words with one element from each lane.
    #[inline]
    #[target_feature(enable = "avx2")]
    fn transpose([a, b, c, d]: [Vector; 4]) -> [Vector; 4] {
        let (ab, cd) = (_mm256_unpacklo_epi64(a, b), _mm256_unpacklo_epi64(c, d));
        let (ab_odd, cd_odd) = (_mm256_unpackhi_epi64(a, b), _mm256_unpackhi_epi64(c, d));
        [
            _mm256_permute2x128_si256::<0x20>(ab, cd),
            _mm256_permute2x128_si256::<0x20>(ab_odd, cd_odd),
            _mm256_permute2x128_si256::<0x31>(ab, cd),
            _mm256_permute2x128_si256::<0x31>(ab_odd, cd_odd),
        ]
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn splat(word: u64) -> Vector {
        _mm256_set1_epi64x(word as i64)
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn xor3(a: Vector, b: Vector, c: Vector) -> Vector {
        // The second and third are equal for a whole column and are combined once.
        xor(a, xor(b, c))
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn rotate<const LEFT: i32, const RIGHT: i32>(a: Vector) -> Vector {
        _mm256_or_si256(_mm256_slli_epi64::<LEFT>(a), _mm256_srli_epi64::<RIGHT>(a))
    }

    #[inline]
    #[target_feature(enable = "avx2")]
    fn chi(a: Vector, b: Vector, c: Vector) -> Vector {
        xor(a, _mm256_andnot_si256(b, c))
    }
}

mod avx512 {
    use super::{Blocks, RATE, ROUNDS, State, WORDS, last_words};
    use std::arch::x86_64::{
        __m512i as Vector, _mm512_and_si512 as and, _mm512_mask_mov_epi8, _mm512_maskz_loadu_epi8,
        _mm512_rol_epi64, _mm512_set1_epi8, _mm512_set1_epi64, _mm512_shuffle_i64x2,
        _mm512_ternarylogic_epi64, _mm512_unpackhi_epi64, _mm512_unpacklo_epi64,
        _mm512_xor_si512 as xor,
    };

    permutation!("avx512f,avx512bw", 8);

    /// Returns eight words of a padded block from the word `first`.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    fn row(block: &[u8; RATE], len: usize, first: usize) -> Vector {
        let start = 8 * first;
        let bytes: &[u8; 64] = block[start..].first_chunk().unwrap_or(&[0; _]);
        // Bit of the first byte that does not count, if the byte lies in this row.
        let behind = 1u64.checked_shl(len.wrapping_sub(start) as u32).unwrap_or(0);
        let counted = if len < start { 0 } else { behind.wrapping_sub(1) };
        // SAFETY: all 64 bytes may be read.
        let row = unsafe { _mm512_maskz_loadu_epi8(counted, bytes.as_ptr().cast()) };
        _mm512_mask_mov_epi8(row, behind, _mm512_set1_epi8(1))
    }

    /// Turns rows of words, one per lane, into words with one element from each lane.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    fn transpose([a, b, c, d, e, f, g, h]: [Vector; 8]) -> [Vector; 8] {
        // Words 0, 2, 4, 6 of two lanes each, then words 1, 3, 5, 7.
        let ([w0, w4], [w2, w6]) = quarter(
            _mm512_unpacklo_epi64(a, b),
            _mm512_unpacklo_epi64(c, d),
            _mm512_unpacklo_epi64(e, f),
            _mm512_unpacklo_epi64(g, h),
        );
        let ([w1, w5], [w3, w7]) = quarter(
            _mm512_unpackhi_epi64(a, b),
            _mm512_unpackhi_epi64(c, d),
            _mm512_unpackhi_epi64(e, f),
            _mm512_unpackhi_epi64(g, h),
        );
        [w0, w1, w2, w3, w4, w5, w6, w7]
    }

    /// Transposes four rows of four pairs: the first and the third column, then the other two.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    fn quarter(a: Vector, b: Vector, c: Vector, d: Vector) -> ([Vector; 2], [Vector; 2]) {
        let (ab, cd) = (_mm512_shuffle_i64x2::<0x88>(a, b), _mm512_shuffle_i64x2::<0x88>(c, d));
        let (ab_odd, cd_odd) =
            (_mm512_shuffle_i64x2::<0xdd>(a, b), _mm512_shuffle_i64x2::<0xdd>(c, d));
        (
            [_mm512_shuffle_i64x2::<0x88>(ab, cd), _mm512_shuffle_i64x2::<0xdd>(ab, cd)],
            [
                _mm512_shuffle_i64x2::<0x88>(ab_odd, cd_odd),
                _mm512_shuffle_i64x2::<0xdd>(ab_odd, cd_odd),
            ],
        )
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    fn splat(word: u64) -> Vector {
        _mm512_set1_epi64(word as i64)
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    fn xor3(a: Vector, b: Vector, c: Vector) -> Vector {
        _mm512_ternarylogic_epi64::<0x96>(a, b, c)
    }

    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    fn rotate<const LEFT: i32, const RIGHT: i32>(a: Vector) -> Vector {
        _mm512_rol_epi64::<LEFT>(a)
    }

    /// Returns `a ^ (!b & c)`.
    #[inline]
    #[target_feature(enable = "avx512f,avx512bw")]
    fn chi(a: Vector, b: Vector, c: Vector) -> Vector {
        _mm512_ternarylogic_epi64::<0xd2>(a, b, c)
    }
}

/// Proof that the processor has AVX2: only [`Avx2::detect`] makes one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Avx2(());

impl Avx2 {
    /// Returns the proof if the processor has the feature.
    #[inline]
    pub fn detect() -> Option<Self> {
        is_x86_feature_detected!("avx2").then_some(Self(()))
    }

    /// Runs a step of four lanes.
    pub fn step(self, state: &mut State<4>, blocks: &Blocks<'_, 4>) {
        // SAFETY: `self` proves that the processor has the feature.
        unsafe { avx2::step(state, blocks) }
    }

    /// Runs the permutation alone on four states.
    pub fn permute(self, state: &mut State<4>) {
        // SAFETY: `self` proves that the processor has the feature.
        unsafe { avx2::permute_state(state) }
    }
}

/// Proof that the processor has AVX-512: only [`Avx512::detect`] makes one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Avx512(());

impl Avx512 {
    /// Returns the proof if the processor has the features.
    #[inline]
    pub fn detect() -> Option<Self> {
        let detected = is_x86_feature_detected!("avx512f") && is_x86_feature_detected!("avx512bw");
        detected.then_some(Self(()))
    }

    /// Runs a step of eight lanes.
    pub fn step(self, state: &mut State<8>, blocks: &Blocks<'_, 8>) {
        // SAFETY: `self` proves that the processor has the features.
        unsafe { avx512::step(state, blocks) }
    }

    /// Runs the permutation alone on eight states.
    pub fn permute(self, state: &mut State<8>) {
        // SAFETY: `self` proves that the processor has the features.
        unsafe { avx512::permute_state(state) }
    }
}
