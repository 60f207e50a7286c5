//! Tests of the servers of NATS that the chart starts: one, or several that keep what outlives one of them.

use super::{Objects, helm, list, rules::variables, template, text};
use serde_json::{Value, json};

/// Names of three servers among themselves.
const SERVERS: [&str; 3] = [
    "tandem-nats-0.tandem-nats-pods",
    "tandem-nats-1.tandem-nats-pods",
    "tandem-nats-2.tandem-nats-pods",
];

fn objects(set: &[&str]) -> Option<Objects> {
    Some(Objects::parse(&template(&helm()?, "production", set).unwrap()))
}

/// Returns whether a rule admits only the pods of NATS to this port.
fn is_for_servers(rule: &Value, side: &str, port: &Value) -> bool {
    let peers: Vec<_> = list(&rule[side]).collect();
    peers.len() == 1
        && peers[0]["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == "nats"
        && rule["ports"] == json!([{"port": port}])
}

#[test]
fn several_servers_know_each_other_by_name_and_certificate() {
    let set = ["nats.replicas=3", "services.storage-writer.replicas=2"];
    let Some(objects) = objects(&set) else { return };
    let set = objects.workload("nats");
    assert_eq!(set.object["spec"]["replicas"], 3);
    assert_eq!(set.object["spec"]["serviceName"], "tandem-nats-pods");
    let config = objects.get("ConfigMap", "tandem-nats").unwrap();
    let config = text(&config["data"]["nats.conf"]);
    for server in SERVERS {
        assert!(config.contains(&format!("\"nats://{server}:6222\"")), "{config}");
    }
    for wanted in ["server_name: $POD_NAME", "verify_cert_and_check_known_urls: true"] {
        assert!(config.contains(wanted), "no {wanted} in {config}");
    }
    let container = &set.spec()["containers"][0];
    assert_eq!(container["env"][0]["name"], "POD_NAME");
    let certificate = objects.get("Certificate", "tandem-nats").unwrap();
    for server in SERVERS {
        assert!(list(&certificate["spec"]["dnsNames"]).any(|name| name == server), "{certificate}");
    }
    // Only servers reach the port of the routes.
    let policy = objects.get("NetworkPolicy", "tandem-nats").unwrap();
    let ingress = |rule: &Value| is_for_servers(rule, "from", &json!("routes"));
    assert!(list(&policy["spec"]["ingress"]).any(ingress), "{policy}");
    let egress = |rule: &Value| is_for_servers(rule, "to", &json!(6222));
    assert!(list(&policy["spec"]["egress"]).any(egress), "{policy}");
    assert!(objects.get("PodDisruptionBudget", "tandem-nats").is_some());
    // Each has a copy of the lease, and of the stream of blocks.
    let told = variables(&objects, "storage-writer");
    for kept in ["LEAD", "FEED"] {
        let name = format!("TANDEM__STORAGE_WRITER__{kept}__REPLICAS");
        assert_eq!(told[&*name]["value"], "3", "{name}");
    }
}

#[test]
fn operators_choose_the_number_of_copies() {
    let set = ["nats.replicas=5", "config.storage_writer.lead.replicas=3"];
    let Some(objects) = objects(&set) else { return };
    let told = variables(&objects, "storage-writer");
    assert!(!told.contains_key("TANDEM__STORAGE_WRITER__LEAD__REPLICAS"), "the settings have it");
    assert_eq!(told["TANDEM__STORAGE_WRITER__FEED__REPLICAS"]["value"], "5");
}

#[test]
fn a_single_server_is_no_cluster() {
    let Some(objects) = objects(&[]) else { return };
    let config = objects.get("ConfigMap", "tandem-nats").unwrap();
    let config = text(&config["data"]["nats.conf"]);
    assert!(config.contains("server_name: tandem\n") && !config.contains("cluster {"), "{config}");
    let policy = objects.get("NetworkPolicy", "tandem-nats").unwrap();
    assert_eq!(policy["spec"]["egress"], json!([]));
    assert!(objects.get("PodDisruptionBudget", "tandem-nats").is_none());
    let told = variables(&objects, "storage-writer");
    assert!(!told.keys().any(|name| name.ends_with("REPLICAS")));
}
