//! The thread that asks DNS for node lists (EIP-1459).

use crate::{Config, Error};
use hickory_resolver::{
    TokioResolver,
    config::{ConnectionConfig, NameServerConfig, ResolverConfig},
    net::{NetError, runtime::TokioRuntimeProvider},
    proto::rr::RData,
};
use rand::{SeedableRng, rngs::StdRng};
use std::{
    net::SocketAddr,
    time::{Duration, Instant},
};
use tandem_discv4::{Enr, ListUrl, ListWalk};
use tokio::sync::mpsc::{Receiver, Sender};
use tracing::{debug, info};

/// Nodes that one request brings at most.
const NODES_MAX: usize = 16;
/// Questions to DNS that one request may cost.
const QUESTIONS_MAX: usize = 32;
/// How long DNS may take for one answer.
const TIMEOUT: Duration = Duration::from_secs(5);
/// When the roots are asked for again, after all of the lists was seen.
const RESTART_AFTER: Duration = Duration::from_secs(30 * 60);

/// The lists to be read, `None` when there are none: then nobody asks DNS for anything.
///
/// # Errors
/// [`Error::NodeList`].
pub fn lists(config: &Config) -> Result<Option<ListWalk>, Error> {
    let preset = config.network.and_then(|network| network.dns_list());
    let urls: Vec<&str> = match &config.dns_lists {
        Some(urls) => urls.iter().map(String::as_str).collect(),
        None => preset.into_iter().collect(),
    };
    let read = |text: &str| {
        let wrong = |source| Error::NodeList { url: text.to_owned(), source };
        text.parse::<ListUrl>().map_err(wrong)
    };
    let urls = urls.into_iter().map(read).collect::<Result<Vec<_>, _>>()?;
    Ok((!urls.is_empty()).then(|| ListWalk::new(urls)))
}

/// Reads lists for as long as somebody asks for nodes.
pub struct Lists {
    pub walk: ListWalk,
    /// The server to ask, `None` for those of the system.
    pub server: Option<SocketAddr>,
    pub requests: Receiver<()>,
    pub answers: Sender<Vec<Enr>>,
}

impl Lists {
    /// Answers requests until nobody is left to make them or to hear.
    pub async fn run(mut self) {
        let mut resolver = None;
        let mut rng = StdRng::from_os_rng();
        let mut ended: Option<Instant> = None;
        while self.requests.recv().await.is_some() {
            if ended.is_some_and(|ended| RESTART_AFTER <= ended.elapsed()) {
                ended = None;
                self.walk.restart();
            }
            // Made when it is first needed, so that no list means no look at the system's settings.
            let resolver = match &resolver {
                Some(resolver) => resolver,
                None => match build(self.server) {
                    Ok(built) => resolver.insert(built),
                    Err(error) => {
                        info!(%error, "no DNS, hence no node lists");
                        return;
                    }
                },
            };
            let (nodes, all) = round(&mut self.walk, resolver, &mut rng).await;
            if all && ended.is_none() {
                ended = Some(Instant::now());
            }
            if self.answers.send(nodes).await.is_err() {
                return;
            }
        }
    }
}

fn build(server: Option<SocketAddr>) -> Result<TokioResolver, NetError> {
    let mut builder = match server {
        Some(server) => {
            let (mut udp, mut tcp) = (ConnectionConfig::udp(), ConnectionConfig::tcp());
            (udp.port, tcp.port) = (server.port(), server.port());
            let server = NameServerConfig::new(server.ip(), true, vec![udp, tcp]);
            let config = ResolverConfig::from_parts(None, Vec::new(), vec![server]);
            TokioResolver::builder_with_config(config, TokioRuntimeProvider::default())
        }
        None => TokioResolver::builder_tokio()?,
    };
    builder.options_mut().timeout = TIMEOUT;
    // The walk asks for nothing twice but the roots, and those for what is new.
    builder.options_mut().cache_size = 0;
    builder.build()
}

/// Some nodes, and whether all entries have been asked for.
async fn round(
    walk: &mut ListWalk,
    resolver: &TokioResolver,
    rng: &mut StdRng,
) -> (Vec<Enr>, bool) {
    let mut nodes = Vec::new();
    for _ in 0..QUESTIONS_MAX {
        let Some(question) = walk.next(rng) else { return (nodes, true) };
        // Absolute: no search domain is tried.
        let texts = match resolver.txt_lookup(format!("{}.", question.domain)).await {
            Ok(lookup) => lookup.answers().iter().filter_map(|record| text(&record.data)).collect(),
            Err(error) => {
                debug!(domain = question.domain, %error, "DNS did not answer");
                Vec::new()
            }
        };
        match walk.answer(&question, &texts) {
            Ok(Some(enr)) => nodes.push(enr),
            Ok(None) => {}
            Err(error) => debug!(domain = question.domain, %error, "node list"),
        }
        if nodes.len() >= NODES_MAX {
            break;
        }
    }
    (nodes, false)
}

/// A TXT record is strings of at most 255 bytes; what is longer continues in the next one.
fn text(data: &RData) -> Option<String> {
    let RData::TXT(txt) = data else { return None };
    String::from_utf8(txt.txt_data.concat()).ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Network;

    #[test]
    fn dns_is_asked_only_for_lists_that_are_configured() {
        let asked = |network, urls: Option<&[&str]>| {
            let dns_lists = urls.map(|urls| urls.iter().map(ToString::to_string).collect());
            lists(&Config { network, dns_lists, ..Config::default() }).map(|walk| walk.is_some())
        };
        let url = Network::Hoodi.dns_list().unwrap();
        assert!(!asked(None, None).unwrap());
        assert!(!asked(None, Some(&[])).unwrap());
        assert!(!asked(Some(Network::Mainnet), Some(&[])).unwrap(), "switched off");
        assert!(!asked(Some(Network::Holesky), None).unwrap(), "it has none");
        assert!(asked(None, Some(&[url])).unwrap());
        for network in [Network::Mainnet, Network::Sepolia, Network::Hoodi] {
            assert!(asked(Some(network), None).unwrap(), "{network}");
        }
        let error = asked(None, Some(&["enrtree://x"])).unwrap_err();
        assert_eq!(error.to_string(), "node list \"enrtree://x\": no URL of a node list");
    }
}
