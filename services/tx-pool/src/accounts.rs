//! Accounts of senders at a head, remembered until the next one. A transaction is checked against its
//! sender's account twice, and a sender sends many. In a cluster each read is a call to storage-writer, which
//! has blocks to store meanwhile.

use crate::chain::{ChainError, ChainReads, Head};
use parking_lot::Mutex;
use std::{collections::HashMap, sync::Arc};
use tandem_admission::SenderAccount;
use tandem_chain::{Block, ChainSpec};
use tandem_primitives::{Address, B256};

/// Accounts that are remembered, of about 100 bytes each. Further ones are read each time.
const ACCOUNTS_MAX: usize = 65_536;

/// Chain whose accounts are read once for each block. What a block left behind never changes.
pub(crate) struct ReadOnce {
    chain: Arc<dyn ChainReads>,
    known: Mutex<Known>,
}

/// Accounts in the state after a block.
#[derive(Default)]
struct Known {
    block: B256,
    accounts: HashMap<Address, SenderAccount>,
}

impl Known {
    /// Takes note of accounts in the state after a block, and forgets those of another one.
    fn learn(&mut self, block: B256, read: impl IntoIterator<Item = (Address, SenderAccount)>) {
        if self.block != block {
            // With its memory: there may have been many.
            *self = Self { block, accounts: HashMap::new() };
        }
        for (address, account) in read {
            if self.accounts.len() < ACCOUNTS_MAX || self.accounts.contains_key(&address) {
                self.accounts.insert(address, account);
            }
        }
    }
}

impl ReadOnce {
    pub fn new(chain: Arc<dyn ChainReads>) -> Self {
        Self { chain, known: Mutex::default() }
    }
}

impl ChainReads for ReadOnce {
    fn spec(&self) -> &ChainSpec {
        self.chain.spec()
    }

    fn head(&self) -> Result<Head, ChainError> {
        self.chain.head()
    }

    fn accounts(
        &self,
        block: B256,
        addresses: &[Address],
    ) -> Result<Vec<SenderAccount>, ChainError> {
        let mut found: Vec<Option<SenderAccount>> = {
            let known = self.known.lock();
            let find = |address| known.accounts.get(address).filter(|_| known.block == block);
            addresses.iter().map(|address| find(address).copied()).collect()
        };
        let missing = addresses.iter().zip(&found).filter(|(_, found)| found.is_none());
        let missing: Vec<Address> = missing.map(|(address, _)| *address).collect();
        if !missing.is_empty() {
            // Without the lock: another thread may find what it looks for meanwhile.
            let read = self.chain.accounts(block, &missing)?;
            self.known.lock().learn(block, missing.into_iter().zip(read.iter().copied()));
            let gaps = found.iter_mut().filter(|found| found.is_none());
            gaps.zip(read).for_each(|(gap, account)| *gap = Some(account));
        }
        Ok(found.into_iter().map(Option::unwrap_or_default).collect())
    }

    fn block(&self, hash: B256) -> Result<Option<Block>, ChainError> {
        self.chain.block(hash)
    }

    fn is_syncing(&self) -> bool {
        self.chain.is_syncing()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::iter;

    /// Chain on which an account's nonce says which block and address it is of, and which counts reads.
    #[derive(Default)]
    struct Counting {
        read: Mutex<Vec<Address>>,
    }

    fn nonce_of(block: B256, address: Address) -> u64 {
        u64::from(block[0]) << 32 | u64::from(address[19])
    }

    impl ChainReads for Counting {
        fn spec(&self) -> &ChainSpec {
            unreachable!("an account needs no rules")
        }

        fn head(&self) -> Result<Head, ChainError> {
            Err(ChainError("there is none".to_owned()))
        }

        fn accounts(
            &self,
            block: B256,
            addresses: &[Address],
        ) -> Result<Vec<SenderAccount>, ChainError> {
            if block.is_zero() {
                return Err(ChainError("the state is gone".to_owned()));
            }
            self.read.lock().extend(addresses);
            let account =
                |address| SenderAccount { nonce: nonce_of(block, address), ..Default::default() };
            Ok(addresses.iter().map(|address| account(*address)).collect())
        }

        fn block(&self, _: B256) -> Result<Option<Block>, ChainError> {
            Ok(None)
        }

        fn is_syncing(&self) -> bool {
            false
        }
    }

    fn address(number: u8) -> Address {
        Address::with_last_byte(number)
    }

    #[test]
    fn an_account_is_read_once_for_each_block() {
        let counting = Arc::<Counting>::default();
        let chain = ReadOnce::new(counting.clone());
        let ask = |block: u8, numbers: &[u8]| {
            let block = B256::repeat_byte(block);
            let addresses: Vec<_> = numbers.iter().copied().map(address).collect();
            let nonces: Vec<_> =
                chain.accounts(block, &addresses).unwrap().iter().map(|it| it.nonce).collect();
            let want: Vec<_> = addresses.iter().map(|it| nonce_of(block, *it)).collect();
            assert_eq!(nonces, want, "block {block}");
            std::mem::take(&mut *counting.read.lock())
        };
        assert_eq!(ask(1, &[1, 2]), [1, 2].map(address));
        assert_eq!(
            ask(1, &[2, 3, 1, 4]),
            [3, 4].map(address),
            "only what is missing, in its place"
        );
        assert!(ask(1, &[4, 1]).is_empty());
        assert_eq!(ask(2, &[1]), [address(1)], "another state");
        assert_eq!(ask(1, &[1]), [address(1)], "the first one was forgotten");
        assert!(chain.accounts(B256::ZERO, &[address(1)]).is_err());
        assert!(ask(1, &[1]).is_empty(), "nothing is learnt from a failure");
    }

    #[test]
    fn memory_is_bounded() {
        let mut known = Known::default();
        let many = (0..).map(|number: u64| {
            let address = Address::from_word(B256::from(tandem_primitives::U256::from(number)));
            (address, SenderAccount { nonce: number, ..SenderAccount::default() })
        });
        known.learn(B256::ZERO, many.take(2 * ACCOUNTS_MAX));
        assert_eq!(known.accounts.len(), ACCOUNTS_MAX);
        let first = (Address::ZERO, SenderAccount { nonce: 7, ..SenderAccount::default() });
        known.learn(B256::ZERO, iter::once(first));
        assert_eq!(known.accounts[&Address::ZERO].nonce, 7);
    }
}
