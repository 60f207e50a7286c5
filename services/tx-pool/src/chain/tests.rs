use super::*;
use parking_lot::Mutex;

/// Chain of empty blocks whose hash is made of branch and number.
#[derive(Default)]
struct Blocks {
    known: Mutex<HashMap<B256, Block>>,
    ids: HashMap<(u8, u64), BlockId>,
}

impl Blocks {
    /// Adds blocks of a branch up to `end`, on top of block `fork` of another one.
    fn extend(&mut self, branch: u8, fork: Option<(u8, u64)>, end: u64) {
        let mut parent = fork.map_or(BlockId::new(0, B256::ZERO), |fork| self.ids[&fork]);
        let begin = fork.map_or(0, |(_, number)| number + 1);
        for number in begin..=end {
            let header = alloy_consensus::Header {
                number,
                parent_hash: parent.hash,
                extra_data: vec![branch].into(),
                ..alloy_consensus::Header::default()
            };
            let body = Bytes::from_static(&[0xc2, 0xc0, 0xc0]);
            let block = Block::decode(alloy_rlp::encode(&header).into(), body).unwrap();
            parent = block.id;
            self.ids.insert((branch, number), block.id);
            self.known.lock().insert(block.id.hash, block);
        }
    }
}

impl ChainReads for Blocks {
    fn spec(&self) -> &ChainSpec {
        unreachable!("a way needs no rules")
    }

    fn head(&self) -> Result<Head, ChainError> {
        Err(ChainError("a way has its ends".to_owned()))
    }

    fn accounts(&self, _: B256, _: &[Address]) -> Result<Vec<SenderAccount>, ChainError> {
        Err(ChainError("a way needs no state".to_owned()))
    }

    fn block(&self, hash: B256) -> Result<Option<Block>, ChainError> {
        Ok(self.known.lock().get(&hash).cloned())
    }

    fn is_syncing(&self) -> bool {
        false
    }
}

fn numbers(blocks: &[Arc<Passed>]) -> Vec<u64> {
    blocks.iter().map(|block| block.id.number).collect()
}

#[test]
fn the_way_leads_over_the_fork_even_if_the_old_branch_is_gone() {
    let mut blocks = Blocks::default();
    blocks.extend(1, None, 10);
    blocks.extend(2, Some((1, 6)), 12);
    let mut recent = RecentBlocks::default();
    let mut way = |blocks: &Blocks, from, to| {
        let way = recent.way(blocks, blocks.ids[&from], blocks.ids[&to]).unwrap();
        (numbers(&way.removed), numbers(&way.added))
    };
    assert_eq!(way(&blocks, (1, 5), (1, 5)), (vec![], vec![]));
    assert_eq!(way(&blocks, (1, 5), (1, 8)), (vec![], vec![8, 7, 6]));
    assert_eq!(way(&blocks, (1, 8), (1, 10)), (vec![], vec![10, 9]));
    for number in 7..=10 {
        let id = blocks.ids[&(1, number)];
        blocks.known.lock().remove(&id.hash);
    }
    let over = (vec![10, 9, 8, 7], vec![12, 11, 10, 9, 8, 7]);
    assert_eq!(way(&blocks, (1, 10), (2, 12)), over);
    assert_eq!(way(&blocks, (2, 12), (2, 9)), (vec![12, 11, 10], vec![]), "a head further back");
}

#[test]
fn a_long_way_has_only_its_end_and_what_is_remembered_is_bounded() {
    let mut blocks = Blocks::default();
    blocks.extend(1, None, 3 * DEPTH_MAX);
    let mut recent = RecentBlocks::default();
    let far = recent.way(&blocks, blocks.ids[&(1, 1)], blocks.ids[&(1, DEPTH_MAX + 2)]).unwrap();
    assert_eq!(numbers(&far.added), [DEPTH_MAX + 2]);
    for number in DEPTH_MAX + 2..3 * DEPTH_MAX {
        let ends = (blocks.ids[&(1, number)], blocks.ids[&(1, number + 1)]);
        assert_eq!(recent.way(&blocks, ends.0, ends.1).unwrap().added.len(), 1);
        assert!(recent.0.len() as u64 <= DEPTH_MAX);
    }
}
