//! What holds of every rendering: rights, bounds, probes, and that what is named is there.

use super::{Objects, SERVICES, Workload, list, rendered, selects, text};
use crate::{succeeds, tandem, yaml};
use serde_json::{Value, json};
use std::collections::BTreeSet;

/// Names that stand for what somebody else brings, in the values of `ci/`.
const FROM_ELSEWHERE: [&str; 17] = [
    "registry",
    "engine-jwt",
    "nats-passwords",
    "tandem-nats-users",
    "tandem-nats-client",
    "payloads",
    "chain",
    "genesis",
    "storage-writer-tls",
    "multiproof-workers-tls",
    "blob-validator-tls",
    "executor-tls",
    "peer-table-tls",
    "discovery-tls",
    "nats-tls",
    "chain-ca",
    "prometheus",
];

#[test]
fn pods_have_no_more_rights_than_they_need() {
    for (case, objects) in rendered() {
        for workload in objects.workloads() {
            let (name, spec) = (workload.name(), workload.spec());
            let pod = &spec["securityContext"];
            assert_eq!(pod["runAsNonRoot"], true, "{case}: {name}");
            assert_eq!(pod["runAsUser"], 65532, "{case}: {name}");
            assert_eq!(pod["seccompProfile"]["type"], "RuntimeDefault", "{case}: {name}");
            assert_eq!(spec["automountServiceAccountToken"], false, "{case}: {name}");
            // Variables of other services would be taken for flags.
            assert_eq!(spec["enableServiceLinks"], false, "{case}: {name}");
            for field in ["hostNetwork", "hostPID", "hostIPC"] {
                assert!(spec[field].is_null(), "{case}: {name} has {field}");
            }
            assert!(list(&spec["volumes"]).all(|volume| volume["hostPath"].is_null()));
            for container in workload.containers() {
                let want = json!({
                    "allowPrivilegeEscalation": false,
                    "readOnlyRootFilesystem": true,
                    "capabilities": {"drop": ["ALL"]},
                });
                assert_eq!(container["securityContext"], want, "{case}: {name}");
                let resources = &container["resources"];
                for bound in [&resources["requests"]["cpu"], &resources["requests"]["memory"]] {
                    assert!(!bound.is_null(), "{case}: {name} requests nothing");
                }
                assert!(!resources["limits"]["memory"].is_null(), "{case}: {name} is unbounded");
            }
        }
        for account in objects.of_kind("ServiceAccount") {
            assert_eq!(account["automountServiceAccountToken"], false, "{case}");
        }
        for kind in ["Role", "ClusterRole", "RoleBinding", "ClusterRoleBinding"] {
            assert_eq!(objects.of_kind(kind).count(), 0, "{case}: nobody asks the cluster's API");
        }
    }
}

#[test]
fn services_are_probed_on_ports_that_they_open() {
    for (case, objects) in rendered() {
        for workload in objects.workloads().filter(|workload| workload.is_ours()) {
            let container = &workload.spec()["containers"][0];
            let ports: BTreeSet<_> =
                list(&container["ports"]).map(|port| text(&port["name"])).collect();
            let (alive, ready) = ("/livez", "/readyz");
            for (probe, path) in
                [("startupProbe", alive), ("livenessProbe", alive), ("readinessProbe", ready)]
            {
                let get = &container[probe]["httpGet"];
                assert_eq!(get["path"], path, "{case}: {} {probe}", workload.name());
                assert!(ports.contains(text(&get["port"])), "{case}: {ports:?}");
            }
            // Services end within ten seconds, said docs/cluster.md.
            let grace = workload.spec()["terminationGracePeriodSeconds"].as_u64().unwrap();
            assert!(grace > 10, "{case}: {} has {grace} s to end", workload.name());
        }
    }
}

/// Whether the binary need not read it, as other variables are put together from it.
fn is_part(variable: &str) -> bool {
    ["POD_IP", "POD_NAME", "POD_NAMESPACE", "NODE_NAME"].contains(&variable)
}

#[test]
fn every_argument_and_variable_is_one_of_the_binary() {
    for (case, objects) in rendered() {
        let images =
            text(&objects.workload("executor").spec()["containers"][0]["image"]).to_owned();
        let mut checked = 0;
        for workload in objects.workloads() {
            for container in workload.containers().filter(|it| it["image"] == images.as_str()) {
                let arguments: Vec<_> = list(&container["args"]).map(text).collect();
                let help = succeeds(tandem().args(["help", arguments[0]]));
                let words: BTreeSet<_> =
                    help.split(|c: char| c.is_whitespace() || "[]<>=,".contains(c)).collect();
                for flag in arguments.iter().filter(|word| word.starts_with("--")) {
                    let flag = flag.split('=').next().unwrap();
                    assert!(words.contains(flag), "{case}: {flag} is none of {}", arguments[0]);
                }
                for variable in list(&container["env"]).map(|variable| text(&variable["name"])) {
                    // Settings (TANDEM__TABLE__KEY) the binary reads whole: see what starts.
                    let known = words.contains(variable) || variable.starts_with("TANDEM__");
                    assert!(known || is_part(variable), "{case}: {variable} is not read");
                }
                checked += 1;
            }
        }
        assert!(checked >= 5, "{case}: {checked} containers");
    }
}

#[test]
fn what_is_named_is_there() {
    for (case, objects) in rendered() {
        let has = |kind: &str, name: &Value| {
            let name = text(name);
            let made = kind == "Secret"
                && objects.of_kind("Certificate").any(|it| it["spec"]["secretName"] == name);
            let there = objects.get(kind, name).is_some() || FROM_ELSEWHERE.contains(&name) || made;
            assert!(there, "{case}: there is no {kind} {name}");
        };
        for workload in objects.workloads() {
            volumes_are_there(workload, &has);
        }
        let accounts = objects.workloads().map(|workload| &workload.spec()["serviceAccountName"]);
        accounts.filter(|name| !name.is_null()).for_each(|name| has("ServiceAccount", name));
        for scaler in objects.of_kind("HorizontalPodAutoscaler") {
            let target = &scaler["spec"]["scaleTargetRef"];
            let target = objects.get(text(&target["kind"]), text(&target["name"])).unwrap();
            assert!(target["spec"]["replicas"].is_null(), "{case}: two say how many there are");
        }
        for set in objects.of_kind("StatefulSet") {
            has("Service", &set["spec"]["serviceName"]);
        }
        every_selector_finds_pods(case, &objects);
    }
}

fn volumes_are_there(workload: Workload<'_>, has: &impl Fn(&str, &Value)) {
    let spec = workload.spec();
    let volumes: BTreeSet<_> = list(&spec["volumes"])
        .map(|volume| &volume["name"])
        .chain(
            list(&workload.object["spec"]["volumeClaimTemplates"])
                .map(|it| &it["metadata"]["name"]),
        )
        .map(text)
        .collect();
    let mounts = workload.containers().flat_map(|container| list(&container["volumeMounts"]));
    let used: BTreeSet<_> = mounts.map(|mount| text(&mount["name"])).collect();
    assert_eq!(volumes, used, "{}: volumes that there are and that are used", workload.name());
    for volume in list(&spec["volumes"]) {
        let sources = list(&volume["projected"]["sources"]).chain([volume]);
        for source in sources {
            for (kind, name) in [
                ("ConfigMap", &source["configMap"]["name"]),
                ("Secret", &source["secret"]["secretName"]),
                ("Secret", &source["secret"]["name"]),
                ("PersistentVolumeClaim", &source["persistentVolumeClaim"]["claimName"]),
            ] {
                if !name.is_null() {
                    has(kind, name);
                }
            }
        }
    }
}

/// Services, budgets and policies, and a workload's own.
fn every_selector_finds_pods(case: &str, objects: &Objects) {
    let finds = |selector: &Value, what: &Value| {
        let found = objects.workloads().filter(|workload| selects(selector, workload.labels()));
        assert_eq!(found.count(), 1, "{case}: {} selects {selector}", what["metadata"]["name"]);
    };
    objects.of_kind("Service").for_each(|it| finds(&it["spec"]["selector"], it));
    for kind in ["PodDisruptionBudget", "Deployment", "StatefulSet"] {
        objects.of_kind(kind).for_each(|it| finds(&it["spec"]["selector"]["matchLabels"], it));
    }
    for policy in objects.of_kind("NetworkPolicy") {
        finds(&policy["spec"]["podSelector"]["matchLabels"], policy);
    }
    // A service's port leads to one that its pods name.
    for service in objects.of_kind("Service") {
        let selector = &service["spec"]["selector"];
        let workload = objects.workloads().find(|it| selects(selector, it.labels())).unwrap();
        let ports: Vec<_> = list(&workload.spec()["containers"][0]["ports"]).collect();
        for port in list(&service["spec"]["ports"]) {
            let target = ports.iter().find(|it| it["name"] == port["targetPort"]).unwrap();
            assert_eq!(target["containerPort"], port["port"], "{case}: {port}");
            assert_eq!(target["protocol"], port["protocol"], "{case}: {port}");
        }
    }
}

#[test]
fn storage_writer_keeps_its_data_and_the_others_need_none() {
    for (case, objects) in rendered() {
        for workload in objects.workloads().filter(|workload| workload.is_ours()) {
            let keeps = workload.component() == "storage-writer";
            let kind = if keeps { "StatefulSet" } else { "Deployment" };
            assert_eq!(workload.object["kind"], kind, "{case}: {}", workload.name());
            let claims = list(&workload.object["spec"]["volumeClaimTemplates"]).count();
            assert_eq!(claims, usize::from(keeps), "{case}: {}", workload.name());
        }
        let writer = objects.workload("storage-writer").object;
        assert_eq!(writer["spec"]["replicas"], 1, "{case}");
        // None of the others is without a pod while it is replaced, but an executor's successor
        // cannot be ready before its predecessor has gone.
        let executor = &objects.workload("executor").object["spec"]["strategy"];
        assert_eq!(executor["rollingUpdate"]["maxUnavailable"], "100%", "{case}");
        let workers = &objects.workload("multiproof-workers").object["spec"]["strategy"];
        assert_eq!(workers["rollingUpdate"]["maxUnavailable"], 0, "{case}");
    }
}

/// Rules and dashboards are those of `deploy/`, and images those of the compose file.
#[test]
fn the_chart_brings_what_the_repository_has() {
    let all = rendered();
    let production = &all["production"];
    let rules = production.of_kind("PrometheusRule").next().expect("the rules");
    assert_eq!(rules["spec"], yaml("deploy/rules.yml"));
    let boards = production
        .of_kind("ConfigMap")
        .filter(|map| map["metadata"]["labels"]["grafana_dashboard"] == "1");
    assert_eq!(boards.count(), crate::files("deploy/grafana/dashboards").len());
    let compose = yaml("docker-compose.yml");
    for service in ["nats", "jaeger"] {
        let image =
            text(&all["minimal"].workload(service).spec()["containers"][0]["image"]).to_owned();
        let composed = text(&compose["services"][service]["image"]);
        assert!(composed.ends_with(&format!(":-{image}}}")), "{composed} and {image}");
    }
}

/// Alerts and dashboards tell services apart by `job`, which is what a monitor makes of this label.
#[test]
fn prometheus_knows_services_by_their_names() {
    for (case, objects) in rendered() {
        for kind in ["PodMonitor", "ServiceMonitor"] {
            for monitor in objects.of_kind(kind) {
                let label = "app.kubernetes.io/component";
                assert_eq!(monitor["spec"]["jobLabel"], label, "{case}");
                let values = &monitor["spec"]["selector"]["matchExpressions"][0]["values"];
                let mut names = SERVICES;
                names.sort_unstable();
                assert_eq!(*values, json!(names), "{case}");
            }
        }
    }
}

/// Metrics to scale by are metrics that there are.
#[test]
fn workers_scale_by_what_they_measure() {
    let all = rendered();
    let scalers: Vec<_> = all["production"].of_kind("HorizontalPodAutoscaler").collect();
    assert_eq!(scalers.len(), 2);
    for scaler in scalers {
        let metrics = list(&scaler["spec"]["metrics"]);
        let pods: Vec<_> = metrics.filter(|metric| metric["type"] == "Pods").collect();
        assert!(!pods.is_empty(), "{scaler}");
        for metric in pods {
            let name = text(&metric["pods"]["metric"]["name"]);
            assert!(crate::metrics::is_declared(name), "there is no {name}");
        }
    }
}

/// `config` becomes a file that the binary reads, large numbers too.
#[test]
fn settings_arrive_as_they_were_chosen() {
    let all = rendered();
    let map = all["production"].get("ConfigMap", "tandem-config").expect("the settings");
    let file = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(file.path(), text(&map["data"]["tandem.toml"])).unwrap();
    let mut command = tandem();
    let said = succeeds(command.args(["executor", "--print-config", "--config"]).arg(file.path()));
    for line in ["sync = true", "cache_bytes_max = 4294967296", "cache_slots = 20000000"] {
        assert!(said.lines().any(|it| it == line), "{line} in\n{said}");
    }
}
