//! Assembles a block from the messages of a stream. Knows neither threads nor the network.

use tandem_primitives::Bytes;
use tandem_proto::{
    convert::TxRequest,
    limits::TX_LIST_BYTES_MAX,
    tx_executor::{
        BeginTransactions, BlockValues, Environment, ParentValues, RangeTransaction, TxCommand,
    },
};

/// Maximum bytes of the values of one block in memory.
const VALUES_BYTES_MAX: usize = 128 << 20;
/// Maximum bytes of transactions that wait for the values.
const HELD_BYTES_MAX: usize = 16 << 20;
/// Bytes that an account takes in memory, about.
const ACCOUNT_BYTES: usize = 80;
/// Bytes that a slot, a code or a transaction takes in memory besides its content, about.
const ITEM_BYTES: usize = 64;

/// Work that follows from a message.
#[derive(Debug, PartialEq)]
pub enum Effect {
    /// Nothing follows.
    Nothing,
    /// Another block begins; the one before is over.
    Begin { session: u64, block_number: u64, traceparent: String },
    /// All values are there: transactions can be executed, those that waited first.
    Open { session: u64, values: Box<Values>, held: Vec<RangeTransaction> },
    /// Execute these transactions of the open block.
    Execute { session: u64, transactions: Vec<RangeTransaction> },
    /// The block cannot be executed.
    Refuse { session: u64, reason: &'static str },
    /// The block is over.
    End,
    /// Answer to a sign of life.
    Pong(u64),
}

/// Values of a block, compared by nothing.
#[derive(Debug)]
pub struct Values(pub BlockValues);

impl PartialEq for Values {
    fn eq(&self, other: &Self) -> bool {
        self.0.list == other.0.list && self.0.values == other.0.values
    }
}

/// Block of one stream.
#[derive(Default)]
pub struct Assembly {
    session: u64,
    stage: Stage,
}

#[derive(Default)]
enum Stage {
    /// No block, or one that is over.
    #[default]
    Idle,
    /// The list and the values arrive.
    Gathering(Box<Gathered>),
    /// Transactions are executed.
    Open,
}

struct Gathered {
    environment: Environment,
    list_bytes: usize,
    list: Vec<u8>,
    values: ParentValues,
    values_bytes: usize,
    held: Vec<RangeTransaction>,
    held_bytes: usize,
}

impl Assembly {
    /// Takes the next message.
    pub fn step(&mut self, request: TxRequest) -> Effect {
        let TxRequest { session, command } = request;
        match command {
            TxCommand::Ping(number) => Effect::Pong(number),
            TxCommand::Begin(begin) => self.begin(session, *begin),
            // A command of a block that was given up.
            _ if session != self.session => Effect::Nothing,
            TxCommand::List(part) => self.list(&part),
            TxCommand::Values(values) => self.values(values),
            TxCommand::Range(transactions) => self.range(transactions),
            TxCommand::End => {
                self.stage = Stage::Idle;
                Effect::End
            }
        }
    }

    fn begin(&mut self, session: u64, begin: BeginTransactions) -> Effect {
        let BeginTransactions { block_number, traceparent, environment, list_bytes } = begin;
        self.session = session;
        self.stage = Stage::Gathering(Box::new(Gathered {
            environment,
            list_bytes: list_bytes.min(TX_LIST_BYTES_MAX),
            list: Vec::new(),
            values: ParentValues::default(),
            values_bytes: 0,
            held: Vec::new(),
            held_bytes: 0,
        }));
        Effect::Begin { session, block_number, traceparent }
    }

    fn refuse(&mut self, reason: &'static str) -> Effect {
        self.stage = Stage::Idle;
        Effect::Refuse { session: self.session, reason }
    }

    fn list(&mut self, part: &Bytes) -> Effect {
        let Stage::Gathering(gathered) = &mut self.stage else { return Effect::Nothing };
        if gathered.list.len() + part.len() > gathered.list_bytes {
            return self.refuse("the access list is longer than announced");
        }
        gathered.list.extend_from_slice(part);
        Effect::Nothing
    }

    fn values(&mut self, part: ParentValues) -> Effect {
        let Stage::Gathering(gathered) = &mut self.stage else { return Effect::Nothing };
        let codes: usize = part.codes.iter().map(|code| code.len() + ITEM_BYTES).sum();
        let values = part.accounts.len() * ACCOUNT_BYTES + part.slots.len() * ITEM_BYTES;
        gathered.values_bytes += codes + values;
        if gathered.values_bytes > VALUES_BYTES_MAX {
            return self.refuse("the values of the block are too many");
        }
        let all = &mut gathered.values;
        all.accounts.extend(part.accounts);
        all.slots.extend(part.slots);
        all.codes.extend(part.codes);
        if !part.last {
            return Effect::Nothing;
        }
        if gathered.list.len() < gathered.list_bytes {
            return self.refuse("the access list is shorter than announced");
        }
        let Stage::Gathering(gathered) = std::mem::replace(&mut self.stage, Stage::Open) else {
            return Effect::Nothing;
        };
        let Gathered { environment, list, values, held, .. } = *gathered;
        let values = Box::new(Values(BlockValues { environment, list: list.into(), values }));
        Effect::Open { session: self.session, values, held }
    }

    fn range(&mut self, transactions: Vec<RangeTransaction>) -> Effect {
        match &mut self.stage {
            Stage::Idle => Effect::Nothing,
            Stage::Open => Effect::Execute { session: self.session, transactions },
            Stage::Gathering(gathered) => {
                let bytes = transactions.iter().map(|it| it.bytes.len() + ITEM_BYTES);
                gathered.held_bytes += bytes.sum::<usize>();
                if gathered.held_bytes > HELD_BYTES_MAX {
                    return self.refuse("too many transactions wait for the values");
                }
                gathered.held.extend(transactions);
                Effect::Nothing
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tandem_primitives::{Address, B256, U256};
    use tandem_proto::tx_executor::TxFork;

    fn request(session: u64, command: TxCommand) -> TxRequest {
        TxRequest { session, command }
    }

    fn begin(session: u64, list_bytes: usize) -> TxRequest {
        let environment = Environment {
            fork: TxFork::Amsterdam,
            chain_id: 1,
            number: 7,
            beneficiary: Address::ZERO,
            timestamp: 0,
            gas_limit: 0,
            base_fee: 0,
            prev_randao: B256::ZERO,
            excess_blob_gas: 0,
            blob_gas_price: 1,
            slot_number: 0,
            blobs_per_tx_max: None,
        };
        let traceparent = String::new();
        let begin = BeginTransactions { block_number: 7, traceparent, environment, list_bytes };
        request(session, TxCommand::Begin(Box::new(begin)))
    }

    fn list(session: u64, bytes: &'static [u8]) -> TxRequest {
        request(session, TxCommand::List(Bytes::from_static(bytes)))
    }

    fn slots(session: u64, slots: &[u64], last: bool) -> TxRequest {
        let slots = slots.iter().map(|slot| U256::from(*slot)).collect();
        let values = ParentValues { slots, last, ..ParentValues::default() };
        request(session, TxCommand::Values(values))
    }

    fn range(session: u64, index: u32) -> TxRequest {
        let transaction = RangeTransaction { index, bytes: Bytes::from_static(&[1]) };
        request(session, TxCommand::Range(vec![transaction]))
    }

    #[test]
    fn a_block_opens_with_its_last_value_and_with_what_came_before() {
        let mut assembly = Assembly::default();
        assert!(matches!(assembly.step(begin(3, 5)), Effect::Begin { session: 3, .. }));
        assert_eq!(assembly.step(list(3, b"abc")), Effect::Nothing);
        assert_eq!(assembly.step(list(3, b"de")), Effect::Nothing);
        assert_eq!(assembly.step(slots(3, &[1, 2], false)), Effect::Nothing);
        assert_eq!(assembly.step(range(3, 9)), Effect::Nothing);
        let Effect::Open { session: 3, values, held } = assembly.step(slots(3, &[4], true)) else {
            panic!("not open")
        };
        assert_eq!(&values.0.list[..], b"abcde");
        assert_eq!(values.0.values.slots, [1, 2, 4].map(U256::from));
        assert_eq!(held[0].index, 9);
        assert!(matches!(assembly.step(range(3, 1)), Effect::Execute { session: 3, .. }));
        assert_eq!(assembly.step(request(3, TxCommand::End)), Effect::End);
        assert_eq!(assembly.step(range(3, 1)), Effect::Nothing, "the block is over");
    }

    #[test]
    fn what_belongs_to_another_block_is_skipped() {
        let mut assembly = Assembly::default();
        assembly.step(begin(1, 0));
        assembly.step(begin(2, 0));
        assert_eq!(assembly.step(slots(1, &[], true)), Effect::Nothing);
        assert_eq!(assembly.step(request(1, TxCommand::End)), Effect::Nothing);
        assert!(matches!(assembly.step(slots(2, &[], true)), Effect::Open { session: 2, .. }));
        assert_eq!(assembly.step(request(0, TxCommand::Ping(5))), Effect::Pong(5));
    }

    #[test]
    fn a_block_that_is_not_as_announced_is_refused() {
        let refused = |steps: Vec<TxRequest>| {
            let mut assembly = Assembly::default();
            let last = steps.into_iter().map(|step| assembly.step(step)).last();
            assert!(matches!(last, Some(Effect::Refuse { session: 1, .. })), "{last:?}");
            assert_eq!(assembly.step(range(1, 0)), Effect::Nothing);
        };
        refused(vec![begin(1, 2), list(1, b"abc")]);
        refused(vec![begin(1, 2), list(1, b"a"), slots(1, &[], true)]);
        let many = vec![1; VALUES_BYTES_MAX / ITEM_BYTES + 1];
        refused(vec![begin(1, 0), slots(1, &many, false)]);
    }
}
