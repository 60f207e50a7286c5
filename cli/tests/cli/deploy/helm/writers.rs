//! Tests of several storage-writers: a lease decides which one leads, and the others keep copies.

use super::{
    Objects, helm, list, rendered,
    rules::{takes_what_it_is_told, variables},
    template, text,
};
use serde_json::{Value, json};

const URLS: &str = "http://tandem-storage-writer-0.tandem-storage-writer-pods:9600,\
                    http://tandem-storage-writer-1.tandem-storage-writer-pods:9600,\
                    http://tandem-storage-writer-2.tandem-storage-writer-pods:9600";

/// Returns whether a rule of a policy names the pods of this component.
fn names(rule: &Value, side: &str, component: &str) -> bool {
    list(&rule[side])
        .any(|peer| peer["podSelector"]["matchLabels"]["app.kubernetes.io/component"] == component)
}

#[test]
fn each_of_several_knows_the_others_and_which_one_it_is() {
    let Some(external) = rendered().remove("external") else { return };
    let set = external.workload("storage-writer");
    assert_eq!(set.object["spec"]["replicas"], 3);
    // The names of the pods: the set's own Service makes them.
    assert_eq!(set.object["spec"]["serviceName"], "tandem-storage-writer-pods");
    let pods = external.get("Service", "tandem-storage-writer-pods").unwrap();
    assert_eq!(pods["spec"]["publishNotReadyAddresses"], true, "also before it is ready");
    let told = variables(&external, "storage-writer");
    assert_eq!(told["TANDEM_LEADER"]["value"], URLS);
    let own = text(&told["TANDEM_ADVERTISE"]["value"]);
    for index in 0..3 {
        let url = own.replace("$(STORAGE_WRITER_POD)", &format!("tandem-storage-writer-{index}"));
        assert_eq!(URLS.split(',').nth(index), Some(&*url));
    }
    assert_eq!(told["TANDEM__STORAGE_WRITER__LEAD__LEASE_MS"]["value"], "3000");
    takes_what_it_is_told("storage-writer", &told);
    for caller in ["executor", "multiproof-workers", "tx-pool", "peer-sessions"] {
        let told = variables(&external, caller);
        assert_eq!(told["TANDEM_STORAGE_WRITER"]["value"], URLS, "{caller}");
    }
    takes_what_it_is_told("tx-pool", &variables(&external, "tx-pool"));
    assert_eq!(variables(&external, "follower")["TANDEM_LEADER"]["value"], URLS);
    // Number 0 alone makes a database of the genesis.
    let spec = set.spec();
    let genesis = list(&spec["initContainers"]).find(|it| it["name"] == "genesis").unwrap();
    assert!(list(&genesis["args"]).any(|it| it == "--replica=$(POD_NAME)"), "{genesis}");
    assert_eq!(genesis["env"][0]["name"], "POD_NAME");
    let policy = external.get("NetworkPolicy", "tandem-storage-writer").unwrap();
    for (rules, side) in [("ingress", "from"), ("egress", "to")] {
        let there = list(&policy["spec"][rules]).any(|rule| names(rule, side, "storage-writer"));
        assert!(there, "{rules} of {policy}");
    }
}

#[test]
fn a_single_one_has_no_lease_and_operators_choose_another() {
    for (case, objects) in rendered() {
        let told = variables(&objects, "storage-writer");
        let several = told.keys().any(|name| name.contains("LEAD") || name.contains("ADVERTISE"));
        assert_eq!(several, case == "external", "{case}");
    }
    let Some(helm) = helm() else { return };
    let set = ["services.storage-writer.replicas=2", "config.storage_writer.lead.lease_ms=5000"];
    let objects = Objects::parse(&template(&helm, "production", &set).unwrap());
    let told = variables(&objects, "storage-writer");
    assert!(!told.contains_key("TANDEM__STORAGE_WRITER__LEAD__LEASE_MS"), "the settings have it");
    assert!(text(&told["TANDEM_LEADER"]["value"]).starts_with("https://"));
    let config = objects.get("ConfigMap", "tandem-config").unwrap();
    assert!(text(&config["data"]["tandem.toml"]).contains("lease_ms = 5000"), "{config}");
    assert_eq!(objects.workload("storage-writer").object["spec"]["replicas"], json!(2));
}
