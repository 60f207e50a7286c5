//! Tests of `helm/tandem/README.md`: its table is made from `values.yaml` and `values.schema.json`.

use super::{chart, is_up_to_date};
use crate::deploy::{succeeds, tandem, yaml};
use serde_json::{Map, Value};
use std::{collections::BTreeSet, fs};

const BEGIN: &str = "<!-- values: begin -->\n";
const END: &str = "<!-- values: end -->\n";

fn schema() -> Value {
    let text = fs::read_to_string(chart().join("values.schema.json")).unwrap();
    serde_json::from_str(&text).unwrap()
}

/// Returns the schemas of an object's members, if there are any, including those of its definition.
fn members<'a>(schema: &'a Value, node: &'a Value) -> Option<&'a Map<String, Value>> {
    node["properties"].as_object().or_else(|| {
        let path = node["$ref"].as_str()?.strip_prefix("#/definitions/")?;
        members(schema, &schema["definitions"][path])
    })
}

/// A value, its default and its meaning.
struct Row {
    path: String,
    default: Value,
    meaning: String,
}

/// Returns all values with a meaning. Adds values without one to `wrong`.
fn rows(
    schema: &Value,
    node: &Value,
    path: &str,
    default: &Value,
    wrong: &mut Vec<String>,
) -> Vec<Row> {
    if let Some(meaning) = node["description"].as_str() {
        let meaning = meaning.to_owned();
        return vec![Row { path: path.to_owned(), default: default.clone(), meaning }];
    }
    let (Some(members), Some(defaults)) = (members(schema, node), default.as_object()) else {
        wrong.push(format!("{path} has no description"));
        return Vec::new();
    };
    let unknown = defaults.keys().filter(|key| !members.contains_key(*key));
    wrong.extend(unknown.map(|key| format!("{path}.{key} is not in the schema")));
    let mut all = Vec::new();
    for (key, node) in members {
        let path = if path.is_empty() { key.clone() } else { format!("{path}.{key}") };
        match defaults.get(key) {
            Some(default) => all.extend(rows(schema, node, &path, default, wrong)),
            // Overrides that every service may have instead of `defaults`, and values that belong
            // to Helm.
            None if node["$ref"].is_string() || path == "global" => {}
            None => wrong.push(format!("{path} has no default")),
        }
    }
    all
}

#[test]
fn every_value_is_described_and_the_table_is_up_to_date() {
    let (schema, values) = (schema(), yaml("helm/tandem/values.yaml"));
    let mut wrong = Vec::new();
    let rows = rows(&schema, &schema, "", &values, &mut wrong);
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(rows.len() > 100, "{} values", rows.len());
    let mut table = String::from("| value | default | meaning |\n|---|---|---|\n");
    for Row { path, default, meaning } in rows {
        table += &format!("| `{path}` | `{default}` | {} |\n", meaning.replace('|', "\\|"));
    }
    let path = chart().join("README.md");
    let text = fs::read_to_string(&path).unwrap();
    let (before, rest) = text.split_once(BEGIN).expect("the beginning of the table");
    let (_, after) = rest.split_once(END).expect("the end of the table");
    is_up_to_date(&path, &format!("{before}{BEGIN}{table}{END}{after}"));
}

/// Settings that the chart sets itself, has under other names, or does not need.
const NOT_CHOSEN: [(&str, &str); 12] = [
    ("storage_writer", "grpc_addr"),
    ("multiproof_workers", "grpc_addr"),
    ("blob_validator", "grpc_addr"),
    ("fleet", "endpoints"),
    ("discovery", "addr"),
    ("discovery", "port"),
    ("discovery", "tcp_port"),
    ("discovery", "network"),
    ("discovery", "bootnodes"),
    ("peer_sessions", "listen"),
    ("peer_sessions", "static_peers"),
    ("traces", "level"),
];

/// Returns the settings of the binary, which it lists when an unknown one is set.
fn settings(table: &str) -> BTreeSet<String> {
    let variable = format!("TANDEM__{}__NO_SUCH", table.to_uppercase().replace('.', "__"));
    let output =
        tandem().args(["executor", "--print-config"]).env(&variable, "1").output().unwrap();
    let said = String::from_utf8(output.stderr).unwrap();
    let (_, expected) = said.split_once("expected ").unwrap_or_else(|| panic!("{said}"));
    expected.split('`').skip(1).step_by(2).map(str::to_owned).collect()
}

#[test]
fn settings_of_the_schema_are_those_of_the_binary() {
    let schema = schema();
    let tables = schema["properties"]["config"]["properties"].as_object().unwrap();
    let keys = |node: &Value| -> BTreeSet<String> {
        node["properties"].as_object().unwrap().keys().cloned().collect()
    };
    for (table, node) in tables {
        let mut want = settings(table);
        for (_, key) in NOT_CHOSEN.iter().filter(|(of, _)| of == table) {
            assert!(want.remove(*key), "there is no {table}.{key}");
        }
        assert_eq!(keys(node), want, "{table}");
    }
    let store = &tables["storage_writer"]["properties"]["store"];
    assert_eq!(keys(store), settings("storage_writer.store"));
    assert!(succeeds(tandem().args(["executor", "--print-config"])).contains("[executor]"));
}
