//! Clients that are refused, and clients that may not make every call.

use super::{
    echo::{Caller, SERVER, Served, call},
    house::{Files, House},
    logs::{Logs, PATIENCE},
};
use bytes::Bytes;
use rustls::{
    ClientConfig, DigitallySignedStruct, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::ring::default_provider,
    pki_types::{CertificateDer, ServerName, UnixTime},
};
use std::sync::Arc;
use tandem_rpc::{ClientConnection, ConnectionConfig, Identity};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};
use tonic::{Code, transport::Channel};

const BYTES: Bytes = Bytes::from_static(b"bytes");

#[tokio::test]
async fn a_role_may_call_what_it_may_and_is_told_what_not() {
    let (logs, _guard) = Logs::start();
    let house = House::new();
    let served = Served::start(house.identity("storage-writer")).await;
    let executor = Caller::start(served.address, &house.identity("executor"));
    let worker = Caller::start(served.address, &house.identity("multiproof-worker"));
    let (executor, worker) = (executor.connected().await, worker.connected().await);
    assert_eq!(call(&executor, "Write", BYTES).await, Ok(BYTES));
    assert_eq!(call(&worker, "Read", BYTES).await, Ok(BYTES));
    let text = "multiproof-worker may not call Write of test.Echo";
    let refused = Err((Code::PermissionDenied as u8, text.to_owned()));
    assert_eq!(call(&worker, "Write", BYTES).await, refused);
    assert_eq!(call(&worker, "Write", BYTES).await, refused);
    assert_eq!(logs.count("call refused"), 1, "{}", logs.text());
    assert_eq!(call(&executor, "Write", BYTES).await, Ok(BYTES));
    // A client that may call nothing here is still let in: health is open to all.
    let files = Files::new();
    files.write(&house.certificate, &house.issue(&["operator"]));
    let other = Caller::start(served.address, &files.identity("operator"));
    let other = other.connected().await;
    let (code, _) = call(&other, "Read", BYTES).await.unwrap_err();
    assert_eq!(code, Code::PermissionDenied as u8);
}

#[tokio::test]
async fn a_certificate_of_another_authority_is_refused() {
    let (logs, _guard) = Logs::start();
    let (house, other) = (House::new(), House::new());
    let served = Served::start(house.identity("storage-writer")).await;
    // The client accepts the server, but the server refuses the client.
    let files = Files::new();
    let both = format!("{}{}", house.certificate, other.certificate);
    files.write(&both, &other.issue(&["executor"]));
    let _caller = Caller::start(served.address, &files.identity("executor"));
    logs.say("connection refused").await;
    logs.say("UnknownIssuer").await;
    logs.say("no connection").await;
    assert_eq!(logs.count("connected"), 0, "{}", logs.text());
}

#[tokio::test]
async fn a_server_of_another_authority_or_role_is_not_trusted() {
    let (logs, _guard) = Logs::start();
    let (house, other) = (House::new(), House::new());
    let executor = house.identity("executor");
    let foreign = Served::start(other.identity("storage-writer")).await;
    let _caller = Caller::start(foreign.address, &executor);
    logs.say("invalid peer certificate: UnknownIssuer").await;
    let worker = Served::start(house.identity("multiproof-worker")).await;
    let _caller = Caller::start(worker.address, &executor);
    logs.say("the server has the certificate of multiproof-worker, not of storage-writer").await;
    assert_eq!(logs.count("connected"), 0, "{}", logs.text());
}

#[tokio::test]
async fn a_client_without_tls_hears_that_it_is_needed() {
    let (logs, _guard) = Logs::start();
    let house = House::new();
    let served = Served::start(house.identity("storage-writer")).await;
    let _caller = Caller::start(served.address, &Identity::plain("executor"));
    logs.say("TLS with a certificate is needed here").await;
    logs.say("the client speaks no TLS").await;
    assert_eq!(logs.count("connected"), 0, "{}", logs.text());
    // Clients of any other protocol get this answer too.
    let mut stream = TcpStream::connect(served.address).await.unwrap();
    stream.write_all(b"GET / HTTP/1.1\r\n\r\n").await.unwrap();
    let mut answer = Vec::new();
    timeout(PATIENCE, stream.read_to_end(&mut answer)).await.unwrap().unwrap();
    assert!(answer.ends_with(b"TLS with a certificate is needed here"), "{answer:?}");
}

#[tokio::test]
async fn a_client_with_tls_says_that_the_server_has_none() {
    let (logs, _guard) = Logs::start();
    let served = Served::start(Identity::plain("storage-writer")).await;
    let _caller = Caller::start(served.address, &House::new().identity("executor"));
    logs.say("the server speaks no TLS").await;
}

/// Verifier that accepts any server.
#[derive(Debug)]
struct Anyone;

impl ServerCertVerifier for Anyone {
    fn verify_server_cert(
        &self,
        _: &CertificateDer<'_>,
        _: &[CertificateDer<'_>],
        _: &ServerName<'_>,
        _: &[u8],
        _: UnixTime,
    ) -> Result<ServerCertVerified, rustls::Error> {
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn verify_tls13_signature(
        &self,
        _: &[u8],
        _: &CertificateDer<'_>,
        _: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, rustls::Error> {
        Ok(HandshakeSignatureValid::assertion())
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        default_provider().signature_verification_algorithms.supported_schemes()
    }
}

#[tokio::test]
async fn a_client_without_a_certificate_is_refused() {
    let (logs, _guard) = Logs::start();
    let served = Served::start(House::new().identity("storage-writer")).await;
    let config = ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anyone))
        .with_no_client_auth();
    let stream = TcpStream::connect(served.address).await.unwrap();
    let connector = tokio_rustls::TlsConnector::from(Arc::new(config));
    let name = ServerName::try_from("storage-writer").unwrap();
    let mut stream = connector.connect(name, stream).await.unwrap();
    let read = timeout(PATIENCE, stream.read_u8()).await.unwrap();
    assert!(read.unwrap_err().to_string().contains("CertificateRequired"));
    logs.say("peer sent no certificates").await;
}

#[tokio::test]
async fn those_who_begin_and_do_not_go_on_keep_nobody_out() {
    let house = House::new();
    let served = Served::start(house.identity("storage-writer")).await;
    let mut silent = Vec::new();
    for _ in 0..150 {
        silent.push(TcpStream::connect(served.address).await.unwrap());
    }
    let caller = Caller::start(served.address, &house.identity("executor"));
    let channel = caller.connected().await;
    assert_eq!(call(&channel, "Write", BYTES).await, Ok(BYTES));
    // The oldest gave way to later ones, within the time a handshake may take at the latest.
    let closed = timeout(PATIENCE, silent[0].read_u8()).await.unwrap();
    assert!(closed.is_err());
}

#[test]
fn endpoints_say_whether_they_are_encrypted_and_must_be_what_the_process_is() {
    let error = |endpoint: &str, identity: &Identity| {
        let config = ConnectionConfig::from(identity.clone());
        let connection = ClientConnection::<Channel>::new(endpoint, SERVER, &config);
        connection.map(drop).map_err(|error| error.to_string())
    };
    let (plain, proven) = (Identity::plain("executor"), House::new().identity("executor"));
    assert_eq!(error("http://a:1", &plain), Ok(()));
    assert_eq!(error("https://a:1", &proven), Ok(()));
    let text =
        "http://a:1 is not encrypted, but `tls` is set up here; expected an endpoint https://…";
    assert_eq!(error("http://a:1", &proven), Err(text.to_owned()));
    assert_eq!(error("a:1", &proven).unwrap_err(), text.replace("http://a:1", "a:1"));
    let text = error("https://a:1", &plain).unwrap_err();
    assert!(text.starts_with("https://a:1 is encrypted, but `tls` is not set up here"), "{text}");
    assert!(error("no endpoint", &proven).unwrap_err().contains("invalid endpoint"));
}
