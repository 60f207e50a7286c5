//! Events as versions have sent them: `proto/tests/samples/event.v1.txt`, with a name and the bytes
//! in hex per line. A new version may add lines; existing lines stay.

use crate::{file, updates};
use bytes::Bytes;
use prost::Message;
use prost_types::FileDescriptorSet;
use std::{collections::BTreeMap, fs, time::Duration};
use tandem_membership::Heartbeat;
use tandem_primitives::{B256, B512, BlockId};
use tandem_proto::{
    event::{
        BlobsValidated, ChainEvent, Contact, ContactEvent, PeersDiscovered, PeersTarget,
        TracesSlow, WorkerAlive,
    },
    wire::DESCRIPTORS,
};

type Check = Box<dyn Fn(&[u8]) -> bool>;

/// Event as sent, with its required meaning.
struct Sample {
    /// Message and number.
    name: &'static str,
    /// Bytes that this version sends, for a sample that is not stored yet.
    sent: Bytes,
    /// Check that the bytes have the required meaning.
    means: Check,
}

fn sample<T: PartialEq + 'static>(
    name: &'static str,
    value: T,
    encode: fn(&T) -> Bytes,
    decode: fn(&[u8]) -> Option<T>,
) -> Sample {
    let sent = encode(&value);
    Sample { name, sent, means: Box::new(move |bytes| decode(bytes).as_ref() == Some(&value)) }
}

fn contact(event: ContactEvent, ip: &str, enr: Option<&[u8]>) -> Contact {
    Contact {
        id: B512::repeat_byte(0x42),
        ip: ip.parse().unwrap(),
        udp_port: 30_303,
        tcp_port: 30_304,
        enr_seq: enr.map(|_| 7),
        enr: enr.map(|enr| enr.to_vec().into()),
        event,
    }
}

fn samples() -> Vec<Sample> {
    let block = BlockId { number: 21_000_000, hash: B256::repeat_byte(0x11) };
    let contacts = vec![
        contact(ContactEvent::Seen, "10.0.0.1", None),
        contact(ContactEvent::Answered, "2001:db8::1", None),
        contact(ContactEvent::Failed, "10.0.0.2", None),
        contact(ContactEvent::Asked, "10.0.0.3", None),
        contact(ContactEvent::EnrReceived, "10.0.0.4", Some(b"\xc3\x01\x02\x03")),
    ];
    let heartbeat = Heartbeat {
        id: "worker-0".parse().unwrap(),
        incarnation: 1_700_000_000_000,
        sequence: 3,
        endpoint: "http://10.0.0.7:9601".to_owned(),
        interval: Duration::from_secs(1),
        leaving: false,
    };
    let last = Heartbeat { leaving: true, sequence: 4, ..heartbeat.clone() };
    let hashes = vec![B256::repeat_byte(1), B256::repeat_byte(2)];
    let trace_ids = vec![0x0af7_6519_16cd_43dd_8448_eb21_1c80_319c, 1];
    vec![
        sample("ChainEvent/1", ChainEvent { block }, ChainEvent::encode, ChainEvent::decode),
        sample(
            "PeersDiscovered/1",
            PeersDiscovered { contacts },
            PeersDiscovered::encode,
            PeersDiscovered::decode,
        ),
        sample(
            "PeersTarget/1",
            PeersTarget { completion: 0.25 },
            PeersTarget::encode,
            PeersTarget::decode,
        ),
        sample(
            "BlobsValidated/1",
            BlobsValidated { versioned_hashes: hashes },
            BlobsValidated::encode,
            BlobsValidated::decode,
        ),
        sample("TracesSlow/1", TracesSlow { trace_ids }, TracesSlow::encode, TracesSlow::decode),
        sample("WorkerAlive/1", WorkerAlive(heartbeat), WorkerAlive::encode, WorkerAlive::decode),
        sample("WorkerAlive/2", WorkerAlive(last), WorkerAlive::encode, WorkerAlive::decode),
    ]
}

#[test]
fn what_other_versions_have_sent_is_understood() {
    let path = file("tests/samples/event.v1.txt");
    let text = fs::read_to_string(&path).unwrap_or_default();
    let mut stored: BTreeMap<_, _> = text
        .lines()
        .filter_map(|line| line.split_once(' '))
        .map(|(a, b)| (a.to_owned(), b.to_owned()))
        .collect();
    let samples = samples();
    if updates() {
        for sample in &samples {
            stored.entry(sample.name.to_owned()).or_insert_with(|| const_hex::encode(&sample.sent));
        }
        let lines = stored.iter().map(|(name, bytes)| format!("{name} {bytes}\n"));
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(&path, lines.collect::<String>()).unwrap();
    }
    let known: Vec<_> = samples.iter().map(|sample| sample.name).collect();
    let unknown: Vec<_> = stored.keys().filter(|name| !known.contains(&name.as_str())).collect();
    assert!(unknown.is_empty(), "nobody says what these mean: {unknown:?}");
    for Sample { name, means, .. } in &samples {
        let bytes =
            stored.get(*name).unwrap_or_else(|| panic!("{name}: TANDEM_UPDATE=1 stores it"));
        let bytes = const_hex::decode(bytes).unwrap();
        assert!(means(&bytes), "{name} is not understood any more");
        // Fields that this version does not know are skipped.
        let newer = [&bytes[..], &[0xfa, 0x7d, 0x01, 0x00]].concat();
        assert!(means(&newer), "{name} with a field more is not understood");
    }
}

#[test]
fn every_event_has_a_sample() {
    let files = FileDescriptorSet::decode(DESCRIPTORS).unwrap();
    let file = files.file.iter().find(|file| file.package() == "tandem.event.v1").unwrap();
    let names: Vec<_> = samples().iter().map(|sample| sample.name).collect();
    for message in &file.message_type {
        let prefix = format!("{}/", message.name());
        assert!(names.iter().any(|name| name.starts_with(&prefix)), "{} has none", message.name());
    }
}
