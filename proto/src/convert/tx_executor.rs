//! Messages from and to tx-executor.

use super::{
    error::{At, ConvertError, Reason},
    field::{at_most, count, hash, hash_bytes, nested, range, required, size, split},
    state::{account_list, accounts, codes, number_list, numbers},
};
use crate::{
    limits::{
        ERROR_TEXT_BYTES_MAX, READ_ACCOUNTS_MAX, TRACEPARENT_BYTES_MAX, TX_LIST_BYTES_MAX,
        TX_PART_BYTES, TX_RANGE_MAX, TX_RESULTS_MAX,
    },
    tx_executor::{
        BeginTransactions, Environment, ParentValues, RangeTransaction, TxCommand, TxFork, TxReply,
        TxResult,
    },
    wire::tx_executor::v1::{
        self, execute_blocks_request::Command, execute_blocks_response::Answer,
    },
};
use prost::Message as _;
use std::time::Duration;
use tandem_primitives::{Address, Bytes};

/// Command with its session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TxRequest {
    /// Number of the block on its stream.
    pub session: u64,
    /// The command.
    pub command: TxCommand,
}

/// Answer with its session.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TxAnswer {
    /// Session of the request.
    pub session: u64,
    /// The answer.
    pub reply: TxReply,
}

fn concat(codes: &[Bytes]) -> Vec<u8> {
    codes.iter().flat_map(|code| code.iter().copied()).collect()
}

/// Reads an address.
fn address(bytes: &[u8]) -> Result<Address, Reason> {
    let got = bytes.len() as u64;
    Address::try_from(bytes).map_err(|_| Reason::Length { expected: 20, got })
}

impl From<Environment> for v1::Environment {
    fn from(environment: Environment) -> Self {
        let Environment {
            fork: TxFork::Amsterdam,
            chain_id,
            number,
            beneficiary,
            timestamp,
            gas_limit,
            base_fee,
            prev_randao,
            excess_blob_gas,
            blob_gas_price,
            slot_number,
            blobs_per_tx_max,
        } = environment;
        Self {
            fork: v1::Fork::Amsterdam.into(),
            chain_id,
            number,
            beneficiary: beneficiary.to_vec().into(),
            timestamp,
            gas_limit,
            base_fee,
            prev_randao: hash_bytes(prev_randao),
            excess_blob_gas,
            blob_gas_price: blob_gas_price.to_be_bytes().to_vec().into(),
            slot_number,
            blobs_per_tx_max,
        }
    }
}

impl TryFrom<v1::Environment> for Environment {
    type Error = ConvertError;

    fn try_from(wire: v1::Environment) -> Result<Self, ConvertError> {
        let known = v1::Fork::Amsterdam as u64;
        range(known, known, u64::try_from(wire.fork).unwrap_or(u64::MAX)).at("fork")?;
        let price = <[u8; 16]>::try_from(&wire.blob_gas_price[..]);
        let got = wire.blob_gas_price.len() as u64;
        let price = price.map_err(|_| Reason::Length { expected: 16, got }).at("blob_gas_price")?;
        Ok(Self {
            fork: TxFork::Amsterdam,
            chain_id: wire.chain_id,
            number: wire.number,
            beneficiary: address(&wire.beneficiary).at("beneficiary")?,
            timestamp: wire.timestamp,
            gas_limit: wire.gas_limit,
            base_fee: wire.base_fee,
            prev_randao: hash(&wire.prev_randao).at("prev_randao")?,
            excess_blob_gas: wire.excess_blob_gas,
            blob_gas_price: u128::from_be_bytes(price),
            slot_number: wire.slot_number,
            blobs_per_tx_max: wire.blobs_per_tx_max,
        })
    }
}

impl TryFrom<v1::Begin> for BeginTransactions {
    type Error = ConvertError;

    fn try_from(wire: v1::Begin) -> Result<Self, ConvertError> {
        at_most(TRACEPARENT_BYTES_MAX, wire.traceparent.len()).at("traceparent")?;
        at_most(TX_LIST_BYTES_MAX, wire.list_bytes as usize).at("list_bytes")?;
        Ok(Self {
            block_number: wire.block_number,
            traceparent: wire.traceparent,
            environment: nested(wire.environment).at("environment")?,
            list_bytes: wire.list_bytes as usize,
        })
    }
}

impl From<ParentValues> for v1::Values {
    fn from(values: ParentValues) -> Self {
        let ParentValues { accounts, slots, codes, slots_follow, last } = values;
        let (account_count, slot_count) = (size(accounts.len()), size(slots.len()));
        Self {
            accounts: Some(account_list(accounts.into_iter())),
            account_count,
            slots: Some(number_list(slots.into_iter())),
            slot_count,
            code_sizes: codes.iter().map(|code| size(code.len())).collect(),
            codes: concat(&codes).into(),
            last,
            slots_follow,
        }
    }
}

impl TryFrom<v1::Values> for ParentValues {
    type Error = ConvertError;

    fn try_from(wire: v1::Values) -> Result<Self, ConvertError> {
        at_most(READ_ACCOUNTS_MAX, wire.account_count as usize).at("account_count")?;
        at_most(READ_ACCOUNTS_MAX, wire.slot_count as usize).at("slot_count")?;
        let accounts = accounts(&wire.accounts.unwrap_or_default(), wire.account_count as usize);
        let slots = numbers(&wire.slots.unwrap_or_default(), wire.slot_count as usize);
        let codes = codes(&wire.code_sizes, &wire.codes)?.collect();
        let (accounts, slots) = (accounts.at("accounts")?, slots.at("slots")?);
        let v1::Values { slots_follow, last, .. } = wire;
        Ok(Self { accounts, slots, codes, slots_follow, last })
    }
}

impl From<Vec<RangeTransaction>> for v1::Range {
    fn from(transactions: Vec<RangeTransaction>) -> Self {
        let mut bytes = Vec::with_capacity(
            transactions.iter().map(|transaction| transaction.bytes.len()).sum(),
        );
        let mut wire = Self::default();
        for RangeTransaction { index, bytes: own } in transactions {
            wire.indices.push(index);
            wire.sizes.push(size(own.len()));
            bytes.extend_from_slice(&own);
        }
        Self { transactions: bytes.into(), ..wire }
    }
}

impl TryFrom<v1::Range> for Vec<RangeTransaction> {
    type Error = ConvertError;

    fn try_from(wire: v1::Range) -> Result<Self, ConvertError> {
        at_most(TX_RANGE_MAX, wire.indices.len()).at("indices")?;
        count(wire.indices.len() as u64, wire.sizes.len()).at("sizes")?;
        let transactions = split(&wire.sizes, wire.transactions).at("transactions")?;
        let rows = wire.indices.iter().zip(transactions);
        Ok(rows.map(|(&index, bytes)| RangeTransaction { index, bytes }).collect())
    }
}

impl From<TxRequest> for v1::ExecuteBlocksRequest {
    fn from(TxRequest { session, command }: TxRequest) -> Self {
        let command = match command {
            TxCommand::Begin(begin) => Command::Begin(v1::Begin {
                block_number: begin.block_number,
                traceparent: begin.traceparent,
                environment: Some(begin.environment.into()),
                list_bytes: size(begin.list_bytes),
            }),
            TxCommand::List(rlp) => Command::List(v1::ListPart { rlp: rlp.into() }),
            TxCommand::Values(values) => Command::Values(values.into()),
            TxCommand::Range(transactions) => Command::Range(transactions.into()),
            TxCommand::End => Command::End(v1::End {}),
            TxCommand::Ping(number) => Command::Ping(v1::Ping { number }),
        };
        Self { session, command: Some(command) }
    }
}

impl TryFrom<v1::ExecuteBlocksRequest> for TxRequest {
    type Error = ConvertError;

    fn try_from(wire: v1::ExecuteBlocksRequest) -> Result<Self, ConvertError> {
        let command = match required(wire.command).at("execute_blocks.command")? {
            Command::Begin(begin) => {
                TxCommand::Begin(Box::new(begin.try_into().at("execute_blocks.begin")?))
            }
            Command::List(part) => {
                at_most(TX_PART_BYTES, part.rlp.len()).at("execute_blocks.list.rlp")?;
                TxCommand::List(part.rlp.into())
            }
            Command::Values(values) => {
                TxCommand::Values(values.try_into().at("execute_blocks.values")?)
            }
            Command::Range(range) => TxCommand::Range(range.try_into().at("execute_blocks.range")?),
            Command::End(v1::End {}) => TxCommand::End,
            Command::Ping(ping) => TxCommand::Ping(ping.number),
        };
        Ok(Self { session: wire.session, command })
    }
}

impl From<TxResult> for v1::Result {
    fn from(result: TxResult) -> Self {
        Self {
            index: result.index,
            took_ns: u64::try_from(result.took.as_nanos()).unwrap_or(u64::MAX),
            outcome: result.outcome.map(Into::into),
            code_missing: result.code_missing,
        }
    }
}

impl TryFrom<v1::Result> for TxResult {
    type Error = ConvertError;

    fn try_from(wire: v1::Result) -> Result<Self, ConvertError> {
        let outcome = wire.outcome.map(TryInto::try_into).transpose().at("outcome")?;
        let took = Duration::from_nanos(wire.took_ns);
        Ok(Self { index: wire.index, took, outcome, code_missing: wire.code_missing })
    }
}

/// Encoded results that travel together.
#[derive(Default, Debug)]
pub struct EncodedResults {
    sizes: Vec<u32>,
    bytes: Vec<u8>,
}

impl EncodedResults {
    /// Returns whether there is no result.
    pub fn is_empty(&self) -> bool {
        self.sizes.is_empty()
    }

    /// Adds an encoded [`v1::Result`]. Gives it back if it would make the message too long.
    pub fn add(&mut self, result: Vec<u8>) -> Option<Vec<u8>> {
        let fits = self.bytes.len() + result.len() <= TX_PART_BYTES;
        if !self.is_empty() && (!fits || self.sizes.len() == TX_RESULTS_MAX) {
            return Some(result);
        }
        self.sizes.push(size(result.len()));
        self.bytes.extend_from_slice(&result);
        None
    }

    /// Returns the message with all of them.
    pub fn into_message(self, session: u64) -> v1::ExecuteBlocksResponse {
        let Self { sizes, bytes } = self;
        let results = v1::Results { sizes, results: bytes.into() };
        v1::ExecuteBlocksResponse { session, answer: Some(Answer::Results(results)) }
    }
}

fn results(wire: v1::Results) -> Result<Vec<TxResult>, ConvertError> {
    at_most(TX_RESULTS_MAX, wire.sizes.len()).at("sizes")?;
    let results = split(&wire.sizes, wire.results).at("results")?;
    let result = |(index, bytes): (usize, Bytes)| {
        let result = v1::Result::decode(bytes.0).map_err(|_| Reason::Malformed.into());
        result.and_then(TxResult::try_from).at_index(index).at("results")
    };
    results.enumerate().map(result).collect()
}

impl From<TxAnswer> for v1::ExecuteBlocksResponse {
    /// Takes as many results as one message may have.
    fn from(TxAnswer { session, reply }: TxAnswer) -> Self {
        let answer = match reply {
            TxReply::Results(results) => {
                let mut encoded = EncodedResults::default();
                for result in results {
                    if encoded.add(v1::Result::from(result).encode_to_vec()).is_some() {
                        break;
                    }
                }
                return encoded.into_message(session);
            }
            TxReply::Refused(mut reason) => {
                let cut = reason.floor_char_boundary(ERROR_TEXT_BYTES_MAX);
                reason.truncate(cut);
                Answer::Refused(v1::Refused { reason })
            }
            TxReply::Pong(number, threads) => Answer::Pong(v1::Pong { number, threads }),
        };
        Self { session, answer: Some(answer) }
    }
}

impl TryFrom<v1::ExecuteBlocksResponse> for TxAnswer {
    type Error = ConvertError;

    fn try_from(wire: v1::ExecuteBlocksResponse) -> Result<Self, ConvertError> {
        let reply = match required(wire.answer).at("executed.answer")? {
            Answer::Results(wire) => TxReply::Results(results(wire).at("executed.results")?),
            Answer::Refused(refused) => {
                at_most(ERROR_TEXT_BYTES_MAX, refused.reason.len())
                    .at("executed.refused.reason")?;
                TxReply::Refused(refused.reason)
            }
            Answer::Pong(pong) => TxReply::Pong(pong.number, pong.threads),
        };
        Ok(Self { session: wire.session, reply })
    }
}
