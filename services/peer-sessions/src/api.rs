//! The calls that other services make: which sessions there are, fetches, and reports.

use crate::{service::PeerSessions, session::Peer};
use std::future::ready;
use tandem_proto::{
    limits::SESSIONS_MAX,
    peer_sessions::{
        BlockRange, Error, Fetch, Fetched, Misconduct, PeerId, PeerSessionsApi, Pending, Session,
    },
};
use tandem_rlpx::DisconnectReason;

impl PeerSessionsApi for PeerSessions {
    fn sessions(&self) -> Pending<Vec<Session>> {
        let peers = self.peers();
        let sessions = peers.iter().take(SESSIONS_MAX).map(described).collect();
        Box::pin(ready(Ok(sessions)))
    }

    fn fetch(&self, peer: PeerId, fetch: Fetch) -> Pending<Fetched> {
        match self.peer(&peer) {
            Some(peer) => Box::pin(async move { peer.fetch(fetch).await }),
            None => Box::pin(ready(Err(Error::Gone))),
        }
    }

    fn report(&self, peer: PeerId, misconduct: Misconduct) -> Pending<()> {
        self.shared().report_id(peer, misconduct);
        Box::pin(ready(Ok(())))
    }
}

fn described(peer: &Peer) -> Session {
    let (info, range) = (peer.info(), peer.range());
    Session {
        id: info.id,
        client: info.client.clone(),
        address: info.address,
        direction: info.direction,
        eth_version: info.version as u32,
        snap_version: info.snap.map(|version| version as u32),
        range: BlockRange {
            earliest: range.earliest,
            latest: range.latest,
            latest_hash: range.latest_hash,
        },
    }
}

/// Returns what a reported peer is told.
pub(crate) fn reason(misconduct: Misconduct) -> DisconnectReason {
    match misconduct {
        Misconduct::Invalid => DisconnectReason::Protocol,
        Misconduct::Useless => DisconnectReason::Useless,
        Misconduct::Slow => DisconnectReason::Timeout,
    }
}
