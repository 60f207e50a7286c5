//! Access list that a message would profit from (EIP-2930).

use super::{CallOutcome, Message, invalid_call};
use crate::error::Error;
use alloy_eips::{
    eip2930::{AccessList, AccessListItem},
    eip7702::SignedAuthorization,
};
use alloy_primitives::map::AddressSet;
use revm::{
    Inspector,
    bytecode::opcode,
    interpreter::{
        Interpreter,
        interpreter::EthInterpreter,
        interpreter_types::{InputsTr, Jumps},
    },
    precompile::{PrecompileSpecId, Precompiles},
    primitives::TxKind,
};
use std::collections::{BTreeMap, BTreeSet};
use tandem_primitives::{Address, B256, U256};

/// Maximum number of runs. A list changes the cost of later instructions, and so may change which
/// keys are touched. Each run only adds to the list. A list that still grows after this many runs
/// is an error.
const RUNS_MAX: usize = 16;

/// Access list, and the message's result with it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct AccessListOutcome {
    /// List sorted by address and by slot.
    pub access_list: AccessList,
    /// Gas used by the message with this list.
    pub gas_used: u64,
    /// Reason why the message fails, if it does. The list is complete even then.
    pub error: Option<String>,
}

/// Finds what a message touches, beside the list that it has.
///
/// # Errors
/// As [`super::Calls::create_access_list`].
pub fn create(
    message: &Message<'_>,
    given: &AccessList,
    authorizations: &[SignedAuthorization],
) -> Result<AccessListOutcome, Error> {
    let mut touched = Touched { warm: warm(message, authorizations), ..Touched::default() };
    touched.add_list(given);
    for _ in 0..RUNS_MAX {
        let before = touched.slots.clone();
        let access_list = touched.list();
        let mut transaction = message.transaction.clone();
        // A list requires transaction type 1. Later types support lists anyway.
        transaction.tx_type = transaction.tx_type.max(1);
        transaction.access_list = access_list.clone();
        let result = message.run(transaction, Some(&mut touched))?.map_err(invalid_call)?;
        if touched.slots == before {
            let gas_used = result.tx_gas_used();
            let error = match CallOutcome::from(result) {
                CallOutcome::Return(_) => None,
                CallOutcome::Revert(_) => Some("execution reverted".to_owned()),
                CallOutcome::Halt(reason) => Some(reason),
            };
            return Ok(AccessListOutcome { access_list, gas_used, error });
        }
    }
    Err(Error::InvalidCall(format!("the access list still grows after {RUNS_MAX} runs")))
}

/// Returns the addresses that are warm without any list.
fn warm(message: &Message<'_>, authorizations: &[SignedAuthorization]) -> AddressSet {
    let precompiles = Precompiles::new(PrecompileSpecId::from_spec_id(message.env.cfg_env.spec));
    let mut warm: AddressSet = precompiles.addresses().copied().collect();
    let transaction = &message.transaction;
    warm.insert(transaction.caller);
    warm.insert(match transaction.kind {
        TxKind::Call(to) => to,
        TxKind::Create => transaction.caller.create(transaction.nonce),
    });
    let chain_id = U256::from(message.chain.spec.chain_id());
    let valid = authorizations.iter().filter(|signed| {
        (signed.chain_id.is_zero() || signed.chain_id == chain_id) && signed.nonce < u64::MAX
    });
    warm.extend(valid.filter_map(|signed| signed.recover_authority().ok()));
    warm
}

/// Addresses and slots that instructions name.
#[derive(Default)]
pub struct Touched {
    warm: AddressSet,
    slots: BTreeMap<Address, BTreeSet<B256>>,
}

impl Touched {
    fn add_list(&mut self, list: &AccessList) {
        for item in list.iter().filter(|item| !self.warm.contains(&item.address)) {
            self.slots.entry(item.address).or_default().extend(&item.storage_keys);
        }
    }

    fn list(&self) -> AccessList {
        let items = self.slots.iter().map(|(&address, slots)| {
            let storage_keys = slots.iter().copied().collect();
            AccessListItem { address, storage_keys }
        });
        AccessList(items.collect())
    }

    fn add_address(&mut self, word: U256) {
        let address = Address::from_word(word.into());
        if !self.warm.contains(&address) {
            self.slots.entry(address).or_default();
        }
    }
}

impl<C> Inspector<C, EthInterpreter> for Touched {
    fn step(&mut self, interpreter: &mut Interpreter<EthInterpreter>, _context: &mut C) {
        let stack = interpreter.stack.data();
        let operand = |position: usize| {
            stack.len().checked_sub(position + 1).and_then(|index| stack.get(index).copied())
        };
        match interpreter.bytecode.opcode() {
            opcode::SLOAD | opcode::SSTORE => {
                if let Some(slot) = operand(0) {
                    let address = interpreter.input.target_address();
                    self.slots.entry(address).or_default().insert(slot.into());
                }
            }
            opcode::EXTCODECOPY
            | opcode::EXTCODEHASH
            | opcode::EXTCODESIZE
            | opcode::BALANCE
            | opcode::SELFDESTRUCT => {
                if let Some(address) = operand(0) {
                    self.add_address(address);
                }
            }
            opcode::CALL | opcode::CALLCODE | opcode::DELEGATECALL | opcode::STATICCALL => {
                if let Some(address) = operand(1) {
                    self.add_address(address);
                }
            }
            _ => {}
        }
    }
}
