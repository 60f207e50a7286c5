//! State changes on their way to the workers, merged across transactions.

use std::sync::Arc;
use tandem_policy::TransitionFlush;
use tandem_proto::multiproof::{MergedUpdates, ProofSession, StateUpdate};
use tandem_telemetry::waiting;

/// Sender of one block's changes to its session, merged according to the policy.
pub struct Flusher<'a> {
    session: &'a mut dyn ProofSession,
    policy: TransitionFlush,
    /// Changes held back.
    merged: MergedUpdates,
    /// Number of transactions whose changes are held back.
    transactions: u32,
    /// Gas that those transactions used.
    gas_used: u64,
}

impl<'a> Flusher<'a> {
    /// Creates a flusher that sends every commit at once.
    pub fn new(session: &'a mut dyn ProofSession) -> Self {
        let (policy, merged) = (TransitionFlush::EveryTx, MergedUpdates::default());
        Self { session, policy, merged, transactions: 0, gas_used: 0 }
    }

    /// Returns the flusher with another policy.
    pub fn with_policy(self, policy: TransitionFlush) -> Self {
        Self { policy, ..self }
    }

    /// Sends the changes of the whole block, which nothing may follow.
    pub fn send_all(self, update: Arc<StateUpdate>) {
        waiting("wait.workers_ns", || self.session.update(update));
    }

    /// Accepts the changes of one commit.
    pub fn push(&mut self, update: StateUpdate) {
        if self.policy != TransitionFlush::EveryTx {
            return self.merged.add(update);
        }
        if !update.accounts.is_empty() {
            self.send(update);
        }
    }

    /// Notes that a transaction with this gas was committed, and sends the held-back changes if
    /// due.
    pub fn end_transaction(&mut self, gas_used: u64) {
        self.transactions = self.transactions.saturating_add(1);
        self.gas_used = self.gas_used.saturating_add(gas_used);
        let is_empty = || self.session.has_taken_all();
        if self.policy.is_due(self.transactions, self.gas_used, is_empty) {
            self.flush();
        }
    }

    /// Sends the changes held back.
    pub fn flush(&mut self) {
        (self.transactions, self.gas_used) = (0, 0);
        if !self.merged.is_empty() {
            let update = self.merged.take();
            self.send(update);
        }
    }

    /// Sends an update, and waits for room in a worker's queue where there is none.
    fn send(&mut self, update: StateUpdate) {
        let update = Arc::new(update);
        waiting("wait.workers_ns", || self.session.update(update));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use tandem_primitives::{Account, AccountUpdate, B256, Shard, SlotUpdate, U256, keccak256};
    use tandem_proto::multiproof::{Error, ShardRoots};
    use tandem_trie::ShardTrie;

    /// Session whose workers take no update.
    #[derive(Default)]
    struct Recorder(Vec<Arc<StateUpdate>>);

    impl ProofSession for Recorder {
        fn update(&mut self, update: Arc<StateUpdate>) {
            self.0.push(update);
        }

        fn has_taken_all(&self) -> bool {
            self.0.is_empty()
        }

        fn finish(&mut self) {}

        fn roots(self: Box<Self>) -> Result<ShardRoots, Error> {
            Err(Error::Unavailable)
        }
    }

    /// Transaction: the accounts it changes, and its gas.
    type Transaction = (Vec<AccountUpdate>, u64);

    /// Returns the updates that the session sees of a block, with one commit per transaction.
    fn send(policy: &str, block: &[Transaction]) -> Vec<Arc<StateUpdate>> {
        let mut recorder = Recorder::default();
        let mut flusher = Flusher::new(&mut recorder).with_policy(policy.parse().unwrap());
        for (accounts, gas) in block {
            flusher.push(StateUpdate { accounts: accounts.clone() });
            flusher.end_transaction(*gas);
        }
        flusher.flush();
        recorder.0
    }

    fn address(n: u8) -> B256 {
        keccak256([n])
    }

    fn write(n: u8, nonce: u64, slots: &[(u8, u64)]) -> AccountUpdate {
        let slot = |&(key, value)| SlotUpdate { key: address(key), value: U256::from(value) };
        AccountUpdate {
            address_hash: address(n),
            account: Some(Account { nonce, ..Account::default() }),
            wiped: false,
            slots: slots.iter().map(slot).collect(),
        }
    }

    fn destroy(n: u8) -> AccountUpdate {
        let address_hash = address(n);
        AccountUpdate { address_hash, account: None, wiped: true, slots: Vec::new() }
    }

    #[test]
    fn every_transaction_goes_at_once_or_several_together() {
        let block: Vec<Transaction> =
            (0..5).map(|n| (vec![write(n, 1, &[]), write(9, n.into(), &[])], 100_000)).collect();
        let sent =
            |policy| send(policy, &block).iter().map(|u| u.accounts.len()).collect::<Vec<_>>();
        assert_eq!(sent("every-tx"), [2; 5]);
        assert_eq!(sent("fixed{2}"), [3, 3, 2], "the last one is not held back");
        assert_eq!(sent("adaptive{300000,4,1}"), [4, 3]);
        assert_eq!(sent("while-empty{2}"), [3, 4], "the first one waits from then on");
        assert_eq!(send("fixed{2}", &[(Vec::new(), 0), (Vec::new(), 0)]), [], "nothing to send");
    }

    #[test]
    fn the_last_value_wins_and_a_wipe_voids_what_was_written_before() {
        let together = |block: &[AccountUpdate]| {
            let block: Vec<_> = block.iter().map(|update| (vec![update.clone()], 0)).collect();
            let sent = send("fixed{100}", &block);
            assert_eq!(sent.len(), 1);
            let mut update = sent[0].accounts[0].clone();
            update.slots.sort_unstable_by_key(|slot| slot.key);
            update
        };
        let sorted = |mut update: AccountUpdate| {
            update.slots.sort_unstable_by_key(|slot| slot.key);
            update
        };
        let writes = [
            write(1, 1, &[(1, 1), (2, 2)]),
            write(1, 2, &[(2, 0), (3, 3)]),
            write(1, 3, &[(1, 9)]),
        ];
        assert_eq!(together(&writes), sorted(write(1, 3, &[(1, 9), (2, 0), (3, 3)])));
        let again =
            [write(1, 1, &[(1, 1)]), destroy(1), write(1, 0, &[(2, 2)]), write(1, 5, &[(2, 4)])];
        let wiped = AccountUpdate { wiped: true, ..write(1, 5, &[(2, 4)]) };
        assert_eq!(together(&again), wiped);
        assert_eq!(together(&[again[0].clone(), again[2].clone(), destroy(1)]), destroy(1));
    }

    /// Returns the shards of an empty state, with all tries.
    fn shards() -> Vec<ShardTrie> {
        Shard::all().map(|shard| ShardTrie::blinded(shard, None)).collect()
    }

    fn root(shards: &mut [ShardTrie], updates: &[Arc<StateUpdate>]) -> B256 {
        for account in updates.iter().flat_map(|update| &update.accounts) {
            shards[account.shard().index()].update(account);
        }
        let roots = shards.iter_mut().map(|shard| shard.finish().unwrap().unwrap().0);
        tandem_trie::combine(&roots.collect::<Vec<_>>().try_into().unwrap()).unwrap().0
    }

    /// Generates blocks over few accounts and slots: writes, zeroing, destruction, re-creation.
    fn blocks() -> impl Strategy<Value = Vec<Vec<Transaction>>> {
        let slots = prop::collection::btree_map(0u8..4, 0u64..3, 0..4);
        let account = prop_oneof![
            1 => Just(None),
            3 => (0u64..3, slots).prop_map(Some),
        ];
        let transaction = (prop::collection::btree_map(0u8..5, account, 1..4), 0u64..400_000);
        let block = prop::collection::vec(transaction, 1..12);
        prop::collection::vec(block, 1..4).prop_map(|blocks| {
            let mut alive = [false; 5];
            let commit = |(accounts, gas): (std::collections::BTreeMap<u8, _>, u64)| {
                let update = |(n, account)| {
                    let before =
                        std::mem::replace(&mut alive[usize::from(n)], Option::is_some(&account));
                    match account {
                        Some((nonce, slots)) => {
                            let slots: std::collections::BTreeMap<u8, u64> = slots;
                            Some(write(n, nonce, &slots.into_iter().collect::<Vec<_>>()))
                        }
                        // An absent account cannot be destroyed.
                        None => before.then(|| destroy(n)),
                    }
                };
                (accounts.into_iter().filter_map(update).collect(), gas)
            };
            let mut commit = commit;
            blocks.into_iter().map(|block| block.into_iter().map(&mut commit).collect()).collect()
        })
    }

    proptest! {
        #[test]
        fn merged_updates_have_the_roots_of_single_ones(blocks in blocks(), n in 2u32..6) {
            let policies = [format!("fixed{{{n}}}"), format!("adaptive{{500000,{n},1}}"), "fixed{100}".into()];
            for policy in policies {
                let (mut single, mut merged) = (shards(), shards());
                for block in &blocks {
                    let want = root(&mut single, &send("every-tx", block));
                    prop_assert_eq!(root(&mut merged, &send(&policy, block)), want, "{}", policy);
                }
            }
        }
    }
}
