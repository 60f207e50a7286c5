//! `tandem spam`: sends transactions of many kinds at a rate, to put a network under load.
//!
//! The accounts follow from a seed, and get their money from one account whose key is given. Each
//! account has at most [`PER_ACCOUNT_MAX`] transactions that are in no block, so a pool keeps them
//! all. Those of one account leave on one connection, in the order of their nonces.

mod kinds;
mod wallet;

use crate::{
    output::print,
    rpc::{self, Rpc},
    serve::Signals,
};
use alloy_primitives::{Address, Bytes, U256};
use anyhow::{Context, ensure};
pub use kinds::Kind;
use kinds::{Setting, creation, payment, random};
use rand::{Rng, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    path::PathBuf,
    process::ExitCode,
    time::{Duration, Instant},
};
use tokio::{sync::mpsc, task::JoinSet, time::sleep};
pub use wallet::Wallet;

/// Transactions of one account that are in no block. geth guarantees each account 16.
const PER_ACCOUNT_MAX: u64 = 16;
/// Money that each account gets, in wei.
const FUNDS: u128 = 10_000_000_000_000_000_000;
/// Money below which an account gets more.
const FUNDS_MIN: u128 = FUNDS / 10;
/// Connections, on which transactions leave at the same time.
const CONNECTIONS: usize = 4;
/// Transactions that wait for one connection.
const WAITING_MAX: usize = 256;
/// Time after which nonces and fees are asked for again.
const LOOK_EVERY: Duration = Duration::from_secs(1);
/// Longest wait for a transaction of the preparation to be in a block.
const PREPARATION_MAX: Duration = Duration::from_secs(120);

/// Options of `tandem spam`.
#[derive(clap::Args)]
pub struct Args {
    /// JSON-RPC of the node that takes the transactions
    #[arg(long, value_name = "URL", default_value = "http://127.0.0.1:8545")]
    pub url: String,
    /// File with the private key of the account that pays for everything, 64 hexadecimal digits
    #[arg(long, value_name = "FILE")]
    pub key: PathBuf,
    /// Transactions a second
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    pub rate: u32,
    /// Seconds for which to send
    #[arg(long, value_name = "N", default_value_t = 60)]
    pub seconds: u64,
    /// Number of accounts that send
    #[arg(long, value_name = "N", default_value_t = 64, value_parser = clap::value_parser!(u32).range(1..=10_000))]
    pub accounts: u32,
    /// Seed of the accounts and of all that is random
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
    /// Kinds of transactions, each as often as the others [default: all but blob]
    #[arg(long, value_name = "KIND", value_delimiter = ',')]
    pub kinds: Vec<Kind>,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
}

/// Sends transactions until the time is over or a signal comes. Exit code 1 if the node took none.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let json = args.json;
    let sent = crate::serve::block_on(spam(args))?;
    print(&if json { format!("{}\n", sent.json()) } else { sent.text() })?;
    Ok(if sent.accepted > 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

/// Result of a run.
#[derive(Default)]
pub struct Sent {
    pub accepted: u64,
    /// Refused transactions by the node's message.
    refused: BTreeMap<String, u64>,
    /// Times at which no account had room for another transaction.
    full: u64,
    /// Transactions of the accounts that came into blocks.
    pub included: u64,
    seconds: f64,
}

impl Sent {
    fn count(&mut self, outcome: Result<(), String>) {
        match outcome {
            Ok(()) => self.accepted += 1,
            Err(message) => *self.refused.entry(message).or_default() += 1,
        }
    }

    fn json(&self) -> Value {
        let Self { accepted, refused, full, included, seconds } = self;
        json!({
            "accepted": accepted, "refused": refused, "full": full, "included": included,
            "seconds": seconds,
        })
    }

    /// Returns the result in words.
    pub fn text(&self) -> String {
        let Self { accepted, refused, full, included, seconds } = self;
        let rate = *accepted as f64 / seconds.max(f64::EPSILON);
        let mut text = format!(
            "accepted {accepted} in {seconds:.1} s ({rate:.0} a second), in blocks {included}\n"
        );
        for (message, count) in refused {
            text += &format!("refused {count}: {message}\n");
        }
        if *full > 0 {
            text += &format!("not sent, as all accounts had {PER_ACCOUNT_MAX} waiting: {full}\n");
        }
        text
    }
}

/// An account that sends.
struct Sender {
    wallet: Wallet,
    /// Nonce of the next transaction.
    next: u64,
    /// Nonce of the account at the head.
    included: u64,
    /// Nonce at the head when the run began.
    first: u64,
    /// Whether a transaction was refused, so that later ones would have to wait for it.
    is_broken: bool,
}

/// A transaction on its way, and the account that sent it.
struct Letter {
    sender: usize,
    raw: Bytes,
}

/// Sends transactions until the time is over or a signal comes.
///
/// # Errors
/// Returns an error if the node cannot be reached, or the accounts cannot be prepared.
pub async fn spam(args: Args) -> anyhow::Result<Sent> {
    let funder = Wallet::load(&args.key)?;
    let mut rpc = Rpc::new(&args.url, None)?;
    let wallets: Vec<_> =
        (0..args.accounts).map(|number| Wallet::derived(args.seed, number.into())).collect();
    let mut setting = Setting {
        chain_id: rpc.quantity("eth_chainId", json!([])).await?.try_into()?,
        fee_max: 0,
        blob_fee_max: 0,
        store: wallets[0].address.create(0),
        accounts: wallets.iter().map(|wallet| wallet.address).collect(),
    };
    fees(&mut rpc, &mut setting).await?;
    fund(&mut rpc, &funder, &setting).await?;
    make_store(&mut rpc, &wallets[0], &setting).await?;
    let mut senders = Vec::new();
    for wallet in wallets {
        let first = nonce(&mut rpc, wallet.address, "latest").await?;
        let next = nonce(&mut rpc, wallet.address, "pending").await?;
        senders.push(Sender { wallet, next, included: first, first, is_broken: false });
    }
    let mut sent = Sent::default();
    send(&args, &mut rpc, &mut setting, &mut senders, &mut sent).await?;
    look(&mut rpc, &mut senders).await?;
    sent.included = senders.iter().map(|sender| sender.included - sender.first).sum();
    Ok(sent)
}

/// Sends transactions at the rate until the time is over or a signal comes.
async fn send(
    args: &Args,
    rpc: &mut Rpc,
    setting: &mut Setting,
    senders: &mut [Sender],
    sent: &mut Sent,
) -> anyhow::Result<()> {
    let kinds = if args.kinds.is_empty() { Kind::USUAL.to_vec() } else { args.kinds.clone() };
    let mut rng = StdRng::seed_from_u64(args.seed);
    let (reports, mut reported) = mpsc::channel(CONNECTIONS * WAITING_MAX);
    let mut posts = Vec::new();
    let mut tasks = JoinSet::new();
    for _ in 0..CONNECTIONS {
        let (post, letters) = mpsc::channel(WAITING_MAX);
        posts.push(post);
        tasks.spawn(deliver(Rpc::new(&args.url, None)?, letters, reports.clone()));
    }
    drop(reports);
    let (begin, mut looked, mut signals) = (Instant::now(), Instant::now(), Signals::listen()?);
    let end = Duration::from_secs(args.seconds);
    let (mut due, mut at) = (0, 0);
    let mut ticks = tokio::time::interval(Duration::from_millis(10));
    while begin.elapsed() < end {
        tokio::select! {
            _ = ticks.tick() => {}
            _ = signals.any() => break,
        }
        while let Ok((sender, outcome)) = reported.try_recv() {
            note(senders, sent, sender, outcome);
        }
        if looked.elapsed() >= LOOK_EVERY {
            looked = Instant::now();
            fees(rpc, setting).await?;
            look(rpc, senders).await?;
        }
        let wanted = (begin.elapsed().as_secs_f64() * f64::from(args.rate)) as u64;
        while due < wanted {
            due += 1;
            let Some(index) = next_sender(senders, &mut at) else {
                sent.full += 1;
                continue;
            };
            let sender = &mut senders[index];
            let kind = kinds[rng.random_range(0..kinds.len())];
            let raw = random(kind, &sender.wallet, sender.next, setting, &mut rng);
            match posts[index % CONNECTIONS].try_send(Letter { sender: index, raw }) {
                Ok(()) => sender.next += 1,
                // The node is slower than the rate.
                Err(_) => sent.full += 1,
            }
        }
    }
    sent.seconds = begin.elapsed().as_secs_f64();
    drop(posts);
    while let Some((sender, outcome)) = reported.recv().await {
        note(senders, sent, sender, outcome);
    }
    while let Some(ended) = tasks.join_next().await {
        ended??;
    }
    Ok(())
}

/// Returns the next account with room for a transaction.
fn next_sender(senders: &[Sender], at: &mut usize) -> Option<usize> {
    for _ in 0..senders.len() {
        *at = (*at + 1) % senders.len();
        let Sender { next, included, is_broken, .. } = &senders[*at];
        if !is_broken && next - included < PER_ACCOUNT_MAX {
            return Some(*at);
        }
    }
    None
}

fn note(senders: &mut [Sender], sent: &mut Sent, sender: usize, outcome: Result<(), String>) {
    senders[sender].is_broken |= outcome.is_err();
    sent.count(outcome);
}

/// Sends what arrives, one after the other.
async fn deliver(
    mut rpc: Rpc,
    mut letters: mpsc::Receiver<Letter>,
    reports: mpsc::Sender<(usize, Result<(), String>)>,
) -> anyhow::Result<()> {
    while let Some(Letter { sender, raw }) = letters.recv().await {
        let answer = rpc.try_call("eth_sendRawTransaction", json!([raw])).await?;
        if reports.send((sender, answer.map(drop))).await.is_err() {
            break;
        }
    }
    Ok(())
}

/// Asks for the nonces of all accounts.
async fn look(rpc: &mut Rpc, senders: &mut [Sender]) -> anyhow::Result<()> {
    for sender in senders {
        let address = sender.wallet.address;
        sender.included = nonce(rpc, address, "latest").await?;
        if sender.is_broken {
            sender.next = nonce(rpc, address, "pending").await?;
            sender.is_broken = false;
        }
        // A reorganisation, or a pool that dropped transactions.
        sender.next = sender.next.max(sender.included);
    }
    Ok(())
}

async fn nonce(rpc: &mut Rpc, address: Address, block: &str) -> anyhow::Result<u64> {
    Ok(rpc.quantity("eth_getTransactionCount", json!([address, block])).await?.try_into()?)
}

/// Asks for the fees of the moment. What is sent may pay four times as much.
async fn fees(rpc: &mut Rpc, setting: &mut Setting) -> anyhow::Result<()> {
    let block = rpc.call("eth_getBlockByNumber", json!(["latest", false])).await?;
    let base = rpc::quantity(&block["baseFeePerGas"]);
    let base = base.context("the node's newest block has no base fee")?;
    setting.fee_max = 4 * base + 10_000_000_000;
    let blob = rpc.quantity("eth_blobBaseFee", json!([])).await;
    // Before Cancun there is none.
    setting.blob_fee_max = 4 * blob.unwrap_or(0) + 1_000_000_000;
    Ok(())
}

/// Gives money to the accounts that have little.
async fn fund(rpc: &mut Rpc, funder: &Wallet, setting: &Setting) -> anyhow::Result<()> {
    let mut poor = Vec::new();
    for account in &setting.accounts {
        if rpc.quantity("eth_getBalance", json!([account, "latest"])).await? < FUNDS_MIN {
            poor.push(*account);
        }
    }
    if poor.is_empty() {
        return Ok(());
    }
    let needed = U256::from(FUNDS) * U256::from(poor.len());
    let balance = rpc.call("eth_getBalance", json!([funder.address, "latest"])).await?;
    let balance: U256 = serde_json::from_value(balance)?;
    let (address, count) = (funder.address, poor.len());
    ensure!(balance > needed, "{address} has {balance} wei; {count} accounts need {needed}");
    let mut next = nonce(rpc, address, "latest").await?;
    for some in poor.chunks(PER_ACCOUNT_MAX as usize) {
        for account in some {
            let raw = payment(funder, next, *account, U256::from(FUNDS), setting);
            rpc.call("eth_sendRawTransaction", json!([raw])).await?;
            next += 1;
        }
        included(rpc, address, next).await?;
    }
    Ok(())
}

/// Creates the contract that stores, if it is not there.
async fn make_store(rpc: &mut Rpc, wallet: &Wallet, setting: &Setting) -> anyhow::Result<()> {
    if rpc.call("eth_getCode", json!([setting.store, "latest"])).await? != "0x" {
        return Ok(());
    }
    let address = wallet.address;
    let first = nonce(rpc, address, "latest").await?;
    ensure!(first == 0, "{address} was used for something else; choose another --seed");
    let raw = creation(wallet, 0, setting);
    rpc.call("eth_sendRawTransaction", json!([raw])).await?;
    included(rpc, address, 1).await
}

/// Waits until an account's nonce at the head is this one.
async fn included(rpc: &mut Rpc, address: Address, wanted: u64) -> anyhow::Result<()> {
    let begin = Instant::now();
    while nonce(rpc, address, "latest").await? < wanted {
        let seconds = PREPARATION_MAX.as_secs();
        ensure!(
            begin.elapsed() < PREPARATION_MAX,
            "no block took the first transactions in {seconds} s"
        );
        sleep(Duration::from_millis(100)).await;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_take_turns_and_those_without_room_are_passed_over() {
        let sender = |next, is_broken| {
            let wallet = Wallet::derived(1, next);
            Sender { wallet, next, included: 0, first: 0, is_broken }
        };
        let mut senders = vec![
            sender(0, false),
            sender(PER_ACCOUNT_MAX, false),
            sender(2, true),
            sender(3, false),
        ];
        let mut at = 0;
        assert_eq!(next_sender(&senders, &mut at), Some(3));
        assert_eq!(next_sender(&senders, &mut at), Some(0));
        senders[0].is_broken = true;
        senders[3].next = PER_ACCOUNT_MAX;
        assert_eq!(next_sender(&senders, &mut at), None);
    }
}
