//! Consensus rules of Ethereum's execution layer, forks Frontier to Amsterdam. [`ChainSpec`] describes
//! a chain, [`Payload`] and [`Block`] hold the content of a block. [`validate_header`],
//! [`validate_body`] and [`validate_outcome`] check it. Pure: no I/O, no clock.
//!
//! # Order of the checks
//!
//! Every rule is checked in one place. A payload passes the places in this order:
//!
//! | place | rules |
//! |---|---|
//! | [`Block::from_payload`] | transactions and access list decode, block hash, versioned hashes, form of the requests |
//! | [`validate_header`] | parent, number, timestamp, gas limit, extra data, EIP-3675 constants, base fee, fields of the fork, blob gas limit, excess blob gas |
//! | [`check_terminal`] | end of proof of work |
//! | [`validate_ommers`] | ommers of blocks before the merge |
//! | [`validate_body`] | transaction types of the fork, chain id, gas cap (EIP-7825), blobs and authorizations of a transaction, sum of blob gas, block size (EIP-7934), order and size of the access list (EIP-7928) |
//! | [`recover_senders`] | signatures (EIP-2) |
//! | revm, as a transaction executes | nonce (EIP-2681 too), balance, fees against base fee and blob base fee, intrinsic gas and its floor (EIP-7623), initcode size (EIP-3860), code at the sender (EIP-3607) |
//! | alloy-evm's block executor | gas limit of a transaction against what is left in the block; system calls, deposits, withdrawals |
//! | [`validate_outcome`] | gas used, blob gas used, receipts root, logs bloom, requests hash, access list hash |
//! | the executor | state root |
//!
//! revm would also refuse a wrong transaction type, chain id, gas cap, blob count, blob version or
//! an empty list of authorizations. It would do so only when it reaches that transaction; here it
//! takes a few comparisons before execution.
//!
//! The seal of proof of work (ethash) is not checked; see [`PreMergeRule`].

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod access_list;
mod block;
mod bloom;
mod body;
mod body_roots;
mod codec;
mod error;
mod fork;
mod genesis;
mod header;
mod kind;
mod large_fees;
mod listed_changes;
mod network_form;
mod outcome;
mod payload;
mod premerge;
mod presets;
mod receipt;
mod spec;
mod template;
mod transaction;
mod transaction_rule;

pub use access_list::{AccessList, AccessListFlaw, AccessListRule};
pub use block::Block;
pub use body::{MAX_BLOCK_RLP_LEN, validate_body, validate_transaction};
pub use body_roots::BodyRoots;
pub use codec::{decode_header, take_item};
pub use error::{BlockError, HeaderField};
pub use fork::Fork;
pub use header::validate_header;
pub use kind::Fault;
pub use listed_changes::ListedChanges;
pub use network_form::{
    BLOB_BYTES, NetworkForm, NetworkFormError, Point, Sidecar, SidecarPart, Wrapper,
    decode_network_form,
};
pub use outcome::{Outcome, validate_outcome};
pub use payload::{Payload, PayloadSidecar};
pub use premerge::{
    Ancestor, OMMER_GENERATIONS, PreMergeRule, check_terminal, next_difficulty, validate_ommers,
};
pub use receipt::{
    Receipt, ReceiptBuilder, ReceiptsTrie, decode_network_receipts, decode_receipts,
    encode_receipts, network_receipts, receipts_root, trie_receipts,
};
pub use spec::{
    BlockRules, ChainSpec, DaoFork, ForkPoints, GenesisError, UnsupportedFork, is_merged,
};
pub use template::Template;
pub use transaction::{Transaction, decode_transaction, recover_senders};
pub use transaction_rule::TransactionRule;

pub use alloy_consensus::Header;
pub use alloy_eips::{eip4895::Withdrawal, eip7685::Requests, eip7840::BlobParams};
