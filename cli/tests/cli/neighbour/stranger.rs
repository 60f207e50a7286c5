//! Callers of gRPC ports, with and without a certificate.

use crate::binary;
use bytes::Bytes;
use http_body_util::Full;
use hyper_util::rt::TokioIo;
use rustls::{
    ClientConfig, DigitallySignedStruct, SignatureScheme,
    client::danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
    crypto::ring::default_provider,
    pki_types::{CertificateDer, PrivateKeyDer, ServerName, UnixTime, pem::PemObject},
};
use std::{
    collections::BTreeMap, io, net::SocketAddr, path::Path, process::Command, sync::Arc,
    time::Duration,
};
use tandem_proto::access::RULES;
use tokio::{net::TcpStream, time::timeout};
use tokio_rustls::TlsConnector;
use tonic::{
    Code, Status,
    body::Body,
    codegen::{Service, http},
    transport::{Channel, Endpoint},
};
use tower::{ServiceExt, service_fn};

/// Longest wait for an answer.
const PATIENCE: Duration = Duration::from_secs(20);

/// Calls every method of the services at these addresses, as each of these callers. All calls must
/// be refused.
pub async fn all_are_refused(callers: &[Caller], services: &BTreeMap<&str, SocketAddr>) {
    let mut tried = 0;
    for rule in RULES {
        let Some(address) = services.get(rule.service) else { continue };
        for caller in callers {
            let answer = caller.call(*address, rule.service, rule.method).await;
            // A status of its own would mean that the service has received the call.
            assert!(answer.is_err(), "{}: {}: {answer:?}", caller.name, rule.method);
            tried += 1;
        }
    }
    assert!(tried >= callers.len() * services.len(), "{tried} calls");
}

/// Returns callers without a certificate of the cluster's authority.
pub fn strangers(folder: &Path) -> [Caller; 3] {
    let other = folder.join("other-authority");
    let mut make = Command::new(binary());
    let made = make.arg("certificates").arg(&other).output().unwrap();
    assert!(made.status.success(), "{made:?}");
    let executor = Caller::with_certificate("another authority", &other.join("executor"));
    [Caller::plain(), Caller::without_certificate(), executor]
}

/// A caller of gRPC ports.
#[derive(Clone)]
pub struct Caller {
    pub name: &'static str,
    /// `None` if the caller speaks no TLS.
    tls: Option<TlsConnector>,
}

impl Caller {
    /// Returns a caller that speaks HTTP/2 without TLS.
    pub fn plain() -> Self {
        Self { name: "plaintext", tls: None }
    }

    /// Returns a caller that speaks TLS and shows no certificate.
    pub fn without_certificate() -> Self {
        let config = client().with_no_client_auth();
        Self { name: "TLS without certificate", tls: Some(connector(config)) }
    }

    /// Returns a caller with the certificate in this directory of `tandem certificates`.
    pub fn with_certificate(name: &'static str, folder: &Path) -> Self {
        let chain = CertificateDer::pem_file_iter(folder.join("tls.crt")).unwrap();
        let key = PrivateKeyDer::from_pem_file(folder.join("tls.key")).unwrap();
        let config = client().with_client_auth_cert(chain.map(Result::unwrap).collect(), key);
        Self { name, tls: Some(connector(config.unwrap())) }
    }

    /// Calls a method of a service at this address with an empty message. Returns its gRPC status,
    /// or the reason why the call did not reach the service.
    pub async fn call(
        &self,
        address: impl Into<SocketAddr>,
        service: &str,
        method: &str,
    ) -> Result<Code, String> {
        let answer = timeout(PATIENCE, self.try_call(address.into(), service, method)).await;
        answer.unwrap_or_else(|_| panic!("{} waits for {service}/{method}", self.name))
    }

    async fn try_call(
        &self,
        address: SocketAddr,
        service: &str,
        method: &str,
    ) -> Result<Code, String> {
        let mut channel = self.connect(address).await?;
        let request = http::Request::post(format!("http://127.0.0.1/{service}/{method}"))
            .header("content-type", "application/grpc")
            .header("te", "trailers")
            .body(Body::new(Full::new(Bytes::from_static(&[0; 5]))))
            .unwrap();
        channel.ready().await.map_err(|error| format!("{error:?}"))?;
        let answer = channel.call(request).await.map_err(|error| format!("{error:?}"))?;
        if let Some(status) = Status::from_header_map(answer.headers()) {
            return Ok(status.code());
        }
        let body = http_body_util::BodyExt::collect(answer.into_body()).await;
        let body = body.map_err(|status| format!("{status:?}"))?;
        let trailers = body.trailers().and_then(Status::from_header_map);
        trailers.map(|status| status.code()).ok_or_else(|| "no status".to_owned())
    }

    async fn connect(&self, address: SocketAddr) -> Result<Channel, String> {
        let tls = self.tls.clone();
        let connector = service_fn(move |_: http::Uri| {
            let tls = tls.clone();
            async move {
                let stream = TcpStream::connect(address).await?;
                let Some(tls) = tls else { return Ok::<_, io::Error>(either(stream)) };
                let name = ServerName::try_from("tandem").unwrap();
                Ok(either(tls.connect(name, stream).await?))
            }
        });
        let endpoint = Endpoint::from_static("http://127.0.0.1");
        endpoint.connect_with_connector(connector).await.map_err(|error| format!("{error:?}"))
    }
}

trait Stream: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin {}

impl<T: tokio::io::AsyncRead + tokio::io::AsyncWrite + Send + Unpin> Stream for T {}

fn either(stream: impl Stream + 'static) -> TokioIo<Box<dyn Stream>> {
    TokioIo::new(Box::new(stream))
}

fn client() -> rustls::ConfigBuilder<ClientConfig, rustls::client::WantsClientCert> {
    ClientConfig::builder_with_provider(Arc::new(default_provider()))
        .with_safe_default_protocol_versions()
        .unwrap()
        .dangerous()
        .with_custom_certificate_verifier(Arc::new(Anyone))
}

fn connector(mut config: ClientConfig) -> TlsConnector {
    config.alpn_protocols = vec![b"h2".to_vec()];
    TlsConnector::from(Arc::new(config))
}

/// A verifier that accepts any server.
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
