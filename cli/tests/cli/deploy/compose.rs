//! Tests of `docker-compose.yml` as a text: everything it names exists, and no service gets more
//! than it needs.

use crate::deploy::{program, skipped, succeeds, tandem, text, yaml};
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    process::Command,
};
use tandem_cluster_tests::repository;
use tandem_proto::access::ROLES;

/// The eight services, whose names are also those of containers.
pub const SERVICES: [&str; 8] = [
    "storage-writer",
    "multiproof-workers",
    "blob-validator",
    "executor",
    "peer-table",
    "discovery",
    "peer-sessions",
    "tx-pool",
];

/// Services that a profile brings.
pub const OPTIONAL: [&str; 2] = ["follower", "tx-executor"];

fn compose() -> Value {
    yaml("docker-compose.yml")
}

fn services(compose: &Value) -> BTreeMap<&str, &Value> {
    let services = compose["services"].as_object().expect("services");
    services.iter().map(|(name, service)| (name.as_str(), service)).collect()
}

fn strings(list: &Value) -> Vec<&str> {
    list.as_array().into_iter().flatten().filter_map(Value::as_str).collect()
}

/// Returns whether a service runs the image of Tandem.
fn is_ours(service: &Value) -> bool {
    service["image"].as_str().is_some_and(|image| image.starts_with("${TANDEM_IMAGE"))
}

/// Replaces `${NAME:-default}` at the beginning of a text by the default.
fn with_default(text: &str) -> String {
    let Some((variable, rest)) = text.strip_prefix("${").and_then(|text| text.split_once('}'))
    else {
        return text.to_owned();
    };
    let (_, default) = variable.split_once(":-").expect("every variable has a default");
    [default, rest].concat()
}

/// Returns the output of `tandem help COMMAND`.
fn help(command: &str) -> String {
    succeeds(tandem().args(["help", command]))
}

#[test]
fn every_command_line_and_variable_is_one_of_the_binary() {
    let compose = compose();
    let mut checked = BTreeSet::new();
    for (name, service) in services(&compose).into_iter().filter(|(_, service)| is_ours(service)) {
        let command = strings(&service["command"]);
        let help = help(command[0]);
        let words: BTreeSet<_> =
            help.split(|c: char| c.is_whitespace() || "[]<>=,".contains(c)).collect();
        let flags = command.iter().filter_map(|word| word.split('=').next());
        for flag in flags.filter(|word| word.starts_with("--")) {
            assert!(words.contains(flag), "{name}: {flag} is none of {}\n{help}", command[0]);
        }
        let image = [("TANDEM_METRICS_ADDR", &Value::Null), ("TANDEM_METRICS_PORT", &Value::Null)];
        let environment = service["environment"].as_object().into_iter().flatten();
        let environment = environment.map(|(key, value)| (key.as_str(), value));
        // Variables of the image are for services; other commands have no such port.
        let is_service = SERVICES.contains(&name) || OPTIONAL.contains(&name);
        let image = image.into_iter().filter(|_| is_service);
        for (variable, _) in environment.chain(image) {
            assert!(words.contains(variable), "{name}: {variable} is not read by {}", command[0]);
        }
        checked.insert(name);
    }
    let others = OPTIONAL.into_iter().chain(["init", "secrets", "certificates", "replay"]);
    for name in SERVICES.into_iter().chain(others) {
        assert!(checked.contains(name), "{name} is not in the file");
    }
}

#[test]
fn what_is_mounted_and_waited_for_is_there() {
    let compose = compose();
    let all = services(&compose);
    let declared: BTreeSet<_> = compose["volumes"].as_object().unwrap().keys().collect();
    let mut used = BTreeSet::new();
    for (name, service) in &all {
        for volume in strings(&service["volumes"]) {
            let volume = with_default(volume);
            // A volume without a name belongs to one container.
            let Some((source, target)) = volume.split_once(':') else { continue };
            if source.starts_with('.') {
                assert!(repository().join(source).exists(), "{name}: no {source}");
                assert!(target.ends_with(":ro"), "{name} may write to {source}");
            } else {
                assert!(declared.contains(&source.to_owned()), "{name}: volume {source}");
                used.insert(source.to_owned());
            }
        }
        for other in service["depends_on"].as_object().into_iter().flatten() {
            assert!(all.contains_key(other.0.as_str()), "{name} waits for {}", other.0);
        }
    }
    assert_eq!(used.iter().collect::<BTreeSet<_>>(), declared, "volumes declared and used");
    assert!(repository().join("corpora/demo/genesis.json.gz").exists());
}

#[test]
fn nobody_has_more_rights_than_he_needs() {
    let compose = compose();
    for (name, service) in services(&compose) {
        assert_eq!(strings(&service["cap_drop"]), ["ALL"], "{name}");
        assert_eq!(strings(&service["security_opt"]), ["no-new-privileges:true"], "{name}");
        assert!(service["privileged"].is_null() && service["cap_add"].is_null(), "{name}");
        assert!(service["logging"]["options"]["max-size"].is_string(), "{name}: endless logs");
        if is_ours(service) || name == "nats" {
            assert_eq!(service["user"], "65532:65532", "{name}");
            assert_eq!(service["read_only"], true, "{name}");
        }
        for port in strings(&service["ports"]) {
            // Only the network of peers is open to the world.
            let local = with_default(port).starts_with("127.0.0.1:");
            let peers = [("discovery", "/udp"), ("peer-sessions", "/tcp")];
            let peers = peers.iter().any(|(who, end)| name == *who && port.ends_with(end));
            assert!(local || peers, "{name}: {port}");
        }
    }
}

#[test]
fn each_service_has_the_certificate_of_its_role_and_calls_the_others_over_tls() {
    let compose = compose();
    let all = services(&compose);
    let maker = all["certificates"];
    assert_eq!(strings(&maker["command"]), ["certificates", "/data"]);
    let mounted: BTreeMap<_, _> = strings(&maker["volumes"])
        .into_iter()
        .filter_map(|volume| volume.split_once(":/data/"))
        .map(|(volume, role)| (role, volume))
        .collect();
    assert_eq!(mounted.keys().copied().collect::<BTreeSet<_>>(), BTreeSet::from(ROLES));
    for name in SERVICES.into_iter().chain(OPTIONAL) {
        let role = strings(&all[name]["command"])[0];
        let own = format!("{}:/secrets:ro", mounted[role]);
        assert!(strings(&all[name]["volumes"]).contains(&&*own), "{name}: {own}");
        let environment = all[name]["environment"].as_object().unwrap();
        for (key, file) in [("CA", "ca.crt"), ("CERT", "tls.crt"), ("KEY", "tls.key")] {
            assert_eq!(environment[&format!("TANDEM_TLS_{key}")], format!("/secrets/{file}"));
        }
        for (key, url) in environment.iter().filter(|(key, _)| key.starts_with("TANDEM_")) {
            assert!(!url.as_str().unwrap().starts_with("http://"), "{name}: {key} in plain text");
        }
    }
}

/// Returns the networks of a service.
fn networks(service: &Value) -> BTreeSet<&str> {
    strings(&service["networks"]).into_iter().collect()
}

#[test]
fn a_container_reaches_only_those_that_it_has_business_with() {
    let compose = compose();
    let all = services(&compose);
    let is_internal = |name: &str| compose["networks"][name]["internal"] == true;
    let closed =
        ["storage-writer", "multiproof-workers", "blob-validator", "tx-pool", "peer-table", "nats"];
    for name in closed {
        assert!(networks(all[name]).into_iter().all(is_internal), "{name} reaches the world");
    }
    let meets = |a: &str, b: &str| !networks(all[a]).is_disjoint(&networks(all[b]));
    // discovery, which reads datagrams of strangers, is on no network with the chain. peer-sessions
    // reads blocks from it, sync in the executor asks for those of peers, and tx-pool for transactions.
    let around_peers = ["discovery", "peer-sessions", "peer-table", "nats", "prometheus", "jaeger"];
    let around_blocks = ["storage-writer", "executor", "tx-pool"];
    for (name, service) in &all {
        let ends = ["init", "secrets", "certificates"].contains(name);
        assert_eq!(service["network_mode"] == "none", ends, "{name}");
        if !ends {
            let known = around_peers.contains(name);
            assert_eq!(meets("discovery", name), known, "discovery and {name}");
            let known = known || around_blocks.contains(name);
            assert_eq!(meets("peer-sessions", name), known, "peer-sessions and {name}");
            assert!(!networks(service).is_empty(), "{name} is on the default network");
        }
    }
    for (a, b) in [
        ("executor", "storage-writer"),
        ("executor", "multiproof-workers"),
        ("executor", "blob-validator"),
        ("multiproof-workers", "storage-writer"),
        ("executor", "peer-sessions"),
        ("executor", "tx-pool"),
        ("tx-pool", "storage-writer"),
        ("tx-pool", "blob-validator"),
        ("tx-pool", "peer-sessions"),
        ("peer-sessions", "storage-writer"),
        ("peer-sessions", "peer-table"),
        ("replay", "executor"),
        ("grafana", "prometheus"),
    ] {
        assert!(meets(a, b), "{a} cannot reach {b}");
    }
    for name in SERVICES {
        for other in ["nats", "prometheus", "jaeger"] {
            assert!(meets(name, other), "{name} cannot reach {other}");
        }
        assert!(!meets(name, "grafana") && (name == "executor" || !meets(name, "replay")));
    }
}

/// Followers are called by the world. They reach nothing but storage-writer and tx-pool, and have no password.
#[test]
fn a_follower_reaches_storage_writer_and_tx_pool_and_each_container_has_its_own_copy() {
    let compose = compose();
    let all = services(&compose);
    let follower = all["follower"];
    for (name, service) in &all {
        let meets = !networks(follower).is_disjoint(&networks(service));
        let known =
            ["follower", "storage-writer", "tx-pool", "prometheus", "jaeger"].contains(name);
        assert_eq!(meets, known, "{name}");
    }
    assert_eq!(strings(&follower["profiles"]), ["followers"]);
    assert_eq!(follower["environment"]["TANDEM_LEADER"], "https://storage-writer:9600");
    assert_eq!(follower["environment"]["TANDEM_TX_POOL"], "https://tx-pool:9605");
    assert!(follower["environment"]["TANDEM_NATS"].is_null());
    // A volume with a name would be shared by all containers.
    assert_eq!(strings(&follower["volumes"]), ["/data", "follower-secret:/secrets:ro"]);
    assert!(strings(&follower["command"]).contains(&"--datadir=/data"));
    assert!(text("deploy/Dockerfile").contains("WORKDIR /layout/data\n"));
}

/// Tx-executors have no state, no password, and nobody to call. The executor finds them by their name.
#[test]
fn tx_executors_meet_the_executor_alone() {
    let compose = compose();
    let all = services(&compose);
    let machine = all["tx-executor"];
    for (name, service) in &all {
        let meets = !networks(machine).is_disjoint(&networks(service));
        let known = ["tx-executor", "executor", "prometheus", "jaeger"].contains(name);
        assert_eq!(meets, known, "{name}");
    }
    assert_eq!(strings(&machine["profiles"]), ["tx-executors"]);
    assert!(machine["ports"].is_null() && machine["container_name"].is_null());
    assert!(machine["environment"]["TANDEM_NATS"].is_null());
    assert_eq!(strings(&machine["volumes"]), ["tx-executor-secret:/secrets:ro"]);
    let told = &all["executor"]["environment"]["TANDEM_TX_EXECUTOR"];
    assert_eq!(told, "https://tx-executor:9606");
}

/// A node has one identity. discovery announces the port under which peer-sessions is published.
#[test]
fn discovery_and_peer_sessions_are_one_node() {
    let compose = compose();
    let all = services(&compose);
    for name in ["discovery", "peer-sessions"] {
        let command = strings(&all[name]["command"]);
        let datadir = command.iter().position(|word| *word == "--datadir").unwrap();
        assert_eq!(command[datadir + 1], "/data", "{name}");
        assert!(strings(&all[name]["volumes"]).contains(&"discovery:/data"), "{name}");
    }
    let announced = &all["discovery"]["environment"]["TANDEM_DISCOVERY_TCP_PORT"];
    let announced = with_default(announced.as_str().unwrap());
    let [published] = strings(&all["peer-sessions"]["ports"])[..] else { panic!("one port") };
    let settings = succeeds(tandem().args(["peer-sessions", "--datadir", "/x", "--print-config"]));
    let listens = settings.lines().find_map(|line| line.strip_prefix("listen = \"0.0.0.0:"));
    let listens = listens.expect("the address of sessions").trim_end_matches('"');
    assert_eq!(with_default(published), format!("{announced}:{listens}/tcp"));
}

#[test]
fn the_monitor_of_nats_is_closed_and_grafana_has_no_default_password() {
    let compose = compose();
    let all = services(&compose);
    let file = "./deploy/compose.nats.conf:/etc/nats/compose.nats.conf:ro";
    assert!(strings(&all["nats"]["volumes"]).contains(&file));
    assert_eq!(strings(&all["nats"]["command"]), ["--config", "/etc/nats/compose.nats.conf"]);
    let conf = text("deploy/compose.nats.conf");
    let (_, monitor) = conf.split_once("include ./nats.conf\n").expect("the rest is nats.conf");
    assert_eq!(monitor, "http: \"127.0.0.1:8222\"\n");

    let grafana = all["grafana"];
    let password = &grafana["environment"]["GF_SECURITY_ADMIN_PASSWORD__FILE"];
    assert_eq!(password, "/secrets/admin-password");
    assert!(strings(&grafana["volumes"]).contains(&"grafana-secret:/secrets:ro"));
    let maker = strings(&all["secrets"]["volumes"]);
    assert!(maker.contains(&"grafana-secret:/secrets/grafana"));
    let group = all["secrets"]["user"].as_str().unwrap().split(':').nth(1).unwrap();
    assert_eq!(strings(&grafana["group_add"]), [group]);
}

#[test]
fn services_are_watched_restarted_and_bounded_and_workers_can_be_many() {
    let compose = compose();
    let all = services(&compose);
    for name in SERVICES.into_iter().chain(OPTIONAL) {
        let service = all[name];
        let probe = strings(&service["healthcheck"]["test"]);
        assert_eq!(probe, ["CMD", "/usr/local/bin/tandem", "health"], "{name}");
        assert_eq!(service["restart"], "unless-stopped", "{name}");
        assert!(!service["mem_limit"].is_null() && !service["pids_limit"].is_null(), "{name}");
        let is_optional = !service["profiles"].is_null();
        assert_eq!(is_optional, OPTIONAL.contains(&name), "{name} belongs to every start");
    }
    let workers = all["multiproof-workers"];
    assert!(workers["ports"].is_null() && workers["container_name"].is_null());
    let writers: Vec<_> = strings(&workers["volumes"]);
    assert!(writers.iter().all(|volume| volume.ends_with(":ro")), "{writers:?}");
}

/// Each service logs in as itself, with the password that `tandem secrets` made for it.
#[test]
fn every_service_has_a_user_and_a_password_of_its_own_at_nats() {
    let folder = tempfile::tempdir().unwrap();
    succeeds(tandem().arg("secrets").arg(folder.path()));
    let passwords = std::fs::read_to_string(folder.path().join("nats/passwords.conf")).unwrap();
    let known: BTreeSet<_> =
        passwords.lines().filter_map(|line| Some(line.split_once(':')?.0)).collect();
    let conf = text("deploy/nats.conf");
    let pairs: BTreeMap<_, _> = conf
        .lines()
        .filter(|line| !line.trim_start().starts_with('#'))
        .filter_map(|line| line.split_once("user: ")?.1.split_once(", password: $"))
        .map(|(user, rest)| (user, rest.trim_end_matches(" }")))
        .collect();
    let variables: BTreeSet<_> = pairs.values().copied().collect();
    assert_eq!(variables, known, "variables of nats.conf, and those that are made");
    let compose = compose();
    let all = services(&compose);
    let maker = strings(&all["secrets"]["volumes"]);
    // The root of its file system is read-only, so all folders are volumes.
    for entry in std::fs::read_dir(folder.path()).unwrap() {
        let made = entry.unwrap().file_name().into_string().unwrap();
        let mount = format!("{made}-secret:/secrets/{made}");
        assert!(maker.contains(&mount.as_str()), "{made} is no volume of {maker:?}");
    }
    for name in SERVICES {
        let service = all[name];
        assert_eq!(service["environment"]["TANDEM_NATS_USER"], name);
        assert!(pairs.contains_key(name), "{name} is no user of nats.conf");
        let secret = format!("{name}-secret");
        let mounts = strings(&service["volumes"]);
        assert!(mounts.contains(&format!("{secret}:/secrets:ro").as_str()), "{mounts:?}");
        assert!(maker.contains(&format!("{secret}:/secrets/{name}").as_str()), "{maker:?}");
        assert!(folder.path().join(name).join("nats-password").exists());
        let others = mounts.iter().filter(|mount| mount.contains("-secret:"));
        let others: Vec<_> = others.filter(|mount| !mount.starts_with(&secret)).collect();
        let engine = name == "executor" && others == [&"engine-secret:/engine:ro"];
        assert!(others.is_empty() || engine, "{name} sees {others:?}");
    }
}

/// The image has a folder for each volume that must belong to the services' user from the start.
#[test]
fn the_image_has_the_folders_that_volumes_are_mounted_on() {
    let dockerfile = text("deploy/Dockerfile");
    let compose = compose();
    let all = services(&compose);
    let source = |volume: &str| volume.split(':').next().unwrap_or_default().to_owned();
    let made: BTreeSet<_> = strings(&all["secrets"]["volumes"]).into_iter().map(source).collect();
    for (name, service) in all.into_iter().filter(|(_, service)| is_ours(service)) {
        for volume in strings(&service["volumes"]) {
            let Some((_, target)) = volume
                .split_once(':')
                .filter(|(source, target)| !source.starts_with("${") && !target.ends_with(":ro"))
            else {
                continue;
            };
            // The folder belongs to the user already, because `secrets` runs first.
            if name == "certificates" && made.contains(&source(volume)) {
                continue;
            }
            let made = format!("WORKDIR /layout{target}\n");
            assert!(dockerfile.contains(&made), "{name}: {target} would belong to root");
        }
    }
}

/// Variables with the URLs of storage-writers.
const WRITERS: [&str; 2] = ["TANDEM_STORAGE_WRITER", "TANDEM_LEADER"];

/// The file with a second storage-writer changes what has to be changed, and nothing else.
#[test]
fn a_second_storage_writer_is_like_the_first_and_all_callers_know_both() {
    let (compose, more) = (compose(), yaml("deploy/compose.failover.yml"));
    let (all, more) = (services(&compose), services(&more));
    let both = "https://storage-writer:9600,https://storage-writer-2:9600";
    for (name, service) in &all {
        let callers = WRITERS.iter().filter(|it| service["environment"][**it].is_string());
        for variable in callers {
            assert_eq!(more[name]["environment"][*variable], both, "{name}");
        }
    }
    let (first, second) = (all["storage-writer"], more["storage-writer-2"]);
    let words = help("storage-writer");
    for (index, name) in ["storage-writer", "storage-writer-2"].into_iter().enumerate() {
        let environment = &more[name]["environment"];
        let own = environment["TANDEM_ADVERTISE"].as_str().unwrap();
        assert_eq!(both.split(',').nth(index), Some(own), "{name} knows which one it is");
        assert_eq!(environment["TANDEM_LEADER"], both, "{name}");
        assert_eq!(environment["TANDEM__STORAGE_WRITER__LEAD__LEASE_MS"], 3000, "{name}");
        for variable in environment.as_object().unwrap().keys() {
            assert!(variable.contains("__") || words.contains(&**variable), "{name}: {variable}");
        }
    }
    for (key, value) in first.as_object().unwrap() {
        match key.as_str() {
            // The image is built once. The second database is a copy, so there is no genesis before it.
            "build" | "depends_on" => {}
            "volumes" => {
                let [own, secrets] = strings(&second[key])[..] else { panic!("{}", second[key]) };
                assert_eq!(own, "storage-2:/data");
                assert!(strings(value).contains(&secrets));
            }
            "environment" => {
                for (variable, value) in value.as_object().unwrap() {
                    assert_eq!(second[key][variable], *value, "{variable}");
                }
            }
            _ => assert_eq!(second[key], *value, "{key}"),
        }
    }
}

#[test]
fn compose_itself_takes_the_files() {
    let file = |name: &str| repository().join(name);
    let plugin = || {
        let docker = program("docker")?;
        let found = Command::new(&docker).args(["compose", "version"]).output().ok()?;
        found.status.success().then(|| {
            let mut command = Command::new(docker);
            command.arg("compose");
            command
        })
    };
    let Some(mut command) = plugin().or_else(|| program("docker-compose").map(Command::new)) else {
        return skipped("docker compose is not installed");
    };
    command.arg("--file").arg(file("docker-compose.yml"));
    command.arg("--file").arg(file("deploy/compose.failover.yml")).args(["config", "--quiet"]);
    succeeds(&mut command);
}
