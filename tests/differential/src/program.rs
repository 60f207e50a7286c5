//! Random bytecode. Each step brings its own operands, so that most programs run to their end, and
//! most results land in storage, where a wrong one shows.

use alloy_primitives::{Address, U256, keccak256};
use rand::{Rng, rngs::StdRng, seq::IndexedRandom};

/// Slots that programs use: few, so that they meet again.
pub const SLOTS: u64 = 6;

/// Deepest nesting of initcode in initcode.
const CREATE_DEPTH_MAX: u8 = 2;

mod op {
    pub const STOP: u8 = 0x00;
    pub const SHA3: u8 = 0x20;
    pub const CALLDATALOAD: u8 = 0x35;
    pub const POP: u8 = 0x50;
    pub const MSTORE: u8 = 0x52;
    pub const SLOAD: u8 = 0x54;
    pub const SSTORE: u8 = 0x55;
    pub const JUMP: u8 = 0x56;
    pub const JUMPI: u8 = 0x57;
    pub const GAS: u8 = 0x5a;
    pub const JUMPDEST: u8 = 0x5b;
    pub const TLOAD: u8 = 0x5c;
    pub const TSTORE: u8 = 0x5d;
    pub const MCOPY: u8 = 0x5e;
    pub const PUSH0: u8 = 0x5f;
    pub const DUP1: u8 = 0x80;
    pub const DUP6: u8 = 0x85;
    pub const LOG0: u8 = 0xa0;
    pub const DUPN: u8 = 0xe6;
    pub const CREATE: u8 = 0xf0;
    pub const CALL: u8 = 0xf1;
    pub const CALLCODE: u8 = 0xf2;
    pub const RETURN: u8 = 0xf3;
    pub const DELEGATECALL: u8 = 0xf4;
    pub const CREATE2: u8 = 0xf5;
    pub const STATICCALL: u8 = 0xfa;
    pub const REVERT: u8 = 0xfd;
    pub const INVALID: u8 = 0xfe;
    pub const SELFDESTRUCT: u8 = 0xff;
}

/// Opcodes that push a word and take none: the environment, SLOTNUM (EIP-7843) among it.
const ENVIRONMENT: [u8; 22] = [
    0x30, 0x32, 0x33, 0x34, 0x36, 0x38, 0x3a, 0x3d, 0x41, 0x42, 0x43, 0x44, 0x45, 0x46, 0x47, 0x48,
    0x4a, 0x4b, 0x4b, 0x58, 0x59, 0x5a,
];

/// Opcodes that look at an address: BALANCE, EXTCODESIZE, EXTCODEHASH.
const LOOKS: [u8; 3] = [0x31, 0x3b, 0x3f];

/// Opcodes of two operands and one result.
const ARITHMETIC: [u8; 14] =
    [0x01, 0x02, 0x03, 0x04, 0x05, 0x06, 0x0a, 0x0b, 0x10, 0x14, 0x16, 0x18, 0x1a, 0x1b];

/// Opcodes of one operand and one result: ISZERO, NOT, CLZ (EIP-7939), BLOCKHASH, BLOBHASH.
const UNARY: [u8; 5] = [0x15, 0x19, 0x1e, 0x40, 0x49];

/// Returns a random program that may call and name these addresses.
pub fn program(rng: &mut StdRng, targets: &[Address]) -> Vec<u8> {
    let mut writer = Writer { rng, targets, code: Vec::new(), depth: 0 };
    writer.whole(14);
    writer.code
}

/// Returns random initcode that may call and name these addresses.
pub fn initcode(rng: &mut StdRng, targets: &[Address]) -> Vec<u8> {
    let mut writer = Writer { rng, targets, code: Vec::new(), depth: 1 };
    writer.constructor();
    writer.code
}

struct Writer<'a> {
    rng: &'a mut StdRng,
    targets: &'a [Address],
    code: Vec<u8>,
    depth: u8,
}

impl Writer<'_> {
    fn whole(&mut self, steps_max: usize) {
        for _ in 0..self.rng.random_range(1..=steps_max) {
            self.step();
        }
        self.end();
    }

    fn one_in(&mut self, count: u32) -> bool {
        self.rng.random_ratio(1, count)
    }

    fn ops(&mut self, ops: &[u8]) {
        self.code.extend_from_slice(ops);
    }

    fn push(&mut self, value: U256) {
        let bytes = value.to_be_bytes_trimmed_vec();
        self.code.push(op::PUSH0 + bytes.len() as u8);
        self.code.extend(bytes);
    }

    fn number(&mut self, value: u64) {
        self.push(U256::from(value));
    }

    fn target(&mut self) {
        if self.one_in(12) {
            self.ops(&[op::PUSH0, op::CALLDATALOAD]);
            return;
        }
        let address = self.targets.choose(self.rng).copied().unwrap_or_default();
        self.push(address.into_word().into());
    }

    fn slot(&mut self) {
        let slot = self.rng.random_range(0..SLOTS);
        self.number(slot);
    }

    /// Pushes a word.
    fn source(&mut self) {
        match self.rng.random_range(0..12) {
            0..=2 => self.number(0),
            3 | 4 => {
                let value = self.rng.random_range(1..4);
                self.number(value);
            }
            5 => {
                let value = self.rng.random::<[u8; 32]>();
                self.push(U256::from_be_bytes(value));
            }
            6 => {
                self.slot();
                self.ops(&[op::SLOAD]);
            }
            7 => {
                self.slot();
                self.ops(&[op::TLOAD]);
            }
            8 => {
                self.target();
                let look = *LOOKS.choose(self.rng).unwrap_or(&op::POP);
                self.ops(&[look]);
            }
            _ => {
                let environment = *ENVIRONMENT.choose(self.rng).unwrap_or(&op::GAS);
                self.ops(&[environment]);
            }
        }
    }

    /// Takes a word from the stack.
    fn sink(&mut self) {
        match self.rng.random_range(0..8) {
            0..=3 => self.ops(&[op::POP]),
            4 | 5 => {
                self.slot();
                self.ops(&[op::SSTORE]);
            }
            6 => {
                self.slot();
                self.ops(&[op::TSTORE]);
            }
            _ => self.ops(&[op::PUSH0, op::MSTORE]),
        }
    }

    fn step(&mut self) {
        match self.rng.random_range(0..32) {
            0..=6 => {
                self.source();
                self.slot();
                self.ops(&[op::SSTORE]);
            }
            7 | 8 => {
                self.source();
                self.sink();
            }
            9 => {
                self.source();
                self.source();
                let operation = *ARITHMETIC.choose(self.rng).unwrap_or(&op::POP);
                self.ops(&[operation]);
                self.sink();
            }
            10 => {
                self.source();
                let operation = *UNARY.choose(self.rng).unwrap_or(&op::POP);
                self.ops(&[operation]);
                self.sink();
            }
            11..=18 => self.call(),
            19..=22 if self.depth < CREATE_DEPTH_MAX => self.create(),
            19..=22 => self.call(),
            23 | 24 => self.log(),
            25 => self.copy(),
            26 | 27 => self.deep_stack(),
            28 => self.skip(),
            29 => self.hash(),
            30 => {
                let mut bytes = [0; 3];
                self.rng.fill(&mut bytes);
                let len = self.rng.random_range(0..=3);
                // One program in four: raw bytes usually end it.
                if self.one_in(4) {
                    self.ops(&bytes[..len]);
                }
            }
            _ => self.end_if(),
        }
    }

    /// Writes a call of any kind. Its success goes where [`Self::sink`] says.
    fn call(&mut self) {
        let kinds = [op::CALL, op::CALL, op::CALLCODE, op::DELEGATECALL, op::STATICCALL];
        let kind = *kinds.choose(self.rng).unwrap_or(&op::CALL);
        for _ in 0..2 {
            let size = if self.one_in(3) { 32 } else { 0 };
            self.number(size);
            let offset = self.rng.random_range(0..64);
            self.number(offset);
        }
        if matches!(kind, op::CALL | op::CALLCODE) {
            self.amount();
        }
        self.target();
        if self.one_in(3) {
            let gas = self.rng.random_range(0..300_000);
            self.number(gas);
        } else {
            self.ops(&[op::GAS]);
        }
        self.ops(&[kind]);
        self.sink();
    }

    /// Pushes an amount of wei.
    fn amount(&mut self) {
        let amount = match self.rng.random_range(0..8) {
            0..=3 => 0,
            4..=6 => self.rng.random_range(1..1000),
            _ => u64::MAX,
        };
        self.number(amount);
    }

    fn create(&mut self) {
        let code = match self.rng.random_range(0..10) {
            0 => Vec::new(),
            // Little code with a constant result: the address of a CREATE2 repeats.
            1..=3 => vec![op::PUSH0, op::PUSH0, op::RETURN],
            _ => self.nested(Self::constructor),
        };
        self.memory(&code);
        let salted = self.one_in(2);
        if salted {
            let salt = self.rng.random_range(0..3);
            self.number(salt);
        }
        let len = if self.one_in(40) { 0x20_000 } else { code.len() as u64 };
        self.number(len);
        self.number(0);
        self.amount();
        self.ops(&[if salted { op::CREATE2 } else { op::CREATE }]);
        if self.one_in(2) {
            self.ops(&[op::PUSH0, op::PUSH0, op::PUSH0, op::PUSH0]);
            self.amount();
            self.ops(&[op::DUP6, op::GAS, op::CALL, op::POP]);
        }
        self.sink();
    }

    fn nested(&mut self, write: fn(&mut Self)) -> Vec<u8> {
        let outer = std::mem::take(&mut self.code);
        self.depth += 1;
        write(self);
        self.depth -= 1;
        std::mem::replace(&mut self.code, outer)
    }

    /// Writes initcode: a few steps, then usually the new contract's code.
    fn constructor(&mut self) {
        for _ in 0..self.rng.random_range(0..4) {
            self.step();
        }
        match self.rng.random_range(0..12) {
            0 => self.end(),
            1 => {
                // Around the sizes that code may have before and since EIP-7954.
                let limit = *[0x6000, 0x8000, 0x10_000].choose(self.rng).unwrap_or(&1);
                let len = self.rng.random_range(limit - 1..=limit + 1);
                self.number(len);
                self.ops(&[op::PUSH0, op::RETURN]);
            }
            2 => {
                self.memory(&[0xef, 0x01]);
                self.ops(&[0x60, 0x02, op::PUSH0, op::RETURN]);
            }
            _ => {
                let code = self.nested(|writer| writer.whole(5));
                self.memory(&code);
                self.number(code.len() as u64);
                self.ops(&[op::PUSH0, op::RETURN]);
            }
        }
    }

    /// Writes bytes to memory, from 0 on.
    fn memory(&mut self, bytes: &[u8]) {
        for (index, chunk) in bytes.chunks(32).enumerate() {
            let mut word = [0; 32];
            word[..chunk.len()].copy_from_slice(chunk);
            self.push(U256::from_be_bytes(word));
            self.number(index as u64 * 32);
            self.ops(&[op::MSTORE]);
        }
    }

    fn log(&mut self) {
        let topics = self.rng.random_range(0..=4);
        for _ in 0..topics {
            self.source();
        }
        let size = self.rng.random_range(0..40);
        self.number(size);
        self.number(0);
        self.ops(&[op::LOG0 + topics]);
    }

    /// Writes one of the copies: CALLDATACOPY, CODECOPY, MCOPY, EXTCODECOPY.
    fn copy(&mut self) {
        let size = self.rng.random_range(0..100);
        self.number(size);
        let from = self.rng.random_range(0..64);
        self.number(from);
        let to = self.rng.random_range(0..64);
        self.number(to);
        match *[0x37, 0x39, op::MCOPY, 0x3c].choose(self.rng).unwrap_or(&0x37) {
            0x3c => {
                self.target();
                self.ops(&[0x3c]);
            }
            copy => self.ops(&[copy]),
        }
    }

    /// Writes DUPN, SWAPN or EXCHANGE (EIP-8024) over a stack that is often deep enough.
    fn deep_stack(&mut self) {
        for _ in 0..self.rng.random_range(1..3) {
            self.source();
        }
        for _ in 0..self.rng.random_range(14..40) {
            self.ops(&[op::DUP1]);
        }
        for _ in 0..self.rng.random_range(0..3) {
            self.source();
        }
        let operation = op::DUPN + self.rng.random_range(0..3);
        let operand = match self.rng.random_range(0..3) {
            0 => self.rng.random(),
            _ => self.rng.random_range(128..160),
        };
        self.ops(&[operation, operand]);
        self.slot();
        self.ops(&[op::SSTORE]);
    }

    /// Jumps over a step, or not.
    fn skip(&mut self) {
        let step = self.nested(Self::step);
        self.source();
        // PUSH2 of the place after the step, JUMPI, the step, JUMPDEST.
        let end = self.code.len() + 4 + step.len();
        self.ops(&[0x61, (end >> 8) as u8, end as u8, op::JUMPI]);
        self.ops(&step);
        self.ops(&[op::JUMPDEST]);
    }

    fn hash(&mut self) {
        let size = self.rng.random_range(0..70);
        self.number(size);
        self.ops(&[op::PUSH0, op::SHA3]);
        self.sink();
    }

    /// Ends the program if a random condition holds.
    fn end_if(&mut self) {
        let end = self.nested(Self::end);
        self.source();
        self.ops(&[0x15]);
        let after = self.code.len() + 4 + end.len();
        self.ops(&[0x61, (after >> 8) as u8, after as u8, op::JUMPI]);
        self.ops(&end);
        self.ops(&[op::JUMPDEST]);
    }

    fn end(&mut self) {
        match self.rng.random_range(0..24) {
            0..=9 => self.ops(&[op::STOP]),
            10..=13 => self.ops(&[0x60, 0x20, op::PUSH0, op::RETURN]),
            14..=17 => self.ops(&[0x60, 0x20, op::PUSH0, op::REVERT]),
            18 => self.ops(&[op::INVALID]),
            19 => {
                // A loop that ends with the gas.
                let start = self.code.len();
                self.ops(&[op::JUMPDEST, 0x61, (start >> 8) as u8, start as u8, op::JUMP]);
            }
            _ => {
                self.target();
                self.ops(&[op::SELFDESTRUCT]);
            }
        }
    }
}

/// Returns the address that CREATE2 of empty code by this creator has for one of the salts in use.
pub fn repeated(creator: Address, salt: u64) -> Address {
    let code = [op::PUSH0, op::PUSH0, op::RETURN];
    creator.create2(U256::from(salt).to_be_bytes::<32>(), keccak256(code))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rand::SeedableRng;

    #[test]
    fn the_seed_decides_the_program() {
        let write = |seed| program(&mut StdRng::seed_from_u64(seed), &[Address::repeat_byte(1)]);
        assert_eq!(write(7), write(7));
        assert_ne!(write(7), write(8));
    }
}
