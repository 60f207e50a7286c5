//! Tests of the chart's tx-executors: the executor finds them by a name that leads to their pods.

use super::{
    Objects, helm, list, rendered,
    rules::{takes_what_it_is_told, variables},
    template,
};

#[test]
fn tx_executors_are_asked_for() {
    for (case, objects) in rendered() {
        let there = objects.workloads().any(|it| it.component() == "tx-executor");
        assert_eq!(there, case == "production", "{case}");
        let told = variables(&objects, "executor").contains_key("TANDEM_TX_EXECUTOR");
        assert_eq!(told, there, "{case}");
    }
}

/// The number of pods is no part of what the executor is told, so that it runs on when that changes.
#[test]
fn the_executor_takes_more_pods_into_use_without_a_restart() {
    let Some(helm) = helm() else { return };
    let with = |replicas: u32| {
        let replicas = format!("services.tx-executor.replicas={replicas}");
        let set = ["services.tx-executor.enabled=true", &replicas];
        Objects::parse(&template(&helm, "minimal", &set).unwrap())
    };
    let (few, many) = (with(1), with(4));
    assert_eq!(few.workload("tx-executor").object["spec"]["replicas"], 1);
    assert_eq!(many.workload("tx-executor").object["spec"]["replicas"], 4);
    assert_eq!(few.workload("executor").object, many.workload("executor").object);
    let told = variables(&many, "executor");
    let url = &told["TANDEM_TX_EXECUTOR"]["value"];
    assert_eq!(*url, "https://tandem-tx-executor:9606");
    let service = many.get("Service", "tandem-tx-executor").unwrap();
    assert_eq!(service["spec"]["clusterIP"], "None", "the name leads to the pods");
}

#[test]
fn a_tx_executor_has_no_data_no_password_and_calls_nobody() {
    let all = rendered();
    let production = &all["production"];
    let told = variables(production, "tx-executor");
    assert!(!told.keys().any(|name| name.contains("NATS") || name.contains("DATADIR")));
    let spec = production.workload("tx-executor").spec();
    let writes = |mount: &&serde_json::Value| mount["readOnly"] != true;
    assert_eq!(list(&spec["containers"][0]["volumeMounts"]).filter(writes).count(), 0);
    takes_what_it_is_told("tx-executor", &told);
}
