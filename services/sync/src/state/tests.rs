//! Simulated peers on a simulated clock: honest, lying, silent, slow and useless ones.

use super::*;
use proptest::prelude::*;
use std::collections::{BTreeSet, HashMap};
use tandem_primitives::{Bytes, U256};
use tandem_proto::peer_sessions::Misconduct;

/// Bytes of a body.
const BODY_BYTES: usize = 50_000;

/// Returns the id of a block of a branch. Branch 0 is the trunk, others leave it somewhere.
fn id(branch: u64, number: u64) -> BlockId {
    BlockId::new(number, B256::from(U256::from(branch) << 64 | U256::from(number)))
}

pub fn header(number: u64) -> ChainHeader {
    ChainHeader {
        id: id(0, number),
        parent: id(0, number.wrapping_sub(1)).hash,
        rlp: Bytes::from_static(&[0; 600]),
    }
}

pub fn headers_down(top: u64, count: u64) -> Vec<ChainHeader> {
    (0..count).map(|below| header(top - below)).collect()
}

fn limits() -> Limits {
    Limits {
        headers_max: 4096,
        blocks_ahead_max: 256,
        body_bytes_max: 16 << 20,
        bodies_per_request_max: 64,
        requests_per_peer_max: 2,
        imports_max: 2,
        request: Duration::from_secs(8),
        hedge: Duration::from_secs(2),
        stalled: Duration::from_secs(20),
    }
}

/// Tree of blocks: branch `n` leaves the trunk above block `forks[n]`.
#[derive(Clone, Default)]
struct World {
    forks: Vec<u64>,
    blocks: HashMap<B256, ChainHeader>,
}

impl World {
    fn grow(&mut self, branch: u64, top: u64) {
        if self.forks.is_empty() {
            self.forks.push(0);
        }
        let fork = self.forks[branch as usize];
        let first = if branch == 0 { 0 } else { fork + 1 };
        for number in first..=top {
            let below = if number == first && branch > 0 { 0 } else { branch };
            let parent = number.checked_sub(1).map_or(B256::ZERO, |number| id(below, number).hash);
            let rlp = Bytes::from_static(&[0; 600]);
            let header = ChainHeader { id: id(branch, number), parent, rlp };
            self.blocks.insert(header.id.hash, header);
        }
    }

    fn down(&self, start: B256, limit: u64) -> Vec<ChainHeader> {
        let mut headers = Vec::new();
        let mut at = start;
        while let Some(header) = self.blocks.get(&at)
            && headers.len() < limit as usize
        {
            headers.push(header.clone());
            at = header.parent;
        }
        headers
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Kind {
    /// Answers after so many milliseconds.
    Honest(u64),
    /// Sends wrong bodies and headers.
    Liar,
    /// Never answers.
    Silent,
    /// Answers with nothing.
    Empty,
    /// Answers a part of what it is asked for.
    Stingy,
    /// Is gone at once when it is asked.
    Gone,
}

/// Event of the simulation.
enum Event {
    Headers(RequestId, Vec<ChainHeader>),
    Bodies(RequestId, Vec<BlockId>),
    Failed(RequestId, Failure),
    Imported(BlockId),
}

struct Simulation {
    world: World,
    state: State<BlockId>,
    kinds: Vec<Kind>,
    /// Peers that left or were reported.
    left: BTreeSet<PeerId>,
    reports: Vec<(Kind, Misconduct)>,
    executed: BTreeSet<B256>,
    invalid: BTreeSet<B256>,
    condemned: Vec<Invalid>,
    applied: Option<B256>,
    now: Duration,
    events: BTreeMap<(Duration, u64), Event>,
    counter: u64,
    most_headers: usize,
    most_bytes: usize,
    header_requests: usize,
}

fn peer(number: usize) -> PeerId {
    PeerId::with_last_byte(number as u8)
}

impl Simulation {
    fn new(world: World, kinds: Vec<Kind>) -> Self {
        Self {
            world,
            state: State::new(limits()),
            kinds,
            left: BTreeSet::new(),
            reports: Vec::new(),
            executed: BTreeSet::from([id(0, 0).hash]),
            invalid: BTreeSet::new(),
            condemned: Vec::new(),
            applied: None,
            now: Duration::ZERO,
            events: BTreeMap::new(),
            counter: 0,
            most_headers: 0,
            most_bytes: 0,
            header_requests: 0,
        }
    }

    fn later(&mut self, after: Duration, event: Event) {
        self.counter += 1;
        self.events.insert((self.now + after, self.counter), event);
    }

    fn list_peers(&mut self) {
        let highest = self.world.blocks.values().map(|it| it.id.number).max().unwrap_or_default();
        let range = BlockRange { earliest: 0, latest: highest, latest_hash: B256::ZERO };
        let here = (0..self.kinds.len()).map(peer).filter(|peer| !self.left.contains(peer));
        let here: Vec<_> = here.map(|peer| (peer, range)).collect();
        self.state.set_peers(here);
    }

    fn ask(&mut self, request: RequestId, peer: PeerId, wanted: Wanted) {
        self.header_requests += usize::from(matches!(wanted, Wanted::Headers { .. }));
        let kind = self.kinds[peer.0[63] as usize];
        let delay = match kind {
            Kind::Honest(delay) => delay,
            _ => 30,
        };
        let share = |len: usize| if kind == Kind::Stingy { len.div_ceil(3) } else { len };
        let event = match (kind, wanted) {
            (Kind::Silent, _) => return,
            (Kind::Liar, _) => Event::Failed(request, Failure::Lie),
            (Kind::Gone, _) => {
                self.left.insert(peer);
                Event::Failed(request, Failure::Gone)
            }
            (Kind::Empty, Wanted::Headers { .. }) => Event::Headers(request, Vec::new()),
            (Kind::Empty, Wanted::Bodies(_)) => Event::Bodies(request, Vec::new()),
            (_, Wanted::Headers { start, limit }) => {
                let mut headers = self.world.down(start, limit);
                headers.truncate(share(headers.len()));
                Event::Headers(request, headers)
            }
            (_, Wanted::Bodies(headers)) => {
                let mut blocks: Vec<_> = headers.iter().map(|header| header.id).collect();
                blocks.truncate(share(blocks.len()));
                Event::Bodies(request, blocks)
            }
        };
        self.later(Duration::from_millis(delay), event);
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Headers(request, headers) => {
                let parent = headers.last().map(|header| header.parent);
                let hashes = headers.iter().map(|header| header.id.hash).chain(parent);
                let known = hashes.clone().position(|hash| self.executed.contains(&hash));
                self.state.headers(self.now, request, headers.clone(), known);
            }
            Event::Bodies(request, blocks) => {
                let blocks = blocks.into_iter().map(|id| (id, id, BODY_BYTES)).collect();
                self.state.bodies(self.now, request, blocks);
            }
            Event::Failed(request, failure) => self.state.failed(self.now, request, failure),
            Event::Imported(block) => {
                let parent = self.world.blocks[&block.hash].parent;
                let import = if self.invalid.contains(&block.hash) {
                    Import::Invalid { latest_valid: Some(parent), rule: "bad".to_owned() }
                } else if self.executed.contains(&parent) {
                    self.executed.insert(block.hash);
                    Import::Done
                } else {
                    Import::Failed
                };
                self.state.imported(self.now, block, import);
            }
        }
    }

    /// Lets time pass until nothing is left to do, or for `most`.
    fn run(&mut self, most: Duration) {
        let end = self.now + most;
        while self.now < end {
            self.list_peers();
            for action in self.state.actions(self.now) {
                match action {
                    Action::Ask { request, peer, wanted } => self.ask(request, peer, wanted),
                    Action::Report(peer, misconduct) => {
                        self.left.insert(peer);
                        self.reports.push((self.kinds[peer.0[63] as usize], misconduct));
                    }
                    Action::Import(id, block) => {
                        assert_eq!(id, block);
                        self.later(Duration::from_millis(3), Event::Imported(id));
                    }
                    Action::Apply(hash) => {
                        assert!(self.executed.contains(&hash));
                        self.applied = Some(hash);
                        self.state.applied(self.now, hash, true);
                    }
                    Action::Condemn(invalid) => self.condemned.push(invalid),
                }
            }
            let progress = self.state.progress();
            self.most_headers = self.most_headers.max(progress.headers);
            self.most_bytes = self.most_bytes.max(progress.body_bytes);
            if self.state.goal().is_none() || self.applied == self.state.goal() {
                return;
            }
            match self.events.pop_first() {
                Some(((at, _), event)) if at <= self.now + Duration::from_millis(100) => {
                    self.now = self.now.max(at);
                    self.handle(event);
                }
                Some((at, event)) => {
                    self.events.insert(at, event);
                    self.now += Duration::from_millis(100);
                }
                None => self.now += Duration::from_millis(100),
            }
        }
    }

    fn want(&mut self, block: BlockId) {
        self.state.set_goal(Some(block.hash));
    }
}

const LONG: Duration = Duration::from_secs(3600);

fn trunk(top: u64) -> World {
    let mut world = World::default();
    world.grow(0, top);
    world
}

#[test]
fn a_long_chain_is_executed_in_order_within_the_bounds() {
    let top = 20_000;
    let mut sim = Simulation::new(trunk(top), vec![Kind::Honest(20), Kind::Honest(50)]);
    sim.want(id(0, top));
    sim.run(LONG);
    assert_eq!(sim.applied, Some(id(0, top).hash));
    assert_eq!(sim.executed.len() as u64, top + 1);
    assert!(sim.most_headers <= 4096 + 2 * 1024, "{}", sim.most_headers);
    assert!(sim.most_bytes <= (16 << 20) + (4 << 20), "{}", sim.most_bytes);
    // Each header is fetched down, and all but the lowest once more.
    assert!(sim.header_requests < 50, "{}", sim.header_requests);
    assert!(sim.reports.is_empty());
    assert_eq!(sim.state.progress().current, Some(top));
}

#[test]
fn liars_and_useless_peers_are_reported_and_silent_ones_left() {
    let kinds =
        vec![Kind::Liar, Kind::Silent, Kind::Empty, Kind::Gone, Kind::Stingy, Kind::Honest(100)];
    let mut sim = Simulation::new(trunk(3000), kinds);
    sim.want(id(0, 3000));
    sim.run(LONG);
    assert_eq!(sim.applied, Some(id(0, 3000).hash));
    let of = |kind| sim.reports.iter().filter(|(it, _)| *it == kind).map(|(_, why)| *why).next();
    assert_eq!(of(Kind::Liar), Some(Misconduct::Invalid));
    assert_eq!(of(Kind::Silent), Some(Misconduct::Slow));
    assert_eq!(of(Kind::Empty), Some(Misconduct::Useless));
    assert_eq!((of(Kind::Honest(100)), of(Kind::Stingy)), (None, None));
}

#[test]
fn without_a_peer_nothing_happens_and_a_late_peer_is_enough() {
    let mut sim = Simulation::new(trunk(10), vec![]);
    sim.want(id(0, 10));
    sim.run(Duration::from_secs(60));
    assert_eq!((sim.applied, sim.header_requests), (None, 0));
    sim.kinds.push(Kind::Honest(5));
    sim.run(LONG);
    assert_eq!(sim.applied, Some(id(0, 10).hash));
}

#[test]
fn a_head_that_no_peer_has_is_asked_for_with_pauses_and_left_for_a_newer_one() {
    let mut sim = Simulation::new(trunk(100), vec![Kind::Honest(5), Kind::Honest(5)]);
    sim.state.set_goal(Some(B256::repeat_byte(7)));
    sim.run(Duration::from_secs(60));
    assert!(sim.header_requests <= 2 * 21, "{}", sim.header_requests);
    assert!(sim.reports.is_empty(), "a head that is not there yet is no fault");
    sim.want(id(0, 100));
    sim.run(LONG);
    assert_eq!(sim.applied, Some(id(0, 100).hash));
}

#[test]
fn a_descendant_continues_and_another_branch_keeps_what_is_common() {
    let mut world = trunk(6000);
    world.forks.push(4000);
    world.grow(1, 4500);
    let mut sim = Simulation::new(world, vec![Kind::Honest(10)]);
    sim.want(id(0, 5000));
    sim.run(Duration::from_secs(2));
    let executed = sim.executed.len();
    assert!(executed > 100 && executed < 3000, "{executed}");
    let asked = sim.header_requests;
    for top in 5001..=5010 {
        sim.want(id(0, top));
        sim.run(Duration::from_millis(200));
    }
    assert!(sim.header_requests <= asked + 20, "only the new headers are fetched");
    sim.want(id(1, 4500));
    sim.run(LONG);
    assert_eq!(sim.applied, Some(id(1, 4500).hash));
    assert!(sim.executed.contains(&id(1, 4001).hash));
    // Back again: the trunk above the fork is fetched, the rest is executed.
    sim.want(id(0, 6000));
    sim.run(LONG);
    assert_eq!(sim.applied, Some(id(0, 6000).hash));
}

#[test]
fn an_invalid_block_condemns_what_is_above_it_and_no_peer() {
    let mut world = trunk(3000);
    world.forks.push(2000);
    world.grow(1, 2600);
    let mut sim = Simulation::new(world, vec![Kind::Honest(10)]);
    sim.invalid.insert(id(0, 2500).hash);
    sim.want(id(0, 3000));
    sim.run(LONG);
    assert_eq!((sim.applied, sim.state.goal()), (None, None));
    let [invalid] = &sim.condemned[..] else { panic!() };
    assert_eq!(invalid.verdict.culprit, id(0, 2500).hash);
    assert_eq!(invalid.verdict.latest_valid, Some(id(0, 2499).hash));
    let blocks: BTreeSet<_> = invalid.blocks.iter().copied().collect();
    let expected = (2500..2755).chain([3000]);
    assert_eq!(blocks, expected.map(|number| id(0, number).hash).collect());
    assert!(sim.reports.is_empty());
    // Neither that head nor one above it is followed again.
    sim.want(id(0, 3000));
    sim.run(LONG);
    assert_eq!((sim.condemned.len(), &sim.condemned[1].blocks[..]), (2, &[id(0, 3000).hash][..]));
    sim.world.grow(0, 3005);
    sim.want(id(0, 3005));
    sim.run(LONG);
    assert_eq!((sim.state.goal(), sim.condemned.len()), (None, 3));
    assert!(sim.condemned[2].blocks.contains(&id(0, 3005).hash));
    assert!(!sim.condemned[2].blocks.contains(&id(0, 2499).hash));
    // A branch from below the fault is fine.
    sim.want(id(1, 2600));
    sim.run(LONG);
    assert_eq!(sim.applied, Some(id(1, 2600).hash));
}

#[test]
fn a_chain_with_another_genesis_is_refused() {
    let mut sim = Simulation::new(trunk(1500), vec![Kind::Honest(10)]);
    sim.executed = BTreeSet::from([B256::repeat_byte(9)]);
    sim.want(id(0, 1500));
    sim.run(LONG);
    assert_eq!(sim.state.goal(), None);
    assert_eq!(sim.condemned[0].verdict.latest_valid, None);
    assert!(sim.condemned[0].blocks.contains(&id(0, 1500).hash));
}

#[test]
fn what_the_executor_lost_is_fetched_again() {
    let mut sim = Simulation::new(trunk(2000), vec![Kind::Honest(10)]);
    sim.want(id(0, 2000));
    sim.run(Duration::from_secs(3));
    let executed = sim.executed.len() as u64;
    assert!(executed > 100 && executed < 2000, "{executed}");
    for number in executed - 50..executed {
        sim.executed.remove(&id(0, number).hash);
    }
    sim.run(LONG);
    assert_eq!((sim.applied, sim.executed.len()), (Some(id(0, 2000).hash), 2001));
}

fn kinds() -> impl Strategy<Value = Vec<Kind>> {
    let kind = prop_oneof![
        (1..400_u64).prop_map(Kind::Honest),
        Just(Kind::Liar),
        Just(Kind::Silent),
        Just(Kind::Empty),
        Just(Kind::Stingy),
        Just(Kind::Gone),
    ];
    proptest::collection::vec(kind, 0..8)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    /// One honest peer is enough, whatever the others do, and no honest peer is reported.
    #[test]
    fn sync_ends_with_one_honest_peer(
        mut kinds in kinds(),
        place in 0..8_usize,
        top in 1..3000_u64,
        fork in 0..3000_u64,
        changes in proptest::collection::vec((0..2_u64, 0..3000_u64, 1..3000_u64), 0..4),
    ) {
        kinds.insert(place.min(kinds.len()), Kind::Honest(40));
        let mut world = trunk(top);
        world.forks.push(fork.min(top));
        world.grow(1, fork.min(top) + 500);
        let mut sim = Simulation::new(world, kinds);
        for (branch, number, millis) in changes {
            let number = if branch == 0 { number.min(top) } else { fork.min(top) + 1 + number % 500 };
            sim.want(id(branch, number));
            sim.run(Duration::from_millis(millis));
        }
        let goal = id(0, top);
        sim.want(goal);
        sim.run(LONG);
        if !sim.executed.contains(&goal.hash) || sim.applied != Some(goal.hash) {
            prop_assert!(false, "{:?} {:?}", sim.state.progress(), sim.applied);
        }
        for (kind, misconduct) in &sim.reports {
            prop_assert!(!matches!(kind, Kind::Honest(_) | Kind::Stingy), "{kind:?} {misconduct:?}");
        }
        prop_assert!(sim.condemned.is_empty());
        prop_assert!(sim.most_headers <= 4096 + 2 * 1024);
    }

    /// The requests of each peer are bounded, and its blocks come in order, whatever arrives.
    #[test]
    fn answers_to_other_questions_change_nothing(
        requests in proptest::collection::vec((0..50_u64, 0..3000_u64, 0..1024_u64), 1..50),
    ) {
        let mut sim = Simulation::new(trunk(3000), vec![Kind::Honest(10)]);
        sim.want(id(0, 3000));
        for (request, top, count) in requests {
            let headers = headers_down(top, count.min(top + 1));
            sim.state.headers(sim.now, request + 1_000_000, headers, None);
            sim.state.bodies(sim.now, request + 1_000_000, vec![(id(0, top), id(0, top), 1)]);
            sim.state.imported(sim.now, id(0, top), Import::Done);
            sim.run(Duration::from_millis(50));
        }
        sim.run(LONG);
        prop_assert_eq!(sim.applied, Some(id(0, 3000).hash));
        prop_assert_eq!(sim.executed.len(), 3001);
    }
}
