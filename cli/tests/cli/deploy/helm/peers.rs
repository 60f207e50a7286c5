//! Tests of what other nodes see of a release: discovery and peer-sessions as one node.

use super::{Objects, helm, list, rendered, rules::variables, selects, template, text};
use serde_json::Value;
use std::collections::BTreeSet;

/// Returns whether a Service is the one that other nodes see.
pub fn is_for_peers(service: &Value) -> bool {
    text(&service["metadata"]["name"]).ends_with("-peers")
}

/// Other nodes see one node: discovery and peer-sessions have one key, one address and one port
/// number, and no second pod with the same key.
#[test]
fn discovery_and_peer_sessions_are_one_node() {
    let mut published = 0;
    for (case, objects) in rendered() {
        let pair: Vec<_> =
            objects.workloads().filter(|it| it.labels()["tandem/meets"] == "peers").collect();
        let names: Vec<_> = pair.iter().map(|it| it.component()).collect();
        if case == "no-discovery" {
            assert!(names.is_empty() && !objects.of_kind("Service").any(is_for_peers));
            continue;
        }
        assert_eq!(names, ["discovery", "peer-sessions"], "{case}");
        let mut keys = BTreeSet::new();
        let mut numbers = BTreeSet::new();
        for it in &pair {
            let name = it.component();
            assert_eq!(it.object["spec"]["strategy"]["type"], "Recreate", "{case}: {name}");
            let variables = variables(&objects, name);
            assert_eq!(variables["TANDEM_DATADIR"]["value"], "/etc/tandem/node", "{case}: {name}");
            let container = &it.spec()["containers"][0];
            let mut mounts = list(&container["volumeMounts"]);
            let mounted = mounts.find(|it| it["mountPath"] == "/etc/tandem/node").unwrap();
            let volume = list(&it.spec()["volumes"]).find(|it| it["name"] == mounted["name"]);
            let secret = &volume.unwrap()["secret"];
            assert_eq!(secret["items"][0]["path"], "nodekey", "{case}: {name}");
            keys.insert((text(&secret["secretName"]), text(&secret["items"][0]["key"])));
            let port = list(&container["ports"]).find(|it| !it["protocol"].is_null()).unwrap();
            numbers.insert(port["containerPort"].as_u64().unwrap());
        }
        assert_eq!((keys.len(), numbers.len()), (1, 1), "{case}: {keys:?} {numbers:?}");
        let number = numbers.first().unwrap().to_string();
        let announces = variables(&objects, "discovery");
        for variable in ["TANDEM_DISCOVERY_PORT", "TANDEM_DISCOVERY_TCP_PORT"] {
            assert_eq!(announces[variable]["value"], number.as_str(), "{case}: {variable}");
        }
        let listens = variables(&objects, "peer-sessions");
        assert_eq!(listens["TANDEM_SESSIONS_PORT"]["value"], number.as_str(), "{case}");
        for service in objects.of_kind("Service").filter(|it| is_for_peers(it)) {
            let selector = &service["spec"]["selector"];
            assert!(pair.iter().all(|it| selects(selector, it.labels())), "{case}");
            let found = objects.workloads().filter(|it| selects(selector, it.labels()));
            assert_eq!(found.count(), 2, "{case}");
            let ports = list(&service["spec"]["ports"]);
            let protocols: Vec<_> = ports.map(|port| text(&port["protocol"])).collect();
            assert_eq!(protocols, ["UDP", "TCP"], "{case}");
            published += 1;
        }
        // An address of a host is that of one host.
        let affinity = &objects.workload("peer-sessions").spec()["affinity"]["podAffinity"];
        let near = &affinity["requiredDuringSchedulingIgnoredDuringExecution"][0];
        let exposed = ["production", "sixteen-workers", "ipv6"].contains(&case);
        assert_eq!(!near.is_null(), exposed, "{case}: {affinity}");
        if exposed {
            assert_eq!(near["topologyKey"], "kubernetes.io/hostname", "{case}");
            let selector = &near["labelSelector"]["matchLabels"];
            assert!(selects(selector, objects.workload("discovery").labels()), "{case}");
        }
    }
    assert!(published >= 2, "{published} Services for peers");
}

/// Without peer-sessions, nothing is told of it.
#[test]
fn a_chain_without_sessions_announces_none() {
    let Some(helm) = helm() else { return };
    let set = ["services.peer-sessions.enabled=false"];
    let objects = Objects::parse(&template(&helm, "minimal", &set).unwrap());
    assert!(!variables(&objects, "discovery").contains_key("TANDEM_DISCOVERY_TCP_PORT"));
    assert!(!variables(&objects, "executor").contains_key("TANDEM_PEER_SESSIONS"));
    let service = objects.get("Service", "tandem-peers").unwrap();
    assert_eq!(list(&service["spec"]["ports"]).count(), 1, "{service}");
    assert!(objects.get("Secret", "tandem-node-key").is_some());
}
