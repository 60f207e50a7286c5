//! Transactions of users: those of one call are accepted together, and are pending again after a restart.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used)]

use alloy_consensus::{Header, SignableTransaction, TxEip1559};
use alloy_eips::eip2718::Encodable2718;
use alloy_primitives::{Signature, TxKind};
use secp256k1::{Message, SECP256K1, SecretKey};
use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};
use tandem_admission::SenderAccount;
use tandem_bus::Bus;
use tandem_chain::{Block, ChainSpec};
use tandem_primitives::{Address, B256, BlockId, Bytes, U256};
use tandem_proto::{
    blob_validator::{self, BlobApi, Bundle, Content, Status, StoredBlob, Verdict},
    tx_pool::TxPoolApi,
};
use tandem_tx_pool::{ChainError, ChainReads, Config, Deps, Head, TxPool};
use tokio::runtime::Runtime;
use tokio_util::sync::CancellationToken;

const PATIENCE: Duration = Duration::from_secs(60);

/// More than wait for an earlier nonce of their sender, and than one thread judges at a time.
const TRANSACTIONS: u64 = 200;

const GENESIS: &str = r#"{"config": {"chainId": 7, "londonBlock": 0, "terminalTotalDifficulty": 0,
    "shanghaiTime": 0, "cancunTime": 0, "pragueTime": 0, "blobSchedule": {"cancun":
    {"target": 3, "max": 6, "baseFeeUpdateFraction": 3338477}, "prague":
    {"target": 6, "max": 9, "baseFeeUpdateFraction": 5007716}}},
    "gasLimit": "0x1c9c380", "difficulty": "0x0"}"#;

fn wait(what: &str, mut look: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !look() {
        assert!(begin.elapsed() < PATIENCE, "waited for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

/// Chain without transactions on which all accounts have the same balance.
struct Chain {
    spec: ChainSpec,
    number: AtomicU64,
    balance: AtomicU64,
    reads: AtomicUsize,
    /// Whether the first read takes so long that no other comes meanwhile.
    is_slow_at_first: bool,
}

impl Chain {
    fn new(balance: u64, is_slow_at_first: bool) -> Arc<Self> {
        Arc::new(Self {
            spec: ChainSpec::from_genesis_json(GENESIS).unwrap(),
            number: AtomicU64::new(1),
            balance: AtomicU64::new(balance),
            reads: AtomicUsize::new(0),
            is_slow_at_first,
        })
    }
}

impl ChainReads for Chain {
    fn spec(&self) -> &ChainSpec {
        &self.spec
    }

    fn head(&self) -> Result<Head, ChainError> {
        let number = self.number.load(SeqCst);
        let header = Header {
            number,
            gas_limit: 30_000_000,
            base_fee_per_gas: Some(10),
            excess_blob_gas: Some(0),
            blob_gas_used: Some(0),
            ..Header::default()
        };
        let id = BlockId::new(number, B256::from(U256::from(number)));
        Ok(Head { id, header: header.into(), finalized: None })
    }

    fn accounts(&self, _: B256, addresses: &[Address]) -> Result<Vec<SenderAccount>, ChainError> {
        // The actor asks for nobody's account when it starts.
        if !addresses.is_empty() && self.reads.fetch_add(1, SeqCst) == 0 && self.is_slow_at_first {
            let mut seen = 0;
            while seen != self.reads.load(SeqCst) {
                seen = self.reads.load(SeqCst);
                std::thread::sleep(Duration::from_millis(200));
            }
        }
        let balance = U256::from(self.balance.load(SeqCst));
        Ok(vec![SenderAccount { balance, ..SenderAccount::default() }; addresses.len()])
    }

    fn block(&self, _: B256) -> Result<Option<Block>, ChainError> {
        Ok(None)
    }

    fn is_syncing(&self) -> bool {
        false
    }
}

/// blob-validator, which nobody needs here.
struct NoBlobs;

impl BlobApi for NoBlobs {
    fn validate(&self, _: Arc<Bundle>, _: Duration) -> blob_validator::Pending<Verdict> {
        unreachable!("no transaction has blobs")
    }

    fn refuse(&self, _: usize) -> Option<blob_validator::Error> {
        None
    }

    fn recall(&self, _: Content) -> blob_validator::Pending<bool> {
        unreachable!("no transaction has blobs")
    }

    fn get_blobs(&self, _: &[B256]) -> blob_validator::Pending<Vec<Option<Arc<StoredBlob>>>> {
        unreachable!("no transaction has blobs")
    }

    fn forget(&self, _: &[B256]) {}

    fn status(&self) -> blob_validator::Pending<Status> {
        unreachable!("nobody asks")
    }
}

fn start(datadir: &Path, chain: Arc<Chain>) -> Arc<TxPool> {
    let datadir = datadir.to_owned();
    let config = Config { datadir, local_retry_seconds: 1, ..Config::default() };
    let (bus, fatal) = (Bus::default(), CancellationToken::new());
    TxPool::start(config, Deps { chain, blobs: Arc::new(NoBlobs), bus, fatal }).unwrap()
}

fn transfer(nonce: u64) -> Bytes {
    let transaction = TxEip1559 {
        chain_id: 7,
        nonce,
        gas_limit: 21_000,
        max_fee_per_gas: 20,
        max_priority_fee_per_gas: 1,
        to: TxKind::Call(Address::repeat_byte(1)),
        ..TxEip1559::default()
    };
    let key = SecretKey::from_byte_array([7; 32]).unwrap();
    let message = Message::from_digest(transaction.signature_hash().0);
    let (recovery, compact) = SECP256K1.sign_ecdsa_recoverable(message, &key).serialize_compact();
    let signature = Signature::from_bytes_and_parity(&compact, i32::from(recovery) == 1);
    transaction.into_signed(signature).encoded_2718().into()
}

/// Sends transactions as a user, and ends the pool once all are accepted.
fn accept(runtime: &Runtime, datadir: &Path, count: u64) {
    let pool = start(datadir, Chain::new(u64::MAX, false));
    let added = runtime.block_on(pool.add((0..count).map(transfer).collect()));
    assert!(added.iter().all(Result::is_ok), "{added:?}");
    pool.stop();
}

fn pending(runtime: &Runtime, pool: &TxPool) -> usize {
    runtime.block_on(pool.counts()).unwrap().pending
}

#[test]
fn all_of_one_call_are_accepted_although_a_thread_of_the_intake_stands_still() {
    let (runtime, datadir) = (Runtime::new().unwrap(), tempfile::tempdir().unwrap());
    let pool = start(datadir.path(), Chain::new(u64::MAX, true));
    let added = runtime.block_on(pool.add((0..TRANSACTIONS).map(transfer).collect()));
    assert!(added.iter().all(Result::is_ok), "{added:?}");
    assert_eq!(pending(&runtime, &pool) as u64, TRANSACTIONS);
    pool.stop();
}

#[test]
fn all_are_added_again_although_a_thread_of_the_intake_stands_still() {
    let (runtime, datadir) = (Runtime::new().unwrap(), tempfile::tempdir().unwrap());
    accept(&runtime, datadir.path(), TRANSACTIONS);
    let pool = start(datadir.path(), Chain::new(u64::MAX, true));
    wait("all transactions", || pending(&runtime, &pool) as u64 == TRANSACTIONS);
    pool.stop();
}

#[test]
fn those_that_their_sender_cannot_pay_after_a_restart_are_kept_until_it_can() {
    let (runtime, datadir) = (Runtime::new().unwrap(), tempfile::tempdir().unwrap());
    accept(&runtime, datadir.path(), 2);
    // For the first one only.
    let chain = Chain::new(21_000 * 20, false);
    let pool = start(datadir.path(), chain.clone());
    wait("the first transaction", || pending(&runtime, &pool) == 1);
    chain.balance.store(0, SeqCst);
    chain.number.fetch_add(1, SeqCst);
    wait("none", || pending(&runtime, &pool) == 0);
    chain.balance.store(u64::MAX, SeqCst);
    chain.number.fetch_add(1, SeqCst);
    wait("both transactions", || pending(&runtime, &pool) == 2);
    pool.stop();
}
