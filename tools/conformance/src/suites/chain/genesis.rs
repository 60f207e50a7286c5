//! Geth's genesis file for a case.

use super::{
    fixture::{Chain, Config},
    network,
};
use serde_json::{Map, Value, json};

/// The deposit contract of mainnet, which all fixtures use (EIP-6110).
const DEPOSIT_CONTRACT: &str = "0x00000000219ab540356cbb839cbe05303d7705fa";

/// Pairs of a field's name in the fixtures and in the genesis file.
const FIELDS: [(&str, &str); 14] = [
    ("parentHash", "parentHash"),
    ("coinbase", "coinbase"),
    ("difficulty", "difficulty"),
    ("number", "number"),
    ("gasLimit", "gasLimit"),
    ("gasUsed", "gasUsed"),
    ("timestamp", "timestamp"),
    ("extraData", "extraData"),
    ("mixHash", "mixHash"),
    ("nonce", "nonce"),
    ("baseFeePerGas", "baseFeePerGas"),
    ("blobGasUsed", "blobGasUsed"),
    ("excessBlobGas", "excessBlobGas"),
    ("slotNumber", "slotNumber"),
];

/// Returns the genesis file.
///
/// # Errors
/// The reason why the case does not run, see [`network::config`].
pub fn genesis_json(chain: &Chain<'_>) -> Result<String, String> {
    let mut config = network::config(&chain.network)?;
    config.insert("depositContractAddress".to_owned(), json!(DEPOSIT_CONTRACT));
    config.insert("chainId".to_owned(), json!("0x1"));
    if let Some(given) = &chain.config {
        add_given(&mut config, given);
    }
    let mut genesis = Map::new();
    for (from, to) in FIELDS {
        if let Some(field) = chain.genesis_block_header.fields.get(from) {
            genesis.insert(to.to_owned(), json!(field.0));
        }
    }
    genesis.insert("config".to_owned(), Value::Object(config));
    // The accounts have the same form in both files, and may be megabytes.
    let mut text = Value::Object(genesis).to_string();
    text.truncate(text.len() - 1);
    Ok(text + ",\"alloc\":" + chain.pre.get() + "}")
}

fn add_given(config: &mut Map<String, Value>, given: &Config<'_>) {
    let value = |text: &str| serde_json::from_str::<Value>(text).unwrap_or(Value::Null);
    if let Some(id) = given.chainid {
        config.insert("chainId".to_owned(), value(id.get()));
    }
    if let Some(schedule) = &given.blob_schedule {
        let entries = schedule.iter();
        let entries: Map<_, _> =
            entries.map(|(fork, entry)| (fork.to_lowercase(), value(entry.get()))).collect();
        config.insert("blobSchedule".to_owned(), Value::Object(entries));
    }
}
