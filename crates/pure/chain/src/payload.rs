use crate::Block;
use alloy_consensus::{Header, Transaction as _};
use alloy_eips::eip4895::Withdrawal;
use alloy_primitives::{Address, B256, Bloom, Bytes, U256};
use serde::{Deserialize, Serialize};

/// `ExecutionPayload` object of the Engine API in all its versions. A field that a version lacks is
/// `None` (execution-apis, `src/engine`).
#[derive(Clone, PartialEq, Eq, Debug, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Payload {
    /// Hash of the parent block.
    pub parent_hash: B256,
    /// Recipient of the priority fees; `beneficiary` in the header.
    pub fee_recipient: Address,
    /// Root of the state after the block.
    pub state_root: B256,
    /// Root of the receipts.
    pub receipts_root: B256,
    /// Bloom filter over the logs.
    pub logs_bloom: Bloom,
    /// Randomness of the beacon chain; `mixHash` in the header (EIP-4399).
    pub prev_randao: B256,
    /// Height above genesis.
    #[serde(with = "quantity")]
    pub block_number: u64,
    /// Gas that the block may use.
    #[serde(with = "quantity")]
    pub gas_limit: u64,
    /// Gas that the block used.
    #[serde(with = "quantity")]
    pub gas_used: u64,
    /// Timestamp in seconds.
    #[serde(with = "quantity")]
    pub timestamp: u64,
    /// Extra data, at most 32 bytes of the builder's choice.
    pub extra_data: Bytes,
    /// Base fee in wei.
    #[serde(with = "quantity")]
    pub base_fee_per_gas: U256,
    /// Hash of the header.
    pub block_hash: B256,
    /// Transactions, each as its EIP-2718 bytes. Reading JSON ends the list after the first one
    /// that is too short for a transaction. That one makes the payload invalid, so the rest need
    /// not be kept.
    #[serde(deserialize_with = "transactions::deserialize")]
    pub transactions: Vec<Bytes>,
    /// Withdrawals, from V2 on.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub withdrawals: Option<Vec<Withdrawal>>,
    /// Blob gas used, from V3 on.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "quantity::opt")]
    pub blob_gas_used: Option<u64>,
    /// Excess blob gas, from V3 on.
    #[serde(default, skip_serializing_if = "Option::is_none", with = "quantity::opt")]
    pub excess_blob_gas: Option<u64>,
    /// RLP of the block-level access list, from V4 on (EIP-7928).
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "data::opt")]
    pub block_access_list: Option<Bytes>,
    /// Slot of the beacon chain, from V4 on (EIP-7843).
    #[serde(default, skip_serializing_if = "Option::is_none", with = "quantity::opt")]
    pub slot_number: Option<u64>,
}

/// Parameters of `engine_newPayload` other than the payload.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct PayloadSidecar {
    /// Versioned hashes of the blobs that the consensus layer expects, from V3 on.
    pub versioned_hashes: Option<Vec<B256>>,
    /// Root of the parent beacon block, from V3 on (EIP-4788).
    pub parent_beacon_block_root: Option<B256>,
    /// Execution requests, each a type byte followed by data, from V4 on (EIP-7685).
    pub execution_requests: Option<Vec<Bytes>>,
}

impl Payload {
    /// Returns the payload of a block with this header, whose hash is `hash`. It lacks the access
    /// list.
    pub fn from_header(
        header: &Header,
        hash: B256,
        transactions: Vec<Bytes>,
        withdrawals: Option<Vec<Withdrawal>>,
    ) -> Self {
        Self {
            parent_hash: header.parent_hash,
            fee_recipient: header.beneficiary,
            state_root: header.state_root,
            receipts_root: header.receipts_root,
            logs_bloom: header.logs_bloom,
            prev_randao: header.mix_hash,
            block_number: header.number,
            gas_limit: header.gas_limit,
            gas_used: header.gas_used,
            timestamp: header.timestamp,
            extra_data: header.extra_data.clone(),
            base_fee_per_gas: U256::from(header.base_fee_per_gas.unwrap_or(0)),
            block_hash: hash,
            transactions,
            withdrawals,
            blob_gas_used: header.blob_gas_used,
            excess_blob_gas: header.excess_blob_gas,
            block_access_list: None,
            slot_number: header.slot_number,
        }
    }

    /// Returns the payload of a block and its sidecar. The sidecar lacks the execution requests,
    /// because a block holds only their hash.
    pub fn from_block(block: &Block) -> (Self, PayloadSidecar) {
        let header = &block.header;
        let (transactions, withdrawals) =
            (block.raw_transactions.clone(), block.withdrawals.clone());
        let payload = Self {
            block_access_list: block.access_list.as_ref().map(|list| list.rlp().clone()),
            ..Self::from_header(header, block.id.hash, transactions, withdrawals)
        };
        let hashes = block.transactions.iter().filter_map(|tx| tx.blob_versioned_hashes());
        let sidecar = PayloadSidecar {
            versioned_hashes: header.blob_gas_used.map(|_| hashes.flatten().copied().collect()),
            parent_beacon_block_root: header.parent_beacon_block_root,
            execution_requests: None,
        };
        (payload, sidecar)
    }
}

/// `DATA` as in the Ethereum JSON-RPC specification: a string of `0x` and pairs of digits. alloy's
/// [`Bytes`] would also accept arrays of numbers, and a body of many megabytes can hold very many
/// numbers.
mod data {
    use alloy_primitives::{Bytes, hex};
    use serde::{
        Deserialize, Deserializer,
        de::{Error, Visitor},
    };
    use std::fmt;

    pub(super) struct Data(pub Bytes);

    impl<'de> Deserialize<'de> for Data {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            deserializer.deserialize_str(DataVisitor)
        }
    }

    struct DataVisitor;

    impl Visitor<'_> for DataVisitor {
        type Value = Data;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("0x-prefixed bytes")
        }

        fn visit_str<E: Error>(self, text: &str) -> Result<Data, E> {
            let digits =
                text.strip_prefix("0x").ok_or_else(|| E::custom("no 0x-prefixed bytes"))?;
            hex::decode(digits).map(|bytes| Data(bytes.into())).map_err(E::custom)
        }
    }

    /// Reads a field that may be missing or null.
    pub(super) fn opt<'de, D: Deserializer<'de>>(from: D) -> Result<Option<Bytes>, D::Error> {
        Ok(Option::<Data>::deserialize(from)?.map(|Data(bytes)| bytes))
    }
}

/// List of transactions, each read strictly as `DATA`.
mod transactions {
    use super::data::Data;
    use crate::transaction::TRANSACTION_LEN_MIN;
    use alloy_primitives::Bytes;
    use serde::{
        Deserializer,
        de::{IgnoredAny, SeqAccess, Visitor},
    };
    use std::fmt;

    struct ListVisitor;

    impl<'de> Visitor<'de> for ListVisitor {
        type Value = Vec<Bytes>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an array of transactions")
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<Bytes>, A::Error> {
            let mut list = Vec::new();
            while let Some(Data(bytes)) = seq.next_element()? {
                let too_short = bytes.len() < TRANSACTION_LEN_MIN;
                // Grows by half instead of doubling: for many small transactions, this list is most
                // of the memory.
                if list.len() == list.capacity() {
                    list.reserve_exact(8 + list.len() / 2);
                }
                list.push(bytes);
                if too_short {
                    while seq.next_element::<IgnoredAny>()?.is_some() {}
                    break;
                }
            }
            Ok(list)
        }
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Bytes>, D::Error> {
        from.deserialize_seq(ListVisitor)
    }
}

/// `QUANTITY` as in the Ethereum JSON-RPC specification: a string of `0x` and hexadecimal digits,
/// without leading zeros. Stricter than alloy's, which also accepts JSON numbers, decimals and
/// leading zeros.
mod quantity {
    use alloy_primitives::U256;
    use serde::{Deserializer, Serializer, de};
    use std::{fmt, marker::PhantomData};

    struct Visitor<T>(PhantomData<T>);

    impl<T: TryFrom<U256>> de::Visitor<'_> for Visitor<T> {
        type Value = T;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a 0x-prefixed quantity without leading zeros")
        }

        fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
            let invalid = || E::invalid_value(de::Unexpected::Str(text), &self);
            let digits = text.strip_prefix("0x").ok_or_else(invalid)?;
            let canonical = digits == "0" || !digits.starts_with('0');
            let hex = !digits.is_empty() && digits.bytes().all(|byte| byte.is_ascii_hexdigit());
            if !canonical || !hex {
                return Err(invalid());
            }
            let number = U256::from_str_radix(digits, 16).map_err(|_| invalid())?;
            T::try_from(number).map_err(|_| invalid())
        }
    }

    pub(super) fn serialize<T, S>(value: &T, to: S) -> Result<S::Ok, S::Error>
    where
        T: fmt::LowerHex,
        S: Serializer,
    {
        to.collect_str(&format_args!("{value:#x}"))
    }

    pub(super) fn deserialize<'de, T, D>(from: D) -> Result<T, D::Error>
    where
        T: TryFrom<U256>,
        D: Deserializer<'de>,
    {
        from.deserialize_str(Visitor(PhantomData))
    }

    /// `QUANTITY` for a field that may be missing or null.
    pub(super) mod opt {
        use serde::{Deserialize, Deserializer, Serializer};

        #[derive(Deserialize)]
        struct Quantity(#[serde(with = "super")] u64);

        pub(crate) fn serialize<S: Serializer>(
            value: &Option<u64>,
            to: S,
        ) -> Result<S::Ok, S::Error> {
            match value {
                Some(value) => super::serialize(value, to),
                None => to.serialize_none(),
            }
        }

        pub(crate) fn deserialize<'de, D>(from: D) -> Result<Option<u64>, D::Error>
        where
            D: Deserializer<'de>,
        {
            Ok(Option::<Quantity>::deserialize(from)?.map(|Quantity(value)| value))
        }
    }
}
