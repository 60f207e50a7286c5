//! A cluster's own authority, and the certificates of its services. It serves clusters on one
//! machine, tests, and operators without another authority.

use crate::roles::name_of;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, SanType,
};
use std::time::{Duration, SystemTime};

pub use rcgen::Error as CertificateError;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// Allowance for clock differences: a new certificate is already valid on other machines too.
const BEFORE: Duration = Duration::from_secs(60 * 60);
/// Name of an authority, before the part that distinguishes it from others.
const NAME: &str = "Tandem cluster authority";
/// Trust domain in the names of its certificates.
const DOMAIN: &str = "tandem";

/// Authority that signs certificates.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
}

/// Certificate or authority in PEM.
#[derive(Clone)]
pub struct Pem {
    /// Text of the certificate.
    pub certificate: String,
    /// Private key of the certificate.
    pub key: String,
}

fn valid(now: SystemTime, days: u32) -> Result<CertificateParams, CertificateError> {
    let mut params = CertificateParams::new(Vec::<String>::new())?;
    params.not_before = (now - BEFORE).into();
    params.not_after = (now + DAY * days).into();
    Ok(params)
}

/// Returns the parameters of the authority with this key. Its name follows from the key: it stays
/// the same when the authority is read again, and differs from other authorities' names.
fn authority(
    key: &KeyPair,
    now: SystemTime,
    days: u32,
) -> Result<CertificateParams, CertificateError> {
    let mut params = valid(now, days)?;
    params.distinguished_name = DistinguishedName::new();
    let end = key.public_key_raw().iter().rev().take(4).map(|byte| format!("{byte:02x}"));
    let name = format!("{NAME} {}", end.collect::<String>());
    params.distinguished_name.push(DnType::CommonName, name);
    params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
    params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
    Ok(params)
}

impl Authority {
    /// Makes a new authority that is valid for `days` days.
    ///
    /// # Errors
    /// None is known.
    pub fn make(now: SystemTime, days: u32) -> Result<Pem, CertificateError> {
        let key = KeyPair::generate()?;
        let certificate = authority(&key, now, days)?.self_signed(&key)?.pem();
        Ok(Pem { certificate, key: key.serialize_pem() })
    }

    /// Loads an authority that [`Self::make`] made, from its private key (PEM).
    ///
    /// # Errors
    /// An invalid private key.
    pub fn of_key(key: &str) -> Result<Self, CertificateError> {
        // Only the name of these parameters appears in the signed certificates.
        let key = KeyPair::from_pem(key)?;
        let params = authority(&key, SystemTime::UNIX_EPOCH + BEFORE, 0)?;
        Ok(Self { issuer: Issuer::new(params, key) })
    }

    /// Issues a certificate that names these roles and is valid for `days` days. It works for both
    /// ends of a connection, and on any host.
    ///
    /// # Errors
    /// A role that is not ASCII.
    pub fn issue(
        &self,
        roles: &[&str],
        now: SystemTime,
        days: u32,
    ) -> Result<Pem, CertificateError> {
        let mut params = valid(now, days)?;
        params.distinguished_name = DistinguishedName::new();
        params.distinguished_name.push(DnType::CommonName, roles.join(" "));
        for role in roles {
            params.subject_alt_names.push(SanType::URI(name_of(DOMAIN, role).try_into()?));
        }
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ServerAuth, ExtendedKeyUsagePurpose::ClientAuth];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?.pem();
        Ok(Pem { certificate, key: key.serialize_pem() })
    }
}
