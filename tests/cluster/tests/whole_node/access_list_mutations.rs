//! Payloads of Amsterdam with one fault each in what the fork brings: the access list, the slot
//! number, the requests of builders. geth built the blocks. Each changed payload is sent with the
//! hash of the valid block and then with its own. Afterwards the valid block must still be
//! accepted.

use alloy_eips::eip7928::{AccountChanges, BlockAccessIndex};
use alloy_primitives::{Address, Bytes, U256};
use alloy_rlp::Decodable;
use flate2::read::MultiGzDecoder;
use serde_json::{Value, json};
use tandem_chain::{Fork, Payload, PayloadSidecar};
use tandem_cluster_tests::{
    Corpus, Node, PayloadStatus, Recorded, decode_status, new_payload, reseal,
};

/// Expected answer to a changed payload that claims its own hash.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Expect {
    /// INVALID; the parent is the latest valid block.
    Invalid,
    /// INVALID without a latest valid block: the payload contradicts itself.
    Contradiction,
    /// This error.
    Error(i64),
}

type List = Vec<AccountChanges>;
type ListChange = (&'static str, fn(&mut List));

/// Returns the changes to an access list: each leaves a list that decodes.
fn list_changes() -> [ListChange; 29] {
    fn with(list: &mut List, has: fn(&AccountChanges) -> bool) -> &mut AccountChanges {
        list.iter_mut().find(|account| has(account)).expect("the block has such an account")
    }
    fn slots(list: &mut List) -> &mut AccountChanges {
        with(list, |account| account.storage_changes.len() > 1)
    }
    fn reads(list: &mut List) -> &mut AccountChanges {
        with(list, |account| account.storage_reads.len() > 1)
    }
    fn balances(list: &mut List) -> &mut AccountChanges {
        with(list, |account| account.balance_changes.len() > 1)
    }
    fn nonces(list: &mut List) -> &mut AccountChanges {
        with(list, |account| !account.nonce_changes.is_empty())
    }
    fn codes(list: &mut List) -> &mut AccountChanges {
        with(list, |account| !account.code_changes.is_empty())
    }
    fn later(index: &mut BlockAccessIndex, by: u64) {
        *index = BlockAccessIndex::new(index.get() + by);
    }
    [
        ("value of a slot", |list| {
            slots(list).storage_changes[0].changes[0].new_value += U256::from(1);
        }),
        ("balance", |list| balances(list).balance_changes[1].post_balance += U256::from(1)),
        ("nonce", |list| nonces(list).nonce_changes[0].new_nonce += 1),
        ("code", |list| codes(list).code_changes[0].new_code = Bytes::from_static(&[0])),
        ("last value of the last account", |list| {
            let account = list.iter_mut().rev().find(|account| !account.balance_changes.is_empty());
            let change = account.unwrap().balance_changes.last_mut().unwrap();
            change.post_balance ^= U256::from(1);
        }),
        ("index of a slot's change", |list| {
            let account = with(list, |account| {
                account.storage_changes.iter().any(|slot| slot.changes.len() == 1)
            });
            let slot = account.storage_changes.iter_mut().find(|slot| slot.changes.len() == 1);
            later(&mut slot.unwrap().changes[0].block_access_index, 1);
        }),
        ("index of a nonce", |list| {
            let account = with(list, |account| account.nonce_changes.len() == 1);
            later(&mut account.nonce_changes[0].block_access_index, 1);
        }),
        ("index beyond the block", |list| {
            let change = balances(list).balance_changes.last_mut().unwrap();
            later(&mut change.block_access_index, 1_000);
        }),
        ("key of a slot", |list| {
            slots(list).storage_changes.last_mut().unwrap().slot -= U256::from(1);
        }),
        ("key of a read", |list| *reads(list).storage_reads.last_mut().unwrap() -= U256::from(1)),
        ("address", |list| {
            let last = &mut list.last_mut().unwrap().address;
            *last = Address::repeat_byte(0xff);
        }),
        ("slot added", |list| reads(list).storage_reads.push(U256::MAX)),
        ("slot dropped", |list| {
            slots(list).storage_changes.pop();
        }),
        ("read dropped", |list| {
            reads(list).storage_reads.pop();
        }),
        ("slots swapped", |list| slots(list).storage_changes.swap(0, 1)),
        ("reads swapped", |list| reads(list).storage_reads.swap(0, 1)),
        ("slot duplicated", |list| {
            let account = slots(list);
            let first = account.storage_changes[0].clone();
            account.storage_changes.insert(0, first);
        }),
        ("read duplicated", |list| {
            let account = reads(list);
            let first = account.storage_reads[0];
            account.storage_reads.insert(0, first);
        }),
        ("changed slot called a read", |list| {
            let account = with(list, |account| {
                account.storage_reads.is_empty() && !account.storage_changes.is_empty()
            });
            let slot = account.storage_changes.remove(0).slot;
            account.storage_reads.push(slot);
        }),
        ("changed slot called a read as well", |list| {
            let account = with(list, |account| {
                account.storage_reads.is_empty() && !account.storage_changes.is_empty()
            });
            account.storage_reads.push(account.storage_changes[0].slot);
        }),
        ("change added", |list| {
            let account = with(list, |account| account.nonce_changes.len() == 1);
            let mut change = account.nonce_changes[0].clone();
            later(&mut change.block_access_index, 1);
            account.nonce_changes.push(change);
        }),
        ("change dropped", |list| {
            balances(list).balance_changes.remove(0);
        }),
        ("changes swapped", |list| balances(list).balance_changes.swap(0, 1)),
        ("change duplicated", |list| {
            let account = nonces(list);
            let first = account.nonce_changes[0].clone();
            account.nonce_changes.insert(0, first);
        }),
        ("account added", |list| {
            list.push(AccountChanges { address: Address::repeat_byte(0xff), ..Default::default() });
        }),
        ("account dropped", |list| {
            list.remove(list.len() / 2);
        }),
        ("accounts swapped", |list| list.swap(3, 4)),
        ("account duplicated", |list| list.insert(0, list[0].clone())),
        ("accounts all dropped", |list| list.clear()),
    ]
}

type Change = fn(&mut Payload, &mut PayloadSidecar);

/// Returns the changes to the list as bytes, and to the slot number.
fn payload_changes() -> [(&'static str, Expect, Change); 5] {
    fn list(payload: &mut Payload, change: fn(&mut Vec<u8>)) {
        let mut bytes = payload.block_access_list.take().unwrap().to_vec();
        change(&mut bytes);
        payload.block_access_list = Some(bytes.into());
    }
    [
        ("list without bytes", Expect::Contradiction, |payload, _| list(payload, Vec::clear)),
        ("list with a byte too many", Expect::Contradiction, |payload, _| {
            list(payload, |bytes| bytes.push(0xc0));
        }),
        ("list with a byte too few", Expect::Contradiction, |payload, _| {
            list(payload, |bytes| bytes.truncate(bytes.len() - 1));
        }),
        ("list missing", Expect::Error(-32602), |payload, _| payload.block_access_list = None),
        ("slot number missing", Expect::Error(-32602), |payload, _| payload.slot_number = None),
    ]
}

/// Returns the changes to the requests, of which the last one is a builder's.
fn request_changes() -> [(&'static str, Expect, Change); 7] {
    fn requests(sidecar: &mut PayloadSidecar) -> &mut Vec<Bytes> {
        sidecar.execution_requests.as_mut().unwrap()
    }
    fn last(sidecar: &mut PayloadSidecar, change: fn(&mut Vec<u8>)) {
        let mut request = requests(sidecar).pop().unwrap().to_vec();
        change(&mut request);
        requests(sidecar).push(request.into());
    }
    [
        ("request changed", Expect::Invalid, |_, sidecar| {
            last(sidecar, |request| request[20] ^= 1);
        }),
        ("request of another type", Expect::Invalid, |_, sidecar| {
            last(sidecar, |request| request[0] = 7);
        }),
        ("request cut", Expect::Invalid, |_, sidecar| {
            last(sidecar, |request| request.truncate(40))
        }),
        ("request missing", Expect::Invalid, |_, sidecar| {
            requests(sidecar).pop();
        }),
        ("request without data", Expect::Error(-32602), |_, sidecar| {
            last(sidecar, |request| request.truncate(1));
        }),
        ("request duplicated", Expect::Error(-32602), |_, sidecar| {
            let last = requests(sidecar).last().unwrap().clone();
            requests(sidecar).push(last);
        }),
        ("request out of order", Expect::Error(-32602), |_, sidecar| {
            requests(sidecar).push(Bytes::from_static(&[0x02, 0x01]));
        }),
    ]
}

/// Returns a recorded payload and its sidecar.
fn decode(params: &Value) -> (Payload, PayloadSidecar) {
    let sidecar = PayloadSidecar {
        versioned_hashes: serde_json::from_value(params[1].clone()).unwrap(),
        parent_beacon_block_root: serde_json::from_value(params[2].clone()).unwrap(),
        execution_requests: serde_json::from_value(params[3].clone()).unwrap(),
    };
    (serde_json::from_value(params[0].clone()).unwrap(), sidecar)
}

async fn send(
    node: &mut Node,
    payload: &Payload,
    sidecar: &PayloadSidecar,
) -> Result<PayloadStatus, i64> {
    let (method, params) = new_payload(Fork::Amsterdam, payload, sidecar);
    node.engine.call(method, params).await.map(decode_status).map_err(|error| error.code)
}

/// Sends a changed payload with the hash of the valid block, and with its own.
async fn check(
    node: &mut Node,
    label: &str,
    expect: Expect,
    mut payload: Payload,
    sidecar: &PayloadSidecar,
) {
    let parent = payload.parent_hash;
    for own_hash in [false, true] {
        if own_hash {
            reseal(&mut payload, sidecar);
        }
        let status = send(node, &payload, sidecar).await;
        let verdict = status.as_ref().map(PayloadStatus::verdict).map_err(|code| *code);
        let want = match expect {
            Expect::Error(code) => Err(code),
            Expect::Invalid if own_hash => Ok(("INVALID", Some(parent))),
            Expect::Invalid | Expect::Contradiction => Ok(("INVALID", None)),
        };
        assert_eq!(verdict, want, "{label}, own hash {own_hash}: {status:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_payloads_of_amsterdam_are_caught() {
    let corpus = Corpus::amsterdam();
    let mut node = Node::start_from(&corpus.genesis()).await;
    for (index, Recorded { method, params, hash }) in corpus.payloads().take(13).enumerate() {
        let (payload, sidecar) = decode(&params);
        if index == 1 {
            for (name, change) in list_changes() {
                let rlp = payload.block_access_list.clone().unwrap();
                let mut list = List::decode(&mut &rlp[..]).unwrap();
                change(&mut list);
                let mut changed = Vec::new();
                alloy_rlp::encode_list::<_, AccountChanges>(&list, &mut changed);
                assert_ne!(changed, rlp.to_vec(), "{name} changes nothing");
                let payload =
                    Payload { block_access_list: Some(changed.into()), ..payload.clone() };
                check(&mut node, name, Expect::Invalid, payload, &sidecar).await;
            }
            for (name, expect, change) in payload_changes() {
                let (mut payload, mut sidecar) = (payload.clone(), sidecar.clone());
                change(&mut payload, &mut sidecar);
                check(&mut node, name, expect, payload, &sidecar).await;
            }
            // Another slot number is another block. Code of this one reads it (EIP-7843), so it gives
            // other accesses.
            let mut sibling = Payload { slot_number: Some(77), ..payload.clone() };
            let status = send(&mut node, &sibling, &sidecar).await.unwrap();
            assert_eq!(status.verdict(), ("INVALID", None), "{status:?}");
            reseal(&mut sibling, &sidecar);
            let status = send(&mut node, &sibling, &sidecar).await.unwrap();
            assert_eq!(status.verdict(), ("INVALID", Some(payload.parent_hash)), "{status:?}");
            let error = status.validation_error.unwrap_or_default();
            assert!(error.starts_with("access_list: "), "{error}");
        }
        let types: Vec<_> =
            sidecar.execution_requests.iter().flatten().map(|request| request[0]).collect();
        if matches!(types.last(), Some(3 | 4)) {
            for (name, expect, change) in request_changes() {
                let (mut payload, mut sidecar) = (payload.clone(), sidecar.clone());
                change(&mut payload, &mut sidecar);
                check(&mut node, name, expect, payload, &sidecar).await;
            }
        }
        let status = decode_status(node.engine.call(&method, params).await.unwrap());
        assert_eq!(status.verdict(), ("VALID", Some(hash)), "block {}: {status:?}", index + 1);
        node.set_head(hash).await;
    }
    node.stop_and_verify().await;
}

/// A chain must have the contracts of requests (EIP-7002, 7251, 8282) from the fork on; without the
/// code of one of them, each block is invalid. The factory of EIP-7997 is not looked for.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_block_without_a_contract_of_requests_is_invalid() {
    let corpus = Corpus::amsterdam();
    let file = std::fs::File::open(corpus.genesis()).unwrap();
    let genesis: Value = serde_json::from_reader(MultiGzDecoder::new(file)).unwrap();
    let Recorded { params, .. } = corpus.payloads().next().unwrap();
    let (payload, sidecar) = decode(&params);
    for (missing, kind) in [
        ("0x00000961ef480eb55e80d19ad83579a64c007002", "system_contract_missing: "),
        ("0x0000bbddc7ce488642fb579f8b00f3a590007251", "system_contract_missing: "),
        ("0x0000bff46984e3725691fa540a8c7589300d8282", "system_contract_missing: "),
        ("0x000064d678505ad48f8ccb093bc65613800e8282", "system_contract_missing: "),
        // The list has the hash of the parent, which is another without the factory.
        ("0x4e59b44847b379578588920ca78fbf26c0b4956c", "access_list: "),
    ] {
        let mut genesis = genesis.clone();
        let removed = genesis["alloc"].as_object_mut().unwrap().remove(missing);
        assert!(removed.is_some(), "{missing} is in the genesis");
        let mut node = Node::start(&genesis.to_string()).await;
        let first = node.http.call("eth_getBlockByNumber", json!(["earliest", false])).await;
        let mut payload = payload.clone();
        payload.parent_hash = serde_json::from_value(first.unwrap()["hash"].clone()).unwrap();
        reseal(&mut payload, &sidecar);
        let (method, params) = new_payload(Fork::Amsterdam, &payload, &sidecar);
        let answer = node.engine.call(method, params).await.unwrap();
        assert_eq!(answer["latestValidHash"], json!(payload.parent_hash), "{missing}: {answer}");
        let error = answer["validationError"].as_str().unwrap_or_default();
        assert!(error.starts_with(kind), "{missing}: {answer}");
        node.stop_and_verify().await;
    }
}
