//! Files that are written and read, and files with faults.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use alloy_primitives::{B256, Bytes, U256, keccak256};
use alloy_rlp::Encodable;
use proptest::prelude::*;
use std::{convert::Infallible, io::Cursor};
use tandem_era::{Error, Format, Part, Reader, WriteError, is_era, write};

/// A chain of blocks that only look like blocks.
struct Chain {
    first: u64,
    headers: Vec<Bytes>,
    bodies: Vec<Bytes>,
    /// Total difficulty before the first block.
    total: U256,
}

impl Chain {
    /// Makes a chain; the blocks from `merge` on have no difficulty.
    fn new(first: u64, count: u64, merge: u64) -> Self {
        let mut chain =
            Self { first, headers: Vec::new(), bodies: Vec::new(), total: U256::from(first) << 70 };
        let mut parent = B256::repeat_byte(9);
        for number in first..first + count {
            let difficulty = if number < merge { U256::from(number + 7) << 60 } else { U256::ZERO };
            let header = list(&[
                &parent,
                &B256::ZERO,
                &B256::ZERO,
                &B256::ZERO,
                &B256::ZERO,
                &B256::ZERO,
                &B256::ZERO,
                &difficulty,
                &number,
                &number,
            ]);
            parent = keccak256(&header);
            chain.headers.push(header);
            let transactions = Bytes::from(vec![number as u8; (number % 5 * 40_000) as usize]);
            chain.bodies.push(list(&[&transactions, &B256::ZERO]));
        }
        chain
    }

    fn part(&self, number: u64, part: Part) -> Bytes {
        let index = (number - self.first) as usize;
        match part {
            Part::Header => self.headers[index].clone(),
            Part::Body => self.bodies[index].clone(),
            Part::Receipts(format) => list(&[&number, &format.extension()]),
        }
    }

    fn write(&self, format: Format) -> Result<(Vec<u8>, B256), WriteError<Infallible>> {
        let (mut file, count) = (Vec::new(), self.headers.len() as u64);
        let part = |number, part| Ok(self.part(number, part));
        let written = write(format, &mut file, (self.first, count), self.total, part)?;
        Ok((file, written.root))
    }

    fn block(&self, number: u64) -> Vec<u8> {
        let (header, body) = (self.part(number, Part::Header), self.part(number, Part::Body));
        let items = alloy_rlp::Header::decode_bytes(&mut &body[..], true).unwrap();
        let mut block = Vec::new();
        let payload_length = header.len() + items.len();
        alloy_rlp::Header { list: true, payload_length }.encode(&mut block);
        [&block[..], &header, items].concat()
    }
}

fn list(items: &[&dyn Encodable]) -> Bytes {
    let mut content = Vec::new();
    items.iter().for_each(|item| item.encode(&mut content));
    let mut out = Vec::new();
    alloy_rlp::Header { list: true, payload_length: content.len() }.encode(&mut out);
    out.extend(content);
    out.into()
}

fn check(file: Vec<u8>) -> Result<B256, Error> {
    Reader::new(Cursor::new(file))?.check()
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn blocks_come_back(first in 0_u64..1_000_000, count in 1_u64..20, before in 0_u64..25) {
        let chain = Chain::new(first, count, first + before);
        for format in [Format::Era1, Format::Ere] {
            let written = chain.write(format);
            if format == Format::Era1 && before < count {
                let refused = matches!(written, Err(WriteError::AfterMerge(n)) if n == first + before);
                prop_assert!(refused);
                continue;
            }
            let (file, root) = written.unwrap();
            prop_assert!(is_era(&file));
            let mut reader = Reader::new(Cursor::new(file)).unwrap();
            prop_assert_eq!(reader.format(), format);
            prop_assert_eq!(reader.numbers(), first..first + count);
            prop_assert_eq!(reader.check().unwrap(), root);
            for number in first..first + count {
                prop_assert_eq!(reader.block(number).unwrap(), chain.block(number));
            }
        }
    }

    /// No damage makes the reader panic, or a header pass that is another one.
    #[test]
    fn damage_is_found(
        at in any::<prop::sample::Index>(),
        bit in 0_u8..8,
        cut in any::<prop::sample::Index>(),
        ere in any::<bool>(),
    ) {
        let format = if ere { Format::Ere } else { Format::Era1 };
        let chain = Chain::new(5, 6, 99);
        let (file, root) = chain.write(format).unwrap();
        let mut damaged = file.clone();
        damaged[at.index(file.len())] ^= 1 << bit;
        if let Ok(mut reader) = Reader::new(Cursor::new(damaged))
            && let Ok(found) = reader.check()
        {
            prop_assert_eq!(found, root);
            for number in reader.numbers() {
                if let Ok(block) = reader.block(number) {
                    prop_assert_eq!(block, chain.block(number));
                }
            }
        }
        prop_assert!(check(file[..cut.index(file.len())].to_vec()).is_err());
    }
}

#[test]
fn blocks_of_another_chain_are_named() {
    let mut chain = Chain::new(5, 6, 99);
    chain.headers[3] = Chain::new(8, 1, 99).headers[0].clone();
    for format in [Format::Era1, Format::Ere] {
        let (file, _) = chain.write(format).unwrap();
        let error = check(file).unwrap_err();
        assert!(matches!(error, Error::Parent { number: 8, .. }), "{error}");
    }
    let mut chain = Chain::new(5, 6, 0);
    chain.headers[3] = chain.headers[2].clone();
    let (file, _) = chain.write(Format::Ere).unwrap();
    let error = check(file).unwrap_err();
    assert!(matches!(error, Error::Number { want: 8, got: 7 }), "{error}");
}

#[test]
fn a_wrong_accumulator_is_named() {
    for format in [Format::Era1, Format::Ere] {
        let (mut file, _) = Chain::new(5, 3, 99).write(format).unwrap();
        // The index comes last, the accumulator before it.
        let index = match format {
            Format::Era1 => 8 + 8 + 3 * 8 + 8,
            Format::Ere => 8 + 8 + 3 * 4 * 8 + 16,
        };
        let end = file.len() - index;
        file[end - 1] ^= 1;
        let error = check(file).unwrap_err();
        assert!(matches!(error, Error::Accumulator { .. }), "{error}");
    }
}

#[test]
fn a_file_of_something_else_is_refused() {
    for file in [Vec::new(), vec![0; 15], vec![1; 5000], vec![0xff; 5000]] {
        let error = check(file).unwrap_err();
        assert!(matches!(error, Error::Index(_)), "{error}");
    }
    assert!(matches!(Chain::new(0, 0, 9).write(Format::Ere), Err(WriteError::Count(0))));
}
