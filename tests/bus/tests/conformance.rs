//! Guarantees of every bus, whatever its implementation. All tests run for the in-process bus
//! and for NATS, there with both ends in one process and in two.
#![allow(clippy::unwrap_used)]

mod common;

use bytes::Bytes;
use common::{Numbered, connect, listening, next};
use std::{sync::Arc, thread};
use tandem_bus::{Bus, CAPACITY, OUTBOX_MESSAGES, PAYLOAD_BYTES_MAX};
use tandem_bus_tests::{NatsServer, eventually};
use tandem_telemetry::{Recorder, Ring, SpanContext, TraceLevel};
use tracing_subscriber::layer::SubscriberExt;

#[tokio::test(flavor = "multi_thread")]
async fn a_bus_of_one_process() {
    let bus = Bus::default();
    conformance(&bus, &bus.clone()).await;
    ends_with_its_bus(Bus::default()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nats_between_two_processes() {
    let Some(server) = NatsServer::start() else { return };
    let (publisher, listener) = (connect(&server), connect(&server));
    conformance(&publisher, &listener).await;
    assert_eq!(listener.stats().sent, 0, "the listener only listens");
    assert!(listener.stats().received > 0, "and hears by way of the server");
    ends_with_its_bus(connect(&server)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nats_with_both_ends_in_one_process() {
    let Some(server) = NatsServer::start() else { return };
    let bus = connect(&server);
    conformance(&bus, &bus.clone()).await;
    assert_eq!(bus.stats().received, 0, "what is published here does not come back");
}

/// Runs all tests. `publisher` and `listener` belong to one bus and serve no other purpose
/// meanwhile.
async fn conformance(publisher: &Bus, listener: &Bus) {
    order_of_each_publisher(publisher, listener).await;
    fan_out(publisher, listener).await;
    nothing_for_latecomers(publisher, listener).await;
    subjects_are_apart(publisher, listener).await;
    a_dropped_subscription_is_gone(publisher, listener).await;
    payloads_up_to_the_limit(publisher, listener).await;
    the_span_travels_along(publisher, listener).await;
    one_that_lags_loses_the_oldest(publisher, listener).await;
    nobody_waits(publisher, listener).await;
}

async fn order_of_each_publisher(publisher: &Bus, listener: &Bus) {
    let mut heard = listening(publisher, listener, "test.order").await;
    const EACH: u8 = 60;
    thread::scope(|scope| {
        for name in 0..4 {
            scope.spawn(move || {
                for n in 0..EACH {
                    publisher.publish("test.order", vec![name, n].into());
                }
            });
        }
    });
    let mut expected = [0; 4];
    for _ in 0..4 * EACH {
        let payload = next(&mut heard).await;
        let expected = &mut expected[usize::from(payload[0])];
        assert_eq!(payload[1], *expected);
        *expected += 1;
    }
    assert_eq!(expected, [EACH; 4]);
}

async fn fan_out(publisher: &Bus, listener: &Bus) {
    let mut first = listening(publisher, listener, "test.fan").await;
    let mut others = [listener.subscribe("test.fan"), listener.subscribe("test.fan")];
    publisher.publish("test.fan", Bytes::from_static(b"to all"));
    assert_eq!(next(&mut first).await, "to all");
    for other in &mut others {
        assert_eq!(next(other).await, "to all");
        assert_eq!(other.try_next(), None, "once");
    }
}

async fn nothing_for_latecomers(publisher: &Bus, listener: &Bus) {
    publisher.publish("test.late", Bytes::from_static(b"unheard"));
    // Once this message is received, the one before it has been delivered wherever it could be.
    drop(listening(publisher, listener, "test.late.past").await);
    let mut early = listening(publisher, listener, "test.late").await;
    publisher.publish("test.late", Bytes::from_static(b"before"));
    assert_eq!(next(&mut early).await, "before");
    let mut late = listener.subscribe("test.late");
    assert_eq!(late.try_next(), None);
    publisher.publish("test.late", Bytes::from_static(b"after"));
    assert_eq!(next(&mut early).await, "after");
    assert_eq!(next(&mut late).await, "after");
}

async fn subjects_are_apart(publisher: &Bus, listener: &Bus) {
    let mut one = listening(publisher, listener, "test.apart.one").await;
    let mut other = listening(publisher, listener, "test.apart.other").await;
    for n in 0..10u8 {
        publisher.publish("test.apart.one", vec![n].into());
        publisher.publish("test.apart", vec![n, n].into());
        publisher.publish("test.apart.other", vec![n, n, n].into());
    }
    for n in 0..10u8 {
        assert_eq!(next(&mut one).await, [n].as_slice());
        assert_eq!(next(&mut other).await, [n; 3].as_slice());
    }
}

async fn a_dropped_subscription_is_gone(publisher: &Bus, listener: &Bus) {
    let mut stays = listening(publisher, listener, "test.gone").await;
    drop(listener.subscribe("test.gone"));
    publisher.publish("test.gone", Bytes::from_static(b"1"));
    assert_eq!(next(&mut stays).await, "1");
    let mut again = listener.subscribe("test.gone");
    assert_eq!(again.try_next(), None);
    drop(stays);
    publisher.publish("test.gone", Bytes::from_static(b"2"));
    assert_eq!(next(&mut again).await, "2");
}

async fn payloads_up_to_the_limit(publisher: &Bus, listener: &Bus) {
    let mut heard = listening(publisher, listener, "test.payload").await;
    let dropped = publisher.stats().dropped;
    for bytes in [0, PAYLOAD_BYTES_MAX, PAYLOAD_BYTES_MAX + 1, 1] {
        publisher.publish("test.payload", vec![7; bytes].into());
    }
    for bytes in [0, PAYLOAD_BYTES_MAX, 1] {
        assert_eq!(next(&mut heard).await.len(), bytes);
    }
    assert_eq!(publisher.stats().dropped, dropped + 1);
}

async fn the_span_travels_along(publisher: &Bus, listener: &Bus) {
    let mut heard = listening(publisher, listener, "test.span").await;
    let recorder = Recorder::new(TraceLevel::Stage, Arc::new(Ring::new(4, 1 << 20)));
    let subscriber = tracing_subscriber::registry().with(recorder.layer());
    let context = tracing::subscriber::with_default(subscriber, || {
        let span = tracing::info_span!(target: "tandem_executor", "publishes");
        let _entered = span.enter();
        publisher.publish("test.span", Bytes::from_static(b"inside"));
        SpanContext::of(&span)
    });
    publisher.publish("test.span", Bytes::from_static(b"outside"));
    let inside = heard.next_message().await.unwrap();
    assert_eq!(inside.payload, "inside");
    assert!(context.is_some());
    assert_eq!(inside.context, context);
    assert_eq!(heard.next_message().await.unwrap().context, None);
}

async fn one_that_lags_loses_the_oldest(publisher: &Bus, listener: &Bus) {
    const LOST: u64 = 50;
    let mut witness = listening(publisher, listener, "test.lag").await;
    let mut lagging = listener.subscribe("test.lag");
    let before = listener.stats().lagged;
    for n in 0..CAPACITY as u64 + LOST {
        publisher.publish("test.lag", Numbered(n).into());
        // One at a time, so that messages are lost only in the ring of the subscription that does
        // not read.
        assert_eq!(Numbered::from(next(&mut witness).await), Numbered(n));
    }
    for n in LOST..CAPACITY as u64 + LOST {
        assert_eq!(lagging.try_next().map(Numbered::from), Some(Numbered(n)));
    }
    assert_eq!(lagging.try_next(), None);
    assert_eq!(listener.stats().lagged, before + LOST);
}

/// With a subscriber that does not read, and far more messages than any queue holds.
async fn nobody_waits(publisher: &Bus, listener: &Bus) {
    let mut sleeping = listening(publisher, listener, "test.flood").await;
    let flood = 20 * OUTBOX_MESSAGES as u64;
    thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for n in 0..flood {
                    publisher.publish("test.flood", Numbered(n).into());
                    drop(listener.subscribe("test.flood"));
                }
            });
        }
    });
    // Whatever was lost, later messages are received.
    tokio::task::block_in_place(|| {
        eventually("the flood is over", || {
            publisher.publish("test.flood", Numbered(u64::MAX).into());
            while let Some(payload) = sleeping.try_next() {
                if Numbered::from(payload) == Numbered(u64::MAX) {
                    return Some(());
                }
            }
            None
        });
    });
}

async fn ends_with_its_bus(bus: Bus) {
    let (mut heard, clone) = (bus.subscribe("test.end"), bus.clone());
    drop(bus);
    clone.publish("test.end", Bytes::from_static(b"last"));
    assert_eq!(next(&mut heard).await, "last");
    drop(clone);
    let end = tokio::time::timeout(tandem_bus_tests::DEADLINE, heard.next()).await;
    assert_eq!(end, Ok(None));
}
