//! Names of the metrics, and their descriptions.

use metrics::{Unit, describe_counter};

/// Counter: bytes on the sockets between services, by who sent them and to whom. Counted by the client,
/// who knows both.
pub const BYTES: &str = "tandem_rpc_bytes_total";
/// Counter: calls that a certificate may not make, by its role and the service.
pub const REFUSED_CALLS: &str = "tandem_rpc_refused_calls_total";
/// Counter: connections that a server did not take, by reason.
pub const REFUSED_CONNECTIONS: &str = "tandem_rpc_refused_connections_total";
/// Counter: changes of the files of certificates, by outcome.
pub const RELOADS: &str = "tandem_rpc_certificate_reloads_total";

pub fn describe_client() {
    let text = "Bytes on the sockets between services, by sender and receiver";
    describe_counter!(BYTES, Unit::Bytes, text);
}

pub fn describe_tls() {
    let text = "Calls that a certificate may not make, by its role and the service";
    describe_counter!(REFUSED_CALLS, Unit::Count, text);
    let text =
        "Connections that a server did not take, by reason: plaintext, late, crowded, refused";
    describe_counter!(REFUSED_CONNECTIONS, Unit::Count, text);
    let text = "Changed files of certificates, by outcome: renewed, broken";
    describe_counter!(RELOADS, Unit::Count, text);
}

/// Describes all of them to the recorder, as a catalogue wants it.
pub fn describe_all() {
    describe_client();
    describe_tls();
}
