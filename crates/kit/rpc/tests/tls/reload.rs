//! Certificates that are replaced while services run.

use super::{
    echo::{Caller, Served, call},
    house::{Files, House},
    logs::Logs,
};
use bytes::Bytes;
use std::fs;
use tandem_rpc::Identity;

const BYTES: Bytes = Bytes::from_static(b"bytes");

async fn connects(served: &Served, identity: &Identity) {
    let caller = Caller::start(served.address, identity);
    let channel = caller.connected().await;
    assert_eq!(call(&channel, "Write", BYTES).await, Ok(BYTES));
}

#[tokio::test]
async fn renewed_certificates_are_used_by_new_connections_on_both_sides() {
    let (logs, _guard) = Logs::start();
    let (old, new) = (House::new(), House::new());
    let (server, client) = (Files::new(), Files::new());
    server.write(&old.certificate, &old.issue(&["storage-writer"]));
    client.write(&old.certificate, &old.issue(&["executor"]));
    let served = Served::start(server.identity("storage-writer")).await;
    let executor = client.identity("executor");
    let followed = executor.clone();
    let following = tokio::spawn(async move { followed.follow().await });
    let caller = Caller::start(served.address, &executor);
    let early = caller.connected().await;

    // With a new authority, a client that knows only the old one is no longer let in.
    server.write(&new.certificate, &new.issue(&["storage-writer"]));
    client.write(&new.certificate, &new.issue(&["executor"]));
    logs.say_times("certificates renewed", 2).await;
    connects(&served, &executor).await;
    let late = old.identity("executor");
    let _refused = Caller::start(served.address, &late);
    logs.say("no connection").await;
    // Existing connections go on.
    assert_eq!(call(&early, "Write", BYTES).await, Ok(BYTES));
    following.abort();
}

#[tokio::test]
async fn a_broken_renewal_leaves_the_old_certificate_and_is_named_once() {
    let (logs, _guard) = Logs::start();
    let house = House::new();
    let files = Files::new();
    let good = house.issue(&["storage-writer"]);
    files.write(&house.certificate, &good);
    let served = Served::start(files.identity("storage-writer")).await;
    let executor = house.identity("executor");

    fs::write(files.path("tls.crt"), "no certificate").unwrap();
    logs.say("tls.crt: expected a certificate in PEM form, found none").await;
    connects(&served, &executor).await;
    // The key belongs to another certificate, as if only half of the files were replaced yet.
    let next = house.issue(&["storage-writer"]);
    fs::write(files.path("tls.crt"), &next.certificate).unwrap();
    logs.say("tls.key: keys may not be consistent").await;
    connects(&served, &executor).await;
    fs::remove_file(files.path("tls.key")).unwrap();
    logs.say("No such file").await;
    fs::write(files.path("tls.key"), &next.key).unwrap();
    logs.say("certificates renewed").await;
    connects(&served, &executor).await;
    let warnings = logs.count("changed certificates cannot be used");
    assert_eq!(warnings, 3, "each trouble once\n{}", logs.text());
}

#[test]
fn files_that_cannot_be_used_are_named() {
    let house = House::new();
    let error =
        |files: &Files, role| Identity::load(role, &files.config()).unwrap_err().to_string();
    let files = Files::new();
    assert!(error(&files, "executor").contains("ca.crt: No such file"));
    files.write(&house.certificate, &house.issue(&["executor", "operator"]));
    files.identity("operator");
    let text = error(&files, "storage-writer");
    let want =
        "tls.crt is the certificate of executor and operator, this process is storage-writer";
    assert!(text.ends_with(want), "{text}");
    files.write(&House::new().certificate, &house.issue(&["executor"]));
    let text = error(&files, "executor");
    assert!(text.contains("tls.crt: invalid peer certificate: UnknownIssuer"), "{text}");
    files.write(&house.certificate, &house.issue_expired("executor"));
    let text = error(&files, "executor");
    assert!(text.contains("tls.crt: invalid peer certificate: certificate expired"), "{text}");
    let mut pem = house.issue(&["executor"]);
    pem.key = pem.certificate.clone();
    files.write(&house.certificate, &pem);
    let text = error(&files, "executor");
    assert!(text.ends_with("tls.key: expected a private key in PEM form, found none"), "{text}");
    let mut config = files.config();
    config.cert = None;
    let text = Identity::load("executor", &config).unwrap_err().to_string();
    assert_eq!(text, "`tls.ca` needs `tls.cert` beside it");
    config = Default::default();
    assert!(!Identity::load("executor", &config).unwrap().is_proven());
}
