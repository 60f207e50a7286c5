//! Names and descriptions of the metrics.

use metrics::{Unit, describe_counter, describe_gauge, describe_histogram};

pub const SENT: &str = "tandem_bus_sent_total";
pub const RECEIVED: &str = "tandem_bus_received_total";
pub const SENT_BYTES: &str = "tandem_bus_sent_bytes_total";
pub const RECEIVED_BYTES: &str = "tandem_bus_received_bytes_total";
pub const DROPPED: &str = "tandem_bus_dropped_total";
pub const OUTBOX: &str = "tandem_bus_outbox_messages";
pub const OUTBOX_WAIT_SECONDS: &str = "tandem_bus_outbox_wait_seconds";
pub const LAGGED: &str = "tandem_bus_lagged_total";
pub const CONNECTIONS: &str = "tandem_bus_connections_total";
pub const CONNECTED: &str = "tandem_bus_connected";

/// Describes all metrics of the bus to the recorder.
pub fn describe() {
    let count = Unit::Count;
    describe_counter!(SENT, count, "Events handed to the connection with NATS");
    describe_counter!(RECEIVED, count, "Events that came from NATS");
    let text = "Payloads of the events handed to the connection with NATS";
    describe_counter!(SENT_BYTES, Unit::Bytes, text);
    let text = "Payloads of the events that came from NATS";
    describe_counter!(RECEIVED_BYTES, Unit::Bytes, text);
    let text = "Events lost, by reason: no_connection, outbox (full), slow (the server does not take \
                them), refused, payload (too large), slow_consumer";
    describe_counter!(DROPPED, count, text);
    describe_gauge!(OUTBOX, count, "Messages that wait to be handed to the connection with NATS");
    let text = "From the publishing of a message until it is handed over";
    describe_histogram!(OUTBOX_WAIT_SECONDS, Unit::Seconds, text);
    describe_counter!(LAGGED, count, "Events that subscribers lost because they lagged");
    describe_counter!(CONNECTIONS, count, "Connections made to NATS");
    describe_gauge!(CONNECTED, count, "1 while there is a connection to NATS");
}
