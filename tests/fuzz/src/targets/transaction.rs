//! Transactions as EIP-2718 bytes, against alloy's decoder.

use crate::{Target, heap, seeds, structures};
use alloy_consensus::transaction::SignerRecoverable;
use alloy_eips::eip2718::{Decodable2718, Encodable2718};
use tandem_chain::{Transaction, decode_transaction};

/// Target for transactions.
pub const TARGET: Target = Target {
    name: "transaction",
    bytes_per_byte: 4,
    structures: structures::transaction,
    constant: 2 << 10,
    input_len_max: 16 << 10,
    mutations: 60_000,
    seeds: seeds::transactions,
    dictionary: &[
        b"\x01\xc0",
        b"\x02\xc0",
        b"\x03\xc0",
        b"\x04\xc0",
        b"\x05",
        b"\x80",
        b"\x81\x80",
        b"\xc0",
        b"\xc1\xc0",
        b"\xb8\x38",
        b"\xf8\x38",
        b"\xff\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\xbf\xff\xff\xff\xff\xff\xff\xff\xff",
        b"\x94",
        b"\xa0",
    ],
    run: decode,
};

fn decode(input: &[u8]) {
    let ours = heap::measured(|| decode_transaction(input));
    let theirs = Transaction::decode_2718_exact(input);
    let Ok(transaction) = ours else {
        assert!(theirs.is_err(), "alloy takes it, we say {ours:?}");
        return;
    };
    let theirs = theirs.unwrap_or_else(|error| panic!("alloy says {error}: {transaction:?}"));
    assert_eq!(transaction, theirs);
    assert_eq!(transaction.hash(), theirs.hash());
    assert_eq!(transaction.encoded_2718(), input, "one transaction, two encodings");
    assert_eq!(transaction.recover_signer().ok(), theirs.recover_signer().ok());
}
