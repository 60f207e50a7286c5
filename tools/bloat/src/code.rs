//! Code of the contracts, and calls of it.

use alloy_primitives::hex;
use std::sync::LazyLock;
use tandem_primitives::{Address, B256, keccak256};

/// Code of all contracts. It takes the data of the call as words of 32 bytes, and does one step after
/// the other. The first byte of a word says what the step is:
///
/// | byte | rest of the word | step |
/// |---|---|---|
/// | 0 | slot | reads the slot |
/// | 1 | slot | adds one to the value of the slot |
/// | 2 | address in the last 20 bytes | reads the balance of an account |
/// | 3 | number of words in the second byte, address in the last 20 bytes | calls the contract with that many of the next words, whatever comes of it |
///
/// ```text
/// 00 PUSH1 0                       i = 0
/// 02 JUMPDEST                      loop:
/// 03 CALLDATASIZE DUP2 LT          if i < size
/// 06 PUSH1 0a JUMPI                  go to body
/// 09 STOP
/// 0a JUMPDEST                      body:
/// 0b DUP1 CALLDATALOAD             w = data[i]
/// 0d SWAP1 PUSH1 32 ADD SWAP1      i += 32
/// 12 DUP1 PUSH1 0 BYTE             op = byte 0 of w
/// 16 DUP1 PUSH1 1 EQ PUSH1 2f JUMPI
/// 1d DUP1 PUSH1 2 EQ PUSH1 41 JUMPI
/// 24      PUSH1 3 EQ PUSH1 48 JUMPI
/// 2a SLOAD POP                     read:    slot w
/// 2c PUSH1 02 JUMP
/// 2f JUMPDEST POP                  add:
/// 31 PUSH1 8 SHL PUSH1 8 SHR         w without byte 0
/// 37 DUP1 SLOAD PUSH1 1 ADD
/// 3c SWAP1 SSTORE
/// 3e PUSH1 02 JUMP
/// 41 JUMPDEST POP BALANCE POP      balance: of the low 20 bytes of w
/// 45 PUSH1 02 JUMP
/// 48 JUMPDEST                      call:
/// 49 DUP1 PUSH1 1 BYTE               n = byte 1 of w
/// 4d PUSH1 5 SHL                     len = 32 n
/// 50 DUP1 DUP4 PUSH1 0 CALLDATACOPY  memory = data[i..i + len]
/// 55 PUSH1 0 PUSH1 0 DUP3            no output; len bytes of input
/// 5a PUSH1 0 PUSH1 0 DUP7 GAS CALL   from 0, no value, to the low 20 bytes of w, all gas
/// 61 POP SWAP1 POP ADD               i += len
/// 65 PUSH1 02 JUMP
/// ```
pub const CODE: [u8; 0x68] = hex!(
    "6000"
    "5b368110600a5700"
    "5b803590602001908060001a"
    "80600114602f57"
    "80600214604157"
    "600314604857"
    "5450600256"
    "5b5060081b60081c80546001019055600256"
    "5b503150600256"
    "5b8060011a60051b808360003760006000826000600086"
    "5af150905001600256"
);

/// Returns the hash of [`CODE`].
pub fn code_hash() -> B256 {
    static HASH: LazyLock<B256> = LazyLock::new(|| keccak256(CODE));
    *HASH
}

/// Step of a contract.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Step {
    /// Reads a slot.
    Read(u64),
    /// Adds one to the value of a slot.
    Add(u64),
    /// Reads the balance of an account.
    Balance(Address),
    /// Calls another contract, which takes the steps; at most 255 words.
    Call(Address, Vec<Step>),
}

/// Returns the data of a call that makes a contract take these steps.
#[must_use]
pub fn calldata(steps: &[Step]) -> Vec<u8> {
    let mut data = Vec::with_capacity(32 * steps.len());
    for step in steps {
        let mut word = [0; 32];
        match step {
            Step::Read(slot) => word[24..].copy_from_slice(&slot.to_be_bytes()),
            Step::Add(slot) => {
                word[0] = 1;
                word[24..].copy_from_slice(&slot.to_be_bytes());
            }
            Step::Balance(address) => {
                word[0] = 2;
                word[12..].copy_from_slice(address.as_slice());
            }
            Step::Call(address, steps) => {
                let inner = calldata(steps);
                let words = u8::try_from(inner.len() / 32);
                assert!(words.is_ok(), "a call passes on at most 255 words");
                word[0] = 3;
                word[1] = words.unwrap_or(0);
                word[12..].copy_from_slice(address.as_slice());
                data.extend(word);
                data.extend(inner);
                continue;
            }
        }
        data.extend(word);
    }
    data
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every jump of the code leads to a JUMPDEST (0x5b) that is an instruction, not data.
    #[test]
    fn jumps_lead_to_their_destinations() {
        let (mut at, mut destinations, mut targets) = (0, Vec::new(), Vec::new());
        while at < CODE.len() {
            match CODE[at] {
                0x5b => destinations.push(at),
                0x60 if matches!(CODE.get(at + 2), Some(0x56 | 0x57)) => {
                    targets.push(usize::from(CODE[at + 1]));
                }
                _ => {}
            }
            at += if CODE[at] == 0x60 { 2 } else { 1 };
        }
        assert_eq!(destinations, [0x02, 0x0a, 0x2f, 0x41, 0x48]);
        assert!(targets.iter().all(|target| destinations.contains(target)), "{targets:x?}");
        assert_eq!(at, 0x68);
    }

    #[test]
    fn a_call_is_followed_by_the_words_that_it_passes_on() {
        let address = Address::repeat_byte(0xaa);
        let steps =
            [Step::Call(address, vec![Step::Read(1), Step::Add(2)]), Step::Balance(address)];
        let data = calldata(&steps);
        assert_eq!(data.len(), 4 * 32);
        assert_eq!((data[0], data[1], data[31]), (3, 2, 0xaa));
        assert_eq!((data[32], data[63]), (0, 1));
        assert_eq!((data[64], data[95]), (1, 2));
        assert_eq!((data[96], data[108]), (2, 0xaa));
    }
}
