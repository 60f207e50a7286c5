use super::*;
use serde_json::{Value, json};
use tandem_http::Params;

const HASH: &str = "0x0707070707070707070707070707070707070707070707070707070707070707";
/// Returns the fork of a test chain: Shanghai at 10, Cancun at 20, Prague at 30, Osaka at 40,
/// Amsterdam at 50, an unknown fork from 60 on.
fn fork_at(timestamp: u64) -> Option<Fork> {
    Some(match timestamp {
        0..10 => Fork::Paris,
        10..20 => Fork::Shanghai,
        20..30 => Fork::Cancun,
        30..40 => Fork::Prague,
        40..50 => Fork::Osaka,
        50..60 => Fork::Amsterdam,
        _ => return None,
    })
}

/// Returns a payload with the fields of form 1, 2 (withdrawals), 3 (blob gas) or 4 (access list).
fn payload(form: u8, timestamp: u64) -> Value {
    let mut payload = json!({
        "parentHash": HASH, "feeRecipient": "0x0101010101010101010101010101010101010101",
        "stateRoot": HASH, "receiptsRoot": HASH, "logsBloom": format!("0x{}", "00".repeat(256)),
        "prevRandao": HASH, "blockNumber": "0x1", "gasLimit": "0x1", "gasUsed": "0x0",
        "timestamp": format!("{timestamp:#x}"), "extraData": "0x", "baseFeePerGas": "0x7",
        "blockHash": HASH, "transactions": [],
    });
    if form >= 2 {
        payload["withdrawals"] = json!([]);
    }
    if form >= 3 {
        payload["blobGasUsed"] = json!("0x0");
        payload["excessBlobGas"] = json!("0x0");
    }
    if form >= 4 {
        payload["blockAccessList"] = json!("0xc0");
        payload["slotNumber"] = json!("0x0");
    }
    payload
}

fn check(version: u8, params: Value) -> i32 {
    let params = Params::new(params.to_string().into());
    let checked = decode_new_payload(version, &params)
        .and_then(|params| NewPayload::new(version, params, fork_at));
    match checked {
        Ok(_) => 0,
        Err(error) => error.code,
    }
}

/// Returns the parameters of a version with the newest payload form that it accepts at this time.
fn fitting(version: u8, timestamp: u64) -> Value {
    let form = match version {
        2 if timestamp < 10 => 1,
        5 => 4,
        _ => version.min(3),
    };
    let mut params = vec![payload(form, timestamp)];
    if version >= 3 {
        params.extend([json!([]), json!(HASH)]);
    }
    if version >= 4 {
        params.push(json!([]));
    }
    Value::Array(params)
}

#[test]
fn each_version_serves_its_forks_only() {
    let unsupported = code::UNSUPPORTED_FORK;
    for (version, want) in [
        (1, [0, 0, 0, 0, 0, 0, unsupported]),
        (2, [0, 0, unsupported, unsupported, unsupported, unsupported, unsupported]),
        (3, [unsupported, unsupported, 0, unsupported, unsupported, unsupported, unsupported]),
        (4, [unsupported, unsupported, unsupported, 0, 0, unsupported, unsupported]),
        (5, [unsupported, unsupported, unsupported, unsupported, unsupported, 0, unsupported]),
    ] {
        for (timestamp, want) in [5, 15, 25, 35, 45, 55, 65].into_iter().zip(want) {
            let found = check(version, fitting(version, timestamp));
            assert_eq!(found, want, "V{version} at {timestamp}");
        }
    }
}

#[test]
fn missing_and_superfluous_fields_are_invalid_params() {
    for (version, timestamp) in [(3, 25), (4, 35), (5, 55)] {
        let of_v5 = ["blockAccessList", "slotNumber"].into_iter().filter(|_| version == 5);
        for field in ["withdrawals", "blobGasUsed", "excessBlobGas"].into_iter().chain(of_v5) {
            let mut params = fitting(version, timestamp);
            params[0][field] = Value::Null;
            assert_eq!(check(version, params), code::INVALID_PARAMS, "V{version} null {field}");
            let mut params = fitting(version, timestamp);
            params[0].as_object_mut().unwrap().remove(field);
            assert_eq!(check(version, params), code::INVALID_PARAMS, "V{version} without {field}");
        }
        let full = fitting(version, timestamp);
        for position in 0..full.as_array().unwrap().len() {
            let mut params = full.clone();
            params[position] = Value::Null;
            assert_eq!(check(version, params), code::INVALID_PARAMS, "V{version} {position}");
            let cut = Value::Array(full.as_array().unwrap()[..position].to_vec());
            assert_eq!(check(version, cut), code::INVALID_PARAMS, "V{version} {position}");
        }
        let mut more = full.clone();
        more.as_array_mut().unwrap().push(json!([]));
        assert_eq!(check(version, more), code::INVALID_PARAMS);
    }
    for (version, form, timestamp) in
        [(1, 2, 5), (1, 3, 5), (1, 2, 15), (2, 3, 15), (2, 3, 25), (2, 1, 15), (2, 2, 5)]
    {
        let found = check(version, json!([payload(form, timestamp)]));
        assert_eq!(found, code::INVALID_PARAMS, "V{version} form {form} at {timestamp}");
    }
    assert_eq!(check(1, json!([payload(1, 5), []])), code::INVALID_PARAMS);
    assert_eq!(check(1, json!([])), code::INVALID_PARAMS);
    assert_eq!(check(1, json!([[]])), code::INVALID_PARAMS);
}

#[test]
fn the_form_is_checked_before_the_fork() {
    // Blob fields in V2 and none in V3, at times that neither version serves.
    assert_eq!(check(2, json!([payload(3, 35)])), code::INVALID_PARAMS);
    assert_eq!(check(3, json!([payload(2, 15), [], HASH])), code::INVALID_PARAMS);
    assert_eq!(check(3, fitting(3, 15)), code::UNSUPPORTED_FORK);
    assert_eq!(check(5, fitting(4, 55)), code::INVALID_PARAMS);
    assert_eq!(check(4, fitting(5, 45)), code::INVALID_PARAMS);
}

#[test]
fn malformed_fields_are_invalid_params() {
    for (field, value) in [
        ("parentHash", json!("0x07")),
        ("parentHash", json!(7)),
        ("blockNumber", json!("0x01")),
        ("blockNumber", json!(1)),
        ("gasUsed", json!("0x10000000000000000")),
        ("logsBloom", json!("0x00")),
        ("extraData", json!("0x1")),
        ("baseFeePerGas", json!("7")),
        ("transactions", json!(["0x0g"])),
        ("transactions", json!("0x")),
        ("withdrawals", json!([{}])),
        ("blobGasUsed", json!("x")),
        ("stateRoot", Value::Null),
    ] {
        let mut params = fitting(4, 45);
        params[0][field] = value.clone();
        assert_eq!(check(4, params), code::INVALID_PARAMS, "{field}: {value}");
    }
    for (field, value) in [
        ("blockAccessList", json!("c0")),
        ("blockAccessList", json!("0xc")),
        ("blockAccessList", json!("0xg0")),
        ("blockAccessList", json!([192])),
        ("slotNumber", json!(7)),
        ("slotNumber", json!("0x07")),
        ("slotNumber", json!("0x")),
    ] {
        let mut params = fitting(5, 55);
        params[0][field] = value.clone();
        assert_eq!(check(5, params), code::INVALID_PARAMS, "{field}: {value}");
    }
    // The content of the bytes is a matter of the block.
    let mut params = fitting(5, 55);
    params[0]["blockAccessList"] = json!("0x");
    assert_eq!(check(5, params), 0);
    for (position, value) in [(1, json!(["0x01"])), (2, json!("0x")), (3, json!([1]))] {
        let mut params = fitting(4, 45);
        params[position] = value;
        assert_eq!(check(4, params), code::INVALID_PARAMS, "{position}");
    }
}

#[test]
fn execution_requests_are_ordered_by_type_and_have_data() {
    for (requests, want) in [
        (json!([]), 0),
        (json!(["0x00aa", "0x01bb", "0x02cc"]), 0),
        (json!(["0x02cc"]), 0),
        (json!(["0x00aa", "0x02cc", "0x01bb"]), code::INVALID_PARAMS),
        (json!(["0x01aa", "0x01bb"]), code::INVALID_PARAMS),
        (json!(["0x01"]), code::INVALID_PARAMS),
        (json!(["0x00aa", "0x"]), code::INVALID_PARAMS),
    ] {
        let mut params = fitting(4, 45);
        params[3] = requests.clone();
        assert_eq!(check(4, params), want, "{requests}");
    }
    // The fork is checked first.
    let mut params = fitting(4, 25);
    params[3] = json!(["0x01"]);
    assert_eq!(check(4, params), code::UNSUPPORTED_FORK);
}

fn attributes(form: u8, timestamp: u64) -> Value {
    let mut attributes = json!({
        "timestamp": format!("{timestamp:#x}"), "prevRandao": HASH,
        "suggestedFeeRecipient": "0x0101010101010101010101010101010101010101",
    });
    if form >= 2 {
        attributes["withdrawals"] = json!([]);
    }
    if form >= 3 {
        attributes["parentBeaconBlockRoot"] = json!(HASH);
    }
    if form >= 4 {
        attributes["slotNumber"] = json!("0x7");
        attributes["targetGasLimit"] = json!("0x1c9c380");
    }
    attributes
}

fn check_on(version: u8, attributes: &Value, head: u64) -> i32 {
    let raw = serde_json::value::to_raw_value(attributes).unwrap();
    match check_attributes(version, &raw, head, fork_at) {
        Ok(_) => 0,
        Err(error) => error.code,
    }
}

#[test]
fn attributes_fit_version_fork_and_head() {
    let (invalid, unsupported) = (code::INVALID_PAYLOAD_ATTRIBUTES, code::UNSUPPORTED_FORK);
    for (version, form, timestamp, want) in [
        (1, 1, 5, 0),
        (1, 2, 5, invalid),
        (1, 3, 5, invalid),
        (1, 1, 15, unsupported),
        (2, 1, 5, 0),
        (2, 2, 15, 0),
        (2, 2, 5, invalid),
        (2, 1, 15, invalid),
        (2, 3, 15, invalid),
        (2, 3, 25, invalid),
        (2, 2, 25, unsupported),
        (3, 3, 25, 0),
        (3, 3, 35, 0),
        (3, 3, 45, 0),
        (3, 2, 25, invalid),
        (3, 1, 25, invalid),
        (3, 2, 15, invalid),
        (3, 3, 15, unsupported),
        (3, 3, 55, unsupported),
        (3, 4, 45, invalid),
        (4, 4, 45, unsupported),
        (4, 4, 55, 0),
        (4, 3, 55, invalid),
        (4, 4, 65, unsupported),
    ] {
        let found = check_on(version, &attributes(form, timestamp), 1);
        assert_eq!(found, want, "V{version} form {form} at {timestamp}");
    }
    assert_eq!(check_on(3, &attributes(3, 25), 24), 0);
    assert_eq!(check_on(3, &attributes(3, 25), 25), invalid);
    assert_eq!(check_on(3, &attributes(3, 25), 26), invalid);
    // The fork is checked before the timestamp.
    assert_eq!(check_on(3, &attributes(3, 15), 26), unsupported);
}

#[test]
fn malformed_attributes_are_invalid_attributes() {
    for value in [json!(1), json!("x"), json!([]), json!({}), json!({"timestamp": "0x1"})] {
        assert_eq!(check_on(3, &value, 0), code::INVALID_PAYLOAD_ATTRIBUTES, "{value}");
    }
    for (field, value) in [
        ("timestamp", json!(25)),
        ("timestamp", json!("0x019")),
        ("prevRandao", json!("0x")),
        ("suggestedFeeRecipient", Value::Null),
        ("withdrawals", Value::Null),
        ("parentBeaconBlockRoot", json!("0x01")),
    ] {
        let mut wrong = attributes(3, 25);
        wrong[field] = value;
        assert_eq!(check_on(3, &wrong, 0), code::INVALID_PAYLOAD_ATTRIBUTES, "{field}");
    }
}

#[test]
fn a_forkchoice_state_needs_all_three_hashes() {
    let full = json!({
        "headBlockHash": HASH, "safeBlockHash": HASH, "finalizedBlockHash": HASH,
    });
    let decode = |state: &Value| {
        let params = Params::new(json!([state, null]).to_string().into());
        params.decode::<ForkchoiceParams>().map(|(state, attributes)| {
            assert!(attributes.is_none());
            state
        })
    };
    assert!(decode(&full).unwrap().is_some());
    for field in ["headBlockHash", "safeBlockHash", "finalizedBlockHash"] {
        for value in [Value::Null, json!("0x07"), json!(7)] {
            let mut state = full.clone();
            state[field] = value;
            assert_eq!(decode(&state).unwrap_err().code, code::INVALID_PARAMS, "{field}");
        }
    }
}

#[test]
fn columns_of_custody_are_sixteen_bytes_or_absent() {
    let state = json!({
        "headBlockHash": HASH, "safeBlockHash": HASH, "finalizedBlockHash": HASH,
    });
    let decode = |params: Value| {
        let params = Params::new(params.to_string().into());
        params.decode::<ForkchoiceV4Params>().map_or_else(|error| error.code, |_| 0)
    };
    assert_eq!(decode(json!([state, null])), 0);
    assert_eq!(decode(json!([state, null, null])), 0);
    assert_eq!(decode(json!([state, null, format!("0x{}", "f0".repeat(16))])), 0);
    for columns in [json!("0x"), json!(format!("0x{}", "f0".repeat(15))), json!(7)] {
        assert_eq!(decode(json!([state, null, columns])), code::INVALID_PARAMS, "{columns}");
    }
    assert_eq!(decode(json!([state, null, null, null])), code::INVALID_PARAMS);
}

#[test]
fn bodies_have_an_access_list_since_the_second_version() {
    let json = |version, list| {
        let block = tandem_chain::Block::seal(tandem_chain::Header::default(), &[], None);
        serde_json::to_value(PayloadBodyJson::new(version, block.unwrap(), list)).unwrap()
    };
    let list = Bytes::from([0xc0]);
    let plain = json!({"transactions": [], "withdrawals": null});
    assert_eq!(json(1, Some(list.clone())), plain);
    let listed = json!({"transactions": [], "withdrawals": null, "blockAccessList": "0xc0"});
    assert_eq!(json(2, Some(list)), listed);
    let pruned = json!({"transactions": [], "withdrawals": null, "blockAccessList": null});
    assert_eq!(json(2, None), pruned);
}

#[test]
fn results_have_every_member() {
    let status = PayloadStatusJson::from(PayloadStatus {
        status: crate::Status::Syncing,
        latest_valid_hash: None,
        validation_error: None,
    });
    assert_eq!(
        serde_json::to_string(&ForkchoiceUpdatedJson { payload_status: status, payload_id: None })
            .unwrap(),
        r#"{"payloadStatus":{"status":"SYNCING","latestValidHash":null,"validationError":null},"payloadId":null}"#
    );
}

#[test]
fn there_are_no_more_requests_than_types() {
    let mut params = fitting(4, 40);
    let request = |ty: u16| format!("0x{:02x}00", ty % 256);
    params[3] = (0..256).map(request).collect();
    assert_eq!(check(4, params.clone()), 0);
    params[3] = (0..257).map(request).collect();
    assert_eq!(check(4, params), -32602);
}
