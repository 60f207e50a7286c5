//! A block executed on a witness instead of a database: a stateless client.
//!
//! ```text
//! state ──► nodes by hash ──┬─► reads of the EVM ──► receipts, gas, requests ─┐
//! codes ──► by hash ────────┤                                                ├─► held against
//! headers ► chained to the ─┘   changes ──► shards' tries ──► state root ────┘   the header
//!           block by hash
//! ```
//!
//! Rules, EVM, shards and tries are those of the cluster; only what they read from is another.
//! Nothing in the witness is trusted: nodes and codes are found by the hash of their bytes, and
//! headers must lead to the block. What no witness tells is not checked: proof of work, the total
//! difficulty at which it ended, whose children ommers are.

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
    Block, BlockError, ChainSpec, Outcome, receipts_root, validate_body, validate_header,
    validate_outcome,
};
use tandem_primitives::{B256, BlockNumber, Bytes, StateDiff};
use tandem_trie::{NodePlace, PartialState, Witness, WitnessError, keccak256_all};

/// What one block needs of the state before it, and of the blocks before it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ExecutionWitness {
    /// Trie nodes, each as its RLP, in any order.
    pub state: Vec<Bytes>,
    /// Code of contracts, in any order.
    pub codes: Vec<Bytes>,
    /// The blocks before.
    pub ancestors: Ancestors,
}

/// Why a block could not be executed on its witness. The block itself may be valid.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Error {
    /// The parent's header is not in the witness.
    #[error("the witness lacks the parent's header {parent_hash}")]
    NoParent {
        /// Its hash.
        parent_hash: B256,
    },
    /// A header in the witness is no ancestor of the block.
    #[error("header {hash} of block {number} in the witness does not lead to the block")]
    UnlinkedHeader {
        /// The number that it has.
        number: BlockNumber,
        /// Its hash.
        hash: B256,
    },
    /// The first hash claimed is not the parent's.
    #[error("the parent's hash is {want}, the witness claims {got}")]
    ParentHash {
        /// Claimed, zero for none.
        got: B256,
        /// In the block's header.
        want: B256,
    },
    /// The witness does not tell a part of the state that the block changes.
    #[error(transparent)]
    Witness(#[from] WitnessError),
    /// Execution stopped: mostly for want of a node, a code or a header.
    #[error("{0}")]
    Execution(String),
}

/// What execution gave, to be held against the header.
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

/// What it means that the witness lacks a node on the way to an account that the EVM reads.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Gaps {
    /// The witness does not suffice: an error.
    #[default]
    Refuse,
    /// There is no such account. Versions of geth before its change 35256 (2026) leave the
    /// proofs of accounts that do not exist out of their witnesses, and geth's own stateless
    /// execution takes an account without its nodes not to exist.
    ///
    /// This is unsound against whoever makes block and witness. They may leave out the nodes of an
    /// account that does exist: it then reads as empty, without code and balance, a call of it
    /// succeeds and does nothing, and the header may state the roots that this leads to. So
    /// [`Report::assumed`] lists each such account, and what the report says holds only if none of
    /// them exists. Only reads are assumed: to write to the account takes its nodes, and slots and
    /// codes are never assumed. Should the block not come out as its header says, the node is what
    /// is missing.
    AssumeAbsent,
}

/// An account that was read, whose path the witness does not hold to its end.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct AssumedAbsent {
    /// `keccak256(address)`.
    pub address_hash: B256,
    /// The node that would tell.
    pub node: NodePlace,
}

/// Wall-clock time of the parts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Timings {
    /// Hashing nodes and codes, analyzing codes, linking headers.
    pub load: Duration,
    /// Header and body rules, the EVM, receipts. Signatures are recovered beside it.
    pub execute: Duration,
    /// From the state changes to the state root; before Byzantium to that after each transaction.
    pub root: Duration,
}

/// How a block fared.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Report {
    /// What execution gave, `None` when it did not come to an end.
    pub computed: Option<Computed>,
    /// The first rule that the block breaks, `None` when it is valid.
    pub fault: Option<BlockError>,
    /// Accounts that were taken not to exist, in the order of reading, see [`Gaps`].
    pub assumed: Vec<AssumedAbsent>,
    /// What was read from the witness.
    pub reads: Reads,
    /// Different trie nodes in the witness.
    pub nodes: usize,
    /// Where the time went.
    pub timings: Timings,
}

/// Executes a block on its witness and compares everything that its header says.
///
/// # Errors
/// [`Error`] when the witness does not suffice. A block that breaks a rule is no error:
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
        // With an account missing nothing that went wrong is the block's fault.
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

/// Executes the block and holds what comes out against its header.
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
    let (executed, diff) = match executed {
        Ok(executed) => executed,
        Err(Failure::Internal(error)) => return Err(execution_error(error)),
        Err(Failure::Invalid(fault)) => {
            report.timings.execute = started.elapsed();
            report.fault = Some(fault);
            return Ok(report);
        }
    };
    let executed_at = Instant::now();
    let Executed { mut receipts, gas_used, blob_gas_used, requests, steps } = executed;
    let mut state = PartialState::new(witness, lineage.state_root)?;
    for (receipt, step) in receipts.iter_mut().zip(&steps) {
        receipt.post_state = Some(state.apply(&step.accounts)?);
    }
    let state_root = state.apply(&diff.accounts)?;
    let rooted_at = Instant::now();
    let (receipts_root, logs_bloom) = receipts_root(&receipts);
    let outcome =
        Outcome { receipts_root, logs_bloom, gas_used, blob_gas_used, requests: &requests };
    report.fault = validate_outcome(spec, block, &outcome).err();
    report.timings.root = rooted_at - executed_at;
    report.timings.execute = (executed_at - started) + rooted_at.elapsed();
    let got = block.header.state_root;
    if got != state_root {
        report.fault.get_or_insert(BlockError::StateRoot { got, want: state_root });
    }
    let requests_hash = block.header.requests_hash.map(|_| requests.requests_hash());
    report.computed = Some(Computed { state_root, receipts_root, gas_used, requests_hash });
    Ok(report)
}

/// Every rule that needs no root, and the EVM.
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
