//! Calls without certificate, password or token: every call that would change something.

use crate::{
    blocks::forkchoice,
    client::{Client, request},
};
use alloy_primitives::B256;
use anyhow::Context as _;
use serde::{Deserialize, Serialize};
use std::{
    error::Error as _,
    io::{BufRead as _, BufReader, Write as _},
    net::{SocketAddr, TcpStream},
    time::Duration,
};
use tandem_proto::access::RULES;
use tonic::{
    Code, Request, Status, client::Grpc, codegen::http::uri::PathAndQuery, transport::Endpoint,
};

/// Longest wait for an answer.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(5);
/// Methods that change a service's state, or make it work.
const CHANGES: [&str; 15] = [
    "AcquireEpoch",
    "KeepEpoch",
    "Commit",
    "Discard",
    "Prove",
    "Keep",
    "PutTrieDiff",
    "Canonicalize",
    "Rewind",
    "ProcessBlock",
    "Validate",
    "ValidateStream",
    "Forget",
    "ApplyBatch",
    "SetConnected",
];
/// Subjects of the bus that services act on.
const SUBJECTS: [&str; 3] = ["workers.alive.stranger", "chain.head", "peers.discovered"];

/// A port, and the service behind it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Target {
    pub kind: Kind,
    pub address: SocketAddr,
}

/// Service behind a port.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// A gRPC service, by the end of its full name.
    Grpc(String),
    /// A NATS server.
    Nats,
    /// The Engine API.
    Engine,
    /// The public port of JSON-RPC.
    Http,
}

/// A call, and whether the service accepted it.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Tried {
    /// Name of the call.
    pub what: String,
    /// Whether the service's own code answered, whatever the answer.
    pub is_through: bool,
    /// Answer or error.
    pub said: String,
}

/// Makes all calls.
///
/// # Errors
/// If the runtime cannot be started.
pub fn call_all(targets: &[Target]) -> anyhow::Result<Vec<Tried>> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut tried = Vec::new();
    for target in targets {
        match &target.kind {
            Kind::Grpc(service) => {
                tried.extend(runtime.block_on(call_service(service, target.address)));
            }
            Kind::Nats => tried.extend(SUBJECTS.map(|subject| publish(target.address, subject))),
            Kind::Engine => {
                let body = forkchoice(B256::ZERO, B256::ZERO, B256::ZERO);
                tried.push(call_rpc(target.address, "engine_forkchoiceUpdatedV3", &body));
            }
            Kind::Http => {
                let params = serde_json::json!([{"batching": "none"}]);
                let body = request("tandem_setPolicies", &params);
                tried.push(call_rpc(target.address, "tandem_setPolicies", &body));
            }
        }
    }
    Ok(tried)
}

/// Returns the number of calls that went through and a note that names them, with the first answer
/// of each kind.
pub fn summary(tried: &[Tried]) -> (usize, String) {
    let said = |is_through: bool| {
        let first = tried.iter().find(|one| one.is_through == is_through);
        first.map_or(String::new(), |one| format!("{}: `{:.80}`", one.what, one.said.trim()))
    };
    let names = tried.iter().filter(|one| one.is_through).map(|one| one.what.as_str());
    let names: Vec<_> = names.collect();
    let mut note = format!("of {}", tried.len());
    if !names.is_empty() {
        note += &format!(": {}; answered {}", names.join(", "), said(true));
    }
    if names.len() < tried.len() {
        note += &format!("; refused {}", said(false));
    }
    (names.len(), note)
}

/// Calls each method of a service that changes something, with an empty message.
async fn call_service(service: &str, address: SocketAddr) -> Vec<Tried> {
    let mut tried = Vec::new();
    let rules = RULES.iter().filter(|rule| rule.service.ends_with(service));
    for rule in rules.filter(|rule| CHANGES.contains(&rule.method)) {
        let what = format!("{service}/{}", rule.method);
        let path = format!("/{}/{}", rule.service, rule.method);
        let (is_through, said) = match call(address, &path).await {
            Ok(()) => (true, "OK".to_owned()),
            Err(Refusal::Connection(error)) => (false, error),
            Err(Refusal::Status(status)) => {
                let said = format!("{:?}: {}", status.code(), status.message());
                (is_answer_of_the_service(&status), said)
            }
        };
        tried.push(Tried { what, is_through, said });
    }
    tried
}

enum Refusal {
    Connection(String),
    Status(Status),
}

async fn call(address: SocketAddr, path: &str) -> Result<(), Refusal> {
    let connection = |error: &dyn std::error::Error| Refusal::Connection(error.to_string());
    let endpoint =
        Endpoint::from_shared(format!("http://{address}")).map_err(|e| connection(&e))?;
    let endpoint = endpoint.connect_timeout(ANSWER_TIME_MAX).timeout(ANSWER_TIME_MAX);
    let channel = endpoint.connect().await.map_err(|error| connection(&error))?;
    let mut grpc = Grpc::new(channel);
    grpc.ready().await.map_err(|error| connection(&error))?;
    let path = PathAndQuery::try_from(path).map_err(|error| connection(&error))?;
    let codec = tonic_prost::ProstCodec::<(), ()>::default();
    // On the wire, a stream of one message equals a single message.
    grpc.unary(Request::new(()), path, codec).await.map(drop).map_err(Refusal::Status)
}

/// Returns whether a status came over the wire and refuses for a reason other than the caller's
/// identity. A call that the service keeps open until the deadline counts as accepted too.
fn is_answer_of_the_service(status: &Status) -> bool {
    match status.code() {
        Code::Unauthenticated | Code::PermissionDenied => false,
        Code::Cancelled | Code::DeadlineExceeded => true,
        _ => status.source().is_none(),
    }
}

/// Publishes an event to NATS without a password.
fn publish(address: SocketAddr, subject: &str) -> Tried {
    let what = format!("NATS {subject}");
    let (is_through, said) = match try_to_publish(address, subject) {
        Ok(said) => (said == "PONG", said),
        Err(error) => (false, format!("{error:#}")),
    };
    Tried { what, is_through, said }
}

fn try_to_publish(address: SocketAddr, subject: &str) -> anyhow::Result<String> {
    let stream = TcpStream::connect_timeout(&address, ANSWER_TIME_MAX).context("connect")?;
    stream.set_read_timeout(Some(ANSWER_TIME_MAX))?;
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    stream.read_line(&mut line).context("read")?;
    let text = format!(
        "CONNECT {{\"verbose\":false,\"pedantic\":false}}\r\nPUB {subject} 2\r\n{{}}\r\nPING\r\n"
    );
    stream.get_mut().write_all(text.as_bytes()).context("send")?;
    loop {
        line.clear();
        anyhow::ensure!(stream.read_line(&mut line).context("read")? > 0, "closed");
        let said = line.trim();
        if said == "PONG" || said.starts_with("-ERR") {
            return Ok(said.to_owned());
        }
    }
}

/// Calls a method of JSON-RPC without a token.
fn call_rpc(address: SocketAddr, method: &str, body: &str) -> Tried {
    let answer = Client::public(address, ANSWER_TIME_MAX).post(body);
    let (is_through, said) = match answer {
        Ok(answer) => {
            let is_unknown = answer.value["error"]["code"] == -32601;
            (!is_unknown, answer.value.to_string())
        }
        Err(error) => (false, format!("{error:#}")),
    };
    Tried { what: method.to_owned(), is_through, said }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    #[test]
    fn every_method_that_changes_something_exists() {
        for method in CHANGES {
            assert!(RULES.iter().any(|rule| rule.method == method), "{method}");
        }
    }

    #[test]
    fn a_port_that_refuses_lets_nothing_through() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        drop(listener);
        let kinds = [Kind::Grpc("StorageWriter".to_owned()), Kind::Nats, Kind::Engine, Kind::Http];
        let targets = kinds.map(|kind| Target { kind, address });
        let tried = call_all(&targets).unwrap();
        let (through, note) = summary(&tried);
        assert_eq!(through, 0, "{note}");
        assert_eq!(tried.len(), 9 + SUBJECTS.len() + 2);
    }

    #[test]
    fn a_server_of_the_bus_that_takes_an_event_is_seen() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let server = std::thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            stream.write_all(b"INFO {}\r\n").unwrap();
            let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
            while lines.next().unwrap().unwrap() != "PING" {}
            stream.write_all(b"PONG\r\n").unwrap();
        });
        assert!(publish(address, "a").is_through);
        server.join().unwrap();
    }
}
