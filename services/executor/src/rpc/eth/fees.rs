//! Past gas prices, and suggestions for the next.

use super::super::hex::{BlockCount, NumberParam, Quantity};
use super::super::prices::{Sampled, Suggestion, Tips};
use super::transactions::sender;
use super::{NoParams, RpcError, Source, add_calling, add_reading, cut_error, known, read_error};
use crate::{BlockTag, Error};
use alloy_consensus::{Header, Transaction as _, TxReceipt};
use alloy_eips::eip1559::{BaseFeeParams, INITIAL_BASE_FEE};
use alloy_primitives::B256;
use serde::Serialize;
use std::sync::Arc;
use tandem_chain::Block;
use tandem_http::usage::Running;
use tandem_http::{Answer, Methods, Params, required, to_result};
use tandem_primitives::BlockId;

/// Maximum number of blocks in one `eth_feeHistory`; more are cut off, as the specification allows.
const HISTORY_BLOCKS_MAX: u64 = 1024;
/// Maximum number of percentiles in one `eth_feeHistory`.
const PERCENTILES_MAX: usize = 100;

/// Number of blocks considered for the suggested tip.
const TIP_BLOCKS: u64 = 20;
/// Number of transactions that count in each block: those with the lowest tips.
const TIP_SAMPLES: usize = 3;
/// Percentile of all samples that is suggested.
const TIP_PERCENTILE: usize = 60;
/// Lowest tip in wei that counts as a market price. For a lower tip, the builder was paid another
/// way.
const TIP_MIN: u128 = 2;
/// Suggested tip if no block holds a sample, in wei.
const TIP_DEFAULT: u128 = 1_000_000;
/// Maximum number of the suggested tip, in wei: 500 gwei.
const TIP_MAX: u128 = 500_000_000_000;

pub(super) fn add(methods: &mut Methods, source: &Arc<Source>) {
    add_suggesting(methods, source, "eth_gasPrice", |found| found.tip + u128::from(found.base_fee));
    add_suggesting(methods, source, "eth_maxPriorityFeePerGas", |found| found.tip);
    add_reading(methods, source, "eth_baseFee", base_fee);
    add_reading(methods, source, "eth_blobBaseFee", blob_base_fee);
    add_calling(methods, source, "eth_feeHistory", fee_history);
}

fn head(source: &Source) -> Result<Header, RpcError> {
    let head = known(source.chain.header(BlockTag::Latest))?;
    head.map(|(_, header)| header).ok_or_else(|| read_error(Error::UnknownBlock))
}

/// Adds a method that returns a price based on the head's suggestion.
fn add_suggesting(
    methods: &mut Methods,
    source: &Arc<Source>,
    name: &'static str,
    price: fn(Suggestion) -> u128,
) {
    let source = source.clone();
    methods.add(name, move |params: Params| {
        let source = source.clone();
        async move {
            let NoParams = params.decode()?;
            let head = source.chain.head();
            let compute = || {
                let read = source.clone();
                let work = move |running: &Running<'_>| suggest(&read, running, head.hash);
                source.pools.calls.run(source.lane, params.usage(), work)
            };
            let found = source.prices.suggestion(head.hash, compute).await?;
            to_result(&Quantity(price(found)))
        }
    });
}

/// Suggests a percentile of the lowest tips of each of the newest blocks, which was enough
/// recently. Tips that block builders pay to themselves do not count.
fn suggest(source: &Source, running: &Running<'_>, head: B256) -> Result<Suggestion, RpcError> {
    let (id, header) = known(source.chain.header(BlockTag::Hash(head)))?
        .ok_or_else(|| read_error(Error::UnknownBlock))?;
    let (mut samples, mut block) = (Vec::new(), head);
    // Excludes genesis, which has no transactions.
    for _ in 0..TIP_BLOCKS.min(id.number) {
        running.check().map_err(cut_error)?;
        let sampled = source.prices.sampled(block, || {
            let found = known(source.chain.block(BlockTag::Hash(block)))?;
            let found = found.ok_or_else(|| read_error(Error::UnknownBlock))?;
            Ok(Sampled { parent: found.header.parent_hash, tips: lowest_tips(&found)? })
        })?;
        samples.extend_from_slice(&sampled.tips);
        block = sampled.parent;
    }
    let base_fee = header.base_fee_per_gas.unwrap_or(0);
    Ok(Suggestion { tip: percentile_tip(samples), base_fee })
}

fn percentile_tip(mut samples: Vec<u128>) -> u128 {
    samples.sort_unstable();
    let last = samples.len().saturating_sub(1);
    let tip = samples.get(last * TIP_PERCENTILE / 100);
    tip.map_or(TIP_DEFAULT, |&tip| tip.min(TIP_MAX))
}

fn lowest_tips(block: &Block) -> Result<Vec<u128>, RpcError> {
    let base_fee = block.header.base_fee_per_gas.unwrap_or(0);
    let tips = block.transactions.iter().enumerate().filter_map(|(index, transaction)| {
        let tip = transaction.effective_tip_per_gas(base_fee)?;
        (tip >= TIP_MIN).then_some((tip, index))
    });
    let mut tips: Vec<(u128, usize)> = tips.collect();
    tips.sort_unstable();
    let mut lowest = Vec::with_capacity(TIP_SAMPLES);
    // Recovering senders takes the time, and only few need to be recovered.
    for (tip, index) in tips {
        if lowest.len() == TIP_SAMPLES {
            break;
        }
        if sender(block, index)? != block.header.beneficiary {
            lowest.push(tip);
        }
    }
    Ok(lowest)
}

/// Returns the base fee of the block after this one (EIP-1559), 0 before London.
fn next_base_fee(source: &Source, header: &Header) -> u64 {
    match header.next_block_base_fee(BaseFeeParams::ethereum()) {
        Some(fee) => fee,
        None if source.spec.has_base_fee(header.number + 1) => INITIAL_BASE_FEE,
        None => 0,
    }
}

/// Returns the price of blob gas in a block, and in the next one if that has the same parameters; 0
/// before Cancun.
fn blob_fees(source: &Source, header: &Header) -> (u128, u128) {
    let Some(params) = source.spec.blob_params_of(header) else { return (0, 0) };
    let fee = header.blob_fee(params).unwrap_or(0);
    (fee, header.next_block_blob_fee(params).unwrap_or(0))
}

fn base_fee(source: &Source, NoParams: NoParams) -> Answer {
    to_result(&Quantity(next_base_fee(source, &head(source)?)))
}

fn blob_base_fee(source: &Source, NoParams: NoParams) -> Answer {
    let (_, next) = blob_fees(source, &head(source)?);
    to_result(&Quantity(next))
}

/// Answer of `eth_feeHistory`.
#[derive(Default, Serialize)]
#[serde(rename_all = "camelCase")]
struct HistoryJson {
    oldest_block: Quantity<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    reward: Option<Vec<Vec<Quantity<u128>>>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    base_fee_per_gas: Vec<Quantity<u64>>,
    gas_used_ratio: Vec<f64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    base_fee_per_blob_gas: Vec<Quantity<u128>>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    blob_gas_used_ratio: Vec<f64>,
}

type HistoryParams = (Option<BlockCount>, Option<NumberParam>, Option<Vec<f64>>);

fn fee_history(
    source: &Source,
    running: &Running<'_>,
    (count, newest, percentiles): HistoryParams,
) -> Answer {
    let BlockCount(count) = required(count, 0)?;
    let NumberParam(newest) = required(newest, 1)?;
    let percentiles = percentiles.unwrap_or_default();
    check_percentiles(&percentiles)?;
    let Some(newest) = known(source.chain.resolve(newest))? else {
        let head = source.chain.head().number;
        return Err(RpcError::server(match newest {
            BlockTag::Number(number) => {
                format!("request beyond head block: requested {number}, head {head}")
            }
            _ => "unknown block".to_owned(),
        }));
    };
    let count = count.min(HISTORY_BLOCKS_MAX).min(newest.number + 1);
    if count == 0 {
        return to_result(&HistoryJson::default());
    }
    let oldest = newest.number + 1 - count;
    let mut history = HistoryJson { oldest_block: Quantity(oldest), ..HistoryJson::default() };
    let mut next = (0, 0);
    for number in oldest..=newest.number {
        running.check().map_err(cut_error)?;
        // A reorg to a shorter chain may remove blocks meanwhile.
        let Some((id, header)) = known(source.chain.header(BlockTag::Number(number)))? else {
            break;
        };
        if !percentiles.is_empty() {
            let tips = source.prices.tips(id.hash, || tips(source, id))?;
            let row = rewards(header.gas_used, &tips, &percentiles);
            history.reward.get_or_insert_default().push(row);
        }
        next = history.push(source, &header);
    }
    history.base_fee_per_gas.push(Quantity(next.0));
    history.base_fee_per_blob_gas.push(Quantity(next.1));
    to_result(&history)
}

impl HistoryJson {
    /// Adds a block. Returns base fee and blob base fee of the next block.
    fn push(&mut self, source: &Source, header: &Header) -> (u64, u128) {
        let (blob_fee, next_blob_fee) = blob_fees(source, header);
        let params = source.spec.blob_params_of(header);
        let blob_gas_max = params.map_or(0, |params| params.max_blob_gas_per_block());
        let ratio = |used: u64, max: u64| if max == 0 { 0.0 } else { used as f64 / max as f64 };
        self.base_fee_per_gas.push(Quantity(header.base_fee_per_gas.unwrap_or(0)));
        self.gas_used_ratio.push(ratio(header.gas_used, header.gas_limit));
        self.base_fee_per_blob_gas.push(Quantity(blob_fee));
        self.blob_gas_used_ratio.push(ratio(header.blob_gas_used.unwrap_or(0), blob_gas_max));
        (next_base_fee(source, header), next_blob_fee)
    }
}

fn check_percentiles(percentiles: &[f64]) -> Result<(), RpcError> {
    let invalid = |reason: &dyn std::fmt::Display| {
        Err(RpcError::server(format_args!("invalid reward percentile: {reason}")))
    };
    if percentiles.len() > PERCENTILES_MAX {
        return invalid(&format_args!("over the query limit {PERCENTILES_MAX}"));
    }
    for (index, &percentile) in percentiles.iter().enumerate() {
        if !(0.0..=100.0).contains(&percentile) {
            return invalid(&format_args!("{percentile:.6}"));
        }
        if let Some(&before) = index.checked_sub(1).and_then(|index| percentiles.get(index))
            && percentile <= before
        {
            let last = index - 1;
            return invalid(&format_args!("#{last}:{before:.6} >= #{index}:{percentile:.6}"));
        }
    }
    Ok(())
}

/// Returns the tips of a block's transactions, in ascending order.
fn tips(source: &Source, block: BlockId) -> Result<Tips, RpcError> {
    let found = known(source.chain.block_and_receipts(BlockTag::Hash(block.hash)))?;
    let (block, receipts) = found.ok_or_else(|| read_error(Error::UnknownBlock))?;
    let base_fee = block.header.base_fee_per_gas.unwrap_or(0);
    let mut gas_before = 0;
    let mut tips: Vec<(u128, u64)> = Vec::with_capacity(receipts.len());
    for (transaction, receipt) in block.transactions.iter().zip(&receipts) {
        let gas = receipt.cumulative_gas_used().saturating_sub(gas_before);
        gas_before = receipt.cumulative_gas_used();
        tips.push((transaction.effective_tip_per_gas(base_fee).unwrap_or(0), gas));
    }
    tips.sort_by_key(|(tip, _)| *tip);
    Ok(tips.into())
}

/// Returns the tips at these percentiles of a block's gas, in ascending order of tip. Returns zeros
/// for a block without transactions.
fn rewards(gas_used: u64, tips: &[(u128, u64)], percentiles: &[f64]) -> Vec<Quantity<u128>> {
    let (mut position, mut gas_sum) = (0, tips.first().map_or(0, |(_, gas)| *gas));
    let mut row = Vec::with_capacity(percentiles.len());
    for percentile in percentiles {
        let threshold = (gas_used as f64 * percentile / 100.0) as u64;
        while gas_sum < threshold && position + 1 < tips.len() {
            position += 1;
            gas_sum += tips[position].1;
        }
        row.push(Quantity(tips.get(position).map_or(0, |(tip, _)| *tip)));
    }
    row
}
