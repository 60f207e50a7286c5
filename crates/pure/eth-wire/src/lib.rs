//! Messages of the protocols "eth" (69 to 72) and "snap" (1, 2) between peers. No I/O, no clock:
//! bytes to values and back.
//!
//! * Specifications: <https://github.com/ethereum/devp2p/blob/master/caps/eth.md> and
//!   <https://github.com/ethereum/devp2p/blob/master/caps/snap.md>.
//! * **Form.** A list has the items of the specification, and nothing after them. Headers, bodies,
//!   receipts, transactions, access lists and trie nodes stay RLP: the asker compares them with
//!   hashes first. They share the memory of the message.
//! * **Bounds.** A message has at most [`MESSAGE_BYTES_MAX`] bytes, and each list has a limit of its
//!   own ([`limits`]). Of a request that asks for more, the first part is kept, as in go-ethereum. An
//!   answer or announcement with more is refused.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod error;
pub mod eth;
pub mod limits;
mod rlp;
pub mod snap;

pub use error::Error;
pub use limits::MESSAGE_BYTES_MAX;
