use tonic::transport::{Endpoint, Uri};

/// Reason why an endpoint cannot be connected to.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// No endpoint is given.
    #[error("no endpoint is given")]
    Missing,
    /// The endpoint is invalid.
    #[error("invalid endpoint `{endpoint}`: {error}")]
    Malformed {
        /// Text given as the endpoint.
        endpoint: String,
        /// Fault in it.
        error: tonic::transport::Error,
    },
    /// The endpoint has no encryption, but this process has a certificate.
    #[error("{0} is not encrypted, but `tls` is set up here; expected an endpoint https://…")]
    Plaintext(String),
    /// The endpoint has encryption, but this process has no certificate.
    #[error(
        "{0} is encrypted, but `tls` is not set up here; set `tls.ca`, `tls.cert` and `tls.key`"
    )]
    NoTls(String),
}

/// Checks that a client with certificates (`proven`), or one without, could connect to this
/// endpoint. Nothing is connected.
///
/// # Errors
/// [`EndpointError`].
pub fn check_endpoint(endpoint: &str, proven: bool) -> Result<(), EndpointError> {
    parse(endpoint, proven).map(drop)
}

/// Returns the address as it was given, and as tonic connects to it.
pub fn parse(endpoint: &str, proven: bool) -> Result<(Uri, Endpoint), EndpointError> {
    let malformed = |error| EndpointError::Malformed { endpoint: endpoint.to_owned(), error };
    let given = Endpoint::from_shared(endpoint.to_owned()).map_err(malformed)?;
    let uri = given.uri().clone();
    let endpoint = match (proven, endpoint.strip_prefix("https://")) {
        // Tonic sees an endpoint without TLS, as the connector encrypts it.
        (true, Some(rest)) => {
            let plain = Endpoint::from_shared(format!("http://{rest}")).map_err(malformed)?;
            plain.origin(uri.clone())
        }
        (true, None) => return Err(EndpointError::Plaintext(endpoint.to_owned())),
        (false, Some(_)) => return Err(EndpointError::NoTls(endpoint.to_owned())),
        (false, None) => given,
    };
    Ok((uri, endpoint))
}
