//! Stateless client: execution of a block on a witness instead of a database.
//!
//! ```text
//! state ──► nodes by hash ──┬─► reads of the EVM ──► receipts, gas, requests ─┐
//! codes ──► by hash ────────┤                                                ├─► held against
//! headers ► chained to the ─┘   changes ──► shards' tries ──► state root ────┘   the header
//!           block by hash
//! ```
//!
//! Rules, EVM, shards and tries are those of the cluster; only their data source differs. The
//! witness is not trusted. Nodes and codes are found by the hash of their bytes, and headers must
//! lead to the block. Facts outside any witness are not checked: proof of work, the total
//! difficulty at which it ended, and the parents of ommers.

mod ancestors;
mod json;
mod reader;
#[cfg(test)]
mod tests;

pub use ancestors::Ancestors;
pub use json::{Input, InputError, decode_block};
pub use reader::Reads;

use crate::{
    ahead::senders::Senders,
    block::{
        execute::{Executed, Failure, execute},
        receipts::ReceiptsRooter,
    },
    state::{BlockState, code},
};
use alloy_primitives::map::B256Map;
use ancestors::Lineage;
use rayon::prelude::*;
use reader::WitnessReader;
use revm::state::Bytecode;
use std::{
    sync::Arc,
    time::{Duration, Instant},
};
use tandem_chain::{
    Block, BlockError, ChainSpec, receipts_root, validate_body, validate_header, validate_outcome,
};
use tandem_primitives::{B256, BlockNumber, Bytes, StateDiff};
use tandem_trie::{NodePlace, PartialState, Witness, WitnessError, keccak256_all};

/// State and blocks before a block, as far as its execution needs them.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExecutionWitness {
    /// Trie nodes, each as its RLP, in any order.
    pub state: Vec<Bytes>,
    /// Code of contracts, in any order.
    pub codes: Vec<Bytes>,
    /// Blocks before this one.
    pub ancestors: Ancestors,
}

/// Reason why a block could not be executed on its witness. The block itself may be valid.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Error {
    /// The witness lacks the parent's header.
    #[error("the witness lacks the parent's header {parent_hash}")]
    NoParent {
        /// Hash of the parent.
        parent_hash: B256,
    },
    /// A header in the witness is not an ancestor of the block.
    #[error("header {hash} of block {number} in the witness does not lead to the block")]
    UnlinkedHeader {
        /// Number in the header.
        number: BlockNumber,
        /// Hash of the header.
        hash: B256,
    },
    /// The first claimed hash is not the parent's.
    #[error("the parent's hash is {want}, the witness claims {got}")]
    ParentHash {
        /// Claimed hash, zero for none.
        got: B256,
        /// Parent hash in the block's header.
        want: B256,
    },
    /// The witness lacks a part of the state that the block changes.
    #[error(transparent)]
    Witness(#[from] WitnessError),
    /// Execution stopped, mostly for lack of a node, a code or a header.
    #[error("{0}")]
    Execution(String),
}

/// Results of execution, for comparison with the header.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Computed {
    /// Root of the state after the block.
    pub state_root: B256,
    /// Root of the receipts.
    pub receipts_root: B256,
    /// Gas of all transactions.
    pub gas_used: u64,
    /// Hash of the execution requests, `None` before Prague (EIP-7685).
    pub requests_hash: Option<B256>,
}

/// Meaning of a missing node on the way to an account that the EVM reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Gaps {
    /// The witness is insufficient: an error.
    #[default]
    Refuse,
    /// The account does not exist.
    ///
    /// Versions of geth before its change 35256 (2026) omit the proofs of non-existent accounts
    /// from their witnesses. geth's own stateless execution treats an account without its nodes as
    /// non-existent.
    ///
    /// This is unsound against the maker of block and witness. The maker may omit the nodes of an
    /// existing account. It then reads as empty, without code and balance. A call of it succeeds
    /// and does nothing, and the header may state the resulting roots. So [`Report::assumed`] lists
    /// each such account, and the report holds only if none of them exists.
    ///
    /// Only reads are assumed. Writing to the account requires its nodes, and slots and codes are
    /// never assumed. If the block does not match its header, the missing node is reported.
    AssumeAbsent,
}

/// Account that was read although the witness lacks a node on its path.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AssumedAbsent {
    /// `keccak256(address)`.
    pub address_hash: B256,
    /// Missing node.
    pub node: NodePlace,
}

/// Wall-clock times by part.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Timings {
    /// Time for hashing nodes and codes, analyzing codes, linking headers.
    pub load: Duration,
    /// Time for header and body rules, the EVM, receipts. Signatures are recovered in parallel.
    pub execute: Duration,
    /// Time from the state changes to the state root. Before Byzantium, to the root after each
    /// transaction.
    pub root: Duration,
}

/// Outcome of a block.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// Results of execution, `None` if it did not finish.
    pub computed: Option<Computed>,
    /// First rule that the block breaks, `None` if it is valid.
    pub fault: Option<BlockError>,
    /// Accounts that were assumed absent, in the order of reading, see [`Gaps`].
    pub assumed: Vec<AssumedAbsent>,
    /// Number of reads from the witness.
    pub reads: Reads,
    /// Number of distinct trie nodes in the witness.
    pub nodes: usize,
    /// Wall-clock times by part.
    pub timings: Timings,
}

/// Executes a block on its witness and compares the results with its header.
///
/// # Errors
/// [`Error`] if the witness is insufficient. A block that breaks a rule is not an error:
/// [`Report::fault`] names the rule.
pub fn execute_on_witness(
    spec: &ChainSpec,
    block: &Arc<Block>,
    input: &ExecutionWitness,
    gaps: Gaps,
) -> Result<Report, Error> {
    let started = Instant::now();
    let senders = Senders::recover(block.clone());
    let (witness, codes) = rayon::join(
        || Witness::new(input.state.clone()),
        || -> B256Map<Bytecode> {
            let analyzed = input.codes.par_iter().map(|code| code::analyze(code.clone()));
            keccak256_all(&input.codes).into_par_iter().zip(analyzed).collect()
        },
    );
    let lineage = Lineage::new(&block.header, &input.ancestors)?;
    let load = started.elapsed();
    let reader = WitnessReader::new(&witness, lineage.state_root, &codes, gaps);
    let result = judge(spec, block, &senders, &lineage, &reader, &witness);
    let assumed = reader.take_assumed();
    match (result, assumed.first()) {
        // With an assumed account, no failure is the block's fault.
        (Err(_) | Ok(Report { fault: Some(_), .. }), Some(first)) => {
            Err(WitnessError::Missing(first.node).into())
        }
        (Ok(mut report), _) => {
            report.timings.load = load;
            Ok(Report { assumed, reads: reader.reads(), nodes: witness.len(), ..report })
        }
        (Err(error), None) => Err(error),
    }
}

/// Executes the block and compares the results with its header.
fn judge(
    spec: &ChainSpec,
    block: &Arc<Block>,
    senders: &Senders,
    lineage: &Lineage,
    reader: &WitnessReader<'_>,
    witness: &Witness,
) -> Result<Report, Error> {
    let started = Instant::now();
    let executed = run(spec, block, senders, lineage, reader);
    let mut report = Report::default();
    let (mut executed, diff) = match executed {
        Ok(executed) => executed,
        Err(Failure::Internal(error)) => return Err(execution_error(error)),
        Err(Failure::Invalid(fault)) => {
            report.timings.execute = started.elapsed();
            report.fault = Some(fault);
            return Ok(report);
        }
    };
    let executed_at = Instant::now();
    let mut state = PartialState::new(witness, lineage.state_root)?;
    for (receipt, step) in executed.receipts.iter_mut().zip(&executed.steps) {
        receipt.post_state = Some(state.apply(&step.accounts)?);
    }
    let state_root = state.apply(&diff.accounts)?;
    let rooted_at = Instant::now();
    let (receipts_root, logs_bloom) = receipts_root(&executed.receipts);
    let outcome = executed.outcome(receipts_root, logs_bloom);
    report.fault = validate_outcome(spec, block, &outcome).err();
    report.timings.root = rooted_at - executed_at;
    report.timings.execute = (executed_at - started) + rooted_at.elapsed();
    let header = block.header.state_root;
    if header != state_root {
        report.fault.get_or_insert(BlockError::StateRoot { header, computed: state_root });
    }
    let requests_hash = block.header.requests_hash.map(|_| executed.requests.requests_hash());
    let gas_used = executed.gas_used;
    report.computed = Some(Computed { state_root, receipts_root, gas_used, requests_hash });
    Ok(report)
}

/// Checks every rule that needs no root, and executes the block.
fn run(
    spec: &ChainSpec,
    block: &Arc<Block>,
    senders: &Senders,
    lineage: &Lineage,
    reader: &WitnessReader<'_>,
) -> Result<(Executed, StateDiff), Failure> {
    if let Some(parent) = &lineage.parent {
        validate_header(spec, &block.header, parent).map_err(Failure::Invalid)?;
    }
    validate_body(spec, block).map_err(Failure::Invalid)?;
    let hashes = Box::new(|number| lineage.hash(number));
    let mut state = BlockState::new(reader, hashes, None);
    let executed = execute(spec, block, senders, &mut state, &mut ReceiptsRooter::AtEnd, None)?;
    Ok((executed, state.into_diff()))
}

fn execution_error(error: crate::Error) -> Error {
    match error {
        crate::Error::Witness(error) => (*error).into(),
        error => Error::Execution(error.to_string()),
    }
}
