//! An authority of a cluster's own, and the certificates of its services: for clusters on one machine,
//! for tests, and for whoever has no other authority at hand.

use crate::roles::name_of;
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, SanType,
};
use std::time::{Duration, SystemTime};

pub use rcgen::Error as CertificateError;

const DAY: Duration = Duration::from_secs(24 * 60 * 60);
/// Clocks differ: what is made now is valid on the others too.
const BEFORE: Duration = Duration::from_secs(60 * 60);
/// How an authority is called, before what tells it from others of that name.
const NAME: &str = "Tandem cluster authority";
/// The trust domain in the names of its certificates.
const DOMAIN: &str = "tandem";

/// Signs certificates.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
}

/// A certificate or an authority in PEM.
#[derive(Clone)]
pub struct Pem {
    /// The certificate.
    pub certificate: String,
    /// Its private key.
    pub key: String,
}

fn valid(now: SystemTime, days: u32) -> Result<CertificateParams, CertificateError> {
    let mut params = CertificateParams::new(Vec::<String>::new())?;
    params.not_before = (now - BEFORE).into();
    params.not_after = (now + DAY * days).into();
    Ok(params)
}

/// What an authority with this key says of itself. Its name follows from the key, so that it is the same
/// when it is read again, and another authority has another.
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
    /// A new one that is valid for so many days.
    ///
    /// # Errors
    /// None that are known of.
    pub fn make(now: SystemTime, days: u32) -> Result<Pem, CertificateError> {
        let key = KeyPair::generate()?;
        let certificate = authority(&key, now, days)?.self_signed(&key)?.pem();
        Ok(Pem { certificate, key: key.serialize_pem() })
    }

    /// One that was made by [`Self::make`], from its private key (PEM).
    ///
    /// # Errors
    /// What is no private key.
    pub fn of_key(key: &str) -> Result<Self, CertificateError> {
        // Of these only the name stands in what it signs.
        let key = KeyPair::from_pem(key)?;
        let params = authority(&key, SystemTime::UNIX_EPOCH + BEFORE, 0)?;
        Ok(Self { issuer: Issuer::new(params, key) })
    }

    /// A certificate that names these roles, for so many days. It is good for both ends of a
    /// connection, and for any host.
    ///
    /// # Errors
    /// A role that is no ASCII.
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
