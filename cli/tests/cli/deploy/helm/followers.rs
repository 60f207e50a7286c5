//! Tests of the chart's followers: copies that serve JSON-RPC, ready while they are near the head.

use super::{
    Objects, helm, list, rendered,
    rules::{takes_what_it_is_told, variables},
    selects, template, text,
};
use serde_json::json;

/// A release has followers only if they are asked for.
#[test]
fn followers_are_asked_for() {
    for (case, objects) in rendered() {
        let there = objects.workloads().any(|it| it.component() == "follower");
        assert_eq!(there, ["production", "external"].contains(&case), "{case}");
    }
}

#[test]
fn a_follower_knows_its_leader_and_is_called_by_the_names_of_its_service() {
    let all = rendered();
    let production = &all["production"];
    let told = variables(production, "follower");
    assert_eq!(told["TANDEM_LEADER"]["value"], "https://tandem-storage-writer:9600");
    assert!(!told.keys().any(|name| name.contains("NATS")), "it is not on the bus");
    let names: Vec<_> = text(&told["TANDEM_HTTP_VHOSTS"]["value"]).split(',').collect();
    let mut audiences = 0;
    for service in production.of_kind("Service") {
        let name = text(&service["metadata"]["name"]);
        let selector = &service["spec"]["selector"];
        if !selects(selector, production.workload("follower").labels()) || name.ends_with("metrics")
        {
            continue;
        }
        assert!(names.contains(&name), "{name} is none of {names:?}");
        // Users get followers that are near the head; the other name is for the StatefulSet.
        let all_pods = &service["spec"]["publishNotReadyAddresses"];
        assert_eq!(*all_pods == json!(true), name.ends_with("-pods"), "{name}");
        audiences += 1;
    }
    assert_eq!(audiences, 2);
    // The binary takes what it is told.
    takes_what_it_is_told("follower", &told);
}

#[test]
fn followers_scale_and_each_has_a_copy_that_goes_with_it() {
    let all = rendered();
    let production = &all["production"];
    let set = production.workload("follower").object;
    assert_eq!(set["kind"], "StatefulSet");
    assert_eq!(list(&set["spec"]["volumeClaimTemplates"]).count(), 1);
    let scaler = production.get("HorizontalPodAutoscaler", "tandem-follower").unwrap();
    assert_eq!(scaler["spec"]["scaleTargetRef"]["kind"], "StatefulSet");
    assert!(production.get("PodDisruptionBudget", "tandem-follower").is_some());
    // Without a volume, the copy is in the pod.
    let Some(external) = all.get("external") else { return };
    let set = external.workload("follower");
    assert!(set.object["spec"]["volumeClaimTemplates"].is_null());
    let mut volumes = list(&set.spec()["volumes"]);
    let data = volumes.find(|volume| volume["name"] == "data").unwrap();
    assert_eq!(data["emptyDir"]["sizeLimit"], "20Gi");
}

/// Users reach JSON-RPC if they may reach that of the executor. A follower reaches storage-writer.
#[test]
fn a_follower_is_open_to_users_and_calls_storage_writer_alone() {
    let all = rendered();
    let policy = all["production"].get("NetworkPolicy", "tandem-follower").unwrap();
    let mut open = list(&policy["spec"]["ingress"]);
    let users = open.find(|rule| rule["ports"] == json!([{"port": "http"}])).unwrap();
    assert!(users["from"][0]["namespaceSelector"].is_object(), "{users}");
    let Some(helm) = helm() else { return };
    let objects =
        Objects::parse(&template(&helm, "minimal", &["services.follower.enabled=true"]).unwrap());
    let policy = objects.get("NetworkPolicy", "tandem-follower").unwrap();
    let http = list(&policy["spec"]["ingress"]).any(|rule| rule["ports"][0]["port"] == "http");
    assert!(!http, "the values name no caller");
    let passwords = objects.get("Secret", "tandem-nats").unwrap();
    assert!(passwords["data"]["follower"].is_null(), "it is not on the bus");
}
