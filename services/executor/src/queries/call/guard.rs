//! Interruptible EVM for calls.
//!
//! Long-running code consists of loops, calls or state reads. So every jump, call, creation and
//! state read checks whether the call must end. A single precompile is not interrupted; its gas
//! bounds it. The execution of blocks has none of these checks.

use crate::error::Error;
use alloy_evm::eth::EthEvmContext;
use revm::{
    Database,
    bytecode::opcode::{CALL, CALLCODE, CREATE, CREATE2, DELEGATECALL, JUMP, JUMPI, STATICCALL},
    context::ContextTr,
    context_interface::context::ContextError,
    handler::instructions::EthInstructions,
    interpreter::{
        Instruction, InstructionContext, InstructionResult,
        instructions::{contract, control},
        interpreter::EthInterpreter,
    },
    primitives::{Address, B256, U256},
    state::{AccountInfo, Bytecode},
};
use std::fmt;
use tandem_http::usage::{Cut, Running};

/// Number of jumps between two checks of the clock. A loop of a few instructions takes 10 µs for
/// these.
const JUMPS: u32 = 1024;

/// Database that ends the execution when its call must end.
pub(super) struct Guarded<'a, DB> {
    database: DB,
    running: &'a Running<'a>,
    jumps_left: u32,
}

impl<'a, DB> Guarded<'a, DB> {
    pub(super) fn new(database: DB, running: &'a Running<'a>) -> Self {
        Self { database, running, jumps_left: JUMPS }
    }

    fn jump(&mut self) -> Result<(), Cut> {
        self.jumps_left -= 1;
        if self.jumps_left > 0 {
            return Ok(());
        }
        self.jumps_left = JUMPS;
        self.running.check()
    }
}

impl<DB: fmt::Debug> fmt::Debug for Guarded<'_, DB> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.database.fmt(f)
    }
}

impl<DB: Database<Error = Error>> Database for Guarded<'_, DB> {
    type Error = Error;

    fn basic(&mut self, address: Address) -> Result<Option<AccountInfo>, Error> {
        self.running.check()?;
        self.database.basic(address)
    }

    fn code_by_hash(&mut self, code_hash: B256) -> Result<Bytecode, Error> {
        self.running.check()?;
        self.database.code_by_hash(code_hash)
    }

    fn storage(&mut self, address: Address, index: U256) -> Result<U256, Error> {
        self.running.check()?;
        self.database.storage(address, index)
    }

    fn block_hash(&mut self, number: u64) -> Result<B256, Error> {
        self.running.check()?;
        self.database.block_hash(number)
    }
}

type Context<'c, 'g, DB> = InstructionContext<'c, EthEvmContext<Guarded<'g, DB>>, EthInterpreter>;

/// Installs the checking instructions. Their gas is unchanged.
pub(super) fn guard<'g, DB: Database<Error = Error> + fmt::Debug>(
    instructions: &mut EthInstructions<EthInterpreter, EthEvmContext<Guarded<'g, DB>>>,
) {
    let guarded = [
        (JUMP, Instruction::new(jump::<DB>)),
        (JUMPI, Instruction::new(jump_if::<DB>)),
        (CALL, Instruction::new(call::<CALL, DB>)),
        (CALLCODE, Instruction::new(call::<CALLCODE, DB>)),
        (DELEGATECALL, Instruction::new(call::<DELEGATECALL, DB>)),
        (STATICCALL, Instruction::new(call::<STATICCALL, DB>)),
        (CREATE, Instruction::new(create::<false, DB>)),
        (CREATE2, Instruction::new(create::<true, DB>)),
    ];
    for (opcode, instruction) in guarded {
        let gas = instructions.gas_table()[usize::from(opcode)];
        instructions.insert_instruction(opcode, instruction, gas);
    }
}

fn jump<DB: Database<Error = Error>>(
    context: Context<'_, '_, DB>,
) -> Result<(), InstructionResult> {
    let answer = context.host.journaled_state.database.jump();
    end_if(answer, context.host)?;
    control::jump(context)
}

fn jump_if<DB: Database<Error = Error>>(
    context: Context<'_, '_, DB>,
) -> Result<(), InstructionResult> {
    let answer = context.host.journaled_state.database.jump();
    end_if(answer, context.host)?;
    control::jumpi(context)
}

fn call<const KIND: u8, DB: Database<Error = Error>>(
    context: Context<'_, '_, DB>,
) -> Result<(), InstructionResult> {
    let answer = context.host.journaled_state.database.running.check();
    end_if(answer, context.host)?;
    contract::call::<KIND, _, _>(context)
}

fn create<const IS_CREATE2: bool, DB: Database<Error = Error>>(
    context: Context<'_, '_, DB>,
) -> Result<(), InstructionResult> {
    let answer = context.host.journaled_state.database.running.check();
    end_if(answer, context.host)?;
    contract::create::<IS_CREATE2, _, _>(context)
}

/// Ends the whole execution, like a failing database.
fn end_if<DB: Database<Error = Error>>(
    answer: Result<(), Cut>,
    host: &mut EthEvmContext<Guarded<'_, DB>>,
) -> Result<(), InstructionResult> {
    answer.map_err(|cut| {
        *host.error() = Err(ContextError::Db(cut.into()));
        InstructionResult::FatalExternalError
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use alloy_evm::{EvmEnv, eth::EthEvmBuilder};
    use alloy_primitives::{Bytes, address, hex};
    use revm::{
        ExecuteEvm,
        context::{TxEnv, result::EVMError},
        primitives::{TxKind, hardfork::SpecId},
    };
    use std::{
        sync::atomic::AtomicBool,
        thread,
        time::{Duration, Instant},
    };
    use tandem_http::usage::{Limits, Usage};

    const CONTRACT: Address = address!("0x00000000000000000000000000000000000c0de0");

    /// State with one contract.
    #[derive(Debug)]
    struct OneContract(Bytecode);

    impl Database for OneContract {
        type Error = Error;

        fn basic(&mut self, address: Address) -> Result<Option<AccountInfo>, Error> {
            Ok((address == CONTRACT).then(|| AccountInfo::from_bytecode(self.0.clone())))
        }

        fn code_by_hash(&mut self, _: B256) -> Result<Bytecode, Error> {
            Ok(self.0.clone())
        }

        fn storage(&mut self, _: Address, _: U256) -> Result<U256, Error> {
            Ok(U256::ZERO)
        }

        fn block_hash(&mut self, _: u64) -> Result<B256, Error> {
            Ok(B256::ZERO)
        }
    }

    /// Returns the error that ends code with gas for hours, while `meanwhile` runs.
    fn run(code: &[u8], limits: Limits, meanwhile: impl FnOnce(&Usage) + Send) -> Error {
        let (usage, stopping) = (Usage::default(), AtomicBool::new(false));
        let mut env = EvmEnv::<SpecId>::default();
        env.cfg_env.spec = SpecId::OSAKA;
        env.cfg_env.tx_gas_limit_cap = Some(u64::MAX);
        env.cfg_env.disable_block_gas_limit = true;
        thread::scope(|scope| {
            scope.spawn(|| meanwhile(&usage));
            let running = Running::begin(&usage, limits, &stopping, Instant::now()).unwrap();
            let state = OneContract(Bytecode::new_raw(Bytes::copy_from_slice(code)));
            let builder = EthEvmBuilder::new(Guarded::new(state, &running), env);
            let mut evm = builder.build().into_inner();
            guard(&mut evm.instruction);
            let hours = TxEnv::builder().kind(TxKind::Call(CONTRACT)).gas_limit(1 << 50);
            match evm.transact(hours.build().unwrap()) {
                Err(EVMError::Database(error)) => error,
                other => panic!("{other:?}"),
            }
        })
    }

    /// Loops of different kinds that all take long.
    const ENDLESS: [(&str, &[u8]); 5] = [
        ("JUMP", &hex!("5b600056")),
        ("JUMPI", &hex!("5b6001600057")),
        // STATICCALL of ecrecover, in a loop.
        ("precompile", &hex!("5b6000600060006000600162ffffff fa 50 600056")),
        // CALL of itself with all gas, which ends at depth 1024, in a loop.
        ("calls", &hex!("5b60006000600060006000305af1 50 600056")),
        // CREATE of an empty contract.
        ("creates", &hex!("5b600060006000f0 50 600056")),
    ];

    #[test]
    fn code_that_would_run_for_hours_is_cut_after_its_time() {
        for (name, code) in ENDLESS {
            let limits = Limits { seconds_max: 1, gas_max: u64::MAX };
            let error = run(code, limits, |_| {});
            assert!(matches!(error, Error::Cut(Cut::TimedOut(1))), "{name}: {error}");
            assert_eq!(error.to_string(), "execution aborted (timeout = 1s)");
        }
    }

    #[test]
    fn code_ends_when_its_caller_is_gone() {
        for (name, code) in ENDLESS {
            let limits = Limits { seconds_max: 0, gas_max: u64::MAX };
            let error = run(code, limits, |usage| {
                thread::sleep(Duration::from_millis(20));
                usage.abandon();
            });
            assert!(matches!(error, Error::Cut(Cut::Abandoned)), "{name}: {error}");
        }
    }
}
