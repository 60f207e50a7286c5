//! Rules for every rendering: rights, bounds, probes, and references that resolve.

use super::{
    OPTIONAL, Objects, SERVICES, Workload, list, peers::is_for_peers, rendered, selects, text,
};
use crate::deploy::{succeeds, tandem, yaml};
use serde_json::{Value, json};
use std::collections::{BTreeMap, BTreeSet};

/// Names of objects from outside the chart, in the values of `ci/`.
const FROM_ELSEWHERE: [&str; 24] = [
    "registry",
    "engine-jwt",
    "node-key",
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
    "peer-sessions-tls",
    "tx-pool-tls",
    "nats-tls",
    "chain-ca",
    "prometheus",
    "collector-headers",
    "collector-ca",
    "genesis-ca",
    "more-files",
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
            // Services end within ten seconds, and an executor answers for some seconds before
            // that.
            let grace = workload.spec()["terminationGracePeriodSeconds"].as_u64().unwrap();
            assert!(grace >= 20, "{case}: {} has {grace} s to end", workload.name());
        }
    }
}

/// Returns whether the binary's help need not name the variable: other variables are composed from
/// it, or the exporter of traces reads it by itself.
fn is_part(variable: &str) -> bool {
    let parts = ["POD_IP", "POD_NAME", "POD_NAMESPACE", "NODE_NAME", "STORAGE_WRITER_POD"];
    let exporter = ["OTEL_EXPORTER_OTLP_HEADERS", "OTEL_EXPORTER_OTLP_CERTIFICATE"];
    parts.contains(&variable) || exporter.contains(&variable)
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
                    // Settings (TANDEM__TABLE__KEY) are read as a whole; the tests that start
                    // services cover them.
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
            // The initial number is the minimum: without a number, Kubernetes would take one pod.
            let (replicas, fewest) = (&target["spec"]["replicas"], &scaler["spec"]["minReplicas"]);
            assert_eq!(replicas, fewest, "{case}: {}", scaler["metadata"]["name"]);
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

/// Checks the selectors of services, budgets and policies, and those of workloads.
fn every_selector_finds_pods(case: &str, objects: &Objects) {
    let finds = |selector: &Value, what: &Value| {
        let found = objects.workloads().filter(|workload| selects(selector, workload.labels()));
        assert_eq!(found.count(), 1, "{case}: {} selects {selector}", what["metadata"]["name"]);
    };
    for service in objects.of_kind("Service").filter(|it| !is_for_peers(it)) {
        finds(&service["spec"]["selector"], service);
    }
    for kind in ["PodDisruptionBudget", "Deployment", "StatefulSet"] {
        objects.of_kind(kind).for_each(|it| finds(&it["spec"]["selector"]["matchLabels"], it));
    }
    for policy in objects.of_kind("NetworkPolicy") {
        finds(&policy["spec"]["podSelector"]["matchLabels"], policy);
    }
    // The port of a service leads to a port that its pods name.
    for service in objects.of_kind("Service") {
        let selector = &service["spec"]["selector"];
        let workloads = objects.workloads().filter(|it| selects(selector, it.labels()));
        let ports: Vec<_> =
            workloads.flat_map(|it| list(&it.spec()["containers"][0]["ports"])).collect();
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
        let followers = |workload: &Workload<'_>| workload.component() == "follower";
        for workload in objects.workloads().filter(|it| it.is_ours() && !followers(it)) {
            let keeps = workload.component() == "storage-writer";
            let kind = if keeps { "StatefulSet" } else { "Deployment" };
            assert_eq!(workload.object["kind"], kind, "{case}: {}", workload.name());
            let claims = list(&workload.object["spec"]["volumeClaimTemplates"]).count();
            assert_eq!(claims, usize::from(keeps), "{case}: {}", workload.name());
        }
        let writer = objects.workload("storage-writer").object;
        let several = case == "external";
        assert_eq!(writer["spec"]["replicas"], if several { 3 } else { 1 }, "{case}");
    }
}

/// A working pod is only stopped once its successor is ready. If a claim or a host's port is for
/// one pod at a time, the check before the upgrade has tested image and settings.
#[test]
fn an_upgrade_replaces_no_pod_before_another_one_is_ready() {
    for (case, objects) in rendered() {
        for deployment in objects.of_kind("Deployment") {
            let (name, spec) = (text(&deployment["metadata"]["name"]), &deployment["spec"]);
            if name.ends_with("-jaeger") {
                continue;
            }
            let limit = spec["progressDeadlineSeconds"].as_u64();
            assert!(limit.is_some_and(|limit| limit <= 600), "{case}: {name} has no deadline");
            match text(&spec["strategy"]["type"]) {
                "RollingUpdate" => {
                    let rolling = json!({"maxSurge": 1, "maxUnavailable": 0});
                    assert_eq!(spec["strategy"]["rollingUpdate"], rolling, "{case}: {name}");
                }
                other => {
                    assert_eq!(other, "Recreate", "{case}: {name}");
                    let single = ["discovery", "peer-sessions", "peer-table", "tx-pool"];
                    assert!(single.iter().any(|it| name.ends_with(it)), "{case}: {name}");
                }
            }
        }
        // A rollback replaces a pod that never became ready, instead of waiting for it.
        for set in objects.of_kind("StatefulSet") {
            assert_eq!(set["spec"]["podManagementPolicy"], "Parallel", "{case}");
        }
    }
}

/// If all pods of a service are ready, its budget lets one of them go, whatever their number.
#[test]
fn every_node_can_be_drained() {
    for (case, objects) in rendered() {
        let mut budgets = 0;
        for budget in objects.of_kind("PodDisruptionBudget") {
            assert_eq!(budget["spec"]["maxUnavailable"], 1, "{case}: {budget}");
            assert!(budget["spec"]["minAvailable"].is_null(), "{case}: {budget}");
            assert_eq!(budget["spec"]["unhealthyPodEvictionPolicy"], "AlwaysAllow", "{case}");
            budgets += 1;
        }
        assert!(budgets >= 4, "{case}: {budgets}");
        // An executor on standby can tell its address, and its name is that of its pod.
        let variables = variables(&objects, "executor");
        assert_eq!(variables["TANDEM_ADVERTISE"]["value"], "$(POD_IP)", "{case}");
        let name = &variables["TANDEM_EXECUTOR_ID"]["valueFrom"]["fieldRef"]["fieldPath"];
        assert_eq!(name, "metadata.name", "{case}");
    }
}

/// Before any pod is replaced, each service's new image reads its new settings. The Job for this
/// needs nothing of the release, because it runs before it.
#[test]
fn settings_are_checked_before_anything_is_replaced() {
    for (case, objects) in rendered() {
        let check = objects.workload("check");
        let hook = |object: &Value| object["metadata"]["annotations"]["helm.sh/hook"].clone();
        assert_eq!(hook(check.object), "pre-install,pre-upgrade", "{case}");
        assert_eq!(check.object["spec"]["backoffLimit"], 0, "{case}");
        let limit = check.object["spec"]["activeDeadlineSeconds"].as_u64().unwrap();
        assert!(
            limit < 300,
            "{case}: helm waits for five minutes by default, the check for {limit} s"
        );
        let account = objects.get("ServiceAccount", text(&check.spec()["serviceAccountName"]));
        assert_eq!(hook(account.unwrap()), "pre-install,pre-upgrade", "{case}");
        for volume in list(&check.spec()["volumes"]) {
            let map = objects.get("ConfigMap", text(&volume["configMap"]["name"])).unwrap();
            assert_eq!(hook(map), "pre-install,pre-upgrade", "{case}");
        }
        let containers: Vec<_> = check.containers().collect();
        let services = objects.workloads().filter(|workload| workload.is_ours());
        for service in services {
            let (name, own) = (service.component(), &service.spec()["containers"][0]);
            let checked = containers.iter().find(|container| container["name"] == name);
            let checked = checked.unwrap_or_else(|| panic!("{case}: {name} is not checked"));
            for field in ["image", "env"] {
                assert_eq!(checked[field], own[field], "{case}: {name}");
            }
            let mut arguments: Vec<_> = list(&own["args"]).cloned().collect();
            arguments.insert(1, json!("--check"));
            assert_eq!(checked["args"], json!(arguments), "{case}: {name}");
        }
        assert_eq!(containers.len(), objects.workloads().filter(|it| it.is_ours()).count());
    }
}

/// Chain, table of peers, live settings and transactions of users outlive the release.
#[test]
fn claims_stay_when_the_release_goes() {
    for (case, objects) in rendered() {
        for claim in objects.of_kind("PersistentVolumeClaim") {
            let kept = &claim["metadata"]["annotations"]["helm.sh/resource-policy"];
            assert_eq!(kept, "keep", "{case}: {}", claim["metadata"]["name"]);
        }
        for set in objects.of_kind("StatefulSet") {
            let spec = &set["spec"];
            if spec["volumeClaimTemplates"].is_null() {
                continue;
            }
            // A copy of the chain can be had again.
            let is_copy = text(&set["metadata"]["name"]).ends_with("-follower");
            let fate = if is_copy { "Delete" } else { "Retain" };
            let policy = json!({"whenDeleted": fate, "whenScaled": fate});
            assert_eq!(spec["persistentVolumeClaimRetentionPolicy"], policy, "{case}");
        }
    }
    let production = &rendered()["production"];
    assert_eq!(production.of_kind("PersistentVolumeClaim").count(), 2);
}

/// Each Service has one audience: publishing one shows nothing of another.
#[test]
fn a_service_has_one_audience() {
    for (case, objects) in rendered() {
        for service in objects.of_kind("Service") {
            let name = text(&service["metadata"]["name"]);
            let ports: Vec<_> =
                list(&service["spec"]["ports"]).map(|port| text(&port["name"])).collect();
            // Addresses of pods, for clients within the cluster.
            if name.ends_with("-pods") {
                assert_eq!(service["spec"]["clusterIP"], "None", "{case}: {name}");
                assert!(!ports.contains(&"metrics"), "{case}: {name}");
                continue;
            }
            // Peers are one audience, over UDP and TCP.
            let two = name.ends_with("-jaeger") || is_for_peers(service);
            assert_eq!(ports.len(), 1 + usize::from(two), "{case}: {name}");
            if ports == ["metrics"] {
                assert_eq!(service["spec"]["type"], "ClusterIP", "{case}: {name}");
            }
        }
    }
}

/// `helm test --logs` requests the log of each object of the test, which works for a pod with one
/// container.
#[test]
fn the_log_of_the_test_can_be_read() {
    for (case, objects) in rendered() {
        let is_test = |object: &&Value| object["metadata"]["annotations"]["helm.sh/hook"] == "test";
        let tests: Vec<_> = objects.0.iter().filter(is_test).collect();
        assert_eq!(tests.len(), 1, "{case}");
        for test in tests {
            assert_eq!(test["kind"], "Pod", "{case}");
            assert_eq!(list(&test["spec"]["containers"]).count(), 1, "{case}");
            let policy = &test["metadata"]["annotations"]["helm.sh/hook-delete-policy"];
            assert_eq!(policy, "before-hook-creation", "{case}");
        }
    }
}

/// Placement and rights that a cluster demands of pods reach every pod, including those of NATS,
/// Jaeger, test and check.
#[test]
fn placement_and_rights_hold_for_every_pod() {
    let Some(helm) = super::helm() else { return };
    let set = [
        "defaults.nodeSelector.pool=chain",
        "defaults.tolerations[0].key=dedicated",
        "defaults.priorityClassName=chain",
        "defaults.podSecurityContext.runAsUser=null",
        "defaults.podSecurityContext.fsGroup=null",
        "defaults.securityContext.readOnlyRootFilesystem=false",
        "nats.priorityClassName=bus",
    ];
    let objects = Objects::parse(&super::template(&helm, "minimal", &set).unwrap());
    assert_eq!(objects.workloads().count(), 12, "eight services, nats, jaeger, test, check");
    for workload in objects.workloads() {
        let (name, spec) = (workload.component(), workload.spec());
        assert_eq!(spec["nodeSelector"], json!({"pool": "chain"}), "{name}");
        assert_eq!(spec["tolerations"], json!([{"key": "dedicated"}]), "{name}");
        let class = if name == "nats" { "bus" } else { "chain" };
        assert_eq!(spec["priorityClassName"], class, "{name}");
        let rights = &spec["securityContext"];
        assert!(rights["runAsUser"].is_null() && rights["fsGroup"].is_null(), "{name}: {rights}");
        assert_eq!(rights["runAsNonRoot"], true, "{name}");
        for container in workload.containers() {
            let own = &container["securityContext"];
            assert_eq!(own["readOnlyRootFilesystem"], false, "{name}");
        }
    }
}

/// A claim of the operator replaces the claim of the chart.
#[test]
fn existing_claims_are_used() {
    let Some(helm) = super::helm() else { return };
    let set = [
        "services.storage-writer.persistence.existingClaim=mine",
        "services.peer-table.persistence.existingClaim=peers",
        "services.tx-pool.persistence.existingClaim=users",
        "nats.persistence.existingClaim=bus",
    ];
    let objects = Objects::parse(&super::template(&helm, "minimal", &set).unwrap());
    let claims = [
        ("storage-writer", "mine"),
        ("peer-table", "peers"),
        ("tx-pool", "users"),
        ("nats", "bus"),
    ];
    for (component, want) in claims {
        let workload = objects.workload(component);
        assert!(workload.object["spec"]["volumeClaimTemplates"].is_null(), "{component}");
        let mut volumes = list(&workload.spec()["volumes"]);
        let data = volumes.find(|volume| volume["name"] == "data").unwrap();
        assert_eq!(data["persistentVolumeClaim"]["claimName"], want, "{component}");
    }
    assert_eq!(objects.of_kind("PersistentVolumeClaim").count(), 0);
}

/// Rules and dashboards equal those of `deploy/`, and images equal those of the compose file.
#[test]
fn the_chart_brings_what_the_repository_has() {
    let all = rendered();
    let production = &all["production"];
    let rules = production.of_kind("PrometheusRule").next().expect("the rules");
    assert_eq!(rules["spec"], yaml("deploy/rules.yml"));
    let boards = production
        .of_kind("ConfigMap")
        .filter(|map| map["metadata"]["labels"]["grafana_dashboard"] == "1");
    assert_eq!(boards.count(), crate::deploy::files("deploy/grafana/dashboards").len());
    let compose = yaml("docker-compose.yml");
    for service in ["nats", "jaeger"] {
        let image =
            text(&all["minimal"].workload(service).spec()["containers"][0]["image"]).to_owned();
        let composed = text(&compose["services"][service]["image"]);
        assert!(composed.ends_with(&format!(":-{image}}}")), "{composed} and {image}");
    }
}

/// Alerts and dashboards tell services apart by `job`, which a monitor takes from this label.
#[test]
fn prometheus_knows_services_by_their_names() {
    for (case, objects) in rendered() {
        for kind in ["PodMonitor", "ServiceMonitor"] {
            for monitor in objects.of_kind(kind) {
                let label = "app.kubernetes.io/component";
                assert_eq!(monitor["spec"]["jobLabel"], label, "{case}");
                let values = &monitor["spec"]["selector"]["matchExpressions"][0]["values"];
                let mut names: Vec<_> = SERVICES.into_iter().chain(OPTIONAL).collect();
                names.sort_unstable();
                assert_eq!(*values, json!(names), "{case}");
            }
        }
    }
}

/// The metrics of the autoscalers exist.
#[test]
fn workers_scale_by_what_they_measure() {
    let all = rendered();
    let scalers: Vec<_> = all["production"].of_kind("HorizontalPodAutoscaler").collect();
    assert_eq!(scalers.len(), 4);
    for scaler in scalers {
        let metrics = list(&scaler["spec"]["metrics"]);
        let pods: Vec<_> = metrics.filter(|metric| metric["type"] == "Pods").collect();
        assert!(!pods.is_empty(), "{scaler}");
        for metric in pods {
            let name = text(&metric["pods"]["metric"]["name"]);
            assert!(crate::deploy::metrics::is_declared(name), "there is no {name}");
        }
    }
}

/// `config` becomes a file that the binary reads, including large numbers.
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

/// Returns the variables of a service's container by name.
pub fn variables<'a>(objects: &'a Objects, component: &str) -> BTreeMap<&'a str, &'a Value> {
    let workload = objects.workload(component);
    let variables = list(&workload.spec()["containers"][0]["env"]);
    variables.map(|variable| (text(&variable["name"]), variable)).collect()
}

/// An Ingress leads only to JSON-RPC, which answers to its name.
#[test]
fn an_ingress_shows_json_rpc_and_nothing_else() {
    let all = rendered();
    let production = &all["production"];
    let ingresses: Vec<_> = production.of_kind("Ingress").collect();
    assert_eq!(ingresses.len(), 1);
    let rules: Vec<_> = list(&ingresses[0]["spec"]["rules"]).collect();
    assert_eq!(rules.len(), 1);
    let paths = &rules[0]["http"]["paths"];
    let backend = json!({"service": {"name": "tandem-executor-http", "port": {"name": "http"}}});
    assert_eq!(*paths, json!([{"path": "/", "pathType": "Prefix", "backend": backend}]));
    let host = text(&rules[0]["host"]);
    let variables = variables(production, "executor");
    let knows = |name: &str| text(&variables[name]["value"]).split(',').any(|it| it == host);
    assert!(knows("TANDEM_HTTP_VHOSTS"), "{host}");
    assert!(!knows("TANDEM_AUTHRPC_VHOSTS"), "{host}");
}

/// Headers for a collector come from a secret and are in no manifest.
#[test]
fn traces_go_over_tls_with_headers_from_a_secret() {
    let all = rendered();
    let Some(external) = all.get("external") else { return };
    for workload in external.workloads().filter(|workload| workload.is_ours()) {
        let name = workload.component();
        let variables = variables(external, name);
        let endpoint = text(&variables["OTEL_EXPORTER_OTLP_ENDPOINT"]["value"]);
        assert!(endpoint.starts_with("https://"), "{name}: {endpoint}");
        let headers = &variables["OTEL_EXPORTER_OTLP_HEADERS"]["valueFrom"]["secretKeyRef"];
        assert_eq!(*headers, json!({"name": "collector-headers", "key": "headers"}), "{name}");
        let file = text(&variables["OTEL_EXPORTER_OTLP_CERTIFICATE"]["value"]);
        let mut mounts = list(&workload.spec()["containers"][0]["volumeMounts"]);
        let mounted = mounts.find(|mount| file.starts_with(text(&mount["mountPath"])));
        assert_eq!(mounted.unwrap()["name"], "otlp-ca", "{name}");
    }
}

/// Checks that a command of the binary takes the variables of its container.
pub fn takes_what_it_is_told(role: &str, told: &BTreeMap<&str, &Value>) {
    let mut command = tandem();
    command.args([role, "--check"]);
    for (name, variable) in told {
        // Other variables name files of the pod, or are composed from its fields.
        let of_the_pod = ["TANDEM_CONFIG", "OTEL"];
        if let Some(value) = variable["value"].as_str()
            && !of_the_pod.iter().any(|part| name.starts_with(part))
        {
            command.env(name, value);
        }
    }
    succeeds(&mut command);
}
