//! Names and descriptions of the metrics.

use metrics::{Unit, counter, describe_counter, describe_gauge};

/// Counter of bytes on the sockets between services, by sender and receiver. The client counts
/// them, as it knows both.
pub const BYTES: &str = "tandem_rpc_bytes_total";
/// Counter of calls that a client made directly, without HTTP/2.
pub const DIRECT_CALLS: &str = "tandem_rpc_direct_calls_total";
/// Counter of calls that a certificate may not make, by its role and the service.
pub const REFUSED_CALLS: &str = "tandem_rpc_refused_calls_total";
/// Counter of connections that a server refused or gave up, by reason.
pub const REFUSED_CONNECTIONS: &str = "tandem_rpc_refused_connections_total";
/// Gauge of connections that a server has, by service.
pub const CONNECTIONS: &str = "tandem_rpc_connections";
/// Counter of failures to accept a connection, mostly for lack of descriptors.
pub const ACCEPT_ERRORS: &str = "tandem_rpc_accept_errors_total";
/// Counter of changes of the certificate files, by outcome.
pub const RELOADS: &str = "tandem_rpc_certificate_reloads_total";
/// Gauge of the time at which the certificate in use expires, in seconds of Unix.
pub const EXPIRES: &str = "tandem_rpc_certificate_expires_timestamp_seconds";

pub fn describe_client() {
    let text = "Bytes on the sockets between services, by sender and receiver";
    describe_counter!(BYTES, Unit::Bytes, text);
    let text = "Calls that a client made directly, without HTTP/2";
    describe_counter!(DIRECT_CALLS, Unit::Count, text);
}

pub fn describe_tls() {
    let text = "Calls that a certificate may not make, by its role and the service";
    describe_counter!(REFUSED_CALLS, Unit::Count, text);
    let text = "Changed files of certificates, by outcome: renewed, broken";
    describe_counter!(RELOADS, Unit::Count, text);
    // Starting at zero makes the first increment visible.
    for outcome in ["renewed", "broken"] {
        counter!(RELOADS, "outcome" => outcome).increment(0);
    }
    let text = "When the certificate in use ends, in seconds since 1970";
    describe_gauge!(EXPIRES, Unit::Seconds, text);
}

pub fn describe_server() {
    let text = "Connections that a server did not take or gave up, by reason: plaintext, late, \
                crowded, refused, full, silent, gave_way, unread";
    describe_counter!(REFUSED_CONNECTIONS, Unit::Count, text);
    describe_gauge!(CONNECTIONS, Unit::Count, "Connections that a server has, by service");
    let text = "Times that a listener got no connection from the operating system";
    describe_counter!(ACCEPT_ERRORS, Unit::Count, text);
}

/// Describes all metrics to the recorder, for a catalogue.
pub fn describe_all() {
    describe_client();
    describe_tls();
    describe_server();
}
