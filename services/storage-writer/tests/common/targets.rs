//! States to be downloaded.

use crate::common::{Random, World, block};
use tandem_primitives::{B256, BlockId, Bytes};
use tandem_proto::{
    snap::{DownloadedAccount, DownloadedBlock, StatePart},
    storage::Block,
};

/// Highest key.
pub const LAST: B256 = B256::repeat_byte(0xff);

/// A chain whose last block's state is downloaded.
pub struct Target {
    pub blocks: Vec<Block>,
    pub world: World,
    pub codes: Vec<(B256, Bytes)>,
}

impl Target {
    pub fn random(genesis: BlockId, mut world: World, random: &mut Random) -> Self {
        let (mut parent, mut blocks, mut codes) = (genesis, Vec::new(), Vec::new());
        for _ in 0..5 {
            let diff = world.random_diff(random);
            world.apply(&diff);
            codes.extend(diff.codes.iter().cloned());
            let block = block(parent, &world, diff, random);
            parent = block.id;
            blocks.push(block);
        }
        Self { blocks, world, codes }
    }

    pub fn pivot(&self) -> BlockId {
        self.blocks.last().unwrap().id
    }

    pub fn downloaded(&self) -> Vec<DownloadedBlock> {
        let block = |block: &Block| DownloadedBlock {
            id: block.id,
            header: block.header.clone(),
            body: block.body.clone(),
            receipts: block.receipts.clone(),
        };
        self.blocks.iter().map(block).collect()
    }

    /// Returns the whole state, cut at random keys, in a random order.
    pub fn parts(&self, random: &mut Random) -> Vec<StatePart> {
        let mut parts = vec![StatePart::Codes(self.codes.clone())];
        let accounts = self.world.0.iter().map(|(key, (account, slots))| DownloadedAccount {
            key: *key,
            account: *account,
            has_storage: !slots.is_empty(),
        });
        let accounts: Vec<_> = accounts.collect();
        for (first, last) in cuts(random) {
            let within = |it: &&DownloadedAccount| (first..=last).contains(&it.key);
            let accounts = accounts.iter().filter(within).copied().collect();
            parts.push(StatePart::Accounts { first, last, accounts });
        }
        for (owner, (_, slots)) in self.world.0.iter().filter(|(_, (_, slots))| !slots.is_empty()) {
            for (first, last) in cuts(random) {
                let slots = slots.range(first..=last).map(|(key, value)| (*key, *value)).collect();
                parts.push(StatePart::Slots { owner: *owner, first, last, slots });
            }
        }
        shuffle(&mut parts, random);
        parts
    }
}

/// Cuts all keys into a few ranges.
fn cuts(random: &mut Random) -> Vec<(B256, B256)> {
    let mut firsts: Vec<u8> = (0..random.below(4)).map(|_| random.below(255) as u8 + 1).collect();
    firsts.push(0);
    firsts.sort_unstable();
    firsts.dedup();
    let last_before = |first: u8| {
        let mut key = LAST;
        key[0] = first - 1;
        key
    };
    let ends = firsts[1..].iter().map(|first| last_before(*first)).chain([LAST]);
    firsts.iter().map(|first| B256::right_padding_from(&[*first])).zip(ends).collect()
}

fn shuffle<T>(items: &mut [T], random: &mut Random) {
    for at in (1..items.len()).rev() {
        items.swap(at, random.below(at as u64 + 1) as usize);
    }
}
