//! Execution of leased transactions, at a tx-executor. The EVM is that of the prewarm threads.

use super::{environment::evm_env, fragment::outcome_of};
use crate::{
    ahead::{
        senders::recovered,
        speculate::{AheadEvm, Miss, Reader, speculate},
    },
    block::evm::BlockEvm,
    error::Error,
    state::{
        StateReader,
        code::analyze,
        listed::ListedState,
        parent::{ParentState, StateKey, StateValue},
        published::Published,
        reads::{Recorder, Sources},
    },
};
use alloy_eips::Decodable2718;
use alloy_evm::EvmEnv;
use alloy_primitives::map::{B256Map, HashMap};
use parking_lot::Mutex;
use quick_cache::{Weighter, sync::Cache};
use revm::{
    context::{TxEnv, result::EVMError},
    state::Bytecode,
};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::{Duration, Instant},
};
use tandem_chain::Transaction;
use tandem_primitives::{Account, B256, Bytes, EMPTY_CODE_HASH, U256, keccak256};
use tandem_proto::tx_executor::{
    BlockWorker, FilledBlock, ListedBlock, OpenBlock, RangeTransaction, TxExecution, TxResult,
};
use tracing::warn;

/// Estimated number of codes in the cache.
const CODES: usize = 20_000;

/// Executes transactions of blocks whose values were sent. Keeps codes beyond a block.
pub struct TransactionWorkers {
    codes: Arc<Codes>,
    recover: Recover,
}

type Codes = Cache<B256, Bytecode, CodeBytes>;

/// Returns a transaction as input of the EVM, with its signers. `None` if its signature is invalid.
type Recover = fn(&Transaction) -> Option<TxEnv>;

#[derive(Clone)]
struct CodeBytes;

impl Weighter<B256, Bytecode> for CodeBytes {
    fn weight(&self, _hash: &B256, code: &Bytecode) -> u64 {
        code.len() as u64 + 64
    }
}

impl TransactionWorkers {
    /// Creates an instance that keeps at most so many bytes of code.
    pub fn new(code_bytes_max: u64) -> Self {
        let codes = Cache::with_weighter(CODES, code_bytes_max, CodeBytes);
        Self { codes: Arc::new(codes), recover: recovered }
    }

    /// Has signers recovered by this function.
    #[cfg(test)]
    pub fn recovering_by(self, recover: Recover) -> Self {
        Self { recover, ..self }
    }
}

impl TxExecution for TransactionWorkers {
    fn open(&self, block: ListedBlock) -> Result<Arc<dyn OpenBlock>, String> {
        let listed = ListedState::without_hashes(&block.list);
        let listed = listed.ok_or("the access list does not decode")?;
        Ok(Arc::new(Open {
            listed: Arc::new(listed),
            env: evm_env(&block.environment),
            codes: self.codes.clone(),
            signers: Arc::new(Signers { recover: self.recover, recovered: Mutex::default() }),
        }))
    }
}

/// Block without values.
struct Open {
    listed: Arc<ListedState>,
    env: EvmEnv,
    codes: Arc<Codes>,
    signers: Arc<Signers>,
}

impl OpenBlock for Open {
    fn prepare(&self, transaction: &RangeTransaction) {
        // The execution meets the panic once more.
        let recovered = catch_unwind(AssertUnwindSafe(|| self.signers.recover(transaction)));
        if let Ok(Some(environment)) = recovered {
            self.signers.recovered.lock().insert(transaction.index, environment);
        }
    }

    fn fill(
        &self,
        accounts: Vec<Option<Account>>,
        sent: Vec<Bytes>,
    ) -> Result<Arc<dyn FilledBlock>, String> {
        let mut codes = B256Map::default();
        for code in sent {
            let (hash, code) = (keccak256(&code), analyze(code));
            self.codes.insert(hash, code.clone());
            codes.insert(hash, code);
        }
        for account in accounts.iter().flatten() {
            let hash = account.code_hash;
            if hash != EMPTY_CODE_HASH
                && !codes.contains_key(&hash)
                && let Some(code) = self.codes.get(&hash)
            {
                codes.insert(hash, code);
            }
        }
        if !self.listed.set_accounts(accounts) {
            return Err("more or fewer accounts were sent than the list names".to_owned());
        }
        let sources = Arc::new(Sources {
            published: Published::new(),
            listed: Some(self.listed.clone()),
            parent: Arc::new(SentCodes(codes)),
            block_hashes: Arc::new(|_| Err(Error::NotInMemory)),
        });
        let (listed, env, signers) = (self.listed.clone(), self.env.clone(), self.signers.clone());
        Ok(Arc::new(Filled { listed, sources, env, signers }))
    }
}

/// Recovers the signers of transactions, some of them beforehand.
struct Signers {
    recover: Recover,
    /// Transactions as input of the EVM, by their positions, until they are executed.
    recovered: Mutex<HashMap<u32, TxEnv>>,
}

impl Signers {
    /// Returns a transaction as input of the EVM, `None` if it does not decode or its signature is
    /// invalid: the executor meets that.
    fn recover(&self, sent: &RangeTransaction) -> Option<TxEnv> {
        let transaction = Transaction::decode_2718_exact(&sent.bytes).ok()?;
        (self.recover)(&transaction)
    }

    /// Returns a transaction as input of the EVM for its execution.
    fn take(&self, sent: &RangeTransaction) -> Option<TxEnv> {
        let recovered = self.recovered.lock().remove(&sent.index);
        recovered.or_else(|| self.recover(sent))
    }
}

struct Filled {
    listed: Arc<ListedState>,
    sources: Arc<Sources>,
    env: EvmEnv,
    signers: Arc<Signers>,
}

impl FilledBlock for Filled {
    fn set_slots(&self, slots: Vec<U256>) -> Result<(), String> {
        match self.listed.set_slots(slots) {
            true => Ok(()),
            false => Err("more or fewer slots were sent than the list names".to_owned()),
        }
    }

    fn give_up_slots(&self) {
        self.listed.give_up_slots();
    }

    fn worker(&self) -> Box<dyn BlockWorker> {
        let (sources, env, signers) =
            (self.sources.clone(), self.env.clone(), self.signers.clone());
        Box::new(Worker { sources, env, signers, evm: None })
    }
}

struct Worker {
    sources: Arc<Sources>,
    env: EvmEnv,
    signers: Arc<Signers>,
    evm: Option<AheadEvm<'static>>,
}

impl Worker {
    fn try_execute(&mut self, sent: &RangeTransaction) -> TxResult {
        let mut done = TxResult {
            index: sent.index,
            took: Duration::ZERO,
            outcome: None,
            code_missing: false,
        };
        let began = Instant::now();
        let Some(environment) = self.signers.take(sent) else { return done };
        let evm = self.evm.get_or_insert_with(|| {
            let reader = Reader::new(self.sources.parent.clone(), Miss::Read);
            BlockEvm::new(Recorder::new(self.sources.clone(), reader), self.env.clone())
        });
        match speculate(evm, sent.index as usize, environment) {
            Ok(Some(result)) => {
                done.took = began.elapsed();
                let listed = self.sources.listed.as_deref();
                done.outcome = listed.and_then(|listed| outcome_of(result, listed));
            }
            // The executor executes the transaction, and meets its own error.
            Ok(None) => {}
            Err(error) => {
                done.code_missing = matches!(error, EVMError::Database(Error::MissingCode(_)));
            }
        }
        done
    }
}

impl BlockWorker for Worker {
    fn execute(&mut self, transaction: &RangeTransaction) -> TxResult {
        let execute = AssertUnwindSafe(|| self.try_execute(transaction));
        catch_unwind(execute).unwrap_or_else(|_| {
            warn!(index = transaction.index, "execution of a leased transaction panicked");
            self.evm = None;
            let (index, took) = (transaction.index, Duration::ZERO);
            TxResult { index, took, outcome: None, code_missing: false }
        })
    }
}

/// Codes that were sent. The list has all other values, so nothing else can be read.
struct SentCodes(B256Map<Bytecode>);

impl StateReader for SentCodes {
    fn account(&self, _address_hash: &B256) -> Result<Option<Account>, Error> {
        Err(Error::NotInMemory)
    }

    fn slot(&self, _address_hash: &B256, _slot: &B256) -> Result<U256, Error> {
        Err(Error::NotInMemory)
    }

    fn has_storage(&self, _address_hash: &B256) -> Result<bool, Error> {
        Err(Error::NotInMemory)
    }

    fn code(&self, code_hash: &B256) -> Result<Bytecode, Error> {
        self.0.get(code_hash).cloned().ok_or(Error::MissingCode(*code_hash))
    }
}

impl ParentState for SentCodes {
    fn in_memory(&self, key: &StateKey) -> Result<Option<StateValue>, Error> {
        Ok(match key {
            StateKey::Account(_) | StateKey::Slot(..) => None,
            StateKey::Code(hash) => self.code(hash).ok().map(StateValue::Code),
        })
    }

    fn read_together(&self, keys: &[StateKey]) -> Result<Vec<Option<StateValue>>, Error> {
        keys.iter().map(|key| self.in_memory(key)).collect()
    }

    fn calls(&self) -> u64 {
        0
    }

    fn call_time(&self) -> Duration {
        Duration::ZERO
    }

    fn is_far(&self) -> bool {
        false
    }
}
