//! Blocks and receipts as RLP, against alloy's decoders.

use crate::{Reader, Target, heap, seeds::FORKS, structures};
use alloy_rlp::{Decodable, Encodable};
use bytes::Bytes;
use tandem_chain::{
    Block, ChainSpec, Header, Receipt, Transaction, decode_receipts, encode_receipts,
    recover_senders, validate_body, validate_header,
};
use tandem_cluster_tests::Built;

/// Target for whole blocks, and for separate headers and bodies.
pub const BLOCK: Target = Target {
    name: "block",
    bytes_per_byte: 4,
    structures: listed,
    constant: 16 << 10,
    input_len_max: 16 << 10,
    mutations: 20_000,
    seeds: block_seeds,
    dictionary: &[
        b"\xc0",
        b"\x80",
        b"\xc2\xc0\xc0",
        b"\xc3\xc0\xc0\xc0",
        b"\xf8",
        b"\xf9\xff\xff",
        b"\xff\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\xb8\x01\x02",
        b"\xd8",
    ],
    run: decode_block,
};

/// Target for lists of receipts as the database holds them.
pub const RECEIPTS: Target = Target {
    name: "receipts",
    bytes_per_byte: 4,
    structures: structures::receipts,
    constant: 4 << 10,
    input_len_max: 8 << 10,
    mutations: 40_000,
    seeds: receipt_seeds,
    dictionary: &[
        b"\xc0",
        b"\x80",
        b"\xf8",
        b"\xff\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\x94",
        b"\xa0",
    ],
    run: read_receipts,
};

pub(super) fn built(built: &Built) -> Block {
    Block::from_payload(built.payload.clone(), &built.sidecar).unwrap()
}

fn block_seeds() -> Vec<Vec<u8>> {
    let blocks: Vec<_> = FORKS.iter().flat_map(|chain| &chain.blocks[1..]).map(built).collect();
    let mut seeds = Vec::new();
    for block in &blocks {
        let body = alloy_rlp::Header::decode_bytes(&mut &block.body_rlp[..], true).unwrap();
        let mut whole = vec![0];
        let payload_length = block.header_rlp.len() + body.len();
        alloy_rlp::Header { list: true, payload_length }.encode(&mut whole);
        whole.extend_from_slice(&block.header_rlp);
        whole.extend_from_slice(body);
        assert!(Block::from_rlp(&whole[1..]).is_ok());
        seeds.push(whole);
        let mut apart = vec![1];
        apart.extend((block.header_rlp.len() as u16).to_le_bytes());
        apart.extend_from_slice(&block.header_rlp);
        apart.extend_from_slice(&block.body_rlp);
        seeds.push(apart);
    }
    seeds
}

/// Returns the memory of the transactions; for the format see [`decode_block`].
fn listed(input: &[u8]) -> usize {
    let mut reader = Reader(input);
    if reader.byte().is_multiple_of(2) {
        return structures::block(reader.0);
    }
    reader.bytes();
    structures::body(reader.0)
}

/// Decodes an input whose first byte says whether a whole block follows, or header and body.
fn decode_block(input: &[u8]) {
    let mut reader = Reader(input);
    if reader.byte().is_multiple_of(2) {
        let rlp = reader.0;
        let Ok(block) = heap::measured(|| Block::from_rlp(rlp)) else { return };
        assert_eq!(block.rlp_len(), rlp.len());
        let theirs = alloy_consensus::Block::<Transaction, Header>::decode(&mut &rlp[..]).unwrap();
        assert_eq!(theirs.header, block.header);
        assert_eq!(theirs.body.transactions, block.transactions);
        assert_eq!(theirs.body.withdrawals.map(|list| list.0), block.withdrawals);
        check(&block);
        return;
    }
    let header = Bytes::copy_from_slice(reader.bytes());
    let body = Bytes::copy_from_slice(reader.0);
    let decoded = heap::measured(|| Block::decode(header.clone().into(), body.clone().into()));
    let Ok(block) = decoded else { return };
    assert_eq!(alloy_rlp::encode(&block.header), header, "a header with two encodings");
    let again = Block::decode(block.header_rlp.clone(), block.body_rlp.clone());
    assert_eq!(again.as_ref(), Ok(&block));
    check(&block);
}

/// Checks that the rules return an answer for every block that decodes.
fn check(block: &Block) {
    for chain in FORKS.iter() {
        let spec = ChainSpec::from_genesis_json(&chain.genesis).unwrap();
        for parent in [&chain.blocks[0].header, &block.header] {
            let _ = validate_header(&spec, &block.header, parent);
        }
        let _ = validate_body(&spec, block);
    }
    if block.transactions.len() < 8 {
        let _ = recover_senders(block);
    }
}

fn receipt_seeds() -> Vec<Vec<u8>> {
    use alloy_consensus::TxType;
    use alloy_primitives::{Address, B256, Log};
    let log = |topics: usize, data: usize| {
        let topics = (0..topics as u8).map(B256::repeat_byte).collect();
        Log::new_unchecked(Address::repeat_byte(7), topics, vec![1; data].into())
    };
    let receipt = |tx_type, success, logs| Receipt {
        tx_type,
        success,
        cumulative_gas_used: 21_000,
        logs,
        post_state: None,
    };
    let receipts = vec![
        receipt(TxType::Legacy, true, vec![]),
        receipt(TxType::Eip2930, false, vec![log(0, 0)]),
        receipt(TxType::Eip1559, true, vec![log(1, 3), log(4, 60)]),
        receipt(TxType::Eip4844, true, vec![log(2, 1)]),
        receipt(TxType::Eip7702, false, vec![]),
        Receipt { post_state: Some(B256::repeat_byte(5)), ..receipt(TxType::Legacy, true, vec![]) },
    ];
    let mut seeds: Vec<Vec<u8>> =
        receipts.iter().map(|one| encode_receipts(std::slice::from_ref(one)).to_vec()).collect();
    seeds.push(encode_receipts(&receipts).to_vec());
    seeds.push(encode_receipts(&[]).to_vec());
    seeds
}

fn read_receipts(input: &[u8]) {
    let Ok(receipts) = heap::measured(|| decode_receipts(input)) else { return };
    assert_eq!(decode_receipts(&encode_receipts(&receipts)).as_ref(), Ok(&receipts));
    assert!(receipts.iter().all(|receipt| receipt.length() > 0));
}
