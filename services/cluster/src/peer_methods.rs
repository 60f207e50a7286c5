//! JSON-RPC methods about peers: `net_…` on the public port, `admin_peers` on the authenticated one.

use serde::Serialize;
use std::sync::Arc;
use tandem_http::{Answer, Methods, RpcError, to_result};
use tandem_proto::peer_sessions::{Direction, PeerSessionsApi, Session};

/// Sessions, if the process has any.
pub(crate) type MaybeSessions = Option<Arc<dyn PeerSessionsApi>>;

/// Returns the methods of the public port: `net_peerCount` and `net_listening`.
pub(crate) fn net_methods(sessions: &MaybeSessions) -> Methods {
    let mut methods = Methods::new();
    let its = sessions.clone();
    methods.add("net_peerCount", move |_| {
        let sessions = its.clone();
        async move { to_result(&format!("{:#x}", listed(sessions).await?.len())) }
    });
    let listening = sessions.is_some();
    methods.add("net_listening", move |_| async move { to_result(&listening) });
    methods
}

/// Returns the methods of the authenticated port: those of [`net_methods`] and `admin_peers`, which
/// names the peers as geth does.
pub(crate) fn admin_methods(sessions: &MaybeSessions) -> Methods {
    let mut methods = net_methods(sessions);
    let its = sessions.clone();
    methods.add("admin_peers", move |_| {
        let sessions = its.clone();
        async move { peers(&listed(sessions).await?) }
    });
    methods
}

async fn listed(sessions: MaybeSessions) -> Result<Vec<Session>, RpcError> {
    match sessions {
        Some(sessions) => sessions.sessions().await.map_err(RpcError::server),
        None => Ok(Vec::new()),
    }
}

/// Entry of `admin_peers`, a part of geth's `p2p.PeerInfo`.
#[derive(Serialize)]
struct PeerJson {
    enode: String,
    id: String,
    name: String,
    caps: [String; 1],
    network: NetworkJson,
    protocols: ProtocolsJson,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct NetworkJson {
    remote_address: String,
    inbound: bool,
}

#[derive(Serialize)]
struct ProtocolsJson {
    eth: EthJson,
}

#[derive(Serialize)]
#[serde(rename_all = "camelCase")]
struct EthJson {
    version: u32,
    earliest_block: u64,
    latest_block: u64,
    latest_block_hash: String,
}

fn peers(sessions: &[Session]) -> Answer {
    let peer = |session: &Session| PeerJson {
        enode: format!("enode://{:x}@{}", session.id, session.address),
        id: format!("{:x}", tandem_discv4::node_id(&session.id)),
        name: session.client.clone(),
        caps: [format!("eth/{}", session.eth_version)],
        network: NetworkJson {
            remote_address: session.address.to_string(),
            inbound: session.direction == Direction::Inbound,
        },
        protocols: ProtocolsJson {
            eth: EthJson {
                version: session.eth_version,
                earliest_block: session.range.earliest,
                latest_block: session.range.latest,
                latest_block_hash: session.range.latest_hash.to_string(),
            },
        },
    };
    to_result(&sessions.iter().map(peer).collect::<Vec<_>>())
}
