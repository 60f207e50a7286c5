//! `eth_getLogs`: logs of a block or of a range of blocks. Blocks whose bloom filter excludes a
//! match are not read, and those whose receipts lack the wanted bytes are not decoded.

use super::super::hex::{Hex, NumberParam};
use super::super::json::{BlockContext, LogJson, LogPlace};
use super::{RpcError, Source, add_calling, cut_error, known, read_error};
use crate::{BlockTag, Chain, chain::decode_record};
use alloy_consensus::{Header, TxReceipt};
use alloy_primitives::{Address, B256, Bloom, BloomInput, Log};
use memchr::memmem;
use serde::de::{SeqAccess, Visitor, value::StrDeserializer};
use serde::{Deserialize, Deserializer};
use serde_json::value::RawValue;
use std::{fmt, marker::PhantomData, sync::Arc};
use tandem_chain::Receipt;
use tandem_http::code;
use tandem_http::usage::Running;
use tandem_http::{Answer, Methods, required, to_result};
use tandem_primitives::BlockId;
use tandem_proto::storage::BlockRecord;

/// Maximum number of topics of a log.
const TOPICS_MAX: usize = 4;
/// Maximum number of addresses, or of topics of one position, in a filter.
const ALTERNATIVES_MAX: usize = 1000;
/// Maximum number of addresses and topics that are looked for in encoded receipts. With more, receipts are
/// decoded at once.
const SCANNED_MAX: usize = 16;

pub(super) fn add(methods: &mut Methods, source: &Arc<Source>) {
    add_calling(methods, source, "eth_getLogs", logs);
}

/// One value or a list of values. At most one value beyond the limit is kept, which suffices to
/// refuse the filter.
#[derive(Debug)]
struct Alternatives<T> {
    values: Vec<T>,
    /// Whether `null` is among them.
    null: bool,
}

impl<'de, T: Deserialize<'de>> Deserialize<'de> for Alternatives<T> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct AlternativesVisitor<T>(PhantomData<T>);
        impl<'de, T: Deserialize<'de>> Visitor<'de> for AlternativesVisitor<T> {
            type Value = Alternatives<T>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a hex string or an array of them")
            }

            fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<Self::Value, E> {
                let value = T::deserialize(StrDeserializer::new(text))?;
                Ok(Alternatives { values: vec![value], null: false })
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
                let mut all = Alternatives { values: Vec::new(), null: false };
                while let Some(value) = seq.next_element::<Option<T>>()? {
                    match value {
                        None => all.null = true,
                        Some(value) if all.values.len() <= ALTERNATIVES_MAX => {
                            all.values.push(value);
                        }
                        Some(_) => {}
                    }
                }
                Ok(all)
            }
        }
        deserializer.deserialize_any(AlternativesVisitor(PhantomData))
    }
}

/// Parameter of `eth_getLogs` (execution-apis, `Filter`).
#[derive(Default, Deserialize)]
#[serde(default, rename_all = "camelCase")]
pub(in crate::rpc) struct FilterJson {
    block_hash: Option<Hex<B256>>,
    from_block: Option<NumberParam>,
    to_block: Option<NumberParam>,
    address: Option<Alternatives<Hex<Address>>>,
    #[serde(deserialize_with = "topics")]
    topics: Vec<Vec<B256>>,
}

/// Reads for each position a topic, several, or `null` for any. A `null` among several means any
/// too.
fn topics<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<Vec<B256>>, D::Error> {
    struct TopicsVisitor;
    impl<'de> Visitor<'de> for TopicsVisitor {
        type Value = Vec<Vec<B256>>;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("an array of topics")
        }

        fn visit_unit<E>(self) -> Result<Self::Value, E> {
            Ok(Vec::new())
        }

        fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Self::Value, A::Error> {
            let mut positions = Vec::new();
            while let Some(position) = seq.next_element::<Option<Alternatives<Hex<B256>>>>()? {
                // Keeps one position too many, so that the filter is refused.
                if positions.len() <= TOPICS_MAX {
                    let named = position.filter(|alternatives| !alternatives.null);
                    let values = named.map_or_else(Vec::new, |alternatives| alternatives.values);
                    positions.push(values.into_iter().map(|Hex(topic)| topic).collect());
                }
            }
            Ok(positions)
        }
    }
    deserializer.deserialize_any(TopicsVisitor)
}

/// Conditions for a log. Empty lists match everything.
#[derive(Debug)]
pub(in crate::rpc) struct Filter {
    addresses: Vec<Address>,
    topics: Vec<Vec<B256>>,
}

impl Filter {
    /// Returns the conditions for logs of blocks to come.
    pub fn of_new_logs(filter: FilterJson) -> Result<Self, RpcError> {
        let FilterJson { block_hash, from_block, to_block, address, topics } = filter;
        let is_latest = |param: Option<NumberParam>| {
            param.is_none_or(|NumberParam(tag)| tag == BlockTag::Latest)
        };
        if block_hash.is_some() || !is_latest(from_block) || !is_latest(to_block) {
            let text = "a subscription is for logs of new blocks; see eth_getLogs for others";
            return Err(RpcError::invalid_params(text));
        }
        Self::new(address, topics)
    }

    fn new(
        address: Option<Alternatives<Hex<Address>>>,
        topics: Vec<Vec<B256>>,
    ) -> Result<Self, RpcError> {
        if topics.len() > TOPICS_MAX {
            return Err(RpcError::invalid_params("invalid argument 0: exceed max topics"));
        }
        let addresses = match address {
            None => Vec::new(),
            Some(Alternatives { null: true, .. }) => {
                return Err(RpcError::invalid_params("invalid argument 0: null is not an address"));
            }
            Some(Alternatives { values, .. }) => {
                values.into_iter().map(|Hex(address)| address).collect()
            }
        };
        let longest = topics.iter().map(Vec::len).fold(addresses.len(), usize::max);
        if longest > ALTERNATIVES_MAX {
            return Err(RpcError::server("exceed max addresses or topics per search position"));
        }
        Ok(Self { addresses, topics })
    }

    /// Returns whether a block or receipt with this bloom filter can hold a match.
    pub fn may_match(&self, bloom: &Bloom) -> bool {
        let holds = |raw: &[u8]| bloom.contains_input(BloomInput::Raw(raw));
        let any = |topics: &Vec<B256>| topics.is_empty() || topics.iter().any(|t| holds(&t[..]));
        (self.addresses.is_empty() || self.addresses.iter().any(|a| holds(&a[..])))
            && self.topics.iter().all(any)
    }

    /// Returns whether a block with these encoded receipts can hold a match: addresses and topics stand in
    /// them as they are. The bloom filter of a full block lets through nearly everything.
    fn may_be_in(&self, receipts: &[u8]) -> bool {
        let named = self.addresses.len() + self.topics.iter().map(Vec::len).sum::<usize>();
        let holds = |raw: &[u8]| memmem::find(receipts, raw).is_some();
        let any = |topics: &Vec<B256>| topics.is_empty() || topics.iter().any(|t| holds(&t[..]));
        named > SCANNED_MAX
            || ((self.addresses.is_empty() || self.addresses.iter().any(|a| holds(&a[..])))
                && self.topics.iter().all(any))
    }

    fn matches(&self, log: &Log) -> bool {
        if !self.addresses.is_empty() && !self.addresses.contains(&log.address) {
            return false;
        }
        let found = log.topics();
        self.topics.len() <= found.len()
            && self
                .topics
                .iter()
                .zip(found)
                .all(|(any, topic)| any.is_empty() || any.contains(topic))
    }
}

fn logs(source: &Source, running: &Running<'_>, (filter,): (Option<FilterJson>,)) -> Answer {
    let FilterJson { block_hash, from_block, to_block, address, topics } = required(filter, 0)?;
    let filter = Filter::new(address, topics)?;
    let mut found = Vec::new();
    let Some(Hex(hash)) = block_hash else {
        let (first, last) = range(source, from_block, to_block)?;
        for number in first..=last {
            running.check().map_err(cut_error)?;
            // A reorg to a shorter chain may remove blocks meanwhile.
            match known(source.chain.header(BlockTag::Number(number)))? {
                Some((id, header)) => collect(source, &filter, id, &header, &mut found)?,
                None => break,
            }
        }
        return to_result(&found);
    };
    if from_block.is_some() || to_block.is_some() {
        return Err(RpcError::invalid_params(
            "invalid argument 0: cannot specify both BlockHash and FromBlock/ToBlock, \
             choose one or the other",
        ));
    }
    let (id, header) = known(source.chain.header(BlockTag::Hash(hash)))?
        .ok_or_else(|| RpcError::server("unknown block"))?;
    collect(source, &filter, id, &header, &mut found)?;
    to_result(&found)
}

/// Returns the numbers of the first and last block.
fn range(
    source: &Source,
    from: Option<NumberParam>,
    to: Option<NumberParam>,
) -> Result<(u64, u64), RpcError> {
    let tag = |param: Option<NumberParam>| param.map_or(BlockTag::Latest, |NumberParam(tag)| tag);
    let (from, to) = (tag(from), tag(to));
    if from == BlockTag::Pending || to == BlockTag::Pending {
        return Err(RpcError::invalid_params("pending logs are not supported"));
    }
    let head = source.chain.head().number;
    let number = |tag| match tag {
        BlockTag::Number(number) => Ok(number),
        tag => match known(source.chain.resolve(tag))? {
            Some(id) => Ok(id.number),
            None => Err(RpcError::server("unknown block")),
        },
    };
    let (first, last) = (number(from)?, number(to)?);
    if first > last {
        return Err(RpcError::invalid_params("invalid block range params"));
    }
    if last > head {
        return Err(RpcError::invalid_params("block range extends beyond current head block"));
    }
    let limit = source.queries.log_blocks_max;
    if last - first >= limit {
        return Err(RpcError::invalid_params(format_args!("exceed maximum block range {limit}")));
    }
    Ok((first, last))
}

/// Adds the matching logs of one block, rendered.
fn collect(
    source: &Source,
    filter: &Filter,
    id: BlockId,
    header: &Header,
    found: &mut Vec<Box<RawValue>>,
) -> Result<(), RpcError> {
    if !filter.may_match(&header.logs_bloom) {
        return Ok(());
    }
    let record = known(source.chain.record(BlockTag::Hash(id.hash)))?;
    let Some(record) = record.filter(|record| filter.may_be_in(&record.receipts)) else {
        return Ok(());
    };
    let logs = BlockLogs::decode(id, header, record)?;
    logs.add(filter, source.queries.log_results_max, false, found)
}

/// Logs of a block.
pub(in crate::rpc) struct BlockLogs {
    context: BlockContext,
    transaction_hashes: Arc<[B256]>,
    receipts: Vec<Receipt>,
}

impl BlockLogs {
    /// Reads them. Returns `None` if the block is not known any more.
    pub fn read(chain: &Chain, id: BlockId, header: &Header) -> Result<Option<Self>, RpcError> {
        let record = known(chain.record(BlockTag::Hash(id.hash)))?;
        record.map(|record| Self::decode(id, header, record)).transpose()
    }

    fn decode(id: BlockId, header: &Header, record: BlockRecord) -> Result<Self, RpcError> {
        let (block, receipts) = decode_record(record).map_err(read_error)?;
        Ok(Self {
            context: BlockContext::new(id, header),
            transaction_hashes: block.transaction_hashes.clone(),
            receipts,
        })
    }

    /// Adds those that match, rendered, as logs of a canonical block or of a removed one.
    pub fn add(
        &self,
        filter: &Filter,
        results_max: usize,
        removed: bool,
        found: &mut Vec<Box<RawValue>>,
    ) -> Result<(), RpcError> {
        let mut log_index = 0;
        for (index, receipt) in self.receipts.iter().enumerate() {
            for log in receipt.logs() {
                if filter.matches(log) {
                    if found.len() == results_max {
                        let message = format!("query returned more than {results_max} results");
                        return Err(RpcError::new(code::LIMIT_EXCEEDED, message));
                    }
                    let place = LogPlace {
                        transaction_hash: self.transaction_hashes[index],
                        transaction_index: index as u64,
                        log_index,
                    };
                    let log = LogJson::new(self.context, place, log).removed(removed);
                    found.push(to_result(&log)?);
                }
                log_index += 1;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_consensus::TxType;
    use alloy_primitives::{Bytes, LogData};
    use tandem_chain::encode_receipts;

    fn filter(json: &str) -> Result<Filter, String> {
        let filter: FilterJson = serde_json::from_str(json).map_err(|error| error.to_string())?;
        Filter::new(filter.address, filter.topics).map_err(|error| error.message.into_owned())
    }

    fn log(address: u8, topics: &[u8]) -> Log {
        let topics = topics.iter().map(|&topic| B256::with_last_byte(topic)).collect();
        let data = LogData::new_unchecked(topics, Bytes::new());
        Log { address: Address::with_last_byte(address), data }
    }

    #[test]
    fn topics_are_matched_by_position_and_null_is_any() {
        let (a, b) = (B256::with_last_byte(1), B256::with_last_byte(2));
        let by = |topics: String| filter(&format!(r#"{{"topics":{topics}}}"#)).unwrap();
        let first = by(format!(r#"["{a}"]"#));
        assert!(first.matches(&log(0, &[1])) && first.matches(&log(0, &[1, 2])));
        assert!(!first.matches(&log(0, &[2, 1])) && !first.matches(&log(0, &[])));
        let second = by(format!(r#"[null,["{a}","{b}"]]"#));
        assert!(second.matches(&log(0, &[9, 1])) && second.matches(&log(0, &[9, 2])));
        assert!(!second.matches(&log(0, &[1])) && !second.matches(&log(0, &[1, 3])));
        // A trailing wildcard requires a topic of any value.
        assert!(!by(format!(r#"["{a}",null]"#)).matches(&log(0, &[1])));
        assert!(by(format!(r#"[["{a}",null]]"#)).matches(&log(0, &[7])));
        for any in ["[]", "null"] {
            assert!(by(any.to_owned()).matches(&log(0, &[])));
        }
    }

    #[test]
    fn addresses_are_alternatives() {
        let one = filter(&format!(r#"{{"address":"{}"}}"#, Address::with_last_byte(1))).unwrap();
        assert!(one.matches(&log(1, &[])) && !one.matches(&log(2, &[])));
        assert!(filter(r#"{"address":[]}"#).unwrap().matches(&log(2, &[])));
    }

    #[test]
    fn the_bloom_filter_rules_out_only_what_cannot_match() {
        let filter = filter(&format!(
            r#"{{"address":"{}","topics":[null,"{}"]}}"#,
            Address::with_last_byte(1),
            B256::with_last_byte(2)
        ))
        .unwrap();
        let bloom = |log: &Log| alloy_primitives::logs_bloom([log]);
        assert!(filter.may_match(&bloom(&log(1, &[7, 2]))));
        assert!(!filter.may_match(&bloom(&log(3, &[7, 2]))));
        assert!(!filter.may_match(&bloom(&log(1, &[7, 8]))));
        assert!(!filter.may_match(&Bloom::ZERO));
    }

    #[test]
    fn encoded_receipts_are_searched_for_what_a_match_needs() {
        let one = |address: u8, topics: &[u8]| {
            encode_receipts(&[Receipt {
                tx_type: TxType::Eip1559,
                success: true,
                cumulative_gas_used: 21_000,
                logs: vec![log(address, topics)],
                post_state: None,
            }])
        };
        let (a, b) = (Address::with_last_byte(1), B256::with_last_byte(2));
        let by = filter(&format!(r#"{{"address":"{a}","topics":[null,"{b}"]}}"#)).unwrap();
        assert!(by.may_be_in(&one(1, &[7, 2])));
        assert!(!by.may_be_in(&one(1, &[7, 8])) && !by.may_be_in(&one(3, &[7, 2])));
        assert!(filter("{}").unwrap().may_be_in(&one(1, &[])));
        // Beyond this number of values, the receipts are decoded in any case.
        let many = vec![Address::with_last_byte(9); SCANNED_MAX + 1];
        let many = filter(&serde_json::json!({ "address": many }).to_string()).unwrap();
        assert!(many.may_be_in(&one(1, &[])));
    }

    /// A caller cannot make the node store a refused filter, or hold values that are not topics.
    #[test]
    fn no_more_of_a_filter_is_kept_than_may_be_named() {
        let list = |item: &str| format!("[{}{item}]", format!("{item},").repeat(5000));
        let named: Alternatives<Hex<B256>> =
            serde_json::from_str(&list(&format!("\"{}\"", B256::ZERO))).unwrap();
        assert_eq!(named.values.len(), ALTERNATIVES_MAX + 1);
        let nulls: Alternatives<Hex<B256>> = serde_json::from_str(&list("null")).unwrap();
        assert!(nulls.null && nulls.values.capacity() == 0);
        let filter: FilterJson =
            serde_json::from_str(&format!("{{\"topics\":{}}}", list("null"))).unwrap();
        assert_eq!(filter.topics.len(), TOPICS_MAX + 1);
        assert!(serde_json::from_str::<Alternatives<Hex<B256>>>(&list("1")).is_err());
    }

    #[test]
    fn what_is_no_filter_is_refused() {
        for json in [
            r#"{"address":"0x12"}"#,
            r#"{"address":[null]}"#,
            r#"{"address":1}"#,
            r#"{"topics":1}"#,
            r#"{"topics":[[["0x"]]]}"#,
            r#"{"topics":["0x12"]}"#,
            r#"{"topics":{}}"#,
            r#"{"address":"1111111111111111111111111111111111111111"}"#,
            r#"{"fromBlock":"1"}"#,
            r#"{"topics":[null,null,null,null,null]}"#,
        ] {
            assert!(filter(json).is_err(), "{json}");
        }
        let many = vec![Address::ZERO; ALTERNATIVES_MAX + 1];
        let json = serde_json::json!({ "address": many }).to_string();
        assert!(filter(&json).unwrap_err().starts_with("exceed max addresses"));
    }
}
