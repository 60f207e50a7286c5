//! Real blocks on their witnesses, and on faulty witnesses.

use super::*;
use alloy_consensus::Header;
use serde_json::{Value, json};
use tandem_primitives::{U256, keccak256};

const MAINNET: &str = "mainnet_21429992";
const HOODI: &str = "hoodi_1151683";
const HOLESKY: &str = "holesky_2971844";

fn text(name: &str) -> String {
    let folder = "../../tools/conformance/fixtures/mainnet-witness";
    let path = format!("{}/{folder}/{name}.json", env!("CARGO_MANIFEST_DIR"));
    std::fs::read_to_string(path).unwrap()
}

struct Fixture {
    spec: ChainSpec,
    block: Arc<Block>,
    witness: ExecutionWitness,
}

fn fixture(name: &str) -> Fixture {
    let Input { chain_id, block, witness } = Input::parse(&text(name)).unwrap();
    let spec = ChainSpec::for_chain_id(chain_id.unwrap()).unwrap();
    Fixture { spec, block: Arc::new(block.unwrap()), witness }
}

impl Fixture {
    fn execute(&self, gaps: Gaps) -> Result<Report, Error> {
        execute_on_witness(&self.spec, &self.block, &self.witness, gaps)
    }

    /// Returns the fixture with a changed header.
    fn with_header(&self, change: impl FnOnce(&mut Header)) -> Self {
        let mut header = self.block.header.clone();
        change(&mut header);
        let rlp = alloy_rlp::encode(&header);
        let block = Block::decode(rlp.into(), self.block.body_rlp.clone()).unwrap();
        let (spec, witness) = (self.spec.clone(), self.witness.clone());
        Self { spec, block: Arc::new(block), witness }
    }
}

#[test]
fn a_real_block_comes_out_as_its_header_says() {
    // The last two are from Homestead and Spurious Dragon: receipts hold state roots.
    for (name, gaps) in [
        (MAINNET, Gaps::Refuse),
        (HOLESKY, Gaps::Refuse),
        (HOODI, Gaps::AssumeAbsent),
        ("mainnet_1150000", Gaps::Refuse),
        ("mainnet_2675000", Gaps::Refuse),
    ] {
        let fixture = fixture(name);
        let report = fixture.execute(gaps).unwrap();
        assert_eq!(report.fault, None, "{name}");
        let header = &fixture.block.header;
        let computed = report.computed.unwrap();
        assert_eq!(computed.state_root, header.state_root);
        assert_eq!(computed.receipts_root, header.receipts_root);
        assert_eq!(computed.gas_used, header.gas_used);
        assert_eq!(computed.requests_hash, header.requests_hash);
        assert!(report.nodes > 0 && report.reads.accounts > 0);
    }
}

/// The geth version behind this witness did not prove absent accounts, and the block reads one.
#[test]
fn an_account_without_proof_is_absent_only_if_that_may_be_assumed() {
    let fixture = fixture(HOODI);
    let Err(Error::Witness(WitnessError::Missing(place))) = fixture.execute(Gaps::Refuse) else {
        panic!("not refused");
    };
    assert_eq!((place.owner, place.depth), (None, 2));
    let assumed = fixture.execute(Gaps::AssumeAbsent).unwrap().assumed;
    let [AssumedAbsent { address_hash, node }] = assumed[..] else { panic!("{assumed:?}") };
    assert_eq!(node, place);
    assert_eq!(address_hash[0], place.path[0], "the node is on the way to the account");
    // A different block is not declared invalid on a witness that may be too small.
    let other = fixture.with_header(|header| header.receipts_root = B256::ZERO);
    let error = Error::Witness(WitnessError::Missing(place));
    assert_eq!(other.execute(Gaps::AssumeAbsent), Err(error));
}

#[test]
fn each_node_dropped_is_named_or_was_not_needed() {
    let mut named = 0;
    for name in [MAINNET, HOLESKY] {
        let whole = fixture(name);
        for at in 0..whole.witness.state.len() {
            let mut fixture = fixture(name);
            let dropped = keccak256(fixture.witness.state.remove(at));
            match fixture.execute(Gaps::Refuse) {
                Ok(report) => assert_eq!(report.fault, None),
                Err(Error::Witness(WitnessError::Missing(place))) => {
                    assert_eq!(place.hash, dropped);
                    named += 1;
                }
                Err(error) => panic!("{error}"),
            }
            // Assuming absence gives the same result, except that the report may name the node.
            match fixture.execute(Gaps::AssumeAbsent) {
                Ok(report) => {
                    assert_eq!(report.fault, None);
                    assert!(report.assumed.iter().all(|assumed| assumed.node.hash == dropped));
                }
                Err(Error::Witness(WitnessError::Missing(place))) => {
                    assert_eq!(place.hash, dropped);
                }
                Err(error) => panic!("{error}"),
            }
        }
    }
    assert!(named > 100, "{named} nodes needed");
}

#[test]
fn a_flipped_bit_is_a_missing_node() {
    let whole = fixture(MAINNET);
    for at in 0..whole.witness.state.len() {
        let mut fixture = fixture(MAINNET);
        let mut node = fixture.witness.state[at].to_vec();
        let bit = at * 37 % (node.len() * 8);
        node[bit / 8] ^= 1 << (bit % 8);
        fixture.witness.state[at] = node.into();
        match fixture.execute(Gaps::Refuse) {
            Ok(report) => assert_eq!(report.fault, None),
            Err(Error::Witness(WitnessError::Missing(place))) => {
                assert_eq!(place.hash, keccak256(&whole.witness.state[at]));
            }
            Err(error) => panic!("{error}"),
        }
    }
}

#[test]
fn code_that_is_missing_or_another_is_named() {
    let whole = fixture(MAINNET);
    let mut named = 0;
    for at in 0..whole.witness.codes.len() {
        let wanted = keccak256(&whole.witness.codes[at]);
        for flip in [false, true] {
            let mut fixture = fixture(MAINNET);
            let mut code = fixture.witness.codes.remove(at).to_vec();
            if flip && let Some(byte) = code.first_mut() {
                *byte ^= 1;
                fixture.witness.codes.push(code.into());
            }
            match fixture.execute(Gaps::Refuse) {
                Ok(report) => assert_eq!(report.fault, None),
                Err(Error::Execution(reason)) => {
                    assert_eq!(reason, format!("code {wanted} is missing"));
                    named += 1;
                }
                Err(error) => panic!("{error}"),
            }
        }
    }
    assert!(named >= 2, "{named} codes needed");
}

#[test]
fn headers_must_lead_to_the_block() {
    let whole = fixture(MAINNET);
    let Ancestors::Headers(headers) = &whole.witness.ancestors else { panic!("no headers") };
    let parent_hash = whole.block.header.parent_hash;
    let with = |headers: Vec<Header>| {
        let mut fixture = fixture(MAINNET);
        fixture.witness.ancestors = Ancestors::Headers(headers);
        fixture.execute(Gaps::Refuse)
    };
    assert_eq!(with(Vec::new()), Err(Error::NoParent { parent_hash }));
    let other = Header { timestamp: 1, ..headers[0].clone() };
    assert_eq!(with(vec![other.clone()]), Err(Error::NoParent { parent_hash }));
    let (number, hash) = (other.number, other.hash_slow());
    let stray = Err(Error::UnlinkedHeader { number, hash });
    assert_eq!(with(vec![other, headers[0].clone()]), stray);

    let claims = |hashes: Vec<B256>| {
        let mut fixture = fixture(MAINNET);
        let state_root = headers[0].state_root;
        fixture.witness.ancestors = Ancestors::Claimed { state_root, hashes };
        fixture.execute(Gaps::Refuse)
    };
    assert_eq!(claims(vec![parent_hash]).unwrap().fault, None);
    let (got, want) = (B256::repeat_byte(1), parent_hash);
    assert_eq!(claims(vec![got, parent_hash]), Err(Error::ParentHash { got, want }));
    assert_eq!(claims(Vec::new()), Err(Error::ParentHash { got: B256::ZERO, want }));
}

#[test]
fn the_hash_of_an_old_block_comes_from_its_headers() {
    let headers: Vec<Header> = (0..5)
        .scan(B256::ZERO, |parent_hash, number| {
            let header = Header { number, parent_hash: *parent_hash, ..Header::default() };
            *parent_hash = header.hash_slow();
            Some(header)
        })
        .collect();
    let mut shuffled = headers[2..4].to_vec();
    shuffled.reverse();
    let lineage = Lineage::new(&headers[4], &Ancestors::Headers(shuffled)).unwrap();
    for number in [1, 2, 3] {
        assert_eq!(lineage.hash(number).unwrap(), headers[number as usize].hash_slow());
    }
    for number in [0, 4, 5, u64::MAX] {
        let error = lineage.hash(number).unwrap_err().to_string();
        assert_eq!(error, format!("the witness lacks the header of block {number}"));
    }
}

#[test]
fn a_header_that_says_something_else_is_told_so() {
    let fixture = fixture(MAINNET);
    let fault = |change: fn(&mut Header)| {
        fixture.with_header(change).execute(Gaps::Refuse).unwrap().fault.unwrap()
    };
    let header = &fixture.block.header;
    let computed = header.state_root;
    let lie = fault(|h| h.state_root = B256::ZERO);
    assert_eq!(lie, BlockError::StateRoot { header: B256::ZERO, computed });
    let got = B256::ZERO;
    let want = header.receipts_root;
    assert_eq!(fault(|h| h.receipts_root = B256::ZERO), BlockError::ReceiptsRoot { got, want });
    let (got, want) = (header.gas_used + 1, header.gas_used);
    assert_eq!(fault(|h| h.gas_used += 1), BlockError::GasUsed { got, want });
    // Compares with the parent, and with the body.
    assert!(matches!(fault(|h| h.number += 1), BlockError::Number { .. }));
    assert!(matches!(
        fault(|h| h.difficulty = U256::from(1)),
        BlockError::UnexpectedField { .. }
            | BlockError::Difficulty { .. }
            | BlockError::PreMerge(_)
    ));
    assert!(matches!(fault(|h| h.blob_gas_used = Some(131_072)), BlockError::BlobGasUsed { .. }));
}

/// Answers of `debug_executionWitness` from different clients are read, besides the fixtures' own
/// form.
#[test]
fn the_answers_of_clients_are_read() {
    let own: Value = serde_json::from_str(&text(MAINNET)).unwrap();
    let want = fixture(MAINNET);
    let Ancestors::Headers(headers) = &want.witness.ancestors else { panic!("no headers") };
    let object = serde_json::to_value(&headers[0]).unwrap();
    let (state, codes) = (&own["witness"]["state"], &own["witness"]["codes"]);
    let rlp = json!({"state": state, "codes": codes, "headers": own["witness"]["headers"]});
    let objects = json!({"state": state, "codes": codes, "headers": [object], "keys": null});
    for answer in [
        rlp.clone(),
        objects.clone(),
        json!({"jsonrpc": "2.0", "id": 1, "result": objects}),
        json!({"witness": rlp, "chainId": "0x1", "block": own["block"]}),
        json!({"witness": rlp, "chainId": 1, "engine": own["engine"]}),
    ] {
        let input = Input::parse(&answer.to_string()).unwrap();
        assert_eq!(input.witness, want.witness);
        assert_eq!(input.block.is_some(), input.chain_id == Some(1));
        assert!(input.block.is_none_or(|block| block == *want.block));
    }
    let raw = own["block"].as_str().unwrap();
    let bytes = alloy_primitives::hex::decode(raw).unwrap();
    let answer = json!({"jsonrpc": "2.0", "id": 1, "result": raw}).to_string();
    for file in [raw.as_bytes(), &bytes, answer.as_bytes(), format!("\"{raw}\"\n").as_bytes()] {
        assert_eq!(decode_block(file).unwrap(), *want.block);
    }
    assert!(decode_block(b"").is_err() && decode_block(b"0x00").is_err());
}

#[test]
fn what_is_no_witness_is_refused_with_the_reason() {
    let own: Value = serde_json::from_str(&text(MAINNET)).unwrap();
    let hoodi: Value = serde_json::from_str(&text(HOODI)).unwrap();
    let error = |change: &dyn Fn(&mut Value)| {
        let mut json = own.clone();
        change(&mut json);
        Input::parse(&json.to_string()).unwrap_err().to_string()
    };
    assert!(error(&|json| json["witness"] = Value::Null).contains("witness"));
    assert!(error(&|json| json["witness"]["state"] = json!(["0xzz"])).contains("invalid"));
    assert!(error(&|json| json["witness"]["headers"] = json!(["0xc0"])).starts_with("header 0"));
    assert!(error(&|json| json["block"] = json!("0x00")).starts_with("block: malformed"));
    assert!(
        error(&|json| json["block"] = hoodi["block"].clone()).contains("the engine call is of")
    );
    assert!(error(&|json| json["engine"]["method"] = json!("eth_call")).starts_with("engine: "));
    for (params, reason) in [
        (json!([]), "no payload"),
        (json!({}), "non-array"),
        (json!([1]), "argument 0"),
        (json!([null, null, null, null, null]), "too many"),
    ] {
        let text = error(&|json| json["engine"]["params"] = params.clone());
        assert!(text.starts_with("engine: ") && text.contains(reason), "{text}");
    }
    // A list in place of a header or a number is rejected without being stored.
    assert!(error(&|json| json["witness"]["headers"] = json!([[1]])).contains("a header, as"));
    assert!(error(&|json| json["chainId"] = json!([1])).contains("a chain id"));
    let text = error(&|json| {
        json["witness"]["headers"] = json!([]);
        json["syntheticParent"] = json!(true);
    });
    assert_eq!(text, "syntheticParent without a header");
    assert!(Input::parse("").is_err() && Input::parse("[]").is_err());
}
