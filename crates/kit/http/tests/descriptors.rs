//! A port without free file descriptors. The test runs alone in its process, because it lowers the
//! process' limit.
#![allow(clippy::unwrap_used)]

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;
use tandem_http::{ConnectionLimits, Limits, Methods, public_router, serve_within};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;
use tracing_subscriber::layer::{Context, Layer, SubscriberExt};

/// Counter of the listener's events: warnings, and all.
#[derive(Clone, Default)]
struct Said {
    warnings: Arc<AtomicU64>,
    all: Arc<AtomicU64>,
}

impl<S: tracing::Subscriber> Layer<S> for Said {
    fn on_event(&self, event: &tracing::Event<'_>, _: Context<'_, S>) {
        if event.metadata().target().starts_with("tandem_http::refusals") {
            self.all.fetch_add(1, Relaxed);
            if *event.metadata().level() == tracing::Level::WARN {
                self.warnings.fetch_add(1, Relaxed);
            }
        }
    }
}

async fn call(stream: &mut TcpStream) -> io::Result<u8> {
    let body = r#"{"jsonrpc":"2.0","id":1,"method":"nothing"}"#;
    let head = "POST / HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n";
    let request = format!("{head}content-length: {}\r\n\r\n{body}", body.len());
    stream.write_all(request.as_bytes()).await?;
    let mut answer = [0; 1024];
    let length = stream.read(&mut answer).await?;
    assert!(answer[..length].starts_with(b"HTTP/1.1 200"), "an answer");
    Ok(answer[0])
}

#[tokio::test]
async fn without_descriptors_a_port_pauses_and_says_so_once() {
    let said = Said::default();
    let subscriber = tracing_subscriber::registry().with(said.clone());
    tracing::subscriber::set_global_default(subscriber).unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let shutdown = CancellationToken::new();
    let router = public_router(Methods::new(), Limits::public());
    let limits = ConnectionLimits::default();
    let served = tokio::spawn(serve_within(listener, router, limits, shutdown.clone()));
    let mut known = TcpStream::connect(address).await.unwrap();
    call(&mut known).await.unwrap();

    let before = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: Some(64), maximum: before.maximum }).unwrap();
    let mut fillers = Vec::new();
    let exhausted = loop {
        match File::open("/dev/null") {
            Ok(file) => fillers.push(file),
            Err(error) => break error,
        }
    };
    assert_eq!(exhausted.raw_os_error(), Some(24), "{exhausted}");
    // One for this end of a connection, none for the other.
    drop(fillers.pop());
    let mut waiting = TcpStream::connect(address).await.unwrap();
    // Without pauses there would be hundreds of thousands of failures.
    sleep(Duration::from_secs(2)).await;
    let failures = said.all.load(Relaxed);
    assert!((2..=21).contains(&failures), "{failures} failures in two seconds");
    assert_eq!(said.warnings.load(Relaxed), 1);
    timeout(Duration::from_secs(20), call(&mut known)).await.unwrap().unwrap();

    drop(fillers);
    timeout(Duration::from_secs(20), call(&mut waiting)).await.unwrap().unwrap();
    setrlimit(Resource::Nofile, before).unwrap();
    shutdown.cancel();
    served.await.unwrap().unwrap();
}
