//! Costs that blocks are spared because their bytes are kept as they came: encoding mainnet's
//! transactions, bodies and headers again. Beside them, encoding receipts on one thread and on all.
#![allow(clippy::unwrap_used, missing_docs)]

use alloy_consensus::BlockBody;
use alloy_eips::Encodable2718;
use alloy_primitives::{Address, B256, Bytes, Log, keccak256};
use alloy_rlp::{Decodable, Encodable};
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use flate2::read::GzDecoder;
use rayon::prelude::*;
use std::{fs::File, hint::black_box, path::Path};
use tandem_chain::{Block, Header, Receipt, Transaction, encode_receipts};

/// First blocks of Cancun and of Prague on mainnet.
const BLOCKS: [u64; 2] = [19_426_587, 22_431_084];
/// Receipts in a chunk, of those that are encoded on all threads.
const CHUNK: usize = 16;

fn read(number: u64) -> Block {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data");
    let file = File::open(folder.join(format!("mainnet-{number}.json.gz"))).unwrap();
    let value: serde_json::Value = serde_json::from_reader(GzDecoder::new(file)).unwrap();
    let rlp: Bytes = value["block"].as_str().unwrap().parse().unwrap();
    Block::from_rlp(&rlp).unwrap()
}

fn transactions(c: &mut Criterion) {
    let mut group = c.benchmark_group("transactions");
    for number in BLOCKS {
        let block = read(number);
        let count = block.transactions.len();
        let id = |what| BenchmarkId::new(what, format!("{number}, {count} transactions"));
        group.bench_function(id("bytes as they came"), |b| {
            b.iter(|| black_box(block.raw_transactions.clone()));
        });
        group.bench_function(id("encoded again"), |b| {
            let encode = |tx: &Transaction| Bytes::from(tx.encoded_2718());
            b.iter(|| black_box(block.transactions.iter().map(encode).collect::<Vec<_>>()));
        });
        group.bench_function(id("encoded again and hashed"), |b| {
            let hash = |tx: &Transaction| keccak256(tx.encoded_2718());
            b.iter(|| black_box(block.transactions.iter().map(hash).collect::<Vec<_>>()));
        });
    }
}

fn bodies(c: &mut Criterion) {
    let mut group = c.benchmark_group("body");
    for number in BLOCKS {
        let block = read(number);
        let id = |what| BenchmarkId::new(what, format!("{number}, {} bytes", block.body_rlp.len()));
        let body: BlockBody<Transaction> = BlockBody {
            transactions: block.transactions.clone(),
            ommers: block.ommers.clone(),
            withdrawals: block.withdrawals.clone().map(Into::into),
        };
        let mut encoded = Vec::new();
        body.encode(&mut encoded);
        assert_eq!(encoded, block.body_rlp);
        group.bench_function(id("encoded again"), |b| {
            b.iter(|| {
                let mut out = Vec::with_capacity(body.length());
                body.encode(&mut out);
                black_box(out)
            });
        });
    }
}

fn headers(c: &mut Criterion) {
    let block = read(BLOCKS[1]);
    c.bench_function("header/decoded", |b| {
        b.iter(|| black_box(Header::decode(&mut &block.header_rlp[..]).unwrap()));
    });
}

/// Returns receipts with three logs each.
fn receipts_of(block: &Block) -> Vec<Receipt> {
    let log = |n: u64| {
        let topics = (0..3u64).map(|topic| keccak256((n + topic).to_be_bytes())).collect();
        let address = Address::from_word(B256::from(keccak256(n.to_be_bytes())));
        Log::new_unchecked(address, topics, Bytes::from(vec![7; 64]))
    };
    let receipt = |(n, tx): (usize, &Transaction)| Receipt {
        tx_type: tx.tx_type(),
        success: true,
        cumulative_gas_used: 50_000 * (n as u64 + 1),
        logs: (0..3).map(|at| log(n as u64 * 3 + at)).collect(),
        post_state: None,
    };
    block.transactions.iter().enumerate().map(receipt).collect()
}

fn receipts(c: &mut Criterion) {
    let mut group = c.benchmark_group("receipts for the database");
    for number in BLOCKS {
        let receipts = receipts_of(&read(number));
        let id = |what| BenchmarkId::new(what, format!("{} receipts", receipts.len()));
        group.bench_function(id("one thread"), |b| {
            b.iter(|| black_box(encode_receipts(&receipts)));
        });
        group.bench_function(id("all threads"), |b| {
            let encode = |chunk: &[Receipt]| {
                let mut out = Vec::new();
                chunk.iter().for_each(|receipt| receipt.encode(&mut out));
                out
            };
            b.iter(|| {
                let parts: Vec<Vec<u8>> = receipts.par_chunks(CHUNK).map(encode).collect();
                let payload_length = parts.iter().map(Vec::len).sum();
                let mut out = Vec::with_capacity(payload_length + 4);
                alloy_rlp::Header { list: true, payload_length }.encode(&mut out);
                parts.iter().for_each(|part| out.extend_from_slice(part));
                black_box(out)
            });
        });
    }
}

criterion_group!(benches, transactions, bodies, headers, receipts);
criterion_main!(benches);
