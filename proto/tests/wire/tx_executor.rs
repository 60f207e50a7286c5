//! Messages from and to tx-executor: they come back as they were, and malformed ones are refused with
//! the name of the field.

use prost::Message as _;
use std::time::Duration;
use tandem_primitives::{Account, Address, B256, U256};
use tandem_proto::{
    convert::{EncodedResults, TxAnswer, TxRequest},
    limits::{TX_PART_BYTES, TX_RESULTS_MAX},
    tx_executor::{
        BeginTransactions, Environment, LoadedAccount, LoadedSlot, ParentValues, RangeTransaction,
        TxCommand, TxFork, TxGas, TxLog, TxOutcome, TxReply, TxResult,
    },
    wire::tx_executor::v1,
};

fn environment() -> Environment {
    Environment {
        fork: TxFork::Amsterdam,
        chain_id: 1,
        number: 2,
        beneficiary: Address::repeat_byte(3),
        timestamp: 4,
        gas_limit: 5,
        base_fee: 6,
        prev_randao: B256::repeat_byte(7),
        excess_blob_gas: 8,
        blob_gas_price: u128::MAX,
        slot_number: 9,
        blobs_per_tx_max: Some(10),
    }
}

fn outcome() -> TxOutcome {
    let changed = Some(U256::from(1));
    TxOutcome {
        success: true,
        gas: TxGas { spent: 4, state: 3, refunded: 2, floor: 1 },
        reward: Some(U256::from(256)),
        accounts: vec![
            LoadedAccount {
                place: 7,
                status: 0b100,
                changed: Some((1, U256::from(2))),
                code: Some(vec![0x5b].into()),
                slots: vec![
                    LoadedSlot { place: 1, changed },
                    LoadedSlot { place: 0, changed: None },
                ],
            },
            LoadedAccount { place: 0, ..LoadedAccount::default() },
        ],
        logs: vec![
            TxLog {
                address: Address::repeat_byte(1),
                topics: vec![B256::repeat_byte(2); 4],
                data: vec![1, 2, 3].into(),
            },
            TxLog { address: Address::ZERO, topics: Vec::new(), data: Vec::new().into() },
        ],
    }
}

fn range() -> TxCommand {
    let transaction =
        |index, bytes: &[u8]| RangeTransaction { index, bytes: bytes.to_vec().into() };
    TxCommand::Range(vec![transaction(5, &[1, 2]), transaction(1, &[3])])
}

#[test]
fn commands_come_back_as_they_were() {
    let account = Account { nonce: 1, balance: U256::from(2), code_hash: B256::repeat_byte(3) };
    let begin = BeginTransactions {
        block_number: 2,
        traceparent: "00-0".to_owned(),
        environment: environment(),
        list_bytes: 3,
    };
    let values = ParentValues {
        accounts: vec![Some(account), None],
        slots: vec![U256::ZERO, U256::MAX],
        codes: vec![vec![1, 2].into(), vec![3].into()],
        slots_follow: true,
        last: true,
    };
    for command in [
        TxCommand::Begin(Box::new(begin)),
        TxCommand::List(vec![1, 2, 3].into()),
        TxCommand::Values(values),
        TxCommand::Values(ParentValues::default()),
        range(),
        TxCommand::End,
        TxCommand::Ping(7),
    ] {
        let request = TxRequest { session: 3, command };
        let bytes = v1::ExecuteBlocksRequest::from(request.clone()).encode_to_vec();
        let wire = v1::ExecuteBlocksRequest::decode(&bytes[..]).unwrap();
        assert_eq!(TxRequest::try_from(wire), Ok(request));
    }
}

#[test]
fn answers_come_back_as_they_were() {
    let took = Duration::from_nanos(5);
    let result = TxResult { index: 4, took, outcome: Some(outcome()), code_missing: false };
    let missing = TxResult { outcome: None, code_missing: true, ..result.clone() };
    for reply in [
        TxReply::Results(vec![result, missing]),
        TxReply::Results(Vec::new()),
        TxReply::Refused("reason".to_owned()),
        TxReply::Pong(1, 2),
    ] {
        let answer = TxAnswer { session: 3, reply };
        let bytes = v1::ExecuteBlocksResponse::from(answer.clone()).encode_to_vec();
        let wire = v1::ExecuteBlocksResponse::decode(&bytes[..]).unwrap();
        assert_eq!(TxAnswer::try_from(wire), Ok(answer));
    }
}

#[test]
fn a_message_has_as_many_results_as_fit() {
    let result =
        |index| TxResult { index, took: Duration::ZERO, outcome: None, code_missing: false };
    let encoded = |index| v1::Result::from(result(index)).encode_to_vec();
    let mut results = EncodedResults::default();
    let added = (0..).take_while(|index| results.add(encoded(*index)).is_none()).count();
    assert_eq!(added, TX_RESULTS_MAX);
    let answer = TxAnswer::try_from(results.into_message(3)).unwrap();
    let all = (0..TX_RESULTS_MAX as u32).map(result).collect();
    assert_eq!(answer, TxAnswer { session: 3, reply: TxReply::Results(all) });

    let mut results = EncodedResults::default();
    assert_eq!(results.add(vec![0; 2 * TX_PART_BYTES]), None, "a single one always fits");
    assert_eq!(results.add(vec![1]), Some(vec![1]));
}

#[test]
fn results_that_do_not_match_their_sizes_are_refused() {
    let refused = |sizes: Vec<u32>, results: Vec<u8>| {
        let results = v1::Results { sizes, results: results.into() };
        let answer = Some(v1::execute_blocks_response::Answer::Results(results));
        TxAnswer::try_from(v1::ExecuteBlocksResponse { session: 1, answer })
            .unwrap_err()
            .to_string()
    };
    for (sizes, results, field) in [
        (vec![2], vec![8], "executed.results.results"),
        (vec![u32::MAX; 2], vec![8], "executed.results.results"),
        (vec![0; TX_RESULTS_MAX + 1], Vec::new(), "executed.results.sizes"),
        (vec![0, 1], vec![0xff], "executed.results.results[1]"),
    ] {
        let text = refused(sizes, results);
        assert!(text.contains(field), "{text}");
    }
}

fn refused(outcome: v1::Outcome) -> String {
    TxOutcome::try_from(outcome).unwrap_err().to_string()
}

#[test]
fn an_outcome_whose_columns_do_not_match_is_refused() {
    let wire = || v1::Outcome::from(outcome());
    let long = |bytes: &[u8]| [bytes, &[0]].concat().into();
    for (field, changed) in [
        ("accounts", v1::Outcome { accounts: vec![7, 7], ..wire() }),
        ("statuses", v1::Outcome { statuses: long(&wire().statuses), ..wire() }),
        ("statuses", v1::Outcome { statuses: vec![0x10, 0].into(), ..wire() }),
        ("changes", v1::Outcome { changes: vec![4, 0].into(), ..wire() }),
        ("nonces", v1::Outcome { nonces: vec![1, 2], ..wire() }),
        ("balances", v1::Outcome { balances: None, ..wire() }),
        ("code_sizes", v1::Outcome { code_sizes: Vec::new(), ..wire() }),
        ("codes", v1::Outcome { code_sizes: vec![u32::MAX], ..wire() }),
        ("slot_counts", v1::Outcome { slot_counts: vec![2], ..wire() }),
        ("slots", v1::Outcome { slot_counts: vec![u32::MAX, u32::MAX], ..wire() }),
        ("slots", v1::Outcome { slots: vec![1, 1], ..wire() }),
        ("slot_changes", v1::Outcome { slot_changes: vec![1, 2].into(), ..wire() }),
        ("slot_values", v1::Outcome { slot_values: None, ..wire() }),
        ("log_addresses", v1::Outcome { log_addresses: long(&wire().log_addresses), ..wire() }),
        ("log_topic_counts", v1::Outcome { log_topic_counts: vec![5, 0].into(), ..wire() }),
        ("log_topics", v1::Outcome { log_topics: Vec::new().into(), ..wire() }),
        ("log_data_sizes", v1::Outcome { log_data_sizes: vec![3], ..wire() }),
        ("log_data", v1::Outcome { log_data: Vec::new().into(), ..wire() }),
        ("reward", v1::Outcome { reward: Some(vec![0].into()), ..wire() }),
        ("reward", v1::Outcome { reward: Some(vec![1; 33].into()), ..wire() }),
    ] {
        let text = refused(changed);
        assert!(text.starts_with(field), "{field}: {text}");
    }
}

#[test]
fn a_command_that_is_malformed_is_refused() {
    let text = |command| {
        let wire = v1::ExecuteBlocksRequest { session: 1, command };
        TxRequest::try_from(wire).unwrap_err().to_string()
    };
    use v1::execute_blocks_request::Command;
    let wire = |command| v1::ExecuteBlocksRequest::from(TxRequest { session: 1, command }).command;
    assert!(text(None).starts_with("execute_blocks.command"));
    let rlp = vec![0; TX_PART_BYTES + 1].into();
    assert!(text(Some(Command::List(v1::ListPart { rlp }))).contains("list.rlp"));
    let Some(Command::Range(range)) = wire(range()) else { panic!() };
    for (field, changed) in [
        ("sizes", v1::Range { sizes: vec![1], ..range.clone() }),
        ("transactions", v1::Range { sizes: vec![u32::MAX; 2], ..range.clone() }),
        ("indices", v1::Range { indices: vec![0; 1_000], ..range.clone() }),
    ] {
        let text = text(Some(Command::Range(changed)));
        assert!(text.starts_with(&format!("execute_blocks.range.{field}")), "{field}: {text}");
    }
    let good = v1::Environment::from(environment());
    for (field, changed) in [
        ("fork", v1::Environment { fork: 0, ..good.clone() }),
        ("fork", v1::Environment { fork: 2, ..good.clone() }),
        ("beneficiary", v1::Environment { beneficiary: vec![1].into(), ..good.clone() }),
        ("prev_randao", v1::Environment { prev_randao: vec![1].into(), ..good.clone() }),
        ("blob_gas_price", v1::Environment { blob_gas_price: vec![1].into(), ..good.clone() }),
    ] {
        let begin = v1::Begin { environment: Some(changed), ..v1::Begin::default() };
        let text = text(Some(Command::Begin(begin)));
        assert!(text.starts_with(&format!("execute_blocks.begin.environment.{field}")), "{text}");
    }
    let values = v1::Values { slot_count: 3, ..v1::Values::default() };
    assert!(text(Some(Command::Values(values))).starts_with("execute_blocks.values.slots"));
    let values = v1::Values { slot_count: u32::MAX, ..v1::Values::default() };
    assert!(text(Some(Command::Values(values))).starts_with("execute_blocks.values.slot_count"));
}
