//! Creation of contracts at addresses that have storage (EIP-7610).
//!
//! revm refuses a creation at an address that has code or a nonce. The EIP adds a third condition,
//! storage, and applies to all blocks since genesis. Only accounts created before EIP-161 or in a
//! genesis file can have storage without code and nonce.

use crate::block::evm::Inner;
use revm::{
    Database,
    context::result::EVMError,
    handler::{EvmTr, FrameData, FrameResult, ItemOrResult},
    interpreter::{InstructionResult, InterpreterAction, interpreter_action::FrameInit},
};
use tandem_primitives::Address;

/// State that can tell whether an account has any storage.
pub trait StorageOccupancy: Database {
    /// Returns whether any slot of the account is set. Called for accounts that have neither code
    /// nor nonce.
    ///
    /// # Errors
    /// Returns an error if the state cannot be read.
    fn has_storage(&mut self, address: Address) -> Result<bool, Self::Error>;
}

impl<DB: StorageOccupancy> StorageOccupancy for &mut DB {
    fn has_storage(&mut self, address: Address) -> Result<bool, Self::Error> {
        (**self).has_storage(address)
    }
}

/// Runs a transaction's frames like revm's handler. Ends each creation that collides with storage
/// before its first instruction.
///
/// # Errors
/// Returns the same errors as revm.
pub fn run_frames<DB: alloy_evm::Database + StorageOccupancy>(
    evm: &mut Inner<DB>,
    first: FrameInit,
) -> Result<FrameResult, EVMError<DB::Error>> {
    if let ItemOrResult::Result(result) = evm.frame_init(first)? {
        return Ok(result);
    }
    let mut collision = end_collision(evm)?;
    loop {
        let result = match collision.take() {
            Some(result) => result,
            None => match evm.frame_run()? {
                ItemOrResult::Result(result) => result,
                ItemOrResult::Item(next) => match evm.frame_init(next)? {
                    ItemOrResult::Result(result) => result,
                    ItemOrResult::Item(_) => {
                        collision = end_collision(evm)?;
                        continue;
                    }
                },
            },
        };
        if let Some(result) = evm.frame_return_result(result)? {
            return Ok(result);
        }
    }
}

/// Ends the frame that was just begun if it creates a contract at an address with storage. All its
/// gas is spent and its account changes are undone, but the creator's nonce stays raised.
fn end_collision<DB: alloy_evm::Database + StorageOccupancy>(
    evm: &mut Inner<DB>,
) -> Result<Option<FrameResult>, EVMError<DB::Error>> {
    let frame = evm.frame_stack.get();
    let FrameData::Create(create) = &frame.data else { return Ok(None) };
    let database = &mut evm.ctx.journaled_state.database;
    if !database.has_storage(create.created_address).map_err(EVMError::Database)? {
        return Ok(None);
    }
    let gas = frame.interpreter.gas;
    let halt = InterpreterAction::new_halt(InstructionResult::CreateCollision, gas);
    let ended = frame.process_next_action::<_, EVMError<DB::Error>>(&mut evm.ctx, halt)?;
    frame.set_finished(true);
    Ok(match ended {
        ItemOrResult::Result(result) => Some(result),
        ItemOrResult::Item(_) => None,
    })
}

/// Unit-test states hold all their slots.
#[cfg(test)]
impl<Ext: revm::DatabaseRef> StorageOccupancy for revm::database::CacheDB<Ext> {
    fn has_storage(&mut self, address: Address) -> Result<bool, Self::Error> {
        let account = self.cache.accounts.get(&address);
        Ok(account.is_some_and(|account| account.storage.values().any(|value| !value.is_zero())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::evm::BlockEvm;
    use alloy_evm::{Evm, EvmEnv};
    use revm::{
        context::{TxEnv, result::ResultAndState},
        database::InMemoryDB,
        primitives::{TxKind, hardfork::SpecId},
        state::{AccountInfo, Bytecode},
    };
    use tandem_primitives::{Bytes, U256};

    const SENDER: Address = Address::repeat_byte(1);
    const FACTORY: Address = Address::repeat_byte(2);
    const GAS: u64 = 10_000_000;

    /// Returns a database whose `target` account has this balance, and a slot unless `slot` is 0.
    fn database(target: Address, balance: u64, slot: u64) -> InMemoryDB {
        let mut db = InMemoryDB::default();
        db.insert_account_info(SENDER, AccountInfo::from_balance(U256::from(1_000)));
        // CREATE(0, 0, 0), result stored in slot 1; remaining gas stored in slot 2.
        let code = [0x5f, 0x5f, 0x5f, 0xf0, 0x60, 1, 0x55, 0x5a, 0x60, 2, 0x55];
        let code = Bytecode::new_raw(Bytes::from(code));
        db.insert_account_info(FACTORY, AccountInfo::from_bytecode(code));
        db.insert_account_info(target, AccountInfo::from_balance(U256::from(balance)));
        db.insert_account_storage(target, U256::from(7), U256::from(slot)).unwrap();
        db
    }

    fn run(db: InMemoryDB, kind: TxKind) -> ResultAndState {
        let mut env = EvmEnv::<SpecId>::default();
        env.cfg_env.spec = SpecId::OSAKA;
        let tx = TxEnv::builder().caller(SENDER).kind(kind).gas_limit(GAS).build().unwrap();
        BlockEvm::new(db, env).transact_raw(tx).unwrap()
    }

    #[test]
    fn a_transaction_cannot_create_where_there_is_storage() {
        let target = SENDER.create(0);
        for (balance, slot, collides) in [(0, 1, true), (5, 1, true), (5, 0, false), (0, 0, false)]
        {
            let done = run(database(target, balance, slot), TxKind::Create);
            assert_eq!(done.result.is_success(), !collides, "{balance} {slot}");
            assert_eq!(done.state[&SENDER].info.nonce, 1);
            if collides {
                assert_eq!(done.result.tx_gas_used(), GAS);
                assert!(!done.state[&target].is_created());
                assert_eq!(done.state[&target].info.nonce, 0);
            }
        }
    }

    #[test]
    fn a_contract_that_creates_where_there_is_storage_loses_the_gas_and_goes_on() {
        // A contract starts with nonce 1.
        let target = FACTORY.create(1);
        let slot = |done: &ResultAndState, slot| {
            done.state[&FACTORY].storage[&U256::from(slot)].present_value()
        };
        let free = run(database(target, 5, 0), TxKind::Call(FACTORY));
        assert_eq!(slot(&free, 1), U256::from_be_slice(target.as_slice()));
        let taken = run(database(target, 5, 1), TxKind::Call(FACTORY));
        assert!(taken.result.is_success());
        assert_eq!(slot(&taken, 1), U256::ZERO);
        assert_eq!(taken.state[&FACTORY].info.nonce, 2);
        // The creation received all but one 64th of the gas.
        assert!(slot(&taken, 2) < U256::from(GAS / 64));
        assert!(slot(&free, 2) > U256::from(GAS / 2));
    }
}
