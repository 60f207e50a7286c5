//! Requests of this node: which a session can make, and which answers fit them.

use crate::session::PeerInfo;
use tandem_eth_wire::{eth::Version, snap};
use tandem_proto::{
    peer_sessions::{Error, Fetch, Fetched},
    snap::{StateItems, StateRequest},
};

/// Refuses a request that the session with this peer cannot make.
pub(crate) fn check(fetch: &Fetch, peer: &PeerInfo) -> Result<(), Error> {
    fetch.check_items()?;
    if let Fetch::State(request) = fetch {
        let needs_first = matches!(request, StateRequest::Nodes { .. });
        return match peer.snap {
            None => Err(Error::Refused("the session has no snap".to_owned())),
            Some(snap::Version::Snap2) if needs_first => {
                Err(Error::Refused("needs snap/1; the session has snap/2".to_owned()))
            }
            Some(_) => Ok(()),
        };
    }
    let version = peer.version;
    let needed = match fetch {
        Fetch::Receipts { first: 1.., .. } => Version::Eth70,
        Fetch::AccessLists(_) => Version::Eth71,
        _ => Version::Eth69,
    };
    if version < needed {
        let (got, need) = (version.number(), needed.number());
        return Err(Error::Refused(format!("needs eth/{need}; the session has eth/{got}")));
    }
    Ok(())
}

/// Returns whether an answer is of the request's kind, and not longer.
pub(crate) fn fits(fetch: &Fetch, answer: &Fetched) -> bool {
    let items = match (fetch, answer) {
        (Fetch::Headers { .. }, Fetched::Headers(items))
        | (Fetch::Bodies(_), Fetched::Bodies(items))
        | (Fetch::Receipts { .. }, Fetched::Receipts { blocks: items, .. }) => items.len(),
        (Fetch::AccessLists(_), Fetched::AccessLists(lists)) => lists.len(),
        (Fetch::State(request), Fetched::State(items)) => {
            return match (request, items) {
                (StateRequest::Accounts { .. }, StateItems::Accounts { .. }) => true,
                (StateRequest::Slots { accounts, .. }, StateItems::Slots { tries, .. }) => {
                    tries.len() <= accounts.len()
                }
                (StateRequest::Codes { hashes, .. }, StateItems::Codes(codes)) => {
                    codes.len() <= hashes.len()
                }
                (StateRequest::Nodes { .. }, StateItems::Nodes(nodes)) => {
                    nodes.len() <= request.items()
                }
                _ => false,
            };
        }
        _ => return false,
    };
    items <= fetch.items()
}
