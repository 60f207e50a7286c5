//! Helpers shared by the tests of the bus.
#![allow(dead_code)]

use bytes::Bytes;
use std::{fs, time::Duration};
use tandem_bus::{Bus, Options, Subscription};
use tandem_bus_tests::{DEADLINE, NatsServer, eventually};
use tempfile::TempDir;
use tokio::{runtime::Handle, time::timeout};

/// Returns a bus over this server, with these options, on the current runtime. It may not be
/// connected yet.
pub fn connect_with(server: &NatsServer, options: &Options) -> Bus {
    Bus::connect(&[server.url()], options, &Handle::current()).unwrap()
}

/// Returns the login of a user whose password is in a file in `folder`.
pub fn login(folder: &TempDir, user: &str, password: &str) -> Options {
    let file = folder.path().join(user);
    fs::write(&file, password).unwrap();
    Options { user: Some(user.to_owned()), password_file: Some(file), ..Options::default() }
}

/// Returns a connected bus over this server.
pub fn connect(server: &NatsServer) -> Bus {
    let bus = connect_with(server, &Options::default());
    connected(&bus, true);
    bus
}

/// Waits until the bus has a connection, or until it knows that it has none.
pub fn connected(bus: &Bus, wanted: bool) {
    tokio::task::block_in_place(|| {
        eventually("the connection", || (bus.is_connected() == wanted).then_some(()));
    });
}

/// Returns the next payload, which must arrive within the deadline.
pub async fn next(heard: &mut Subscription) -> Bytes {
    timeout(DEADLINE, heard.next()).await.expect("a message within the deadline").unwrap()
}

/// Returns a subscription with an empty queue that receives what is published from now on. Over
/// NATS this holds only once the server knows of the subscription. Earlier messages are not
/// received.
pub async fn listening(publisher: &Bus, listener: &Bus, subject: &'static str) -> Subscription {
    let mut heard = listener.subscribe(subject);
    hears(publisher, &mut heard, subject).await;
    heard
}

/// Waits until the subscription receives messages, and removes the probes sent to find that out. No
/// other message may arrive.
pub async fn hears(publisher: &Bus, heard: &mut Subscription, subject: &'static str) {
    let (probe, last) = (Bytes::from_static(b"probe"), Bytes::from_static(b"last probe"));
    let first = async {
        loop {
            publisher.publish(subject, probe.clone());
            if let Ok(payload) = timeout(Duration::from_millis(20), heard.next()).await {
                return payload;
            }
        }
    };
    assert_eq!(
        timeout(DEADLINE, first).await.expect("a probe within the deadline"),
        Some(probe.clone())
    );
    publisher.publish(subject, last.clone());
    loop {
        match next(heard).await {
            payload if payload == last => return,
            payload => assert_eq!(payload, probe),
        }
    }
}

/// A payload with a number in it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Numbered(pub u64);

impl From<Numbered> for Bytes {
    fn from(Numbered(n): Numbered) -> Self {
        Self::copy_from_slice(&n.to_be_bytes())
    }
}

impl From<Bytes> for Numbered {
    /// Probes have no number; they become 0.
    fn from(payload: Bytes) -> Self {
        Self(payload.as_ref().try_into().map_or(0, u64::from_be_bytes))
    }
}
