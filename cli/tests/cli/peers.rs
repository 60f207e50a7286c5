//! Tests the services that find peers in their own processes, and the tools for people.

use crate::binary;
use serde_json::Value;
use std::{
    fs,
    net::{IpAddr, Ipv4Addr},
    path::Path,
    process::Command,
    sync::Arc,
    time::Instant,
};
use tandem_bus::Bus;
use tandem_bus_tests::eventually;
use tandem_cluster::{Config, Peers, Surroundings};
use tandem_cluster_tests::{Geth, Running};
use tandem_discv4::node_id;
use tandem_peer_table_client::{Client, ClientConfig};
use tandem_primitives::B512;
use tandem_proto::{
    event::{Contact, ContactEvent},
    peer_table::PeerTableApi,
};
use tokio::runtime::Runtime;

fn settings(folder: &Path, address: u8, bootnodes: &[String]) -> Config {
    let mut config = Config::default().at(&folder.join(format!("node{address}")));
    config.discovery.addr = Ipv4Addr::new(127, 0, 0, address).into();
    config.discovery.port = 0;
    config.discovery.tcp_port = 0;
    config.discovery.bootnodes = bootnodes.to_vec();
    // Lookups are as frequent when there is nothing new to find.
    config.discovery.lookup_fast_ms = 100;
    config.discovery.lookup_base_ms = 100;
    config.discovery.lookup_maintenance_ms = 100;
    config
}

fn node(folder: &Path, address: u8, bootnodes: &[String]) -> Peers {
    Peers::start(settings(folder, address, bootnodes), None, Surroundings::default()).unwrap()
}

fn table_process(folder: &Path, name: &str, port: &str) -> (Running, String) {
    let config = folder.join("peer-table.toml");
    fs::write(&config, "[peer_table]\nsnapshot_interval_secs = 1\n").unwrap();
    let (datadir, config) = (folder.join("table"), config.to_str().unwrap().to_owned());
    let arguments =
        ["peer-table", "--datadir", datadir.to_str().unwrap(), "--grpc.port", port, "--config"];
    let mut process = Running::start(binary(), folder, name, [&arguments[..], &[&config]].concat());
    let address = process.says("listening port=\"grpc\" address=");
    (process, address)
}

fn client(runtime: &Runtime, address: &str) -> Arc<Client> {
    let config = ClientConfig { answer_ms_max: 20_000, ..ClientConfig::default() };
    let url = format!("http://{address}");
    Client::connect(&url, config, Bus::default(), runtime.handle()).unwrap()
}

fn contacts(table: &dyn PeerTableApi) -> u64 {
    table.stats().map_or(0, |stats| stats.contacts)
}

/// Returns contacts that answered once, enough to show in a snapshot. No node is at their
/// addresses.
fn filler() -> Vec<Contact> {
    let contact = |n: u16| {
        let [high, low] = n.to_be_bytes();
        let mut id = B512::ZERO;
        id[..2].copy_from_slice(&[high + 1, low]);
        let ip = IpAddr::from([127, 9, high, low]);
        let event = ContactEvent::Answered;
        Contact { id, ip, udp_port: 9, tcp_port: 9, enr_seq: None, enr: None, event }
    };
    (0..600).map(contact).collect()
}

#[test]
fn a_killed_peer_table_comes_back_with_its_snapshot_while_discovery_goes_on() {
    let runtime = Runtime::new().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let (mut table, address) = table_process(folder, "table", "0");
    let others = [node(folder, 1, &[])];
    let boot = vec![others[0].status().enode];
    let url = format!("http://{address}");
    let config = settings(folder, 2, &boot).discovery;
    let bus = Bus::default();
    let within = Surroundings { direct: bus.clone(), bus, ..Surroundings::default() };
    let subject = Peers::start_over(&url, &config, None, within, runtime.handle()).unwrap();
    let watcher = client(&runtime, &address);
    let second = node(folder, 3, &boot);
    let proven = || watcher.stats().ok().filter(|stats| stats.proven >= 2);
    eventually("both others are known to the table", proven);
    eventually("the filler", || watcher.apply_batch(filler()).ok());
    let before = eventually("all of them", || Some(contacts(&*watcher)).filter(|&n| n >= 602));
    let snapshot = folder.join("table/peers.bin");
    let written = || fs::metadata(&snapshot).ok().filter(|file| file.len() > 602 * 86);
    eventually("the snapshot", written);

    table.kill();
    // A batch in transit when the connection breaks may be lost. Later finds are not.
    eventually("the loss is noticed", || {
        subject.table().stats().err().filter(|error| error.to_string().contains("no connection"))
    });
    let sent = subject.status().packets_sent;
    let newcomer = node(folder, 4, &[subject.status().enode]);
    eventually("discovery goes on", || (subject.status().packets_sent > sent + 20).then_some(()));
    eventually("and answers newcomers", || {
        newcomer.table().stats().ok().filter(|stats| stats.proven >= 1)
    });

    let begin = Instant::now();
    let port = address.rsplit(':').next().unwrap();
    let (_table, again) = table_process(folder, "table-again", port);
    assert_eq!(again, address);
    // Not all contacts: no node is at their addresses, so discovery gives them up one after the
    // other.
    let back = || Some(contacts(&*watcher)).filter(|&n| n >= before / 2);
    let back = eventually("the snapshot is back", back);
    eprintln!("{back} of {before} contacts back {:?} after the start", begin.elapsed());
    let id = newcomer.status().id;
    let learned = || {
        let closest = watcher.closest(node_id(&id), 16).ok()?;
        closest.iter().any(|contact| contact.id == id).then_some(())
    };
    eventually("what was found without a table is in it too", learned);
    for peers in others.into_iter().chain([subject, second, newcomer]) {
        peers.stop();
    }
}

/// Crawls three nodes of this project, one of them a process over a table in another, and geth's if
/// it is installed.
#[test]
fn a_crawl_finds_everybody_and_their_records() {
    let runtime = Runtime::new().unwrap();
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path();
    let first = node(folder, 1, &[]);
    let boot = vec![first.status().enode];
    let second = node(folder, 2, &boot);
    let (_table, address) = table_process(folder, "table", "0");
    let datadir = folder.join("process");
    let mut process = Running::start(
        binary(),
        folder,
        "discovery",
        [
            "discovery",
            "--datadir",
            datadir.to_str().unwrap(),
            "--discovery.addr",
            "127.0.0.3",
            "--discovery.port",
            "0",
            "--bootnodes",
            &boot[0],
            "--network",
            "hoodi",
            "--peer-table",
            &format!("http://{address}"),
        ],
    );
    let mut expected = vec![boot[0].clone(), second.status().enode];
    expected.push(format!("enode://{}", process.says("enode://")));
    let geth = match Geth::binary() {
        Some(binary) => {
            let start = |n| Geth::start(&binary, &folder.join(format!("geth{n}")), &boot[0]);
            [1, 2].map(|n| start(n).unwrap()).into()
        }
        None => {
            eprintln!("SKIPPED: the part with geth, which is not installed");
            Vec::new()
        }
    };
    expected.extend(geth.iter().map(|geth| geth.enode().to_owned()));
    let watcher = client(&runtime, &address);
    let known = || watcher.stats().ok().filter(|stats| stats.proven + 1 >= expected.len() as u64);
    eventually("the table elsewhere knows them", known);

    let output = Command::new(binary())
        .args(["discover", "--bootnodes", &boot[0], "--discovery.addr", "127.0.0.9"])
        .args(["--time-limit", "60", "--idle", "6", "--json", "-"])
        .output()
        .unwrap();
    let text = String::from_utf8(output.stdout).unwrap();
    let table = String::from_utf8(output.stderr).unwrap();
    assert!(output.status.success(), "{table}");
    let nodes: Vec<Value> = text.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let key = |enode: &str| enode[8..136].to_owned();
    for enode in &expected {
        let id = format!("0x{}", key(enode));
        let node = nodes.iter().find(|node| node["publicKey"] == id.as_str());
        let node = node.unwrap_or_else(|| panic!("{enode} is not in\n{text}"));
        assert_eq!(node["answered"], true, "{node}");
        let record = node["enr"].as_str().unwrap_or_else(|| panic!("no record: {node}\n{table}"));
        let decoded =
            Command::new(binary()).args(["enr", "decode", "--json", record]).output().unwrap();
        let decoded: Value = serde_json::from_slice(&decoded.stdout).unwrap();
        assert_eq!(decoded["publicKey"], id.as_str());
    }
    let network = |enode: &String| {
        let id = format!("0x{}", key(enode));
        nodes.iter().find(|node| node["publicKey"] == id.as_str()).unwrap()["network"].clone()
    };
    assert_eq!(network(&expected[2]), "hoodi");
    assert!(expected[3..].iter().all(|enode| network(enode) == "mainnet"), "{text}");
    assert!(table.contains("fork id") && table.contains("not said"), "{table}");
    first.stop();
    second.stop();
}
