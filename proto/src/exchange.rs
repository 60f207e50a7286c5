//! Stream on which peer-sessions and tx-pool in another process exchange transactions:
//! [`TransactionExchange`](crate::peer_sessions::TransactionExchange) and
//! [`TransactionPeer`](crate::peer_sessions::TransactionPeer) as messages.

use crate::peer_sessions::{Announcement, Found, Gossip, Misconduct, PeerId, Result, Wanted};
use tandem_primitives::Bytes;

/// Message of tx-pool to peer-sessions.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum PoolMessage {
    /// News for a peer.
    Tell {
        /// Peer.
        peer: PeerId,
        /// News.
        gossip: Gossip,
    },
    /// Question for a peer, which [`SessionsMessage::Answer`] answers.
    Ask {
        /// Number of the question.
        id: u64,
        /// Peer.
        peer: PeerId,
        /// Question.
        wanted: Wanted,
    },
    /// Misconduct of a peer.
    Report {
        /// Peer.
        peer: PeerId,
        /// Misconduct.
        misconduct: Misconduct,
    },
    /// Answer to [`SessionsMessage::Wanted`].
    Pooled {
        /// Number of the question.
        id: u64,
        /// Answer, of the kind of the question.
        found: Found,
    },
}

/// Message of peer-sessions to tx-pool.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum SessionsMessage {
    /// A session was established.
    Joined(PeerId),
    /// A session has ended.
    Left(PeerId),
    /// A peer says what it has.
    Announced {
        /// Peer.
        peer: PeerId,
        /// Transactions, at most [`crate::limits::EXCHANGED_ANNOUNCEMENTS_MAX`].
        announcements: Vec<Announcement>,
    },
    /// A peer sent transactions without a question.
    Received {
        /// Peer.
        peer: PeerId,
        /// Transactions, at most [`crate::limits::EXCHANGED_TRANSACTIONS_MAX`].
        transactions: Vec<Bytes>,
    },
    /// Answer to [`PoolMessage::Ask`].
    Answer {
        /// Number of the question.
        id: u64,
        /// Answer of the peer, or the reason why there is none.
        result: Result<Found>,
    },
    /// Question of a peer, which [`PoolMessage::Pooled`] answers.
    Wanted {
        /// Number of the question.
        id: u64,
        /// Question.
        wanted: Wanted,
        /// Number of bytes after about which the answer ends.
        bytes_max: u64,
    },
}
