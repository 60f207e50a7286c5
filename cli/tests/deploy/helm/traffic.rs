//! Network policies: the edges of the design and no others, and none that a service needs is missing.

use super::{Objects, SERVICES, list, rendered, selects, text};
use serde_json::Value;
use std::collections::BTreeSet;

/// Who calls whom over gRPC, and on which port: docs/ARCHITECTURE.md.
const CALLS: [(&str, &str, u64); 5] = [
    ("executor", "storage-writer", 9600),
    ("executor", "multiproof-workers", 9601),
    ("executor", "blob-validator", 9603),
    ("multiproof-workers", "storage-writer", 9600),
    ("discovery", "peer-table", 9602),
];

/// Components by the selectors of rules; other peers (namespaces, addresses) are left out.
fn components<'a>(objects: &'a Objects, peers: &Value) -> BTreeSet<&'a str> {
    let selectors = list(peers).map(|peer| &peer["podSelector"]["matchLabels"]);
    let selectors: Vec<_> = selectors.filter(|selector| !selector.is_null()).collect();
    let found = objects
        .workloads()
        .filter(|workload| selectors.iter().any(|selector| selects(selector, workload.labels())));
    found.map(|workload| workload.component()).collect()
}

/// The number of a port of a component, which a rule may name.
fn number(objects: &Objects, component: &str, port: &Value) -> u64 {
    port.as_u64().unwrap_or_else(|| {
        let ports = list(&objects.workload(component).spec()["containers"][0]["ports"]);
        let found = ports.into_iter().find(|it| it["name"] == *port);
        found.unwrap_or_else(|| panic!("{component} has no port {port}"))["containerPort"]
            .as_u64()
            .unwrap()
    })
}

/// Edges between components that policies allow on one side: from, to, port.
fn allowed(objects: &Objects, side: &str) -> BTreeSet<(String, String, u64)> {
    let mut edges = BTreeSet::new();
    for policy in objects.of_kind("NetworkPolicy") {
        let spec = &policy["spec"];
        let selector = &spec["podSelector"]["matchLabels"];
        let own = objects.workloads().find(|it| selects(selector, it.labels())).unwrap();
        let own = own.component();
        assert_eq!(spec["policyTypes"], serde_json::json!(["Ingress", "Egress"]), "{own}");
        let peers = if side == "egress" { "to" } else { "from" };
        for rule in list(&spec[side]) {
            for other in components(objects, &rule[peers]) {
                let (from, to) = if side == "egress" { (own, other) } else { (other, own) };
                for port in list(&rule["ports"]) {
                    let port = number(objects, to, &port["port"]);
                    edges.insert((from.to_owned(), to.to_owned(), port));
                }
            }
        }
    }
    edges
}

#[test]
fn pods_reach_whom_the_design_has_them_call_and_nobody_else() {
    for (case, objects) in rendered() {
        let there: BTreeSet<_> = objects.workloads().map(|it| it.component()).collect();
        let calls =
            CALLS.into_iter().filter(|(from, to, _)| there.contains(from) && there.contains(to));
        let mut want: BTreeSet<_> =
            calls.map(|(from, to, port)| (from.to_owned(), to.to_owned(), port)).collect();
        for (hub, port) in [("nats", 4222), ("jaeger", 4317)] {
            let services =
                SERVICES.iter().filter(|name| there.contains(*name) && there.contains(hub));
            want.extend(services.map(|name| ((*name).to_owned(), hub.to_owned(), port)));
        }
        assert_eq!(allowed(&objects, "egress"), want, "{case}: what pods may call");
        let mut served = allowed(&objects, "ingress");
        // The pod of `helm test` is under no policy of its own.
        let tests = [("test", "executor", 8551), ("test", "executor", 9100)];
        for (from, to, port) in tests {
            let edge = (from.to_owned(), to.to_owned(), port);
            assert!(served.remove(&edge), "{case}: {edge:?}");
        }
        assert_eq!(served, want, "{case}: who may call");
    }
}

/// An address in the environment of a service that its policy does not let it reach would hang.
#[test]
fn policies_allow_every_address_that_a_service_is_told() {
    for (case, objects) in rendered() {
        let edges = allowed(&objects, "egress");
        for workload in objects.workloads().filter(|workload| workload.is_ours()) {
            for variable in list(&workload.spec()["containers"][0]["env"]) {
                let Some(value) = variable["value"].as_str() else { continue };
                for service in objects.of_kind("Service") {
                    let name = text(&service["metadata"]["name"]);
                    let Some((_, port)) = value.split_once(&format!("://{name}:")) else {
                        continue;
                    };
                    let selector = &service["spec"]["selector"];
                    let to = objects.workloads().find(|it| selects(selector, it.labels())).unwrap();
                    let edge = (
                        workload.component().to_owned(),
                        to.component().to_owned(),
                        port.parse().unwrap(),
                    );
                    assert!(edges.contains(&edge), "{case}: {edge:?} in {edges:?}");
                }
            }
        }
    }
}

#[test]
fn only_the_port_of_peers_is_open_to_everybody() {
    for (case, objects) in rendered() {
        for policy in objects.of_kind("NetworkPolicy") {
            for rule in list(&policy["spec"]["ingress"]) {
                let name = text(&policy["metadata"]["name"]);
                let open = rule["from"].as_array().is_none_or(Vec::is_empty);
                let peers = name.ends_with("discovery") && rule["ports"][0]["protocol"] == "UDP";
                assert!(!open || peers, "{case}: {name} is open: {rule}");
            }
        }
        for service in objects.of_kind("Service") {
            let (name, kind) = (&service["metadata"]["name"], &service["spec"]["type"]);
            let inside = kind.is_null() || kind == "ClusterIP";
            assert!(inside || text(name).ends_with("discovery-udp"), "{case}: {name} is {kind}");
        }
    }
}
