//! History files, era1 and ere.

use crate::{Target, heap, structures};
use alloy_primitives::{B256, Bytes, U256, keccak256};
use alloy_rlp::Encodable;
use std::{convert::Infallible, io::Cursor};
use tandem_era::{Format, Part, Reader, write};

/// Target for files.
pub const TARGET: Target = Target {
    name: "history_file",
    bytes_per_byte: 4,
    structures: structures::none,
    // A window of the decompressor, and an index.
    constant: 512 << 10,
    input_len_max: 8 << 10,
    mutations: 3_000,
    seeds,
    dictionary: &[
        b"\x65\x32\0\0\0\0\0\0",
        b"\x66\x32",
        b"\x67\x32",
        b"\x03\0",
        b"\x07\0\x20\0\0\0\0\0",
        b"\xff\x06\0\0sNaPpY",
        b"\0\x20\0\0\0\0\0\0",
        b"\xff\xff\xff\xff\xff\xff\xff\xff",
    ],
    run: read,
};

fn list(items: &[&dyn Encodable]) -> Bytes {
    let mut content = Vec::new();
    items.iter().for_each(|item| item.encode(&mut content));
    let mut out = Vec::new();
    alloy_rlp::Header { list: true, payload_length: content.len() }.encode(&mut out);
    [out, content].concat().into()
}

fn seeds() -> Vec<Vec<u8>> {
    let chain = |difficulty: u64| {
        let (mut headers, mut parent) = (Vec::new(), B256::ZERO);
        for number in 0..3_u64 {
            let empty = B256::ZERO;
            let header: [&dyn Encodable; 9] =
                [&parent, &empty, &empty, &empty, &empty, &empty, &empty, &difficulty, &number];
            headers.push(list(&header));
            parent = keccak256(headers.last().unwrap());
        }
        headers
    };
    let file = |format, difficulty| {
        let (headers, mut file) = (chain(difficulty), Vec::new());
        let part = |number, part| {
            Ok::<_, Infallible>(match part {
                Part::Header => headers[number as usize].clone(),
                _ => list(&[&number]),
            })
        };
        write(format, &mut file, (0, 3), U256::ZERO, part).unwrap();
        file
    };
    vec![file(Format::Era1, 7), file(Format::Ere, 7), file(Format::Ere, 0)]
}

fn read(input: &[u8]) {
    heap::measured(|| {
        let Ok(mut reader) = Reader::new(Cursor::new(input)) else { return };
        let checked = reader.check().is_ok();
        for number in reader.numbers().take(16) {
            assert!(reader.offset(number) < input.len() as u64);
            if let Ok(block) = reader.block(number) {
                let items = alloy_rlp::Header::decode_bytes(&mut &block[..], true);
                assert!(items.is_ok() || !checked);
            }
        }
    });
}
