use crate::{
    AccessList, BlockError, Payload, PayloadSidecar, PreMergeRule, Transaction,
    codec::{
        Body, decode_body, decode_header, encode_body, exact_list, list_header, list_len,
        rlp_error, take_item,
    },
    is_merged,
    transaction::decode_all,
};
use alloy_consensus::{
    EMPTY_OMMER_ROOT_HASH, Header, Transaction as _,
    proofs::{calculate_ommers_root, calculate_withdrawals_root},
};
use alloy_eips::{eip4895::Withdrawal, eip7685::Requests};
use alloy_primitives::{B64, B256, Bytes, U256, keccak256};
use std::sync::Arc;
use tandem_primitives::BlockId;
use tandem_trie::list_root;

/// Decoded block together with its original bytes. Transactions are decoded once and never encoded
/// again on the way from the payload to the database.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Block {
    /// Number and hash.
    pub id: BlockId,
    /// Header of the block.
    pub header: Header,
    /// RLP of the header; its Keccak-256 is the block hash.
    pub header_rlp: Bytes,
    /// Transactions of the block.
    pub transactions: Vec<Transaction>,
    /// EIP-2718 bytes of the transactions.
    pub raw_transactions: Vec<Bytes>,
    /// Hashes of the transactions.
    pub transaction_hashes: Arc<[B256]>,
    /// Headers of ommers, none since the merge.
    pub ommers: Vec<Header>,
    /// Withdrawals, `None` before Shanghai.
    pub withdrawals: Option<Vec<Withdrawal>>,
    /// RLP of the body: a list of transactions (typed ones wrapped in a string), ommers and, from
    /// Shanghai on, withdrawals.
    pub body_rlp: Bytes,
    /// Block-level access list of the payload (EIP-7928). `None` before Amsterdam, and for a block
    /// that came without its list, as in files and from the database.
    pub access_list: Option<AccessList>,
    /// See [`Block::rlp_len`].
    rlp_len: usize,
}

impl Block {
    /// Builds the block that a payload describes, with the checks that need the payload alone. All
    /// transactions and the access list must decode, and the block hash must match the resulting
    /// header. The versioned
    /// hashes must be the expected ones, and the execution requests well formed.
    /// [`crate::validate_header`] checks the header fields themselves.
    ///
    /// # Errors
    /// [`BlockError::RequestEmpty`], [`BlockError::RequestsOrder`],
    /// [`BlockError::TransactionEncoding`], [`BlockError::AccessListEncoding`],
    /// [`BlockError::BaseFeeTooHigh`], [`BlockError::BlockHash`], [`BlockError::VersionedHashes`].
    pub fn from_payload(payload: Payload, sidecar: &PayloadSidecar) -> Result<Self, BlockError> {
        let requests = sidecar.execution_requests.as_deref();
        let requests_hash = requests.map(requests_hash).transpose()?;
        let raw = &payload.transactions;
        let access_list_rlp = &payload.block_access_list;
        let ((transactions, transactions_root), ((body_rlp, body_payload_len), access_list)) =
            rayon::join(
                || rayon::join(|| decode_all(raw), || list_root(raw)),
                || {
                    let list = access_list_rlp.as_ref().map(|rlp| {
                        let list = AccessList::decode(rlp.clone());
                        (list.as_ref().map_or_else(|_| keccak256(rlp), AccessList::hash), list)
                    });
                    (encode_body(raw, payload.withdrawals.as_deref()), list)
                },
            );
        let transactions = transactions?;
        let (access_list_hash, access_list) = access_list.unzip();
        let roots = Roots { transactions_root, requests_hash, access_list_hash };
        let header = payload_header(&payload, sidecar, roots)?;
        let header_rlp = Bytes::from(alloy_rlp::encode(&header));
        let hash = keccak256(&header_rlp);
        if hash != payload.block_hash {
            return Err(BlockError::BlockHash { got: payload.block_hash, want: hash });
        }
        let access_list = access_list.transpose()?;
        if let Some(expected) = &sidecar.versioned_hashes {
            check_versioned_hashes(&transactions, expected)?;
        }
        Ok(Self {
            id: BlockId::new(header.number, hash),
            rlp_len: list_len(header_rlp.len() + body_payload_len),
            header,
            header_rlp,
            transaction_hashes: transactions.iter().map(|tx| *tx.hash()).collect(),
            transactions,
            raw_transactions: payload.transactions,
            ommers: Vec::new(),
            withdrawals: payload.withdrawals,
            access_list,
            body_rlp,
        })
    }

    /// Builds the block from header and body as the database holds them: as RLP, trusted to belong
    /// together. The bytes of the transactions are slices of the body.
    ///
    /// # Errors
    /// [`BlockError::Rlp`], [`BlockError::TransactionEncoding`], [`BlockError::Ommers`],
    /// [`BlockError::WithdrawalsRoot`] when only one of header and body has withdrawals.
    pub fn decode(header_rlp: Bytes, body_rlp: Bytes) -> Result<Self, BlockError> {
        let header = decode_header(&header_rlp)?;
        let body = decode_body(&body_rlp)?;
        Self::assemble(header, header_rlp, body, body_rlp)
    }

    /// Decodes a block from one RLP list, the form in files and on the network. Unlike
    /// [`Block::decode`], it checks that the body matches the header.
    ///
    /// # Errors
    /// All errors of [`Block::decode`], [`BlockError::TransactionsRoot`],
    /// [`BlockError::OmmersHash`], [`BlockError::WithdrawalsRoot`].
    pub fn from_rlp(rlp: &[u8]) -> Result<Self, BlockError> {
        let block_error = |reason| rlp_error("block", reason);
        let body_fields = &mut exact_list(rlp).map_err(block_error)?;
        let header_start = *body_fields;
        take_item(body_fields).map_err(block_error)?;
        let header_rlp = &header_start[..header_start.len() - body_fields.len()];
        let mut body_rlp = Vec::with_capacity(rlp.len());
        list_header(body_fields.len()).encode(&mut body_rlp);
        body_rlp.extend_from_slice(body_fields);
        let block = Self::decode(Bytes::copy_from_slice(header_rlp), body_rlp.into())?;
        block.check_roots()?;
        Ok(block)
    }

    /// Returns the RLP of the whole block, in the form that [`Block::from_rlp`] reads.
    pub fn to_rlp(&self) -> Bytes {
        // The body is a list that this crate encoded or decoded, so it has a header.
        let fields = exact_list(&self.body_rlp).unwrap_or_default();
        let mut rlp = Vec::with_capacity(self.rlp_len);
        list_header(self.header_rlp.len() + fields.len()).encode(&mut rlp);
        rlp.extend_from_slice(&self.header_rlp);
        rlp.extend_from_slice(fields);
        rlp.into()
    }

    /// Returns the size in bytes of the whole block's RLP: one list of header and body, as EIP-7934
    /// counts it.
    pub fn rlp_len(&self) -> usize {
        self.rlp_len
    }

    fn assemble(
        header: Header,
        header_rlp: Bytes,
        body: Body,
        body_rlp: Bytes,
    ) -> Result<Self, BlockError> {
        if body.withdrawals.is_some() != header.withdrawals_root.is_some() {
            return Err(BlockError::WithdrawalsRoot {
                got: header.withdrawals_root,
                want: body.withdrawals.as_deref().map(calculate_withdrawals_root),
            });
        }
        if is_merged(&header) && !body.ommers.is_empty() {
            return Err(BlockError::Ommers);
        }
        let transactions = decode_all(&body.raw_transactions)?;
        Ok(Self {
            id: BlockId::new(header.number, keccak256(&header_rlp)),
            rlp_len: list_len(header_rlp.len() + body.payload_len),
            header,
            header_rlp,
            transaction_hashes: transactions.iter().map(|tx| *tx.hash()).collect(),
            transactions,
            raw_transactions: body.raw_transactions,
            ommers: body.ommers,
            withdrawals: body.withdrawals,
            access_list: None,
            body_rlp,
        })
    }

    /// Checks that the body matches the header, as [`Block::from_rlp`] does.
    ///
    /// # Errors
    /// [`BlockError::TransactionsRoot`], [`BlockError::OmmersHash`],
    /// [`PreMergeRule::OmmersHash`], [`BlockError::WithdrawalsRoot`].
    pub fn check_roots(&self) -> Result<(), BlockError> {
        let Header { transactions_root: got, ommers_hash, withdrawals_root, .. } = self.header;
        let want = list_root(&self.raw_transactions);
        if got != want {
            return Err(BlockError::TransactionsRoot { got, want });
        }
        if is_merged(&self.header) {
            if ommers_hash != EMPTY_OMMER_ROOT_HASH {
                return Err(BlockError::OmmersHash { got: ommers_hash });
            }
        } else {
            let want = calculate_ommers_root(&self.ommers);
            if ommers_hash != want {
                return Err(PreMergeRule::OmmersHash { got: ommers_hash, want }.into());
            }
        }
        let want = self.withdrawals.as_deref().map(calculate_withdrawals_root);
        if withdrawals_root != want {
            return Err(BlockError::WithdrawalsRoot { got: withdrawals_root, want });
        }
        Ok(())
    }
}

/// Header fields computed from the lists of payload and sidecar.
struct Roots {
    transactions_root: B256,
    requests_hash: Option<B256>,
    access_list_hash: Option<B256>,
}

fn payload_header(
    payload: &Payload,
    sidecar: &PayloadSidecar,
    roots: Roots,
) -> Result<Header, BlockError> {
    let base_fee = payload.base_fee_per_gas;
    let base_fee = base_fee.try_into().map_err(|_| BlockError::BaseFeeTooHigh { got: base_fee })?;
    Ok(Header {
        parent_hash: payload.parent_hash,
        ommers_hash: EMPTY_OMMER_ROOT_HASH,
        beneficiary: payload.fee_recipient,
        state_root: payload.state_root,
        transactions_root: roots.transactions_root,
        receipts_root: payload.receipts_root,
        logs_bloom: payload.logs_bloom,
        difficulty: U256::ZERO,
        number: payload.block_number,
        gas_limit: payload.gas_limit,
        gas_used: payload.gas_used,
        timestamp: payload.timestamp,
        extra_data: payload.extra_data.clone(),
        mix_hash: payload.prev_randao,
        nonce: B64::ZERO,
        base_fee_per_gas: Some(base_fee),
        withdrawals_root: payload.withdrawals.as_deref().map(calculate_withdrawals_root),
        blob_gas_used: payload.blob_gas_used,
        excess_blob_gas: payload.excess_blob_gas,
        parent_beacon_block_root: sidecar.parent_beacon_block_root,
        requests_hash: roots.requests_hash,
        block_access_list_hash: roots.access_list_hash,
        slot_number: payload.slot_number,
    })
}

/// Hashes requests in the form of the Engine API, checking that types ascend and none lacks data.
fn requests_hash(requests: &[Bytes]) -> Result<B256, BlockError> {
    let mut newest_type = None;
    for (index, request) in requests.iter().enumerate() {
        let Some((request_type, [_, ..])) = request.split_first() else {
            return Err(BlockError::RequestEmpty { index });
        };
        if newest_type >= Some(request_type) {
            return Err(BlockError::RequestsOrder { index });
        }
        newest_type = Some(request_type);
    }
    Ok(Requests::new(requests.to_vec()).requests_hash())
}

fn check_versioned_hashes(
    transactions: &[Transaction],
    expected: &[B256],
) -> Result<(), BlockError> {
    let mut expected = expected.iter().copied();
    let mut index = 0;
    for got in transactions.iter().filter_map(|tx| tx.blob_versioned_hashes()).flatten().copied() {
        let want = expected.next();
        if want != Some(got) {
            return Err(BlockError::VersionedHashes { index, got: Some(got), want });
        }
        index += 1;
    }
    match expected.next() {
        None => Ok(()),
        want => Err(BlockError::VersionedHashes { index, got: None, want }),
    }
}
