//! The state at a chain's head, as geth dumps it.

use crate::{CaseNode, suites::support::same};
use anyhow::Context as _;
use serde::{Deserialize, Deserializer, de};
use serde_json::json;
use std::collections::{BTreeMap, HashMap};
use tandem_primitives::{Account, Address, B256, Bytes, U256, keccak256};
use tandem_trie::{account_leaf, trie_root};

/// Content of `headstate.json`: all existing accounts.
#[derive(Deserialize)]
pub(super) struct HeadState {
    /// The state root, written without `0x`.
    pub(super) root: B256,
    /// Accounts by address, or by another key if the dumping node did not know the address.
    accounts: HashMap<String, DumpedAccount>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct DumpedAccount {
    /// Hash of the address.
    key: B256,
    /// Balance in wei, in decimal digits.
    #[serde(deserialize_with = "decimal")]
    balance: U256,
    nonce: u64,
    /// Root of the storage.
    root: B256,
    code_hash: B256,
    #[serde(default)]
    code: Bytes,
    /// Slots with their unhashed keys; values without leading zeros and without `0x`.
    #[serde(default)]
    storage: BTreeMap<B256, String>,
}

fn decimal<'de, D: Deserializer<'de>>(from: D) -> Result<U256, D::Error> {
    let text = <std::borrow::Cow<'de, str>>::deserialize(from)?;
    U256::from_str_radix(&text, 10).map_err(de::Error::custom)
}

impl DumpedAccount {
    fn slots(&self) -> anyhow::Result<Vec<(B256, U256)>> {
        let slot = |(key, value): (&B256, &String)| {
            let value = U256::from_str_radix(value.trim_start_matches("0x"), 16)
                .with_context(|| format!("slot {key}"))?;
            anyhow::Ok((*key, value))
        };
        self.storage.iter().map(slot).collect()
    }
}

impl HeadState {
    /// Recomputes the roots from the listed accounts and slots, so that none can be missing in the
    /// list. As the node's root is the same, the node cannot have additional ones.
    pub(super) fn check_root(&self) -> anyhow::Result<()> {
        let mut leaves = BTreeMap::new();
        for (name, account) in &self.accounts {
            let slots = account.slots()?.into_iter();
            let storage: BTreeMap<_, _> = slots
                .map(|(key, value)| (keccak256(key).to_vec(), alloy_rlp::encode(value)))
                .collect();
            same("storage root", trie_root(&storage), account.root)
                .with_context(|| format!("account {name}"))?;
            let DumpedAccount { key, balance, nonce, code_hash, .. } = *account;
            let mut leaf = Vec::new();
            account_leaf(&Account { nonce, balance, code_hash }, account.root, &mut leaf);
            leaves.insert(key.to_vec(), leaf);
        }
        same("state root", trie_root(&leaves), self.root)
    }

    /// Compares each account whose address is known with the account at the node's head.
    pub(super) fn check(&self, node: &CaseNode) -> anyhow::Result<()> {
        for (name, account) in &self.accounts {
            let Ok(address) = name.parse::<Address>() else { continue };
            same("hash of the address", keccak256(address), account.key)?;
            check_account(node, address, account).with_context(|| format!("account {name}"))?;
        }
        Ok(())
    }
}

fn check_account(node: &CaseNode, address: Address, account: &DumpedAccount) -> anyhow::Result<()> {
    let at_head = json!([address, "latest"]).to_string();
    let number = |method: &str| -> anyhow::Result<U256> {
        Ok(U256::deserialize(node.call(method, &at_head)?)?)
    };
    same("balance", number("eth_getBalance")?, account.balance)?;
    same("nonce", number("eth_getTransactionCount")?, U256::from(account.nonce))?;
    let code = Bytes::deserialize(node.call("eth_getCode", &at_head)?)?;
    same("code hash", keccak256(&code), account.code_hash)?;
    same("code", &code, &account.code)?;
    for (key, value) in account.slots()? {
        let params = json!([address, key, "latest"]).to_string();
        let got = B256::deserialize(node.call("eth_getStorageAt", &params)?)?;
        same("slot", U256::from_be_bytes(got.0), value).with_context(|| key.to_string())?;
    }
    Ok(())
}
