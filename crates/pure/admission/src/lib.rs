//! Rules for a transaction that is in no block yet and need no pool: what it is made of, whether a
//! block at the head could hold it, what it pays, what it may cost its sender. Pure: no I/O, no
//! clock.
//!
//! ```text
//!  bytes ─ decode ─► Submitted ─ check ─► sender ─ check_account ─► the pool's own rules
//!          form      (size, fork, fees,            (nonce, code,
//!                     intrinsic gas, signature)     balance)
//! ```
//!
//! * **Source.** The list of rules is that of go-ethereum 1.17 (`core/txpool/validation.go`). The
//!   gas rules are revm's, so that the pool and the execution of a block agree.
//! * **Order.** Cheap rules come first. The signature is recovered only after all rules that do not
//!   need the sender.
//! * **Fees.** No rule compares fees with the base fee: it is another one by the time a block
//!   includes the transaction. [`Rank`] orders transactions by how far they are from being paid.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod error;
mod fees;
mod form;
mod rank;
mod rules;

pub use error::Refused;
pub use fees::{Fees, authorities, cost};
pub use form::{
    MalformedError, StoredParts, Submitted, WithoutBlobs, any_network_form_bytes_max, blobs_len,
    decode, encode_network_form, encode_without_blobs, network_form_bytes_max, network_form_len,
    pooled_hash,
};
pub use rank::{Market, Rank};
pub use rules::{Code, SenderAccount, TRANSACTION_BYTES_MAX, broken_rule, check, check_account};
