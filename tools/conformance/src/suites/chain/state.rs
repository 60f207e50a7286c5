//! The state after a case.

use super::fixture::{Chain, part};
use alloy_primitives::{Address, Bytes, U256};
use anyhow::{bail, ensure};
use serde::Deserialize;
use std::collections::BTreeMap;
use tandem_cluster::Handle;
use tandem_executor::BlockTag;

#[derive(Deserialize, Default)]
struct Account {
    nonce: U256,
    balance: U256,
    code: Bytes,
    #[serde(default)]
    storage: BTreeMap<U256, U256>,
}

type Accounts = BTreeMap<Address, Account>;

/// Compares the state at the head with that of the fixture: every account that existed before or
/// exists afterwards, with all its slots.
///
/// # Errors
/// The first difference, or the part that cannot be read.
pub fn compare(handle: &Handle, chain: &Chain<'_>) -> anyhow::Result<()> {
    if let Some(want) = chain.post_state_hash {
        let header = handle.chain().header(BlockTag::Latest)?;
        let got = header.map(|(_, header)| header.state_root);
        ensure!(got == Some(want), "state root is {got:?}, not {want}");
    }
    let Some(post) = chain.post_state else {
        ensure!(chain.post_state_hash.is_some(), "the fixture has no state after");
        return Ok(());
    };
    let before: Accounts = part("pre", chain.pre)?;
    let after: Accounts = part("postState", post)?;
    let nothing = Account::default();
    for address in before.keys().filter(|address| !after.contains_key(*address)) {
        let found = handle.chain().account(BlockTag::Latest, *address)?;
        ensure!(found.is_none(), "account {address} is still there");
    }
    for (address, want) in &after {
        compare_account(handle, *address, want)?;
        let old = &before.get(address).unwrap_or(&nothing).storage;
        for slot in want.storage.keys().chain(old.keys()) {
            let want = want.storage.get(slot).copied().unwrap_or_default();
            let got = handle.chain().storage(BlockTag::Latest, *address, *slot)?;
            ensure!(got == want, "slot {slot:#x} of {address} is {got:#x}, not {want:#x}");
        }
    }
    Ok(())
}

fn compare_account(handle: &Handle, address: Address, want: &Account) -> anyhow::Result<()> {
    let chain = handle.chain();
    let Some(got) = chain.account(BlockTag::Latest, address)? else {
        bail!("account {address} is missing");
    };
    let (nonce, balance) = (U256::from(got.nonce), got.balance);
    ensure!(nonce == want.nonce, "nonce of {address} is {nonce}, not {}", want.nonce);
    ensure!(balance == want.balance, "balance of {address} is {balance}, not {}", want.balance);
    let code = chain.code(BlockTag::Latest, address)?;
    ensure!(code == want.code, "code of {address} is {code}, not {}", want.code);
    Ok(())
}
