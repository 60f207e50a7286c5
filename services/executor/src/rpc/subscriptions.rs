//! Subscriptions of `eth_subscribe` (execution-apis, geth's `eth/filters`): new heads, logs of new
//! blocks, pending transactions, and the state of the synchronisation.
//!
//! One thread of the lowest priority follows the head while there are subscribers. It goes from one
//! head to the next, block by block, renders each notice once, and never waits for a subscriber: one
//! that is too far behind loses its subscription. While someone wants pending transactions, it asks
//! the pool for new ones every [`POOL_TICK`].

use super::{
    eth::{BlockLogs, Filter, FilterJson, syncing},
    json::{HeadJson, TransactionJson},
};
use crate::{Chain, ChainReads};
use alloy_consensus::Header;
use parking_lot::Mutex;
use serde_json::value::{RawValue, to_raw_value};
use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, OnceLock},
    task::{Context, Poll, Waker},
    thread,
    time::Duration,
};
use tandem_actor::take_lowest_priority;
use tandem_chain::decode_transaction;
use tandem_http::{
    Notice, Params, RpcError, Subscriber, Subscription, Subscriptions, required, subscription,
};
use tandem_primitives::BlockId;
use tandem_proto::tx_pool::{Arrivals, PooledTransaction, TxPoolApi};
use tokio::{
    runtime::{self, Runtime},
    sync::{Notify, watch},
    time::timeout,
};
use tracing::{debug, warn};

/// Blocks between two heads, on either branch, of which subscribers are told. Of a longer way they
/// are told the end.
const DEPTH_MAX: usize = 64;

/// Notices that a subscriber may be behind.
const BEHIND_MAX: usize = 8_192;

/// Time between two looks at what has no event: the synchronisation, and subscribers that are gone.
const TICK: Duration = Duration::from_secs(1);

/// Time between two questions for pending transactions.
const POOL_TICK: Duration = Duration::from_millis(50);

/// Longest wait for a pool in another process.
const POOL_WAIT_MAX: Duration = Duration::from_millis(500);

/// Returns the subscriptions over a view of the chain.
pub fn subscriptions(reads: &ChainReads) -> Arc<dyn Subscriptions> {
    let hub = Hub {
        chain: reads.chain().clone(),
        pool: reads.transactions.clone(),
        state: Mutex::default(),
        joined: Notify::new(),
    };
    Arc::new(Heads(Arc::new(hub)))
}

struct Heads(Arc<Hub>);

struct Hub {
    chain: Arc<Chain>,
    /// Pool of transactions, empty without one.
    pool: Arc<OnceLock<Arc<dyn TxPoolApi>>>,
    state: Mutex<State>,
    /// Notified when someone subscribes to pending transactions.
    joined: Notify,
}

#[derive(Default)]
struct State {
    subscribers: Vec<(Topic, Subscriber)>,
    /// Whether the thread runs.
    is_followed: bool,
    /// Number of transactions that became pending before those that are told next. `None` while
    /// nobody subscribes to them, or before the pool has told the number.
    arrivals: Option<u64>,
}

impl State {
    fn wants_pending(&self) -> bool {
        self.subscribers.iter().any(|(topic, _)| matches!(topic, Topic::Pending { .. }))
    }
}

/// Topic of a subscription.
enum Topic {
    /// Headers of blocks that become canonical.
    NewHeads,
    /// Logs of blocks that become canonical, or are so no more.
    Logs(Filter),
    /// Transactions that become pending: their hashes, or all of them.
    Pending {
        /// Whether it is all of them.
        full: bool,
    },
    /// Begin and end of the synchronisation.
    Syncing,
}

impl Topic {
    fn of(params: &Params) -> Result<Self, RpcError> {
        let (name, detail): (Option<String>, Option<Box<RawValue>>) = params.decode()?;
        match required(name, 0)?.as_str() {
            "newHeads" => Ok(Self::NewHeads),
            "syncing" => Ok(Self::Syncing),
            "newPendingTransactions" => {
                let full = detail.map(|detail| serde_json::from_str::<Option<bool>>(detail.get()));
                let full = full.transpose().map_err(|error| {
                    RpcError::invalid_params(format_args!("invalid argument 1: {error}"))
                })?;
                Ok(Self::Pending { full: full.flatten().unwrap_or(false) })
            }
            "logs" => {
                let filter = detail.map(|detail| serde_json::from_str::<FilterJson>(detail.get()));
                let filter = filter.transpose().map_err(|error| {
                    RpcError::invalid_params(format_args!("invalid argument 1: {error}"))
                })?;
                Ok(Self::Logs(Filter::of_new_logs(filter.unwrap_or_default())?))
            }
            other => {
                let name: String = other.chars().take(40).collect();
                let text = format!(
                    "no \"{name}\" subscription; there are newHeads, logs, \
                     newPendingTransactions, syncing"
                );
                Err(RpcError::invalid_params(text))
            }
        }
    }
}

impl Subscriptions for Heads {
    fn begin(&self, params: &Params) -> Result<Subscription, RpcError> {
        let topic = Topic::of(params)?;
        let arrivals = match &topic {
            Topic::Pending { .. } => self.0.arrivals()?,
            _ => None,
        };
        let (subscriber, subscription) = subscription(BEHIND_MAX);
        let mut state = self.0.state.lock();
        if !state.is_followed {
            let (hub, heads) = (self.0.clone(), self.0.chain.heads());
            let follow = move || {
                let followed = catch_unwind(AssertUnwindSafe(|| hub.follow(heads)));
                if followed.is_err() {
                    // The next subscriber starts a new thread.
                    hub.give_up();
                }
            };
            let started = thread::Builder::new().name("subscriptions".to_owned()).spawn(follow);
            started.map_err(|error| {
                warn!(%error, "no thread for subscriptions");
                RpcError::internal()
            })?;
            state.is_followed = true;
        }
        if matches!(topic, Topic::Pending { .. }) {
            state.arrivals = state.arrivals.or(arrivals);
            self.0.joined.notify_one();
        }
        state.subscribers.push((topic, subscriber));
        Ok(subscription)
    }
}

impl Hub {
    /// Returns the number of transactions that became pending so far, `None` if the pool is in
    /// another process, which is asked later.
    fn arrivals(&self) -> Result<Option<u64>, RpcError> {
        let no_pool = || RpcError::server("this process has no transaction pool");
        let pool = self.pool.get().ok_or_else(no_pool)?;
        let mut context = Context::from_waker(Waker::noop());
        Ok(match pool.arrivals(None).as_mut().poll(&mut context) {
            Poll::Ready(answer) => answer.ok().map(|arrivals| arrivals.upto),
            Poll::Pending => None,
        })
    }

    /// Follows the head until no subscriber is left.
    fn follow(&self, mut heads: watch::Receiver<BlockId>) {
        take_lowest_priority();
        let Ok(clock) = runtime::Builder::new_current_thread().enable_time().build() else {
            return self.give_up();
        };
        let mut head = *heads.borrow_and_update();
        let mut is_syncing = self.chain.is_syncing();
        while self.has_subscribers() {
            let tick = if self.state.lock().wants_pending() { POOL_TICK } else { TICK };
            clock.block_on(async {
                tokio::select! {
                    // An error is the end of the time, or of the chain.
                    _ = timeout(tick, heads.changed()) => {}
                    () = self.joined.notified() => {}
                }
            });
            let next = *heads.borrow_and_update();
            if next != head {
                self.tell_of_blocks(head, next);
                head = next;
            }
            if is_syncing != self.chain.is_syncing() {
                is_syncing = !is_syncing;
                self.tell_of_sync(is_syncing);
            }
            self.tell_of_pending(&clock);
        }
    }

    /// Forgets subscribers that are gone. Returns whether any is left; the thread ends if not.
    fn has_subscribers(&self) -> bool {
        let mut state = self.state.lock();
        state.subscribers.retain(|(_, subscriber)| !subscriber.is_gone());
        state.is_followed = !state.subscribers.is_empty();
        state.is_followed
    }

    /// Ends all subscriptions.
    fn give_up(&self) {
        *self.state.lock() = State::default();
    }

    /// Tells all subscribers for whom `notices` has something. Those that are too far behind lose
    /// their subscription.
    fn tell(&self, notices: impl Fn(&Topic) -> Vec<Notice>) {
        // Taken out, so that nobody who subscribes waits for the rendering.
        let mut subscribers = std::mem::take(&mut self.state.lock().subscribers);
        subscribers.retain(|(topic, subscriber)| {
            notices(topic).into_iter().all(|notice| subscriber.tell(notice))
        });
        let mut state = self.state.lock();
        subscribers.append(&mut state.subscribers);
        state.subscribers = subscribers;
    }

    fn tell_of_sync(&self, is_syncing: bool) {
        let status = syncing(&self.chain);
        let notice = match (is_syncing, status) {
            (true, Ok(status)) => format!(r#"{{"syncing":true,"status":{status}}}"#),
            _ => "false".to_owned(),
        };
        let Ok(notice) = RawValue::from_string(notice).map(Arc::from) else { return };
        self.tell(|topic| match topic {
            Topic::Syncing => vec![Arc::clone(&notice)],
            _ => Vec::new(),
        });
    }

    fn tell_of_pending(&self, clock: &Runtime) {
        let after = {
            let mut state = self.state.lock();
            state.arrivals = state.arrivals.filter(|_| state.wants_pending());
            if !state.wants_pending() {
                return;
            }
            state.arrivals
        };
        let Some(pool) = self.pool.get() else { return };
        let answer = clock.block_on(async { timeout(POOL_WAIT_MAX, pool.arrivals(after)).await });
        let Arrivals { transactions, upto } = match answer {
            Ok(Ok(arrivals)) => arrivals,
            Ok(Err(error)) => return debug!(%error, "pending transactions not known"),
            Err(_) => return debug!("the pool does not tell pending transactions in time"),
        };
        self.state.lock().arrivals = Some(upto);
        let hashes: Vec<Notice> = rendered(&transactions, |tx| to_raw_value(&tx.hash).ok());
        let all = OnceLock::<Vec<Notice>>::new();
        self.tell(|topic| match topic {
            Topic::Pending { full: false } => hashes.clone(),
            Topic::Pending { full: true } => {
                all.get_or_init(|| rendered(&transactions, whole)).clone()
            }
            _ => Vec::new(),
        });
    }

    fn tell_of_blocks(&self, from: BlockId, to: BlockId) {
        let (removed, added) = self.way(from, to);
        // Also from the lowest on, as subscribers know it from geth.
        for (id, header) in removed.into_iter().rev() {
            self.tell_of_logs(id, &header, true);
        }
        for (id, header) in added.into_iter().rev() {
            if let Ok(head) = to_raw_value(&HeadJson { header: &header, hash: id.hash }) {
                let head = Notice::from(head);
                self.tell(|topic| match topic {
                    Topic::NewHeads => vec![head.clone()],
                    _ => Vec::new(),
                });
            }
            self.tell_of_logs(id, &header, false);
        }
    }

    fn tell_of_logs(&self, id: BlockId, header: &Header, removed: bool) {
        let is_wanted = |(topic, _): &(Topic, Subscriber)| match topic {
            Topic::Logs(filter) => filter.may_match(&header.logs_bloom),
            _ => false,
        };
        if !self.state.lock().subscribers.iter().any(is_wanted) {
            return;
        }
        let logs = match BlockLogs::read(&self.chain, id, header) {
            Ok(Some(logs)) => logs,
            Ok(None) => return,
            Err(error) => {
                return warn!(%id, error = %error.message, "logs for subscribers not read");
            }
        };
        self.tell(|topic| match topic {
            Topic::Logs(filter) if filter.may_match(&header.logs_bloom) => {
                let mut found = Vec::new();
                let added = logs.add(filter, usize::MAX, removed, &mut found);
                if let Err(error) = added {
                    warn!(%id, error = %error.message, "logs for a subscriber not rendered");
                }
                found.into_iter().map(Notice::from).collect()
            }
            _ => Vec::new(),
        });
    }

    /// Returns the blocks that left the canonical chain between two heads and those that joined it,
    /// the highest first.
    fn way(&self, from: BlockId, to: BlockId) -> (Blocks, Blocks) {
        let (mut old, mut new) = (from, to);
        let (mut removed, mut added) = (Blocks::new(), Blocks::new());
        while old.hash != new.hash {
            let is_new = new.number >= old.number;
            let (at, blocks) =
                if is_new { (&mut new, &mut added) } else { (&mut old, &mut removed) };
            let known = self.chain.header_by_hash(at.hash).ok().flatten();
            let Some((id, header)) = known.filter(|_| blocks.len() < DEPTH_MAX) else {
                // The other end is too far, or is not known any more.
                return (Blocks::new(), added);
            };
            *at = BlockId::new(id.number.saturating_sub(1), header.parent_hash);
            blocks.push((id, header));
        }
        (removed, added)
    }
}

/// Renders transactions, without those that cannot be rendered.
fn rendered(
    transactions: &[PooledTransaction],
    render: impl Fn(&PooledTransaction) -> Option<Box<RawValue>>,
) -> Vec<Notice> {
    transactions.iter().filter_map(|tx| render(tx).map(Notice::from)).collect()
}

fn whole(pooled: &PooledTransaction) -> Option<Box<RawValue>> {
    let transaction = decode_transaction(&pooled.raw).ok()?;
    to_raw_value(&TransactionJson::pooled(&transaction, pooled.hash, pooled.sender)).ok()
}

type Blocks = Vec<(BlockId, Arc<Header>)>;
