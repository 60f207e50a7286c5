//! Tx-executors behind one host name.

use crate::{Client, ClientConfig};
use parking_lot::Mutex;
use std::{
    collections::BTreeSet,
    future::Future,
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};
use tandem_proto::tx_executor::{NotSent, TxCommand, TxExecutorApi, TxReply};
use tandem_rpc::{EndpointError, check_endpoint};
use tokio::{
    net::lookup_host,
    runtime::Handle,
    time::{MissedTickBehavior, interval, timeout},
};
use tokio_util::task::AbortOnDropHandle;
use tonic::codegen::http::Uri;
use tracing::{info, warn};

/// Largest number of addresses of a name that are used at the same time.
pub const PLACES: usize = 16;

/// Interval at which a name is looked up, and the longest wait for the answer.
const LOOKUP_EVERY: Duration = Duration::from_secs(5);

/// Number of lookups without an address after which it is given up.
const MISSES_MAX: u8 = 2;

/// Bits of a connection's number that count the connections of one client.
const CONNECTION_BITS: u32 = 40;

/// Connects in the background to the tx-executors at an endpoint such as `http://10.0.0.7:9606`, or
/// `https://…` where the identity is proven. An IP address is one tx-executor. A host name may have
/// several addresses, each of another tx-executor. It is looked up every five seconds, so they may
/// come and go: it counts as [`PLACES`] tx-executors, and those without an address have no connection.
///
/// # Errors
/// [`EndpointError`]. A name without addresses and an unreachable server are no errors here.
pub fn connect(
    endpoint: &str,
    config: &ClientConfig,
    runtime: &Handle,
) -> Result<Vec<Arc<dyn TxExecutorApi>>, EndpointError> {
    check_endpoint(endpoint, config.connection.identity.is_proven())?;
    let uri: Uri = endpoint.parse().unwrap_or_default();
    let host = uri.host().unwrap_or_default().to_owned();
    let bare = host.trim_start_matches('[').trim_end_matches(']');
    if bare.parse::<IpAddr>().is_ok() {
        return Ok(vec![Client::connect(endpoint, config.clone(), runtime)?]);
    }
    let scheme = uri.scheme_str().unwrap_or("http").to_owned();
    let port = uri.port_u16().unwrap_or(if scheme == "https" { 443 } else { 80 });
    let lookup = move || {
        let host = host.clone();
        async move { Ok(lookup_host((host, port)).await?.collect()) }
    };
    let open = Opening { scheme, config: config.clone(), runtime: runtime.clone() };
    Ok(follow(endpoint, open, lookup))
}

/// Returns the places of a name, and keeps them at the addresses that `lookup` returns.
fn follow<F: Future<Output = io::Result<Vec<SocketAddr>>> + Send>(
    name: &str,
    open: Opening,
    lookup: impl Fn() -> F + Send + 'static,
) -> Vec<Arc<dyn TxExecutorApi>> {
    let places: Arc<[Current]> = (0..PLACES).map(|_| Current::default()).collect();
    let (runtime, own, named) = (open.runtime.clone(), places.clone(), name.to_owned());
    let task = runtime.spawn(async move {
        let mut addresses = Addresses::default();
        let mut ticks = interval(LOOKUP_EVERY);
        ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
        let (mut failed, mut crowded) = (false, false);
        loop {
            ticks.tick().await;
            let found = match timeout(LOOKUP_EVERY, lookup()).await {
                Ok(Ok(found)) => of_one_family(found),
                Ok(Err(error)) => {
                    // There may be none yet.
                    if !std::mem::replace(&mut failed, true) {
                        info!(name = named, %error, "no tx-executors: their name has no address");
                    }
                    continue;
                }
                Err(_) => continue,
            };
            failed = false;
            let changes = addresses.update(&found);
            let is_crowded = found.len() > PLACES;
            if is_crowded && !crowded {
                let (count, used) = (found.len(), PLACES);
                warn!(name = named, count, used, "tx-executors: the name has too many addresses");
            }
            crowded = is_crowded;
            for Change { place, address } in changes {
                open.set(&named, &own[place], address);
            }
        }
    });
    let task = Arc::new(AbortOnDropHandle::new(task));
    let place = |index| {
        let (name, places, task) = (name.to_owned(), places.clone(), task.clone());
        Arc::new(Place { name, index, places, _task: task }) as Arc<dyn TxExecutorApi>
    };
    (0..PLACES).map(place).collect()
}

/// Returns the addresses of the family that comes first: a tx-executor with an address of each would
/// count twice.
fn of_one_family(found: Vec<SocketAddr>) -> BTreeSet<SocketAddr> {
    let is_ipv4 = found.first().is_some_and(SocketAddr::is_ipv4);
    found.into_iter().filter(|address| address.is_ipv4() == is_ipv4).collect()
}

/// Settings of the clients that are opened.
struct Opening {
    scheme: String,
    config: ClientConfig,
    runtime: Handle,
}

impl Opening {
    /// Replaces the client of a place by one for this address, or by none.
    fn set(&self, name: &str, place: &Current, address: Option<SocketAddr>) {
        let opened = address.and_then(|address| {
            let endpoint = format!("{}://{address}", self.scheme);
            info!(name, %address, "tx-executor found");
            let client = Client::connect(&endpoint, self.config.clone(), &self.runtime);
            client.inspect_err(|error| warn!(name, %error, "tx-executor not used")).ok()
        });
        let mut current = place.0.lock();
        let before = std::mem::replace(&mut current.client, opened);
        current.clients += 1;
        drop(current);
        if let Some(before) = before {
            info!(name, endpoint = before.endpoint(), "tx-executor gone from its name");
        }
    }
}

/// Assignment of addresses to places.
#[derive(Default)]
struct Addresses {
    /// Address of each place, and the number of lookups that have missed it since they had it.
    places: [Option<(SocketAddr, u8)>; PLACES],
}

/// New address of a place, `None` for none.
#[derive(PartialEq, Eq, Debug)]
struct Change {
    place: usize,
    address: Option<SocketAddr>,
}

impl Addresses {
    /// Takes in the result of a lookup. Returns what changes, in order.
    fn update(&mut self, found: &BTreeSet<SocketAddr>) -> Vec<Change> {
        let mut changes = Vec::new();
        let mut new = found.clone();
        for (place, held) in self.places.iter_mut().enumerate() {
            let Some((address, misses)) = held else { continue };
            if new.remove(address) {
                *misses = 0;
                continue;
            }
            *misses += 1;
            if *misses >= MISSES_MAX {
                *held = None;
                changes.push(Change { place, address: None });
            }
        }
        let free = self.places.iter_mut().enumerate().filter(|(_, held)| held.is_none());
        for ((place, held), address) in free.zip(new) {
            *held = Some((address, 0));
            changes.push(Change { place, address: Some(address) });
        }
        changes
    }
}

/// Client of a place, if it has an address.
#[derive(Default)]
struct Current(Mutex<Opened>);

#[derive(Default)]
struct Opened {
    client: Option<Arc<Client>>,
    /// Number of clients so far: connections of another client have other numbers.
    clients: u64,
}

/// Tx-executor at one of the addresses of a name.
struct Place {
    name: String,
    index: usize,
    places: Arc<[Current]>,
    _task: Arc<AbortOnDropHandle<()>>,
}

impl Place {
    /// Returns the client with the number that its connections begin with.
    fn client(&self) -> Option<(Arc<Client>, u64)> {
        let current = self.places.get(self.index)?.0.lock();
        Some((current.client.clone()?, current.clients << CONNECTION_BITS))
    }
}

impl TxExecutorApi for Place {
    fn endpoint(&self) -> String {
        self.client().map_or_else(|| self.name.clone(), |(client, _)| client.endpoint())
    }

    fn connection(&self) -> Option<u64> {
        let (client, first) = self.client()?;
        Some(first + client.connection()?)
    }

    fn send(&self, connection: u64, session: u64, command: TxCommand) -> Result<(), NotSent> {
        let (client, first) = self.client().ok_or(NotSent)?;
        client.send(connection.checked_sub(first).ok_or(NotSent)?, session, command)
    }

    fn receive(&self, wait: Duration) -> Option<(u64, TxReply)> {
        self.client()?.0.receive(wait)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{collections::VecDeque, time::Instant};
    use tokio::runtime::Runtime;

    fn address(last: u8) -> SocketAddr {
        SocketAddr::from(([127, 0, 0, last], 9))
    }

    fn set(last: impl IntoIterator<Item = u8>) -> BTreeSet<SocketAddr> {
        last.into_iter().map(address).collect()
    }

    fn change(place: usize, last: Option<u8>) -> Change {
        Change { place, address: last.map(address) }
    }

    #[test]
    fn addresses_keep_their_places_and_go_after_two_misses() {
        let mut addresses = Addresses::default();
        let first = addresses.update(&set([2, 1]));
        assert_eq!(first, [change(0, Some(1)), change(1, Some(2))]);
        assert_eq!(addresses.update(&set([2])), [], "an answer may be a part");
        assert_eq!(addresses.update(&set([1, 2])), [], "it is back");
        assert_eq!(addresses.update(&set([2, 3])), [change(2, Some(3))]);
        let moved = addresses.update(&set([2, 3, 4]));
        assert_eq!(moved, [change(0, None), change(0, Some(4))], "the place is used again");
        addresses.update(&set([]));
        assert_eq!(addresses.update(&set([])), [change(0, None), change(1, None), change(2, None)]);
    }

    #[test]
    fn no_more_than_the_places_are_used() {
        let mut addresses = Addresses::default();
        let all = set(1..=PLACES as u8 + 3);
        assert_eq!(addresses.update(&all).len(), PLACES);
        assert_eq!(addresses.update(&all), []);
    }

    #[test]
    fn one_family_is_used() {
        let other: SocketAddr = "[::1]:9".parse().unwrap();
        assert_eq!(of_one_family(vec![address(1), other, address(2)]), set([1, 2]));
        assert_eq!(of_one_family(vec![other, address(1)]).len(), 1);
    }

    #[test]
    fn an_ip_address_is_one_and_a_name_has_places() {
        let runtime = Runtime::new().unwrap();
        let count = |endpoint: &str| {
            connect(endpoint, &ClientConfig::default(), runtime.handle()).map(|all| all.len())
        };
        assert_eq!(count("http://127.0.0.1:9606").unwrap(), 1);
        assert_eq!(count("http://[::1]:9606").unwrap(), 1);
        assert_eq!(count("http://tx-executor.invalid:9606").unwrap(), PLACES);
        assert!(matches!(count("https://tx-executor:9606"), Err(EndpointError::NoTls(_))));
    }

    #[test]
    fn places_follow_the_name() {
        let runtime = Runtime::new().unwrap();
        let answers = Mutex::new(VecDeque::from([Ok(vec![address(1), address(2)])]));
        let lookup = move || {
            let answer = answers.lock().pop_front();
            std::future::ready(answer.unwrap_or_else(|| Err(io::Error::other("no answer"))))
        };
        let config = ClientConfig::default();
        let open = Opening { scheme: "http".to_owned(), config, runtime: runtime.handle().clone() };
        let places = follow("http://name:9", open, lookup);
        let started = Instant::now();
        while places[1].endpoint() != "http://127.0.0.2:9" {
            assert!(started.elapsed() < Duration::from_secs(10), "{}", places[1].endpoint());
            std::thread::sleep(Duration::from_millis(5));
        }
        assert_eq!(places[0].endpoint(), "http://127.0.0.1:9");
        assert_eq!(places[2].endpoint(), "http://name:9");
        assert_eq!(
            (places[2].connection(), places[2].receive(Duration::ZERO).is_some()),
            (None, false)
        );
        assert_eq!(places[2].send(0, 0, TxCommand::Ping(1)), Err(NotSent));
    }
}
