//! The irregular state change of the DAO fork (EIP-779).

use crate::{
    error::Error,
    state::{BlockState, StateReader},
};
use alloy_evm::eth::dao_fork::{DAO_HARDFORK_ACCOUNTS, DAO_HARDFORK_BENEFICIARY};
use alloy_primitives::map::AddressMap;
use revm::{Database, DatabaseCommit, state::Account as EvmAccount};
use tandem_chain::ChainSpec;
use tandem_primitives::{Address, BlockNumber, U256};

/// Moves the balances of the DAO and its children to the contract that pays them back. Only the DAO
/// fork block of a supporting chain does this, before the block's transactions.
///
/// # Errors
/// Returns an error if the state cannot be read.
pub fn apply_dao_fork<R: StateReader>(
    spec: &ChainSpec,
    number: BlockNumber,
    state: &mut BlockState<'_, R>,
) -> Result<(), Error> {
    if spec.dao_fork().is_none_or(|fork| fork.block != number || !fork.support) {
        return Ok(());
    }
    let mut accounts: AddressMap<EvmAccount> = AddressMap::default();
    let mut load = |address: Address| -> Result<EvmAccount, Error> {
        let mut account = EvmAccount::from(state.basic(address)?.unwrap_or_default());
        account.mark_touch();
        // EIP-161 comes later: an empty account stays, or comes into existence.
        account.mark_created();
        Ok(account)
    };
    let mut refund = load(DAO_HARDFORK_BENEFICIARY)?;
    for address in DAO_HARDFORK_ACCOUNTS {
        let mut account = load(address)?;
        let balance = std::mem::replace(&mut account.info.balance, U256::ZERO);
        refund.info.balance = refund.info.balance.saturating_add(balance);
        accounts.insert(address, account);
    }
    accounts.insert(DAO_HARDFORK_BENEFICIARY, refund);
    state.commit(accounts);
    Ok(())
}
