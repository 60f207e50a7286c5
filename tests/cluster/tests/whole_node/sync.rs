//! Blocks from peers: a node is told a head that it does not know, and fetches what is missing.

use alloy_consensus::Header;
use alloy_primitives::{B256, B512, Bytes, keccak256};
use serde_json::json;
use std::{
    collections::{BTreeMap, HashMap},
    future::Future,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::{Duration, Instant},
};
use tandem_chain::{Block, Fork};
use tandem_cluster::Config;
use tandem_cluster_tests::{Builder, Built, Contents, Forks, Node};
use tandem_proto::{
    peer_sessions::{
        BlockRange, Direction, Error, Fetch, Fetched, Misconduct, PeerId, PeerSessionsApi, Pending,
        Session,
    },
    storage::BlockRef,
};

const TRANSACTIONS: Contents = Contents::Random(3);

/// Conduct of a peer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Conduct {
    Honest,
    /// Sends the bodies of other blocks.
    OtherBodies,
    /// Sends headers without end, of a chain that nobody asked for.
    EndlessHeaders,
    /// Never answers.
    Silent,
    /// Says that it has blocks, and sends none.
    Empty,
    /// Has the newest headers alone.
    Useless,
}

/// Header and body of a block.
type Content = (Header, Bytes, Bytes);

/// Peers with blocks, as peer-sessions offers them.
#[derive(Default)]
struct Peers {
    blocks: Mutex<HashMap<B256, Content>>,
    conduct: Mutex<BTreeMap<PeerId, Conduct>>,
    reports: Mutex<Vec<(Conduct, Misconduct)>>,
    /// Highest block whose body is served.
    bodies_up_to: AtomicU64,
    /// Numbers of the blocks whose bodies were asked for.
    asked: Mutex<Vec<u64>>,
}

impl Peers {
    fn new(conduct: &[Conduct]) -> Arc<Self> {
        let peers = Self::default();
        let ids = conduct.iter().zip(1..).map(|(it, id)| (B512::with_last_byte(id), *it));
        *peers.conduct.lock().unwrap() = ids.collect();
        peers.bodies_up_to.store(u64::MAX, Relaxed);
        Arc::new(peers)
    }

    fn have(&self, built: &[Built]) {
        for built in built {
            let block = Block::from_payload(built.payload.clone(), &built.sidecar).unwrap();
            self.add(block.header, block.body_rlp);
        }
    }

    fn add(&self, header: Header, body: Bytes) {
        let rlp = Bytes::from(alloy_rlp::encode(&header));
        self.blocks.lock().unwrap().insert(keccak256(&rlp), (header, rlp, body));
    }

    fn answer(&self, peer: PeerId, fetch: Fetch) -> Option<Result<Fetched, Error>> {
        let Some(conduct) = self.conduct.lock().unwrap().get(&peer).copied() else {
            return Some(Err(Error::Gone));
        };
        let blocks = self.blocks.lock().unwrap();
        let known = |hash: &B256| blocks.get(hash);
        Some(Ok(match (conduct, fetch) {
            (Conduct::Silent, _) => return None,
            (Conduct::Empty, Fetch::Headers { .. }) => Fetched::Headers(Vec::new()),
            (Conduct::Empty | Conduct::Useless, Fetch::Bodies(_)) => Fetched::Bodies(Vec::new()),
            (Conduct::EndlessHeaders, Fetch::Headers { limit, .. }) => {
                let other =
                    |number| alloy_rlp::encode(Header { number, ..Header::default() }).into();
                Fetched::Headers((0..u64::from(limit)).map(other).collect())
            }
            (_, Fetch::Headers { start: BlockRef::Hash(start), limit, skip: 0, reverse: true }) => {
                let limit = if conduct == Conduct::Useless { 2 } else { limit as usize };
                let (mut headers, mut at) = (Vec::new(), start);
                while headers.len() < limit
                    && let Some((header, rlp, _)) = known(&at)
                {
                    headers.push(rlp.clone());
                    at = header.parent_hash;
                }
                Fetched::Headers(headers)
            }
            (_, Fetch::Bodies(hashes)) => {
                let known: Vec<_> = hashes.iter().filter_map(known).collect();
                self.asked.lock().unwrap().extend(known.iter().map(|(header, _, _)| header.number));
                let up_to = self.bodies_up_to.load(Relaxed);
                let served = known.into_iter().filter(|(header, _, _)| header.number <= up_to);
                let mut bodies: Vec<_> = served.map(|(_, _, body)| body.clone()).collect();
                if conduct == Conduct::OtherBodies {
                    bodies.reverse();
                    bodies.push(Bytes::from_static(&[0xc3, 0xc0, 0xc0, 0xc0]));
                }
                Fetched::Bodies(bodies)
            }
            other => panic!("{other:?}"),
        }))
    }

    fn reported(&self, conduct: Conduct) -> Option<Misconduct> {
        let reports = self.reports.lock().unwrap();
        reports.iter().find(|(it, _)| *it == conduct).map(|(_, misconduct)| *misconduct)
    }
}

/// The sessions with [`Peers`].
struct Sessions(Arc<Peers>);

impl PeerSessionsApi for Sessions {
    fn sessions(&self) -> Pending<Vec<Session>> {
        let peers = self.0.clone();
        Box::pin(async move {
            let latest = peers.blocks.lock().unwrap().values().map(|it| it.0.number).max();
            let range = BlockRange {
                earliest: 0,
                latest: latest.unwrap_or_default(),
                latest_hash: B256::ZERO,
            };
            let session = |id: &PeerId| Session {
                id: *id,
                client: "test".to_owned(),
                address: ([127, 0, 0, 1], 30303).into(),
                direction: Direction::Outbound,
                eth_version: 69,
                snap_version: None,
                range,
            };
            Ok(peers.conduct.lock().unwrap().keys().map(session).collect())
        })
    }

    fn fetch(&self, peer: PeerId, fetch: Fetch) -> Pending<Fetched> {
        let peers = self.0.clone();
        Box::pin(async move {
            match peers.answer(peer, fetch) {
                Some(answer) => answer,
                None => std::future::pending().await,
            }
        })
    }

    fn report(&self, peer: PeerId, misconduct: Misconduct) -> Pending<()> {
        let peers = self.0.clone();
        Box::pin(async move {
            if let Some(conduct) = peers.conduct.lock().unwrap().remove(&peer) {
                peers.reports.lock().unwrap().push((conduct, misconduct));
            }
            Ok(())
        })
    }
}

/// Returns settings with short deadlines.
fn quick() -> Config {
    let mut config = Config::default();
    config.sync.request_ms = 400;
    config.sync.hedge_ms = 100;
    config
}

async fn start(config: Config, conduct: &[Conduct]) -> (Builder, Node, Arc<Peers>) {
    let builder = Builder::new(Forks::at_genesis(Fork::Osaka));
    let mut node = Node::start_with(builder.genesis_json(), config).await;
    let peers = Peers::new(conduct);
    node.sync_from(Arc::new(Sessions(peers.clone())));
    (builder, node, peers)
}

/// Asks until there is an answer, for two minutes at most.
async fn until<T, F: Future<Output = Option<T>>>(what: &str, mut ask: impl FnMut() -> F) -> T {
    let end = Instant::now() + Duration::from_secs(120);
    loop {
        if let Some(answer) = ask().await {
            return answer;
        }
        assert!(Instant::now() < end, "{what} takes too long");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Chooses a head until the node no longer answers SYNCING. Returns status and latest valid hash.
async fn choose(node: &mut Node, head: B256) -> (String, Option<B256>) {
    let end = Instant::now() + Duration::from_secs(120);
    loop {
        let status = node.forkchoice(head, B256::ZERO, B256::ZERO).await.unwrap();
        if status.status != "SYNCING" {
            return (status.status.clone(), status.latest_valid_hash);
        }
        assert!(Instant::now() < end, "the head is never reached");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn honest_peers_are_enough_among_liars() {
    use Conduct::{Empty, EndlessHeaders, Honest, OtherBodies, Silent, Useless};
    let conduct = [EndlessHeaders, OtherBodies, Silent, Empty, Useless, Honest, Honest];
    let (mut builder, mut node, peers) = start(quick(), &conduct).await;
    let chain = builder.chain(builder.genesis(), 71_000, 200, TRANSACTIONS);
    peers.have(&chain);
    let tip = &chain[199];
    assert_eq!(node.new_payload(tip).await.verdict(), ("SYNCING", None));
    let status = node.forkchoice(tip.hash, chain[190].hash, chain[180].hash).await.unwrap();
    assert_eq!(status.verdict(), ("SYNCING", None));
    assert_eq!(choose(&mut node, tip.hash).await, ("VALID".to_owned(), Some(tip.hash)));
    node.assert_head(tip).await;
    assert_eq!(node.http.call("eth_syncing", json!([])).await.unwrap(), json!(false));
    // The first peer of the list is asked for the first headers.
    assert_eq!(peers.reported(EndlessHeaders), Some(Misconduct::Invalid));
    assert_eq!(peers.reported(Honest), None);
    for (conduct, misconduct) in peers.reports.lock().unwrap().iter() {
        let expected = match conduct {
            OtherBodies | EndlessHeaders => Misconduct::Invalid,
            Silent => Misconduct::Slow,
            _ => Misconduct::Useless,
        };
        assert_eq!(*misconduct, expected, "{conduct:?}");
    }
    node.stop_and_verify().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_invalid_block_on_the_way_is_told_and_no_peer_is_blamed() {
    let (mut builder, mut node, peers) = start(quick(), &[Conduct::Honest; 2]).await;
    let chain = builder.chain(builder.genesis(), 72_000, 60, TRANSACTIONS);
    peers.have(&chain);
    // Copies of those blocks, in which block 40 promises another state.
    let (mut parent, mut bad) = (chain[38].hash, Vec::new());
    for built in &chain[39..] {
        let mut header = Header { parent_hash: parent, ..built.header.clone() };
        if built.header.number == 40 {
            header.state_root = B256::repeat_byte(7);
        }
        let block = Block::from_payload(built.payload.clone(), &built.sidecar).unwrap();
        peers.add(header.clone(), block.body_rlp);
        parent = header.hash_slow();
        bad.push(parent);
    }
    let tip = bad[bad.len() - 1];
    let invalid = ("INVALID".to_owned(), Some(chain[38].hash));
    assert_eq!(choose(&mut node, tip).await, invalid);
    let status = node.forkchoice(bad[10], B256::ZERO, B256::ZERO).await.unwrap();
    assert_eq!(status.verdict(), ("INVALID", Some(chain[38].hash)), "each block on the way");
    assert!(peers.reports.lock().unwrap().is_empty());
    // The true chain is still followed.
    let tip = &chain[59];
    assert_eq!(choose(&mut node, tip.hash).await, ("VALID".to_owned(), Some(tip.hash)));
    node.assert_head(tip).await;
    node.stop_and_verify().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_continues_from_the_blocks_that_are_there() {
    let (mut builder, mut node, peers) = start(quick(), &[Conduct::Honest]).await;
    let chain = builder.chain(builder.genesis(), 73_000, 150, TRANSACTIONS);
    peers.have(&chain);
    peers.bodies_up_to.store(100, Relaxed);
    let tip = &chain[149];
    node.forkchoice(tip.hash, B256::ZERO, B256::ZERO).await.unwrap();
    // A peer that serves no more bodies is useless at last, and loses its session.
    let reported = || async { peers.reported(Conduct::Honest) };
    assert_eq!(until("a report", reported).await, Misconduct::Useless);
    let syncing = node.http.call("eth_syncing", json!([])).await.unwrap();
    assert_eq!(
        (&syncing["currentBlock"], &syncing["highestBlock"]),
        (&json!("0x64"), &json!("0x96"))
    );
    assert_eq!((&syncing["startingBlock"], &syncing["stage"]), (&json!("0x0"), &json!("blocks")));
    node = node.restart().await;
    let peers = Peers::new(&[Conduct::Honest]);
    peers.have(&chain);
    node.sync_from(Arc::new(Sessions(peers.clone())));
    assert_eq!(choose(&mut node, tip.hash).await, ("VALID".to_owned(), Some(tip.hash)));
    node.assert_head(tip).await;
    assert_eq!(peers.asked.lock().unwrap().iter().min(), Some(&101), "nothing is executed twice");
    node.stop_and_verify().await;
}

/// The other branch leaves the chain below the base, so its blocks are kept until it is chosen.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn another_branch_is_followed_from_below_the_base() {
    let mut config = quick();
    config.storage_writer.unfinalized_blocks_max = 24;
    let (mut builder, mut node, peers) = start(config, &[Conduct::Honest; 2]).await;
    let left = builder.chain(builder.genesis(), 74_000, 90, TRANSACTIONS);
    let right = builder.chain(builder.genesis(), 74_001, 80, TRANSACTIONS);
    peers.have(&left);
    peers.have(&right);
    for tip in [&left[89], &right[79], &left[60]] {
        assert_eq!(choose(&mut node, tip.hash).await, ("VALID".to_owned(), Some(tip.hash)));
        node.assert_head(tip).await;
    }
    assert!(peers.reports.lock().unwrap().is_empty());
    node.stop_and_verify().await;
}

/// Each new head is the child of the one before, as on a live network.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn heads_that_move_on_do_not_begin_sync_anew() {
    let (mut builder, mut node, peers) = start(quick(), &[Conduct::Honest; 2]).await;
    let chain = builder.chain(builder.genesis(), 75_000, 120, TRANSACTIONS);
    peers.have(&chain);
    for built in &chain[100..119] {
        node.forkchoice(built.hash, B256::ZERO, B256::ZERO).await.unwrap();
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    let tip = &chain[119];
    assert_eq!(choose(&mut node, tip.hash).await, ("VALID".to_owned(), Some(tip.hash)));
    node.assert_head(tip).await;
    let mut asked = peers.asked.lock().unwrap().clone();
    let all = asked.len();
    asked.sort_unstable();
    asked.dedup();
    assert_eq!(asked.len(), 120);
    assert!(all < 240, "{all} bodies for 120 blocks");
    node.stop_and_verify().await;
}
