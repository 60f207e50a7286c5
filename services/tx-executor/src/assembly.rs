//! Assembles a block from the messages of a stream. Knows neither threads nor the network.

use tandem_primitives::{Bytes, U256};
use tandem_proto::{
    convert::TxRequest,
    limits::TX_LIST_BYTES_MAX,
    tx_executor::{
        BeginTransactions, Environment, ListedBlock, ParentValues, RangeTransaction, TxCommand,
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
#[derive(Clone, PartialEq, Debug)]
pub enum Effect {
    /// Nothing follows.
    Nothing,
    /// Another block begins; the one before is over.
    Begin { block_number: u64, traceparent: String },
    /// The list is complete: the block can be opened, and transactions can be prepared.
    Open { session: u64, block: ListedBlock },
    /// All accounts and codes are there, and all slots if these are the last values: transactions can
    /// be executed, those that waited first.
    Fill(ParentValues),
    /// All slots are there.
    Slots(Vec<U256>),
    /// Execute these transactions, or prepare them until the accounts are there.
    Execute(Vec<RangeTransaction>),
    /// The block cannot be executed.
    Refuse { session: u64, reason: &'static str },
    /// The block is over.
    End,
    /// Answer to a sign of life.
    Pong(u64),
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
    /// The list arrives.
    Listing { environment: Box<Environment>, list_bytes: usize, list: Vec<u8> },
    /// The values arrive.
    Filling { values: ParentValues, values_bytes: usize, held_bytes: usize, is_filled: bool },
    /// Everything is there.
    Full,
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
        self.stage = Stage::Listing {
            environment: Box::new(environment),
            list_bytes: list_bytes.min(TX_LIST_BYTES_MAX),
            list: Vec::new(),
        };
        Effect::Begin { block_number, traceparent }
    }

    fn refuse(&mut self, reason: &'static str) -> Effect {
        self.stage = Stage::Idle;
        Effect::Refuse { session: self.session, reason }
    }

    fn list(&mut self, part: &Bytes) -> Effect {
        let Stage::Listing { environment, list_bytes, list } = &mut self.stage else {
            return Effect::Nothing;
        };
        if list.len() + part.len() > *list_bytes {
            return self.refuse("the access list is longer than announced");
        }
        list.extend_from_slice(part);
        if list.len() < *list_bytes {
            return Effect::Nothing;
        }
        let (environment, list) = ((**environment).clone(), std::mem::take(list).into());
        let (values, values_bytes, held_bytes) = (ParentValues::default(), 0, 0);
        self.stage = Stage::Filling { values, values_bytes, held_bytes, is_filled: false };
        Effect::Open { session: self.session, block: ListedBlock { environment, list } }
    }

    fn values(&mut self, part: ParentValues) -> Effect {
        let (values, bytes, is_filled) = match &mut self.stage {
            Stage::Idle | Stage::Full => return Effect::Nothing,
            Stage::Listing { .. } => {
                return self.refuse("the access list is shorter than announced");
            }
            Stage::Filling { values, values_bytes, is_filled, .. } => {
                (values, values_bytes, is_filled)
            }
        };
        if *is_filled && !(part.accounts.is_empty() && part.codes.is_empty()) {
            return self.refuse("there are accounts or codes after the last ones");
        }
        let codes: usize = part.codes.iter().map(|code| code.len() + ITEM_BYTES).sum();
        *bytes += codes + part.accounts.len() * ACCOUNT_BYTES + part.slots.len() * ITEM_BYTES;
        if *bytes > VALUES_BYTES_MAX {
            return self.refuse("the values of the block are too many");
        }
        values.accounts.extend(part.accounts);
        values.slots.extend(part.slots);
        values.codes.extend(part.codes);
        let was_filled = std::mem::replace(is_filled, *is_filled || part.slots_follow);
        if part.last {
            let values = ParentValues { last: true, ..std::mem::take(values) };
            self.stage = Stage::Full;
            return match was_filled {
                true => Effect::Slots(values.slots),
                false => Effect::Fill(values),
            };
        }
        match part.slots_follow && !was_filled {
            true => Effect::Fill(std::mem::take(values)),
            false => Effect::Nothing,
        }
    }

    fn range(&mut self, transactions: Vec<RangeTransaction>) -> Effect {
        match &mut self.stage {
            Stage::Idle => return Effect::Nothing,
            Stage::Listing { .. } => {
                return self.refuse("the access list is shorter than announced");
            }
            Stage::Filling { held_bytes, .. } => {
                let bytes = transactions.iter().map(|it| it.bytes.len() + ITEM_BYTES);
                *held_bytes += bytes.sum::<usize>();
                if *held_bytes > HELD_BYTES_MAX {
                    return self.refuse("too many transactions wait for the values");
                }
            }
            Stage::Full => {}
        }
        Effect::Execute(transactions)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tandem_primitives::{Address, B256};
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

    fn transaction(index: u32) -> RangeTransaction {
        RangeTransaction { index, bytes: Bytes::from_static(&[1]) }
    }

    fn range(session: u64, index: u32) -> TxRequest {
        request(session, TxCommand::Range(vec![transaction(index)]))
    }

    #[test]
    fn a_block_opens_with_its_list_and_is_filled_with_its_last_value() {
        let mut assembly = Assembly::default();
        assert!(matches!(assembly.step(begin(3, 5)), Effect::Begin { block_number: 7, .. }));
        assert_eq!(assembly.step(list(3, b"abc")), Effect::Nothing);
        let Effect::Open { session: 3, block } = assembly.step(list(3, b"de")) else {
            panic!("not open")
        };
        assert_eq!(&block.list[..], b"abcde");
        assert_eq!(assembly.step(slots(3, &[1, 2], false)), Effect::Nothing);
        assert_eq!(assembly.step(range(3, 9)), Effect::Execute(vec![transaction(9)]));
        let Effect::Fill(values) = assembly.step(slots(3, &[4], true)) else { panic!("not full") };
        assert_eq!(values.slots, [1, 2, 4].map(U256::from));
        assert_eq!(assembly.step(range(3, 1)), Effect::Execute(vec![transaction(1)]));
        assert_eq!(assembly.step(request(3, TxCommand::End)), Effect::End);
        assert_eq!(assembly.step(range(3, 1)), Effect::Nothing, "the block is over");
    }

    #[test]
    fn accounts_fill_a_block_before_its_slots() {
        let mut assembly = Assembly::default();
        assembly.step(begin(1, 1));
        assembly.step(list(1, b"a"));
        let accounts = |slots_follow| {
            let values =
                ParentValues { accounts: vec![None], slots_follow, ..ParentValues::default() };
            request(1, TxCommand::Values(values))
        };
        assert_eq!(assembly.step(accounts(false)), Effect::Nothing);
        let Effect::Fill(values) = assembly.step(accounts(true)) else { panic!("not filled") };
        assert_eq!((values.accounts.len(), values.last), (2, false));
        assert_eq!(assembly.step(range(1, 9)), Effect::Execute(vec![transaction(9)]));
        assert_eq!(assembly.step(slots(1, &[1], false)), Effect::Nothing);
        assert_eq!(
            assembly.step(slots(1, &[2], true)),
            Effect::Slots(vec![U256::ONE, U256::from(2)])
        );
        assert_eq!(assembly.step(slots(1, &[3], true)), Effect::Nothing, "too many");
    }

    #[test]
    fn what_belongs_to_another_block_is_skipped() {
        let mut assembly = Assembly::default();
        assembly.step(begin(1, 1));
        assembly.step(list(1, b"a"));
        assembly.step(begin(2, 1));
        assert_eq!(assembly.step(slots(1, &[], true)), Effect::Nothing);
        assert_eq!(assembly.step(request(1, TxCommand::End)), Effect::Nothing);
        assert!(matches!(assembly.step(list(2, b"b")), Effect::Open { session: 2, .. }));
        assert!(matches!(assembly.step(slots(2, &[], true)), Effect::Fill(_)));
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
        refused(vec![begin(1, 2), list(1, b"a"), range(1, 0)]);
        let accounts = || {
            let accounts = vec![None];
            let values = ParentValues { accounts, slots_follow: true, ..ParentValues::default() };
            request(1, TxCommand::Values(values))
        };
        refused(vec![begin(1, 1), list(1, b"a"), accounts(), accounts()]);
        let many = vec![1; VALUES_BYTES_MAX / ITEM_BYTES + 1];
        refused(vec![begin(1, 1), list(1, b"a"), slots(1, &many, false)]);
        let long = RangeTransaction { index: 0, bytes: vec![0; HELD_BYTES_MAX].into() };
        let range = request(1, TxCommand::Range(vec![long]));
        refused(vec![begin(1, 1), list(1, b"a"), range]);
    }
}
