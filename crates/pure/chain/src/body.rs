use crate::{Block, BlockError, ChainSpec, Fork, Transaction};
use alloy_consensus::{Header, Transaction as _, TxEip4844, TxType};
use alloy_eips::{
    eip4844::{DATA_GAS_PER_BLOB, VERSIONED_HASH_VERSION_KZG},
    eip7825::MAX_TX_GAS_LIMIT_OSAKA,
};

/// Maximum RLP size of a block in bytes from Osaka on: 10 MiB less a margin of 2 MiB for the beacon
/// block around it (EIP-7934).
pub const MAX_BLOCK_RLP_LEN: usize = (10 - 2) * 1024 * 1024;

/// Checks the body of a block: every rule that needs no state. [`Block`] itself checks that the
/// body matches the header, and [`crate::validate_ommers`] checks the ommers. Sources: EIP-2, 155,
/// 1559, 2930, 4844, 7594, 7702, 7825, 7928, 7934, 8037.
///
/// # Errors
/// The first broken rule.
pub fn validate_body(spec: &ChainSpec, block: &Block) -> Result<(), BlockError> {
    let fork = spec.fork_of(&block.header);
    if fork >= Fork::Osaka && block.rlp_len() > MAX_BLOCK_RLP_LEN {
        return Err(BlockError::BlockTooLarge { got: block.rlp_len(), limit: MAX_BLOCK_RLP_LEN });
    }
    if let Some(list) = &block.access_list {
        list.check(block.transactions.len(), block.header.gas_limit)?;
    }
    let limits = Limits::of(spec, &block.header);
    let mut blobs = 0;
    for (index, transaction) in block.transactions.iter().enumerate() {
        limits.check(index, transaction)?;
        blobs += transaction.blob_count().unwrap_or(0);
    }
    let (got, want) = (block.header.blob_gas_used.unwrap_or(0), blobs * DATA_GAS_PER_BLOB);
    if got != want {
        return Err(BlockError::BlobGasUsed { got, want });
    }
    Ok(())
}

/// Checks a transaction by the same rules, as if it were the first one in a block with the fork of
/// this header.
///
/// # Errors
/// The first broken rule.
pub fn validate_transaction(
    spec: &ChainSpec,
    header: &Header,
    transaction: &Transaction,
) -> Result<(), BlockError> {
    Limits::of(spec, header).check(0, transaction)
}

/// Limits that a fork sets for transactions.
struct Limits {
    fork: Fork,
    chain_id: u64,
    /// Maximum number of blobs in one transaction.
    blobs: u64,
}

impl Limits {
    fn of(spec: &ChainSpec, header: &Header) -> Self {
        Self {
            fork: spec.fork_of(header),
            chain_id: spec.chain_id(),
            blobs: spec.blob_params_of(header).map_or(0, |params| params.max_blobs_per_tx),
        }
    }

    fn check(&self, index: usize, transaction: &Transaction) -> Result<(), BlockError> {
        let since = match transaction.tx_type() {
            TxType::Legacy => Fork::Frontier,
            TxType::Eip2930 => Fork::Berlin,
            TxType::Eip1559 => Fork::London,
            TxType::Eip4844 => Fork::Cancun,
            TxType::Eip7702 => Fork::Prague,
        };
        if self.fork < since {
            let ty = transaction.tx_type() as u8;
            return Err(BlockError::TransactionType { index, ty, fork: self.fork });
        }
        if self.fork < Fork::Paris {
            self.check_signature(index, transaction)?;
        }
        // Legacy transactions without EIP-155 name no chain and stay valid on every chain.
        if let Some(got) = transaction.chain_id()
            && got != self.chain_id
        {
            return Err(BlockError::ChainId { index, got, want: self.chain_id });
        }
        let (got, limit) = (transaction.gas_limit(), MAX_TX_GAS_LIMIT_OSAKA);
        // From Amsterdam on, the cap is that of execution, and gas beyond it pays for state (EIP-8037).
        if self.fork == Fork::Osaka && got > limit {
            return Err(BlockError::TransactionGasLimit { index, got, limit });
        }
        match transaction {
            Transaction::Eip4844(signed) => self.check_blobs(index, signed.tx()),
            Transaction::Eip7702(signed) if signed.tx().authorization_list.is_empty() => {
                Err(BlockError::NoAuthorizations { index })
            }
            _ => Ok(()),
        }
    }

    /// Checks signature rules before the merge. Later signatures are checked when senders are
    /// recovered.
    fn check_signature(&self, index: usize, transaction: &Transaction) -> Result<(), BlockError> {
        // Before EIP-155, a `v` that names a chain is simply invalid.
        let early_chain_id = self.fork < Fork::SpuriousDragon && transaction.chain_id().is_some();
        let high_s = transaction.signature().normalize_s().is_some();
        if early_chain_id || (self.fork >= Fork::Homestead && high_s) {
            return Err(BlockError::Signature { index });
        }
        Ok(())
    }

    fn check_blobs(&self, index: usize, transaction: &TxEip4844) -> Result<(), BlockError> {
        let hashes = &transaction.blob_versioned_hashes;
        if hashes.is_empty() {
            return Err(BlockError::NoBlobs { index });
        }
        if hashes.len() as u64 > self.blobs {
            let got = hashes.len();
            return Err(BlockError::TransactionBlobs { index, got, limit: self.blobs });
        }
        match hashes.iter().find(|hash| hash[0] != VERSIONED_HASH_VERSION_KZG) {
            Some(&hash) => Err(BlockError::BlobVersion { index, hash }),
            None => Ok(()),
        }
    }
}
