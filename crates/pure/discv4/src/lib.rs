//! Wire format of Node Discovery v4: packets, node records, node URLs and fork ids. Also the node
//! lists in DNS that name the first nodes to contact. No I/O, no clock, no state: the discovery
//! service decides which nodes get an answer.
//!
//! ```text
//!   hash(32) ‖ signature(65) ‖ type(1) ‖ RLP list        at most 1280 bytes
//!   └ keccak256 of all that follows
//!              └ secp256k1, recoverable, over keccak256(type ‖ list)
//! ```
//!
//! * Wire protocol: <https://github.com/ethereum/devp2p/blob/master/discv4.md>, with EIP-8
//!   (additions of newer versions are ignored) and EIP-868 (records over discv4).
//! * Node records: EIP-778, identity scheme "v4".
//! * Node lists over DNS: EIP-1459.
//! * Fork ids: EIP-2124 and EIP-6122.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod client;
mod endpoint;
mod enr;
mod error;
mod fork_id;
mod identity;
mod list_walk;
mod message;
mod node_list;
mod node_url;
mod packet;
mod rlp;

pub use client::Client;
pub use endpoint::{Endpoint, Node};
pub use enr::{ENR_BYTES_MAX, Enr, EnrBuilder};
pub use error::{EnrError, PacketError, UrlError};
pub use fork_id::{ForkId, fork_id, is_compatible};
pub use identity::{NodeKey, PublicKey, bucket, distance, node_id, recover};
pub use list_walk::{ListQuestion, ListWalk};
pub use message::{EnrRequest, EnrResponse, FindNode, Message, Neighbors, Ping, Pong};
pub use node_list::{EntryName, ListEntry, ListError, ListRoot, ListUrl};
pub use node_url::NodeUrl;
pub use packet::{
    HEADER_BYTES, NEIGHBORS_MAX, PACKET_BYTES_MAX, Packet, SignedPacket, check_frame, decode,
    encode,
};
