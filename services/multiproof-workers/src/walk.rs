//! Walks along keys from node to node, through the layers and then the base.

use crate::{
    layers::{Branch, Found, Layers},
    nodes::Nodes,
};
use parking_lot::RwLock;
use tandem_primitives::{B256, WalkTarget};
use tandem_proto::{
    multiproof::Error,
    storage::{BaseReads, TrieNode},
};

/// Source of the nodes.
pub struct Source<'a> {
    /// Locked for look-ups only, never while the base is read.
    pub layers: &'a RwLock<Layers>,
    pub branch: &'a Branch,
    /// Block whose state is read.
    pub parent: B256,
    pub storage: &'a dyn BaseReads,
}

/// Walks to all targets and collects the nodes on their paths, parents before children. Returns the
/// number of reads of the base.
///
/// The layers must not lose any of the branch meanwhile. Otherwise a node of the base that was read
/// before its layer was dropped would be taken for a later one.
pub fn walk(source: &Source<'_>, targets: &[WalkTarget], nodes: &mut Nodes) -> Result<u64, Error> {
    let mut walks: Vec<Walk> =
        targets.iter().enumerate().map(|(index, &target)| Walk::new(index, target)).collect();
    walks.sort_unstable_by_key(|walk| (walk.target.owner, walk.target.key, walk.target.from_depth));
    let mut base = Base::default();
    let mut asked = 0;
    loop {
        {
            let layers = source.layers.read();
            (0..walks.len())
                .for_each(|at| step(&layers, source.branch, &base, &mut walks, at, nodes));
        }
        let ask: Vec<WalkTarget> = walks.iter().filter(|walk| !walk.done).map(Walk::rest).collect();
        if ask.is_empty() {
            return Ok(asked);
        }
        asked += 1;
        let answer = source.storage.walk_trie(&ask)?;
        if !source.branch.reaches(&answer.base.hash) {
            return Err(Error::ParentUnreachable { parent: source.parent, base: answer.base });
        }
        base.add(answer.nodes);
        for walk in walks.iter_mut().filter(|walk| !walk.done) {
            // Neither a layer nor the base has a node here: the path ends above.
            walk.done = base.get(&walk.target.owner, walk.path()).is_none();
        }
    }
}

/// Goes down one walk until it ends or needs the base.
fn step(
    layers: &Layers,
    branch: &Branch,
    base: &Base,
    walks: &mut [Walk],
    at: usize,
    nodes: &mut Nodes,
) {
    let (before, rest) = walks.split_at_mut(at);
    let (before, walk) = (before.last(), &mut rest[0]);
    while !walk.done {
        let owner = walk.target.owner;
        let rlp = match layers.get(branch, owner.as_ref(), walk.path()) {
            Found::Node(rlp) => rlp,
            Found::Absent => {
                walk.done = true;
                return;
            }
            Found::InBase => match base.get(&owner, walk.path()) {
                Some(rlp) => rlp,
                None => return,
            },
        };
        if !before.is_some_and(|before| before.brought(walk)) {
            nodes.push(walk.index, walk.depth, rlp);
        }
        walk.descend(rlp);
    }
}

/// Walk to one key.
struct Walk {
    /// Position of its target.
    index: usize,
    target: WalkTarget,
    nibbles: [u8; 64],
    /// Depth of the next node.
    depth: usize,
    /// Nodes at fewer nibbles than this were found.
    passed: usize,
    done: bool,
}

impl Walk {
    fn new(index: usize, target: WalkTarget) -> Self {
        let (nibbles, depth) = (unpack(&target.key), usize::from(target.from_depth.min(64)));
        Self { index, target, nibbles, depth, passed: 0, done: false }
    }

    fn path(&self) -> &[u8] {
        &self.nibbles[..self.depth]
    }

    /// Returns the rest of the walk.
    fn rest(&self) -> WalkTarget {
        WalkTarget { from_depth: self.depth as u8, ..self.target }
    }

    /// Goes on to the child on the path to the key, or ends the walk.
    fn descend(&mut self, rlp: &[u8]) {
        self.passed = self.depth + 1;
        match tandem_trie::child_depth(rlp, self.depth, &self.nibbles) {
            Some(depth) => self.depth = depth,
            None => self.done = true,
        }
    }

    /// Returns whether this walk has passed the node at which the other walk stands.
    fn brought(&self, other: &Self) -> bool {
        self.target.owner == other.target.owner
            && usize::from(self.target.from_depth) <= other.depth
            && self.passed > other.depth
            && self.nibbles[..other.depth] == other.nibbles[..other.depth]
    }
}

/// Returns the nibbles of a key, one per byte.
pub fn unpack(key: &B256) -> [u8; 64] {
    let mut nibbles = [0; 64];
    for (pair, byte) in nibbles.chunks_exact_mut(2).zip(key) {
        pair.copy_from_slice(&[byte >> 4, byte & 15]);
    }
    nibbles
}

/// Nodes read from the base, each answer in order of owner and path.
#[derive(Default)]
struct Base {
    answers: Vec<Vec<TrieNode>>,
}

impl Base {
    fn add(&mut self, mut nodes: Vec<TrieNode>) {
        nodes.sort_unstable_by(|a, b| a.owner.cmp(&b.owner).then_with(|| a.path.cmp(&b.path)));
        self.answers.push(nodes);
    }

    fn get(&self, owner: &Option<B256>, path: &[u8]) -> Option<&[u8]> {
        self.answers.iter().find_map(|nodes| {
            let place = nodes.binary_search_by(|node| {
                node.owner.cmp(owner).then_with(|| node.path[..].cmp(path))
            });
            place.ok().map(|at| &nodes[at].rlp[..])
        })
    }
}
