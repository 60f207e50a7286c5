//! Starts the containers of the chart on this machine, each with its own command.

use super::{
    Objects, SERVICES, golden, helm,
    local::{Files, Local},
    pods::{Pod, Programs, run_to_end},
    template,
};
use crate::{
    binary,
    deploy::{program, skipped, succeeds, tandem},
};
use flate2::read::MultiGzDecoder;
use serde_json::json;
use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::Read,
    net::Ipv4Addr,
    path::{Path, PathBuf},
    process::Command,
};
use tandem_bus_tests::{eventually, nats_server};
use tandem_cluster_tests::{Client, Corpus, Process, repository};
use tandem_discv4::NodeKey;
use tandem_proto::wire::storage_writer::v1::{
    AcquireEpochRequest, GetCheckpointRequest, storage_writer_client::StorageWriterClient,
};
use tonic::{Code, transport::Endpoint};

fn unpacked(file: &Path) -> Vec<u8> {
    let mut text = Vec::new();
    MultiGzDecoder::new(File::open(file).unwrap()).read_to_end(&mut text).unwrap();
    text
}

/// Returns the demo corpus as a replacement for the chart's own chain.
fn demo() -> BTreeMap<String, Files> {
    let file = |key: &str, contents| Files::from([(key.to_owned(), contents)]);
    let corpus = repository().join("corpora/demo");
    BTreeMap::from([
        ("tandem-genesis".to_owned(), file("genesis.json", unpacked(&Corpus::demo().genesis()))),
        (
            "tandem-test".to_owned(),
            file("payloads.jsonl", unpacked(&corpus.join("payloads.jsonl.gz"))),
        ),
    ])
}

/// Starts every container, waits for its probes, sends the payloads of `helm test`, and stops it.
fn becomes_ready_and_finds_the_demo_corpus_valid(local: &Local, nats_server: PathBuf) {
    let programs = Programs { tandem: binary().into(), nats_server };
    // The step before an install: each service checks whether it would start.
    let said = run_to_end(local, &programs, local.objects.workload("check"));
    assert_eq!(said.matches("settings and flags are good").count(), SERVICES.len(), "{said}");
    // Callers first: no service depends on the start of another.
    let mut order = SERVICES;
    let callers = ["discovery", "peer-sessions", "tx-pool", "executor", "multiproof-workers"];
    order.sort_by_key(|name| callers.contains(name));
    order.reverse();
    let mut pods = Vec::new();
    for component in order.into_iter().chain(["nats"]) {
        let workload = local.objects.workload(component);
        let replicas = workload.object["spec"]["replicas"].as_u64().unwrap();
        for index in 0..replicas as usize {
            let pod = Pod::start(local, &programs, workload, index);
            pods.push(pod.expect("a program for the image"));
        }
    }
    for pod in &mut pods {
        pod.becomes("startupProbe");
    }
    for pod in &mut pods {
        pod.becomes("readinessProbe");
        assert!(pod.probe("livenessProbe"), "{} is ready and not alive", pod.name);
    }
    a_neighbour_without_a_certificate_writes_nothing(local);
    let said = run_to_end(local, &programs, local.objects.workload("test"));
    assert!(said.contains("64 blocks VALID"), "{said}");

    // The workers took part: the executor heard of them by the addresses that their pods announce.
    let executor = pods.iter().find(|pod| pod.name.contains("executor")).unwrap();
    let metrics = crate::deploy::get(&format!("{}:9100", executor.ip), "/metrics");
    let alive =
        metrics.lines().find_map(|line| line.strip_prefix("tandem_multiproof_workers_alive "));
    assert_eq!(alive, Some("2"), "{}", executor.log());
    let alone = metrics.lines().find_map(|line| {
        line.strip_prefix("tandem_multiproof_workers_fleet_computed_locally_total ")
    });
    eprintln!("shards that the executor computed itself: {alone:?}");

    discovery_and_peer_sessions_are_one_node(local, executor, &pods);

    // All pods end by themselves when told to, NATS last.
    let (nats, services): (Vec<_>, Vec<_>) =
        pods.into_iter().partition(|pod| pod.name.contains("nats"));
    for mut pod in services {
        pod.stop();
    }
    drop(nats);
    let data = local.folder().join("tandem-storage-writer-0");
    let (status, text) = Process::verify(binary(), &data);
    assert!(status.success(), "{status}\n{text}");
}

/// discovery announces the key of the secret and the port of peer-sessions, which the executor asks
/// for its peers.
fn discovery_and_peer_sessions_are_one_node(local: &Local, executor: &Pod, pods: &[Pod]) {
    let files = local.files("Secret", "tandem-node-key");
    let key = const_hex::decode_to_array(&files["nodekey"]).unwrap();
    let id = *NodeKey::from_bytes(key).unwrap().public();
    let log = pods.iter().find(|pod| pod.name.contains("discovery")).unwrap().log();
    let announced = format!("enode://{id:x}@");
    let line = log.lines().find(|line| line.contains(&announced)).expect("its enode");
    assert!(line.contains(":30303"), "{line}");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let mut client = Client::new((executor.ip, 8545).into(), None);
    eventually("an answer of peer-sessions", || {
        let count = runtime.block_on(client.call("net_peerCount", json!([])));
        count.ok().filter(|count| count == "0x0")
    });
}

/// The services identify each other by the certificates that the chart has made, or without Helm,
/// by those of `tandem certificates`.
#[test]
fn the_commands_of_the_chart_become_ready_and_find_the_demo_corpus_valid() {
    let Some(nats_server) = nats_server() else { return skipped("no nats-server") };
    let Some(openssl) = program("openssl") else { return skipped("openssl is not installed") };
    let made = tempfile::tempdir().unwrap();
    let local = match helm() {
        Some(helm) => {
            let text = template(&helm, "minimal", &[]).unwrap();
            let mut local = Local::new(Objects::parse(&text), demo());
            for (file, contents) in local.files("Secret", "tandem-authority") {
                fs::write(made.path().join(file), contents).unwrap();
            }
            give_nats(&mut local, "tandem-nats-tls", &openssl, made.path());
            local
        }
        None => {
            let mut local = Local::new(Objects::parse(&golden::kept("minimal")), demo());
            give_certificates(&mut local, "tandem-", &openssl, made.path());
            local
        }
    };
    becomes_ready_and_finds_the_demo_corpus_valid(&local, nats_server);
}

/// Replaces the certificates that the manifests name by those of `tandem certificates`.
fn give_certificates(local: &mut Local, prefix: &str, openssl: &Path, folder: &Path) {
    succeeds(tandem().arg("certificates").arg(folder));
    for component in SERVICES {
        let arguments = &local.objects.workload(component).spec()["containers"][0]["args"];
        let role = folder.join(arguments[0].as_str().unwrap());
        local.give(&format!("{prefix}{component}-tls"), secret(&role));
    }
    give_nats(local, &format!("{prefix}nats-tls"), openssl, folder);
}

/// Gives NATS a certificate of the authority in a folder, for its address on this machine.
fn give_nats(local: &mut Local, name: &str, openssl: &Path, authority: &Path) {
    let nats = server_certificate(openssl, authority, local.first("nats"));
    local.give(name, nats);
}

/// Returns the secret of a NATS server, signed by the authority in a folder. Clients check its
/// address, which none of their certificates has.
fn server_certificate(openssl: &Path, authority: &Path, ip: Ipv4Addr) -> Files {
    let folder = authority.join("nats");
    fs::create_dir(&folder).unwrap();
    let extensions = format!("subjectAltName=IP:{ip}\nextendedKeyUsage=serverAuth,clientAuth\n");
    fs::write(folder.join("extensions"), extensions).unwrap();
    fs::copy(authority.join("ca.crt"), folder.join("ca.crt")).unwrap();
    for line in [
        "req -new -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=nats \
         -keyout tls.key -out request",
        "x509 -req -in request -CA ca.crt -CAkey ../ca.key -CAcreateserial -days 1 \
         -extfile extensions -out tls.crt",
    ] {
        let mut command = Command::new(openssl);
        succeeds(command.args(line.split_whitespace()).current_dir(&folder));
    }
    secret(&folder)
}

/// Returns the contents of a Secret with a certificate.
fn secret(folder: &Path) -> Files {
    let file = |name: &str| (name.to_owned(), fs::read(folder.join(name)).unwrap());
    Files::from(["ca.crt", "tls.crt", "tls.key"].map(file))
}

/// Another pod that reaches storage-writer's port cannot make any call.
fn a_neighbour_without_a_certificate_writes_nothing(local: &Local) {
    let url = format!("http://{}:9600", local.first("storage-writer"));
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let channel = Endpoint::from_shared(url).unwrap().connect_lazy();
        let mut calls = StorageWriterClient::new(channel);
        let request = AcquireEpochRequest { executor: "stranger".to_owned(), ..Default::default() };
        let status = calls.acquire_epoch(request).await.unwrap_err();
        assert_ne!(status.code(), Code::FailedPrecondition, "the call came through: {status}");
        let checkpoint = calls.get_checkpoint(GetCheckpointRequest::default()).await;
        checkpoint.unwrap_err();
    });
}

#[test]
fn so_do_those_of_a_chart_with_certificates_and_settings() {
    let Some(nats_server) = nats_server() else { return skipped("no nats-server") };
    let Some(helm) = helm() else { return };
    let Some(openssl) = program("openssl") else { return skipped("openssl is not installed") };
    let text = template(&helm, "tls", &["config.executor.prewarm_threads=1"]).unwrap();
    let mut local = Local::new(Objects::parse(&text), demo());
    let made = tempfile::tempdir().unwrap();
    give_certificates(&mut local, "", &openssl, made.path());
    becomes_ready_and_finds_the_demo_corpus_valid(&local, nats_server);
}
