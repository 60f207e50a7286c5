//! Thread that asks DNS for node lists (EIP-1459).

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

/// Largest number of nodes that one request brings.
const NODES_MAX: usize = 16;
/// Largest number of questions to DNS that one request may cost.
const QUESTIONS_MAX: usize = 32;
/// Longest wait for one answer of DNS.
const TIMEOUT: Duration = Duration::from_secs(5);
/// Time after which the roots are requested again, once the lists were read completely.
const RESTART_AFTER: Duration = Duration::from_secs(30 * 60);

/// Returns the lists to read; `None` if there are none, so that DNS is never asked.
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

/// Reader of node lists, which works as long as nodes are requested.
pub struct Lists {
    pub walk: ListWalk,
    /// Server to ask, `None` for those of the system.
    pub server: Option<SocketAddr>,
    pub requests: Receiver<()>,
    pub answers: Sender<Vec<Enr>>,
}

impl Lists {
    /// Answers requests until the requests end or the receiver is gone.
    pub async fn run(mut self) {
        let mut resolver = None;
        let mut rng = StdRng::from_os_rng();
        let mut ended: Option<Instant> = None;
        while self.requests.recv().await.is_some() {
            if ended.is_some_and(|ended| RESTART_AFTER <= ended.elapsed()) {
                ended = None;
                self.walk.restart();
            }
            // The resolver is made on first use, so without a list the system's settings are not
            // read.
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
    // The walk repeats only questions for the roots, and those must get new answers.
    builder.options_mut().cache_size = 0;
    builder.build()
}

/// Returns some nodes, and whether all entries have been requested.
async fn round(
    walk: &mut ListWalk,
    resolver: &TokioResolver,
    rng: &mut StdRng,
) -> (Vec<Enr>, bool) {
    let mut nodes = Vec::new();
    for _ in 0..QUESTIONS_MAX {
        let Some(question) = walk.next(rng) else { return (nodes, true) };
        // The name is absolute, so no search domain is tried.
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

/// Returns the text of a TXT record. The record is strings of at most 255 bytes; longer text
/// continues in the next string.
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
        assert_eq!(error.to_string(), "node list \"enrtree://x\": not the URL of a node list");
    }
}
