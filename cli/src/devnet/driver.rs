//! A consensus client without a consensus: it keeps the time, lets the execution clients propose in
//! turn, and tells all of them of each block, as the Engine API says (execution-apis, `src/engine`).
//! Slots are missed and heads are left, at random but repeatably.

use super::client::Client;
use alloy_primitives::B256;
use anyhow::{Context, bail, ensure};
use rand::{Rng, SeedableRng, rngs::StdRng};
use serde_json::{Value, json};
use std::time::{Duration, Instant};
use tandem_chain::Fork;
use tokio::time::{sleep, sleep_until};

/// Blocks between the head and the safe block, and between that and the finalized one.
const EPOCH: usize = 32;
/// Number of blocks that a reorganisation leaves, at most.
const REORG_MAX: usize = 3;
/// Receiver of the fees.
const FEE_RECIPIENT: &str = "0x00000000000000000000000000000000000000fe";

/// Course of a test network.
#[derive(Clone, Debug)]
pub struct Course {
    pub fork: Fork,
    pub slots: u64,
    pub slot: Duration,
    /// Part of a slot for which a payload is built.
    pub build: Duration,
    /// Percentage of slots without a block.
    pub missed: u32,
    /// Percentage of blocks that are not built on the head.
    pub reorgs: u32,
    /// Gas limit that proposers approach, from Amsterdam on.
    pub gas_limit: u64,
    pub seed: u64,
}

/// Block that was proposed.
#[derive(Clone, Debug)]
pub struct Proposed {
    pub hash: Value,
    pub timestamp: u64,
    /// Place of the proposer among the clients.
    pub proposer: usize,
    pub transactions: usize,
    pub blobs: usize,
    pub gas: u64,
}

/// Events in a test network.
#[derive(Default, Debug)]
pub struct Happened {
    /// Canonical chain, from genesis on.
    pub chain: Vec<Proposed>,
    /// Blocks that were left by reorganisations.
    pub left: u64,
    pub missed: u64,
    pub reorgs: u64,
    /// Times of getPayload of each client, in milliseconds.
    pub get_payload: Vec<Vec<f64>>,
    /// Times of newPayload of each client, in milliseconds.
    pub new_payload: Vec<Vec<f64>>,
}

/// Methods of the Engine API of a fork.
struct Methods {
    forkchoice: &'static str,
    get: &'static str,
    new: &'static str,
}

impl Methods {
    fn of(fork: Fork) -> Self {
        match fork {
            Fork::Amsterdam => Self {
                forkchoice: "engine_forkchoiceUpdatedV4",
                get: "engine_getPayloadV6",
                new: "engine_newPayloadV5",
            },
            _ => Self {
                forkchoice: "engine_forkchoiceUpdatedV3",
                get: "engine_getPayloadV5",
                new: "engine_newPayloadV4",
            },
        }
    }
}

/// Runs the network to its end. `step` hears of each slot.
///
/// # Errors
/// Returns an error when a client does not answer, refuses what another built, or proposes nothing.
pub async fn drive(
    course: &Course,
    clients: &mut [Client],
    genesis: Proposed,
    mut step: impl FnMut(u64, &Happened),
) -> anyhow::Result<Happened> {
    let mut rng = StdRng::seed_from_u64(course.seed);
    let mut happened = Happened {
        chain: vec![genesis],
        get_payload: vec![Vec::new(); clients.len()],
        new_payload: vec![Vec::new(); clients.len()],
        ..Happened::default()
    };
    let begin = tokio::time::Instant::now();
    for slot in 1..=course.slots {
        sleep_until(begin + course.slot * u32::try_from(slot)?).await;
        if rng.random_range(0..100) < course.missed {
            happened.missed += 1;
        } else {
            let parents = happened.chain.len();
            let deepest = REORG_MAX.min(parents - 1);
            if deepest > 0 && rng.random_range(0..100) < course.reorgs {
                let depth = rng.random_range(1..=deepest);
                happened.chain.truncate(parents - depth);
                happened.left += depth as u64;
                happened.reorgs += 1;
            }
            let proposer = (slot as usize) % clients.len();
            propose(course, clients, proposer, slot, &mut happened).await.with_context(|| {
                let Client { name, .. } = &clients[proposer];
                format!("slot {slot}, proposed by {name}")
            })?;
        }
        step(slot, &happened);
    }
    Ok(happened)
}

/// Lets a client propose a block on the end of the chain, and tells all of it.
async fn propose(
    course: &Course,
    clients: &mut [Client],
    proposer: usize,
    slot: u64,
    happened: &mut Happened,
) -> anyhow::Result<()> {
    let methods = Methods::of(course.fork);
    let chain = &happened.chain;
    let parent = chain.last().context("the chain is empty")?;
    // A parent beacon block root that differs from slot to slot, as a real one does.
    let beacon_root = B256::with_last_byte(slot as u8);
    let timestamp = chain[0].timestamp + slot * course.slot.as_secs().max(1);
    let mut attributes = json!({
        "timestamp": format!("{timestamp:#x}"), "prevRandao": B256::repeat_byte(slot as u8),
        "suggestedFeeRecipient": FEE_RECIPIENT, "withdrawals": withdrawals(slot),
        "parentBeaconBlockRoot": beacon_root,
    });
    if course.fork >= Fork::Amsterdam {
        attributes["slotNumber"] = json!(format!("{slot:#x}"));
        attributes["targetGasLimit"] = json!(format!("{:#x}", course.gas_limit));
    }
    let started = Instant::now();
    let answer = forkchoice(&mut clients[proposer], &methods, chain, Some(attributes)).await?;
    let id = answer["payloadId"].clone();
    ensure!(id.is_string(), "no payload is built: {answer}");
    sleep(course.build.saturating_sub(started.elapsed())).await;
    let asked = Instant::now();
    let mut built = clients[proposer].engine.call(methods.get, json!([id])).await?;
    happened.get_payload[proposer].push(millis(asked));
    let payload = built["executionPayload"].take();
    ensure!(payload["parentHash"] == parent.hash, "the payload is not built on the head");
    let commitments = built["blobsBundle"]["commitments"].as_array().map_or(&[][..], |all| all);
    let hashes = commitments.iter().map(versioned_hash).collect::<anyhow::Result<Vec<_>>>()?;
    let proofs = built["blobsBundle"]["proofs"].as_array().map_or(0, Vec::len);
    let (got, want) = (proofs, hashes.len() * tandem_kzg::CELLS);
    ensure!(got == want, "the bundle has {got} proofs; expected {want}");
    let proposed = Proposed {
        hash: payload["blockHash"].clone(),
        timestamp,
        proposer,
        transactions: payload["transactions"].as_array().map_or(0, Vec::len),
        blobs: hashes.len(),
        gas: crate::rpc::quantity(&payload["gasUsed"]).unwrap_or(0) as u64,
    };
    let params = json!([payload, hashes, beacon_root, built["executionRequests"].take()]);
    for (client, times) in clients.iter_mut().zip(&mut happened.new_payload) {
        let asked = Instant::now();
        let status = client.engine.call(methods.new, params.clone()).await?;
        times.push(millis(asked));
        if status["status"] != "VALID" {
            bail!("{} says {status} of {}", client.name, proposed.hash);
        }
    }
    happened.chain.push(proposed);
    for client in clients {
        forkchoice(client, &methods, &happened.chain, None).await?;
    }
    Ok(())
}

/// Tells a client of the head, and of the safe and finalized block.
async fn forkchoice(
    client: &mut Client,
    methods: &Methods,
    chain: &[Proposed],
    attributes: Option<Value>,
) -> anyhow::Result<Value> {
    let zero = json!(B256::ZERO);
    // The block so many below the head; genesis is never named.
    let below = |depth: usize| match chain.len().checked_sub(depth + 1) {
        None | Some(0) => zero.clone(),
        Some(at) => chain[at].hash.clone(),
    };
    let state = json!({
        "headBlockHash": chain.last().map(|head| &head.hash), "safeBlockHash": below(EPOCH),
        "finalizedBlockHash": below(2 * EPOCH),
    });
    let mut answer = client.engine.call(methods.forkchoice, json!([state, attributes])).await?;
    let status = answer["payloadStatus"].take();
    if status["status"] != "VALID" {
        bail!("{} says {status} of the head {state}", client.name);
    }
    Ok(answer)
}

/// Returns the withdrawals of a slot: two, to accounts that change.
fn withdrawals(slot: u64) -> Value {
    let of = |index: u64| {
        json!({
            "index": format!("{index:#x}"), "validatorIndex": format!("{:#x}", index % 64),
            "address": alloy_primitives::Address::left_padding_from(&(index % 64 + 1).to_be_bytes()),
            "amount": "0x3e8",
        })
    };
    json!([of(2 * slot), of(2 * slot + 1)])
}

fn versioned_hash(commitment: &Value) -> anyhow::Result<B256> {
    let text = commitment.as_str().context("a commitment is text")?;
    let bytes: [u8; 48] = const_hex::decode_to_array(text)?;
    Ok(tandem_kzg::versioned_hash(&bytes))
}

fn millis(since: Instant) -> f64 {
    since.elapsed().as_secs_f64() * 1e3
}
