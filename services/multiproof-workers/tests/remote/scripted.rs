//! Workers that behave as a test tells them.

use std::{
    net::SocketAddr,
    sync::{Arc, Condvar, Mutex},
    time::Duration,
};
use tandem_multiproof_workers::grpc::Server;
use tandem_multiproof_workers_client::{Client, ClientConfig};
use tandem_primitives::{AccountUpdate, B256, BlockId, Shard, ShardSet, SlotUpdate, U256};
use tandem_proto::multiproof::{
    Begin, Error, Foresight, Prefetch, ProofApi, ProofSession, ProofStats, ShardRoots, StateUpdate,
    Status,
};
use tokio::{net::TcpListener, runtime::Runtime, task::JoinHandle};
use tokio_util::sync::CancellationToken;

/// Event at the workers, noted in order.
#[derive(Clone, PartialEq, Debug)]
pub enum Event {
    Begin(Begin),
    Update(StateUpdate),
    Finish,
    Cancel,
    Prefetch(B256, Prefetch),
    Foresee(B256, Foresight),
    Discard(B256),
}

/// Workers that note the calls they get.
#[derive(Default)]
pub struct Scripted {
    pub events: Arc<Mutex<Vec<Event>>>,
    /// Error of `begin`.
    pub begin_error: Mutex<Option<Error>>,
    /// Error of `roots`.
    pub roots_error: Mutex<Option<Error>>,
    /// Gate at which updates wait while it is closed.
    pub gate: Arc<Gate>,
}

/// Gate that is open unless a test closes it.
#[derive(Default)]
pub struct Gate {
    closed: Mutex<bool>,
    changed: Condvar,
}

impl Gate {
    pub fn set_closed(&self, closed: bool) {
        *self.closed.lock().unwrap() = closed;
        self.changed.notify_all();
    }

    fn pass(&self) {
        drop(self.changed.wait_while(self.closed.lock().unwrap(), |closed| *closed).unwrap());
    }
}

struct ScriptedSession {
    events: Arc<Mutex<Vec<Event>>>,
    gate: Arc<Gate>,
    result: Result<ShardRoots, Error>,
    answered: bool,
}

/// Returns roots that are distinguishable.
pub fn roots(number: u64) -> ShardRoots {
    let node = |shard: Shard| (shard.nibble() != 3).then(|| vec![shard.nibble(); 40].into());
    let roots: Vec<_> = Shard::all().map(node).collect();
    let busy = Duration::from_nanos(5);
    let wasted = Duration::from_nanos(2);
    let stats = ProofStats { updates: number, targets: 2, walks: 3, nodes: 4, busy, wasted };
    ShardRoots {
        shards: ShardSet::ALL,
        roots: roots.try_into().unwrap(),
        stats,
        work: vec![(7, 9)],
    }
}

impl Scripted {
    pub fn events(&self) -> Vec<Event> {
        self.events.lock().unwrap().clone()
    }

    /// Waits until the events meet a condition.
    pub fn wait_for(&self, what: impl Fn(&[Event]) -> bool) -> Vec<Event> {
        wait_until(|| what(&self.events.lock().unwrap()));
        self.events()
    }

    fn note(&self, event: Event) {
        self.events.lock().unwrap().push(event);
    }
}

/// Waits for a condition, with a limit that only a failure reaches.
pub fn wait_until(condition: impl Fn() -> bool) {
    for _ in 0..20_000 {
        if condition() {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("waited in vain");
}

impl ProofApi for Scripted {
    fn begin(&self, begin: Begin) -> Result<Box<dyn ProofSession>, Error> {
        if let Some(error) = self.begin_error.lock().unwrap().clone() {
            return Err(error);
        }
        self.note(Event::Begin(begin));
        let error = self.roots_error.lock().unwrap().clone();
        Ok(Box::new(ScriptedSession {
            events: self.events.clone(),
            gate: self.gate.clone(),
            result: error.map_or(Ok(roots(begin.block.number)), Err),
            answered: false,
        }))
    }

    fn discard(&self, block: B256) {
        self.note(Event::Discard(block));
    }

    fn status(&self) -> Result<Status, Error> {
        let tip = Some(B256::repeat_byte(7));
        Ok(Status { threads: 2, shards: ShardSet::ALL, trie_bytes: 11, tip })
    }

    fn prefetch(&self, block: B256, keys: Arc<Prefetch>) {
        self.note(Event::Prefetch(block, (*keys).clone()));
    }

    fn foresee(&self, block: B256, foresight: Arc<Foresight>) {
        self.note(Event::Foresee(block, (*foresight).clone()));
    }
}

impl ScriptedSession {
    fn note(&self, event: Event) {
        self.events.lock().unwrap().push(event);
    }
}

impl ProofSession for ScriptedSession {
    fn update(&mut self, update: Arc<StateUpdate>) {
        self.gate.pass();
        self.note(Event::Update((*update).clone()));
    }

    fn finish(&mut self) {
        self.note(Event::Finish);
    }

    fn roots(mut self: Box<Self>) -> Result<ShardRoots, Error> {
        self.gate.pass();
        self.answered = true;
        self.result.clone()
    }
}

impl Drop for ScriptedSession {
    fn drop(&mut self) {
        if !self.answered {
            self.note(Event::Cancel);
        }
    }
}

pub fn begin(number: u64) -> Begin {
    let hash = |byte| B256::repeat_byte(byte);
    Begin::new(BlockId::new(number, hash(number as u8)), hash(number as u8 - 1))
}

/// Returns an update that is identified by a number, with `slots` slots.
pub fn update(number: u64, slots: u64) -> Arc<StateUpdate> {
    let slot = |slot: u64| SlotUpdate { key: U256::from(slot).into(), value: U256::from(slot) };
    let account = AccountUpdate {
        address_hash: U256::from(number).into(),
        account: Some(Default::default()),
        wiped: true,
        slots: (0..slots).map(slot).collect(),
    };
    Arc::new(StateUpdate { accounts: vec![account] })
}

/// Server of some workers on a port of its own, which it keeps when it is restarted.
pub struct Host {
    pub runtime: Runtime,
    pub address: SocketAddr,
    running: Option<(CancellationToken, JoinHandle<std::io::Result<()>>)>,
}

impl Host {
    pub fn start(api: Arc<dyn ProofApi>) -> Self {
        let runtime = Runtime::new().unwrap();
        let address = "127.0.0.1:0".parse().unwrap();
        let mut host = Self { runtime, address, running: None };
        host.start_again(api);
        host
    }

    pub fn start_again(&mut self, api: Arc<dyn ProofApi>) {
        let listener = self.runtime.block_on(TcpListener::bind(self.address)).unwrap();
        self.address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let server = Server::start(api, CancellationToken::new()).unwrap();
        let task = self.runtime.spawn(server.serve(listener, stop.clone()));
        self.running = Some((stop, task));
    }

    pub fn stop(&mut self) {
        let (stop, task) = self.running.take().unwrap();
        stop.cancel();
        self.runtime.block_on(task).unwrap().unwrap();
    }

    pub fn client(&self, config: ClientConfig) -> Arc<Client> {
        self.client_at(self.address, config)
    }

    pub fn client_at(&self, address: SocketAddr, config: ClientConfig) -> Arc<Client> {
        Client::connect(&format!("http://{address}"), config, self.runtime.handle()).unwrap()
    }
}
