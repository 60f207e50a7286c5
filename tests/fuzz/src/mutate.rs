//! Mutations from a seed, the same on every machine.

use crate::Target;

/// A small generator (xorshift64*), so that a run is repeatable even if libraries change.
#[derive(Clone, Debug)]
pub struct Random(u64);

impl Random {
    /// Returns a generator whose numbers depend only on the seed.
    pub fn new(seed: u64) -> Self {
        Self(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1)
    }

    /// Returns the next number.
    pub fn number(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }

    /// Returns a number below `end`, 0 if there is none.
    pub fn below(&mut self, end: usize) -> usize {
        if end == 0 { 0 } else { (self.number() % end as u64) as usize }
    }

    fn range(&mut self, len: usize) -> std::ops::Range<usize> {
        let start = self.below(len);
        // Mostly short pieces.
        let most = if self.below(4) == 0 { len - start } else { (len - start).min(16) };
        start..start + self.below(most + 1)
    }
}

/// Returns an input made of one or two others.
pub fn mutate(target: &Target, inputs: &[Vec<u8>], random: &mut Random) -> Vec<u8> {
    let mut bytes = inputs[random.below(inputs.len())].clone();
    for _ in 0..=random.below(4) {
        step(target, inputs, &mut bytes, random);
    }
    bytes.truncate(target.input_len_max);
    bytes
}

fn step(target: &Target, inputs: &[Vec<u8>], bytes: &mut Vec<u8>, random: &mut Random) {
    const EDGES: [u8; 12] = [0, 1, 0x7f, 0x80, 0x81, 0xb7, 0xb8, 0xbf, 0xc0, 0xf7, 0xf8, 0xff];
    let at = random.below(bytes.len() + 1);
    match random.below(10) {
        0 => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte ^= 1 << random.below(8);
            }
        }
        1 => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = EDGES[random.below(EDGES.len())];
            }
        }
        2 => {
            if let Some(byte) = bytes.get_mut(at) {
                *byte = random.number() as u8;
            }
        }
        3 => {
            let range = random.range(bytes.len());
            bytes.drain(range);
        }
        4 => {
            let piece = bytes[random.range(bytes.len())].to_vec();
            for _ in 0..=random.below(4) {
                bytes.splice(
                    at.min(bytes.len())..,
                    piece.clone().into_iter().chain(bytes[at..].to_vec()),
                );
            }
        }
        5 if !target.dictionary.is_empty() => {
            let word = target.dictionary[random.below(target.dictionary.len())];
            let end = if random.below(2) == 0 { at } else { (at + word.len()).min(bytes.len()) };
            bytes.splice(at..end, word.iter().copied());
        }
        6 => {
            let other = &inputs[random.below(inputs.len())];
            let piece = &other[random.range(other.len())];
            let end = if random.below(2) == 0 { at } else { (at + piece.len()).min(bytes.len()) };
            bytes.splice(at..end, piece.iter().copied());
        }
        7 => {
            let len = random.below(9);
            let piece: Vec<u8> = (0..len).map(|_| random.number() as u8).collect();
            bytes.splice(at..at, piece);
        }
        8 => bytes.truncate(at),
        _ => change_digits(bytes, at, random),
    }
}

/// Replaces a run of digits, or a big-endian number, by an extreme one.
fn change_digits(bytes: &mut Vec<u8>, at: usize, random: &mut Random) {
    let len = bytes[at..].iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
    if len > 0 {
        let digit = b"0179af"[random.below(6)];
        let more = random.below(3);
        bytes.splice(at..at + len, std::iter::repeat_n(digit, len - 1 + more));
        return;
    }
    let end = (at + 1 + random.below(8)).min(bytes.len());
    let byte = [0, 0x7f, 0x80, 0xff][random.below(4)];
    bytes[at..end].fill(byte);
}
