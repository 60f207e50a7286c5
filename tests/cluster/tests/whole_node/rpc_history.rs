//! The JSON-RPC methods that read blocks, receipts, logs and fees, against the oracle's blocks; and
//! those that simulate messages.

use alloy_consensus::{Header, proofs::ordered_trie_root_encoded};
use alloy_primitives::{Address, B256, Bytes, U256, keccak256};
use serde_json::{Value, json};
use tandem_chain::{Block, Fork};
use tandem_cluster_tests::{Builder, Built, Contents, Forks, Node, contracts};

async fn chain(fork: Fork, seed: u64, len: usize) -> (Node, Vec<Built>) {
    let mut builder = Builder::new(Forks::at_genesis(fork));
    let mut node = Node::start(builder.genesis_json()).await;
    let chain = builder.chain(builder.genesis(), seed, len, Contents::Everything);
    for built in &chain {
        node.extend(built).await;
    }
    (node, chain)
}

async fn ask(node: &mut Node, method: &str, params: Value) -> Value {
    let answer = node.http.call(method, params.clone()).await;
    answer.unwrap_or_else(|error| panic!("{method} {params}: {error:?}"))
}

async fn refused(node: &mut Node, method: &str, params: Value) -> (i64, String) {
    let answer = node.http.call(method, params.clone()).await;
    let error = answer.expect_err(&format!("{method} {params}"));
    (error.code, error.message)
}

fn number(value: &Value) -> U256 {
    serde_json::from_value(value.clone()).unwrap()
}

fn hex(number: u64) -> String {
    format!("{number:#x}")
}

/// Raw records have the hashes in the header, and the lists have the expected length.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn records_hash_to_what_the_header_says() {
    let (mut node, chain) = chain(Fork::Osaka, 51, 6).await;
    for built in &chain {
        let by_number = json!([hex(built.header.number)]);
        let by_hash = json!([built.hash]);
        let raw = |value: Value| serde_json::from_value::<Bytes>(value).unwrap();
        let header = raw(ask(&mut node, "debug_getRawHeader", by_number.clone()).await);
        assert_eq!(keccak256(header), built.hash);
        let block = raw(ask(&mut node, "debug_getRawBlock", by_hash.clone()).await);
        let block = Block::from_rlp(&block).unwrap();
        assert_eq!(block.header, built.header);
        let receipts = ask(&mut node, "debug_getRawReceipts", by_hash.clone()).await;
        let receipts: Vec<Bytes> = serde_json::from_value(receipts).unwrap();
        assert_eq!(ordered_trie_root_encoded(&receipts), built.header.receipts_root);

        let transactions = &built.payload.transactions;
        let rendered = ask(&mut node, "eth_getBlockReceipts", by_number.clone()).await;
        assert_eq!(rendered.as_array().unwrap().len(), transactions.len());
        for (index, transaction) in transactions.iter().enumerate() {
            let hash = json!(keccak256(transaction));
            let found = ask(&mut node, "debug_getRawTransaction", json!([hash])).await;
            assert_eq!(found, json!(transaction));
            let receipt = ask(&mut node, "eth_getTransactionReceipt", json!([hash])).await;
            assert_eq!(receipt, rendered[index]);
            let whole = ask(&mut node, "eth_getTransactionByHash", json!([hash])).await;
            for (method, block) in [
                ("eth_getTransactionByBlockNumberAndIndex", &by_number[0]),
                ("eth_getTransactionByBlockHashAndIndex", &by_hash[0]),
            ] {
                let place = json!([block, hex(index as u64)]);
                assert_eq!(ask(&mut node, method, place).await, whole);
                let past = json!([block, hex(transactions.len() as u64)]);
                assert_eq!(ask(&mut node, method, past).await, Value::Null);
            }
        }
        let count = json!(hex(transactions.len() as u64));
        for (method, params, want) in [
            ("eth_getBlockTransactionCountByNumber", &by_number, &count),
            ("eth_getBlockTransactionCountByHash", &by_hash, &count),
            ("eth_getUncleCountByBlockNumber", &by_number, &json!("0x0")),
            ("eth_getUncleCountByBlockHash", &by_hash, &json!("0x0")),
        ] {
            assert_eq!(ask(&mut node, method, params.clone()).await, *want, "{method}");
        }
    }
    let nobody = json!([B256::repeat_byte(9)]);
    for method in ["eth_getBlockReceipts", "eth_getBlockTransactionCountByHash"] {
        assert_eq!(ask(&mut node, method, nobody.clone()).await, Value::Null);
    }
    assert_eq!(ask(&mut node, "debug_getRawTransaction", nobody.clone()).await, json!("0x"));
    for method in ["debug_getRawHeader", "debug_getRawBlock", "debug_getRawReceipts"] {
        assert_eq!(refused(&mut node, method, nobody.clone()).await.0, -32000);
    }
    node.stop_and_verify().await;
}

/// A filter finds the same logs as sifting all receipts.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logs_are_those_of_the_receipts() {
    let (mut node, chain) = chain(Fork::Prague, 61, 8).await;
    let mut all = Vec::new();
    for built in &chain {
        let receipts = ask(&mut node, "eth_getBlockReceipts", json!([built.hash])).await;
        for receipt in receipts.as_array().unwrap() {
            all.extend(receipt["logs"].as_array().unwrap().clone());
        }
    }
    assert!(all.iter().any(|log| log["topics"].as_array().unwrap().len() == 3));
    let topic = |log: &Value, position: usize| log["topics"].get(position).cloned();
    let transfer = all.iter().find(|log| log["address"] == json!(contracts::TOKEN)).unwrap();
    let (name, from) = (topic(transfer, 0).unwrap(), topic(transfer, 1).unwrap());
    let everything = json!({"fromBlock": "earliest", "toBlock": "latest"});
    let with = |key: &str, value: Value| {
        let mut filter = everything.clone();
        filter[key] = value;
        filter
    };
    type Sieve = Box<dyn Fn(&Value) -> bool>;
    let (from_0, name_0, name_1) = (from.clone(), name.clone(), name.clone());
    let first_block = chain[0].hash;
    let filters: Vec<(Value, Sieve)> = vec![
        (everything.clone(), Box::new(|_| true)),
        (
            with("address", json!(contracts::TOKEN)),
            Box::new(|log| log["address"] == json!(contracts::TOKEN)),
        ),
        (
            with("address", json!([contracts::DEPOSIT, Address::ZERO])),
            Box::new(|log| log["address"] == json!(contracts::DEPOSIT)),
        ),
        (
            with("topics", json!([null, [from, B256::ZERO]])),
            Box::new(move |log| topic(log, 1).as_ref() == Some(&from_0)),
        ),
        (
            with("topics", json!([name])),
            Box::new(move |log| topic(log, 0).as_ref() == Some(&name_0)),
        ),
        (with("topics", json!([[], [], []])), Box::new(move |log| topic(log, 2).is_some())),
        (
            json!({"blockHash": first_block, "topics": [name_1.clone()]}),
            Box::new(move |log| {
                log["blockHash"] == json!(first_block) && topic(log, 0).as_ref() == Some(&name_1)
            }),
        ),
        (
            json!({"fromBlock": "0x3", "toBlock": "0x4"}),
            Box::new(|log| log["blockNumber"] == "0x3" || log["blockNumber"] == "0x4"),
        ),
        (json!({}), Box::new(|log| log["blockNumber"] == "0x8")),
    ];
    for (filter, passes) in filters {
        let want: Vec<_> = all.iter().filter(|log| passes(log)).cloned().collect();
        assert_eq!(ask(&mut node, "eth_getLogs", json!([filter])).await, json!(want), "{filter}");
    }
    for (filter, code) in [
        (json!({"fromBlock": "0x4", "toBlock": "0x3"}), -32602),
        (json!({"fromBlock": "0x4", "toBlock": "0x9"}), -32602),
        (json!({"fromBlock": "pending"}), -32602),
        (json!({"blockHash": first_block, "toBlock": "latest"}), -32602),
        (json!({"blockHash": B256::ZERO}), -32000),
        (json!({"topics": [[], [], [], [], []]}), -32602),
    ] {
        assert_eq!(refused(&mut node, "eth_getLogs", json!([filter])).await.0, code, "{filter}");
    }
    node.stop_and_verify().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fees_are_those_of_the_headers() {
    let (mut node, chain) = chain(Fork::Osaka, 71, 7).await;
    let params = json!(["0x4", "0x6", [0, 50.5, 100]]);
    let history = ask(&mut node, "eth_feeHistory", params).await;
    assert_eq!(history["oldestBlock"], "0x3");
    let headers: Vec<&Header> = chain[2..7].iter().map(|built| &built.header).collect();
    for (position, header) in headers.iter().enumerate() {
        let fee = header.base_fee_per_gas.unwrap();
        assert_eq!(number(&history["baseFeePerGas"][position]), U256::from(fee));
        if position == 4 {
            break;
        }
        let ratio = header.gas_used as f64 / header.gas_limit as f64;
        let got = history["gasUsedRatio"][position].as_f64().unwrap();
        assert!((got - ratio).abs() < 1e-12, "{got} {ratio}");
        let tips: Vec<_> = (0..3).map(|p| number(&history["reward"][position][p])).collect();
        assert!(tips.is_sorted() && tips.len() == 3);
    }
    assert_eq!(history["baseFeePerGas"].as_array().unwrap().len(), 5);
    assert_eq!(history["baseFeePerBlobGas"].as_array().unwrap().len(), 5);
    // More than there is: cut off at genesis. Decimal counts are accepted as well.
    let whole = ask(&mut node, "eth_feeHistory", json!([5000, "latest", null])).await;
    assert_eq!(whole["oldestBlock"], "0x0");
    assert_eq!(whole["gasUsedRatio"].as_array().unwrap().len(), 8);
    assert!(whole.get("reward").is_none());
    for params in [
        json!(["0x1", "0x8", []]),
        json!(["0x1", "latest", [50, 40]]),
        json!(["0x1", "latest", [101]]),
        json!(["0x1", "latest", vec![1; 101]]),
    ] {
        assert_eq!(refused(&mut node, "eth_feeHistory", params).await.0, -32000);
    }
    let next = ask(&mut node, "eth_baseFee", json!([])).await;
    let one = ask(&mut node, "eth_feeHistory", json!(["0x1", "latest", []])).await;
    assert_eq!(one["baseFeePerGas"][1], next);
    assert_eq!(one["baseFeePerBlobGas"][1], ask(&mut node, "eth_blobBaseFee", json!([])).await);
    let tip = number(&ask(&mut node, "eth_maxPriorityFeePerGas", json!([])).await);
    let price = number(&ask(&mut node, "eth_gasPrice", json!([])).await);
    let head = chain.last().unwrap().header.base_fee_per_gas.unwrap();
    assert_eq!(price, tip + U256::from(head));
    node.stop_and_verify().await;
}

/// An estimate suffices, and is not far above the gas needed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn estimates_suffice_and_are_close() {
    let (mut node, _) = chain(Fork::Prague, 81, 2).await;
    let pairs = (0..20).map(|slot| (U256::from(900 + slot), U256::from(7)));
    let store = contracts::store_calldata(pairs);
    let initcode = contracts::mortal_initcode(5);
    let create = [&B256::ZERO[..], &initcode[..]].concat();
    let messages = [
        json!({"to": Address::repeat_byte(0x77)}),
        json!({"to": contracts::STORE, "input": store}),
        json!({"to": contracts::FACTORY, "data": Bytes::from(create)}),
        json!({"input": initcode}),
        json!({"to": Address::repeat_byte(0x77), "input": Bytes::from(vec![1; 2000])}),
        json!({"to": contracts::ENVIRONMENT, "accessList": [
            {"address": contracts::STORE, "storageKeys": [B256::ZERO]}]}),
    ];
    for message in messages {
        let gas: u64 = number(&ask(&mut node, "eth_estimateGas", json!([message])).await).to();
        let mut with = message.clone();
        with["gas"] = json!(hex(gas));
        ask(&mut node, "eth_call", json!([with])).await;
        with["gas"] = json!(hex(gas * 97 / 100));
        let less = node.http.call("eth_call", json!([with])).await;
        assert!(less.is_err(), "{message}: {gas} is far too much");
    }
    let transfer = json!([{"to": Address::repeat_byte(0x77), "value": "0x0"}, "latest"]);
    assert_eq!(ask(&mut node, "eth_estimateGas", transfer).await, "0x5208");
    let (code, reason) =
        refused(&mut node, "eth_estimateGas", json!([{"to": contracts::BURNER}])).await;
    assert_eq!(code, -32000);
    assert!(reason.starts_with("gas required exceeds allowance"), "{reason}");
    let poor = json!([{"to": contracts::TOKEN,
        "input": contracts::words([U256::from(1), U256::from(1)])}]);
    assert_eq!(refused(&mut node, "eth_estimateGas", poor).await.0, 3);
    let penniless = json!([{"from": Address::repeat_byte(0x77), "to": Address::ZERO,
        "gasPrice": "0x3b9aca00"}]);
    let (_, reason) = refused(&mut node, "eth_estimateGas", penniless).await;
    assert!(reason.contains("insufficient funds"), "{reason}");
    node.stop_and_verify().await;
}

/// A call that names its access list touches nothing else, and costs the announced gas.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn access_lists_hold_what_a_message_touches() {
    let (mut node, chain) = chain(Fork::Prague, 91, 2).await;
    let store = contracts::store_calldata([(U256::from(5), U256::from(1))]);
    let params = json!([{"to": contracts::STORE, "input": store}]);
    let found = ask(&mut node, "eth_createAccessList", params).await;
    let want = json!([{"address": contracts::STORE, "storageKeys": [B256::with_last_byte(5)]}]);
    assert_eq!(found["accessList"], want);
    let create = [&B256::ZERO[..], &contracts::mortal_initcode(1)[..]].concat();
    let params = json!([{"to": contracts::FACTORY_AND_CALL, "input": Bytes::from(create)}]);
    let found = ask(&mut node, "eth_createAccessList", params).await;
    let factory = contracts::FACTORY_AND_CALL;
    let made = factory.create(chain[1].world.get(factory).nonce);
    let listed = found["accessList"].as_array().unwrap();
    let slots_of_made = listed.iter().find(|item| item["address"] == json!(made)).unwrap();
    assert_eq!(slots_of_made["storageKeys"], json!([B256::ZERO]));
    assert!(found.get("error").is_none());
    // The message fails, and the answer says so beside the list.
    let poor = json!([{"to": contracts::TOKEN,
        "input": contracts::words([U256::from(1), U256::from(1)])}]);
    let found = ask(&mut node, "eth_createAccessList", poor).await;
    assert_eq!(found["error"], "execution reverted");
    assert_eq!(found["accessList"][0]["storageKeys"].as_array().unwrap().len(), 1);
    node.stop_and_verify().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_slots_are_read_at_once() {
    let (mut node, chain) = chain(Fork::Prague, 95, 3).await;
    let world = &chain[2].world;
    let (mut slots, mut want) = (json!({}), json!({}));
    for (address, account) in world.0.iter().filter(|(_, account)| !account.storage.is_empty()) {
        let key = address.to_string().to_lowercase();
        let some = || account.storage.iter().take(20);
        slots[&key] = some().map(|(slot, _)| json!(B256::from(*slot))).collect();
        want[&key] = some().map(|(_, value)| json!(B256::from(*value))).collect();
    }
    assert_eq!(ask(&mut node, "eth_getStorageValues", json!([slots, "latest"])).await, want);
    let (code, reason) = refused(&mut node, "eth_getStorageValues", json!([{}])).await;
    assert_eq!((code, reason.as_str()), (-32602, "empty request"));
    let many = json!([{ (Address::ZERO.to_string()): vec![B256::ZERO; 1025] }]);
    assert_eq!(refused(&mut node, "eth_getStorageValues", many).await.0, -38026);
    node.stop_and_verify().await;
}
