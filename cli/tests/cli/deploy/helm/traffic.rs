//! Network policies: exactly the edges of the design, with none missing that a service needs.

use super::{OPTIONAL, Objects, SERVICES, helm, list, rendered, selects, template, text};
use serde_json::Value;
use std::collections::BTreeSet;

/// Calls between services, with their ports: docs/ARCHITECTURE.md.
const CALLS: [(&str, &str, u64); 17] = [
    ("executor", "storage-writer", 9600),
    ("executor", "multiproof-workers", 9601),
    ("executor", "blob-validator", 9603),
    ("multiproof-workers", "storage-writer", 9600),
    ("discovery", "peer-table", 9602),
    ("peer-sessions", "peer-table", 9602),
    ("peer-sessions", "storage-writer", 9600),
    ("executor", "peer-sessions", 9604),
    ("executor", "tx-pool", 9605),
    ("executor", "tx-executor", 9606),
    ("tx-pool", "storage-writer", 9600),
    ("tx-pool", "blob-validator", 9603),
    ("tx-pool", "peer-sessions", 9604),
    ("follower", "storage-writer", 9600),
    ("follower", "tx-pool", 9605),
    // An executor on standby forwards calls to the one with the right to write.
    ("executor", "executor", 8551),
    ("executor", "executor", 8545),
];

/// Services that other nodes reach, with the names of their ports and the protocols.
const OF_PEERS: [(&str, &str, &str); 2] =
    [("discovery", "discovery", "UDP"), ("peer-sessions", "sessions", "TCP")];

/// Returns components by the selectors of rules; other peers (namespaces, addresses) are left out.
fn components<'a>(objects: &'a Objects, peers: &Value) -> BTreeSet<&'a str> {
    let selectors = list(peers).map(|peer| &peer["podSelector"]["matchLabels"]);
    let selectors: Vec<_> = selectors.filter(|selector| !selector.is_null()).collect();
    let found = objects
        .workloads()
        .filter(|workload| selectors.iter().any(|selector| selects(selector, workload.labels())));
    found.map(|workload| workload.component()).collect()
}

/// Returns the number of a component's port, which a rule may name.
fn number(objects: &Objects, component: &str, port: &Value) -> u64 {
    port.as_u64().unwrap_or_else(|| {
        let ports = list(&objects.workload(component).spec()["containers"][0]["ports"]);
        let found = ports.into_iter().find(|it| it["name"] == *port);
        found.unwrap_or_else(|| panic!("{component} has no port {port}"))["containerPort"]
            .as_u64()
            .unwrap()
    })
}

/// Returns the edges between components that policies allow on one side: from, to, port.
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
        if objects.workload("storage-writer").object["spec"]["replicas"] != 1 {
            let name = || "storage-writer".to_owned();
            want.insert((name(), name(), 9600));
        }
        for (hub, port) in [("nats", 4222), ("jaeger", 4317)] {
            // Followers and tx-executors are not on the bus.
            let traced = OPTIONAL.into_iter().filter(|_| hub == "jaeger");
            let services = SERVICES.into_iter().chain(traced);
            let services = services.filter(|name| there.contains(name) && there.contains(hub));
            want.extend(services.map(|name| (name.to_owned(), hub.to_owned(), port)));
        }
        // `helm test` sends payloads if it has any; otherwise it asks all services whether they are
        // ready.
        let sends = objects.workloads().any(|it| it.name().ends_with("-test-payloads"));
        let asked: Vec<_> = match sends {
            true => vec![("executor", 8551), ("executor", 9100)],
            false => SERVICES.into_iter().chain(OPTIONAL).map(|name| (name, 9100)).collect(),
        };
        let asked = asked.into_iter().filter(|(to, _)| there.contains(to));
        want.extend(asked.map(|(to, port)| ("test".to_owned(), to.to_owned(), port)));
        for side in ["egress", "ingress"] {
            assert_eq!(allowed(&objects, side), want, "{case}: {side}");
        }
    }
}

/// Policies allow every address in the environment or on the command line of a container. A call to
/// a blocked address would hang.
#[test]
fn policies_allow_every_address_that_a_container_is_told() {
    for (case, objects) in rendered() {
        let edges = allowed(&objects, "egress");
        let mut told = 0;
        // The check before an upgrade gets the same addresses as the services, but calls none of
        // them.
        for workload in objects.workloads().filter(|it| it.component() != "check") {
            let words = workload.containers().flat_map(|container| {
                let values = list(&container["env"]).filter_map(|it| it["value"].as_str());
                list(&container["args"]).map(text).chain(values)
            });
            for word in words {
                for service in objects.of_kind("Service") {
                    let name = text(&service["metadata"]["name"]);
                    let Some((_, rest)) = word.split_once(&format!("://{name}:")) else {
                        continue;
                    };
                    let port = rest.split('/').next().unwrap().parse().unwrap();
                    let selector = &service["spec"]["selector"];
                    let to = objects.workloads().find(|it| selects(selector, it.labels())).unwrap();
                    let edge = (workload.component().to_owned(), to.component().to_owned(), port);
                    assert!(edges.contains(&edge), "{case}: {edge:?} in {edges:?}");
                    told += 1;
                }
            }
        }
        assert!(told > 5, "{case}: {told} addresses");
    }
}

#[test]
fn only_the_ports_of_peers_are_open_to_everybody() {
    for (case, objects) in rendered() {
        for policy in objects.of_kind("NetworkPolicy") {
            for rule in list(&policy["spec"]["ingress"]) {
                let name = text(&policy["metadata"]["name"]);
                let open = rule["from"].as_array().is_none_or(Vec::is_empty);
                let port = &rule["ports"][0];
                let peers = OF_PEERS.iter().any(|(who, own, protocol)| {
                    name.ends_with(who) && port["port"] == *own && port["protocol"] == *protocol
                });
                assert!(!open || peers, "{case}: {name} is open: {rule}");
            }
        }
        for service in objects.of_kind("Service") {
            let (name, kind) = (&service["metadata"]["name"], &service["spec"]["type"]);
            let inside = kind.is_null() || kind == "ClusterIP";
            assert!(inside || text(name).ends_with("-peers"), "{case}: {name} is {kind}");
        }
    }
}

/// Includes policies of components that are not the chart's own.
#[test]
fn every_way_out_is_one_of_few_ports() {
    for (case, objects) in rendered() {
        for policy in objects.of_kind("NetworkPolicy") {
            let name = &policy["metadata"]["name"];
            for rule in list(&policy["spec"]["egress"]) {
                assert!(list(&rule["ports"]).count() > 0, "{case}: {name} leads anywhere: {rule}");
                assert!(list(&rule["to"]).count() > 0, "{case}: {name} leads to anybody: {rule}");
            }
        }
    }
}

#[test]
fn the_ports_of_what_is_elsewhere_are_those_of_its_addresses() {
    let Some(helm) = helm() else { return };
    let ports_of = |component: &str, set: &[&str]| -> BTreeSet<u64> {
        let text = template(&helm, "external", set).unwrap();
        let objects = Objects::parse(&text);
        let name = format!("tandem-{component}");
        let policy = objects.get("NetworkPolicy", &name).unwrap();
        let rules = list(&policy["spec"]["egress"]);
        let ports = rules.flat_map(|rule| list(&rule["ports"]));
        ports.map(|port| port["port"].as_u64().unwrap()).collect()
    };
    let ports = |set: &[&str]| ports_of("blob-validator", set);
    assert_eq!(ports(&[]), BTreeSet::from([53, 4222, 4317]));
    let several =
        ["nats.url=nats://a:5222\\,nats://[fd00::12]:6222", "tracing.endpoint=http://c:9"];
    assert_eq!(ports(&several), BTreeSet::from([53, 5222, 6222, 9]));
    let without = ["nats.url=nats://a", "tracing.endpoint=http://c/x"];
    assert_eq!(ports(&without), BTreeSet::from([53, 4222, 4317]));
    let given = ["networkPolicies.natsPorts={14222}", "networkPolicies.tracesPorts={14317}"];
    assert_eq!(ports(&given), BTreeSet::from([53, 14222, 14317]));
}

/// The genesis is fetched only from its own address and port. The policy of storage-writer does not
/// mention it.
#[test]
fn the_genesis_is_fetched_from_its_own_address() {
    let Some(helm) = helm() else { return };
    let digest = format!("genesis.url.sha256={}", "0".repeat(64));
    let egress = |set: &[&str]| -> Vec<Value> {
        let set = [&["genesis.source=url", digest.as_str()][..], set].concat();
        let objects = Objects::parse(&template(&helm, "minimal", &set).unwrap());
        let own = objects.get("NetworkPolicy", "tandem-storage-writer").unwrap();
        let ports = list(&own["spec"]["egress"]).flat_map(|rule| list(&rule["ports"]));
        let ports: BTreeSet<_> = ports.map(|port| port["port"].as_u64().unwrap()).collect();
        assert_eq!(ports, BTreeSet::from([53, 4222, 4317]));
        let policy = objects.get("NetworkPolicy", "tandem-genesis").unwrap();
        list(&policy["spec"]["egress"]).cloned().collect()
    };
    for (address, own) in
        [("https://c/g.json", 443), ("http://c/g.json", 80), ("http://c:8080/g.json", 8080)]
    {
        let address = format!("genesis.url.address={address}");
        let rules = egress(&[&address]);
        assert_eq!(rules.len(), 1, "{address}");
        assert_eq!(rules[0]["ports"], serde_json::json!([{"port": own}]), "{address}");
        let except = rules[0]["to"][0]["ipBlock"]["except"].to_string();
        for network in ["10.0.0.0/8", "100.64.0.0/10", "169.254.0.0/16", "127.0.0.0/8"] {
            assert!(except.contains(network), "{network} in {except}");
        }
        let given = ["genesis.url.to[0].ipBlock.cidr=192.0.2.7/32", "genesis.url.ports={8443}"];
        let rules = egress(&[&address, given[0], given[1]]);
        let want = serde_json::json!([{
            "to": [{"ipBlock": {"cidr": "192.0.2.7/32"}}], "ports": [{"port": 8443}]
        }]);
        assert_eq!(Value::from(rules), want, "{address}");
    }
    let address = "genesis.url.address=https://c/g.json";
    let set = ["genesis.source=url", &digest, address, "genesis.url.egress=never"];
    let objects = Objects::parse(&template(&helm, "minimal", &set).unwrap());
    assert!(objects.get("NetworkPolicy", "tandem-genesis").is_none());
}

/// With default values, a pod of another namespace reaches only the ports for peers.
#[test]
fn strangers_reach_nothing() {
    let all = rendered();
    for policy in all["minimal"].of_kind("NetworkPolicy") {
        for rule in list(&policy["spec"]["ingress"]) {
            for peer in list(&rule["from"]) {
                let own = peer["podSelector"].is_object() && peer["namespaceSelector"].is_null();
                assert!(own, "{}: {peer}", policy["metadata"]["name"]);
            }
        }
    }
    let Some(helm) = helm() else { return };
    let set = ["networkPolicies.prometheusFrom[0].namespaceSelector.matchLabels.name=monitoring"];
    let objects = Objects::parse(&template(&helm, "minimal", &set).unwrap());
    let executor = objects.get("NetworkPolicy", "tandem-executor").unwrap();
    let rule = &executor["spec"]["ingress"][0];
    assert_eq!(rule["ports"], serde_json::json!([{"port": "metrics"}]));
    assert_eq!(rule["from"][1]["namespaceSelector"]["matchLabels"]["name"], "monitoring");
}

/// discovery and peer-sessions never send to networks in which no stranger can be.
#[test]
fn what_meets_peers_sends_to_the_internet_alone() {
    for (case, objects) in rendered() {
        for (service, _, protocol) in OF_PEERS {
            let name = format!("{}-{service}", prefix(case));
            let Some(policy) = objects.get("NetworkPolicy", &name) else {
                assert_eq!(case, "no-discovery");
                continue;
            };
            let rules = list(&policy["spec"]["egress"]);
            let out = rules.filter(|rule| !rule["ports"][0]["endPort"].is_null());
            let out: Vec<_> = out.collect();
            assert_eq!(out.len(), 1, "{case}: {service}");
            assert_eq!(out[0]["ports"][0]["protocol"], protocol, "{case}: {service}");
            let except = out[0]["to"][0]["ipBlock"]["except"].to_string();
            for network in [
                "10.0.0.0/8",
                "100.64.0.0/10",
                "127.0.0.0/8",
                "169.254.0.0/16",
                "172.16.0.0/12",
                "192.168.0.0/16",
                "198.18.0.0/15",
                "240.0.0.0/4",
            ] {
                assert!(except.contains(network), "{case}: {network} in {except}");
            }
        }
    }
}

/// Returns the beginning of the names of a case.
fn prefix(case: &str) -> &'static str {
    if case == "ipv6" { "tandem-chain" } else { "tandem" }
}
