//! Roles that a certificate names. A role is the path of a URI name, `spiffe://DOMAIN/tandem/ROLE`.
//! For authorities that sign no URIs, it is the first label of a DNS name
//! `ROLE.role.tandem.internal`.
//!
//! A server is identified by its role and not by its host: services move between hosts, and the
//! authority signs for services. A compromised service cannot pose as another one by its address.

use rustls::{
    DigitallySignedStruct, Error, RootCertStore, SignatureScheme,
    client::{
        danger::{HandshakeSignatureValid, ServerCertVerified, ServerCertVerifier},
        verify_server_cert_signed_by_trust_anchor,
    },
    crypto::{CryptoProvider, verify_tls12_signature, verify_tls13_signature},
    pki_types::{CertificateDer, ServerName, UnixTime},
    server::ParsedCertificate,
};
use std::sync::Arc;
use webpki::EndEntityCert;

/// Ending of a DNS name that stands for a role. Names under `internal` are never given to hosts.
const DNS_ENDING: &str = ".role.tandem.internal";

/// Returns the roles that a certificate names; none if it is malformed.
pub fn roles_of(certificate: &CertificateDer<'_>) -> Vec<String> {
    let Ok(parsed) = EndEntityCert::try_from(certificate) else { return Vec::new() };
    let uris = parsed.valid_uri_names().filter_map(role_of);
    uris.chain(parsed.valid_dns_names().filter_map(role_of_host)).map(str::to_owned).collect()
}

/// Returns the name by which a certificate states that its owner has this role.
pub fn name_of(domain: &str, role: &str) -> String {
    format!("spiffe://{domain}/tandem/{role}")
}

fn role_of(uri: &str) -> Option<&str> {
    let (domain, path) = uri.strip_prefix("spiffe://")?.split_once('/')?;
    let role = path.strip_prefix("tandem/")?;
    (!domain.is_empty() && is_plain(role)).then_some(role)
}

fn role_of_host(name: &str) -> Option<&str> {
    name.strip_suffix(DNS_ENDING).filter(|role| is_plain(role))
}

fn is_plain(role: &str) -> bool {
    !role.is_empty() && role.chars().all(|c: char| c.is_ascii_lowercase() || c == '-')
}

/// Formats roles for a log line or an error.
pub fn format_roles(roles: &[String]) -> String {
    if roles.is_empty() { "no role".to_owned() } else { roles.join(" and ") }
}

/// Checks that a chain of certificates leads to the authority now, and may belong to a server.
///
/// # Errors
/// Reason why it does not.
pub fn verify_chain(
    chain: &[CertificateDer<'_>],
    roots: &RootCertStore,
    provider: &CryptoProvider,
    now: UnixTime,
) -> Result<(), Error> {
    let Some((leaf, intermediates)) = chain.split_first() else {
        return Err(Error::NoCertificatesPresented);
    };
    let leaf = ParsedCertificate::try_from(leaf)?;
    let algorithms = provider.signature_verification_algorithms.all;
    verify_server_cert_signed_by_trust_anchor(&leaf, roots, intermediates, now, algorithms)
}

/// Verifier that accepts servers of one role.
#[derive(Debug)]
pub struct ServerOfRole {
    pub role: &'static str,
    pub roots: Arc<RootCertStore>,
    pub provider: Arc<CryptoProvider>,
}

impl ServerCertVerifier for ServerOfRole {
    fn verify_server_cert(
        &self,
        end_entity: &CertificateDer<'_>,
        intermediates: &[CertificateDer<'_>],
        _server_name: &ServerName<'_>,
        _ocsp_response: &[u8],
        now: UnixTime,
    ) -> Result<ServerCertVerified, Error> {
        let leaf = ParsedCertificate::try_from(end_entity)?;
        let algorithms = self.provider.signature_verification_algorithms.all;
        let (roots, more) = (&self.roots, intermediates);
        verify_server_cert_signed_by_trust_anchor(&leaf, roots, more, now, algorithms)?;
        let roles = roles_of(end_entity);
        if !roles.iter().any(|role| role == self.role) {
            let (found, want) = (format_roles(&roles), self.role);
            return Err(Error::General(format!(
                "the server has the certificate of {found}, not of {want}"
            )));
        }
        Ok(ServerCertVerified::assertion())
    }

    fn verify_tls12_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls12_signature(message, certificate, signed, algorithms)
    }

    fn verify_tls13_signature(
        &self,
        message: &[u8],
        certificate: &CertificateDer<'_>,
        signed: &DigitallySignedStruct,
    ) -> Result<HandshakeSignatureValid, Error> {
        let algorithms = &self.provider.signature_verification_algorithms;
        verify_tls13_signature(message, certificate, signed, algorithms)
    }

    fn supported_verify_schemes(&self) -> Vec<SignatureScheme> {
        self.provider.signature_verification_algorithms.supported_schemes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_role_is_the_path_of_the_name() {
        assert_eq!(role_of("spiffe://cluster.local/tandem/executor"), Some("executor"));
        assert_eq!(role_of(&name_of("a", "storage-writer")), Some("storage-writer"));
        for other in [
            "https://cluster.local/tandem/executor",
            "spiffe:///tandem/executor",
            "spiffe://cluster.local/executor",
            "spiffe://cluster.local/tandem/",
            "spiffe://cluster.local/tandem/executor/",
            "spiffe://cluster.local/x/tandem/executor",
            "spiffe://cluster.local/tandem/Executor",
            "spiffe://cluster.local/tandem/executor?x",
            "executor",
        ] {
            assert_eq!(role_of(other), None, "{other}");
        }
    }

    #[test]
    fn a_role_is_the_first_label_of_a_name_for_roles() {
        let role = role_of_host("storage-writer.role.tandem.internal");
        assert_eq!(role, Some("storage-writer"));
        for other in [
            "role.tandem.internal",
            ".role.tandem.internal",
            "*.role.tandem.internal",
            "a.executor.role.tandem.internal",
            "executor.role.tandem.internal.example",
            "executor.tandem.internal",
            "executor",
        ] {
            assert_eq!(role_of_host(other), None, "{other}");
        }
    }

    #[test]
    fn what_is_no_certificate_has_no_role() {
        assert!(roles_of(&CertificateDer::from(b"no certificate".to_vec())).is_empty());
        assert_eq!(format_roles(&[]), "no role");
        assert_eq!(format_roles(&["a".to_owned(), "b".to_owned()]), "a and b");
    }
}
