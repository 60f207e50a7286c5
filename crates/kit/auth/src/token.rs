use crate::{Error, Secret};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit, Mac};
use serde::Deserialize;
use serde::de::IgnoredAny;
use sha2::Sha256;

/// Largest distance of `iat` from the verifier's clock in either direction, in seconds.
pub const IAT_TOLERANCE_SECONDS: u64 = 60;

/// Longest token that is read, in bytes: tokens of consensus clients have fewer than 200.
const TOKEN_BYTES_MAX: usize = 4096;

/// `{"typ":"JWT","alg":"HS256"}`
const HEADER: &str = "eyJ0eXAiOiJKV1QiLCJhbGciOiJIUzI1NiJ9";

#[derive(Deserialize)]
struct Header<'a> {
    #[serde(borrow)]
    alg: std::borrow::Cow<'a, str>,
    /// Extensions that the verifier must understand (RFC 7515, section 4.1.11); none are supported.
    crit: Option<IgnoredAny>,
}

#[derive(Deserialize)]
struct Claims {
    iat: Option<f64>,
    exp: Option<f64>,
    nbf: Option<f64>,
}

/// Returns a token issued at `iat` (seconds since 1970), ready to follow `Bearer `.
pub fn sign(secret: &Secret, iat: u64) -> String {
    let claims = URL_SAFE_NO_PAD.encode(format!("{{\"iat\":{iat}}}"));
    let message = format!("{HEADER}.{claims}");
    let tag = mac(secret, &message).finalize().into_bytes();
    format!("{message}.{}", URL_SAFE_NO_PAD.encode(tag))
}

/// Checks the algorithm, the signature (in constant time) and the age of a token; `now` is in
/// seconds since 1970. Claims other than `iat`, `exp` and `nbf` are ignored. Clocks may differ by
/// the tolerance, so a token is already valid that long before its `nbf`.
///
/// # Errors
/// One variant of [`Error`] each for: shape, algorithm, signature, missing `iat`, too old, too new.
pub fn verify(secret: &Secret, token: &str, now: u64) -> Result<(), Error> {
    if token.len() > TOKEN_BYTES_MAX {
        return Err(Error::Malformed);
    }
    let (message, signature) = token.rsplit_once('.').ok_or(Error::Malformed)?;
    let (header, claims) = message.split_once('.').ok_or(Error::Malformed)?;
    let header = decode(header)?;
    let header: Header<'_> = serde_json::from_slice(&header).map_err(|_| Error::Malformed)?;
    if header.alg != "HS256" || header.crit.is_some() {
        return Err(Error::Algorithm);
    }
    mac(secret, message).verify_slice(&decode(signature)?).map_err(|_| Error::Signature)?;

    // From here on, everything that is read was written by the holder of the secret.
    let claims: Claims = serde_json::from_slice(&decode(claims)?).map_err(|_| Error::Malformed)?;
    let iat = claims.iat.ok_or(Error::MissingIssuedAt)?;
    let (now, tolerance) = (now as f64, IAT_TOLERANCE_SECONDS as f64);
    if now - iat > tolerance || claims.exp.is_some_and(|exp| exp <= now) {
        return Err(Error::Stale);
    }
    if [Some(iat), claims.nbf].into_iter().flatten().any(|time| time - now > tolerance) {
        return Err(Error::Future);
    }
    Ok(())
}

fn decode(part: &str) -> Result<Vec<u8>, Error> {
    URL_SAFE_NO_PAD.decode(part).map_err(|_| Error::Malformed)
}

fn mac(secret: &Secret, message: &str) -> Hmac<Sha256> {
    let mut mac = Hmac::<Sha256>::new(&padded(secret).into());
    mac.update(message.as_bytes());
    mac
}

/// Returns the key as HMAC uses it: padded with zeros to one block of SHA-256 (RFC 2104).
fn padded(secret: &Secret) -> [u8; 64] {
    let mut block = [0; 64];
    block[..32].copy_from_slice(secret.as_bytes());
    block
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: u64 = 1_750_000_000;
    const SECRET: Secret = Secret::new([7; 32]);

    /// Returns a correctly signed token with this header and these claims.
    fn token(header: &str, claims: &str) -> String {
        let message =
            format!("{}.{}", URL_SAFE_NO_PAD.encode(header), URL_SAFE_NO_PAD.encode(claims));
        let tag = mac(&SECRET, &message).finalize().into_bytes();
        format!("{message}.{}", URL_SAFE_NO_PAD.encode(tag))
    }

    fn hs256(claims: &str) -> String {
        token(r#"{"alg":"HS256","typ":"JWT"}"#, claims)
    }

    #[test]
    fn a_signature_from_the_rfc_is_accepted() {
        // The key of RFC 7515, appendix A.1, has 64 bytes, so the MAC itself is checked.
        let key = URL_SAFE_NO_PAD
            .decode("AyM1SysPpbyDfgZld3umj1qzKObwVMkoqQ-EstJQLr_T-1qS0gZH75aKtMN3Yj0iPS4hcgUuTwjAzZr1Z9CAow")
            .unwrap();
        let mut mac = Hmac::<Sha256>::new_from_slice(&key).unwrap();
        mac.update(b"eyJ0eXAiOiJKV1QiLA0KICJhbGciOiJIUzI1NiJ9.eyJpc3MiOiJqb2UiLA0KICJleHAiOjEzMDA4MTkzODAsDQogImh0dHA6Ly9leGFtcGxlLmNvbS9pc19yb290Ijp0cnVlfQ");
        let tag = mac.finalize().into_bytes();
        assert_eq!(URL_SAFE_NO_PAD.encode(tag), "dBjftJeZ4CVP-mB92K27uhbUJU1p1r_wW1gFWFOEjXk");
    }

    #[test]
    fn padding_the_key_changes_nothing() {
        let mut plain = Hmac::<Sha256>::new_from_slice(SECRET.as_bytes()).unwrap();
        plain.update(b"message");
        assert_eq!(plain.finalize().into_bytes(), mac(&SECRET, "message").finalize().into_bytes());
    }

    #[test]
    fn a_token_is_good_for_a_minute_either_way() {
        for (iat, good) in [
            (NOW, true),
            (NOW - 60, true),
            (NOW + 60, true),
            (NOW - 61, false),
            (NOW + 61, false),
            (0, false),
            (u64::MAX, false),
        ] {
            assert_eq!(verify(&SECRET, &sign(&SECRET, iat), NOW).is_ok(), good, "{iat}");
        }
        assert!(matches!(verify(&SECRET, &sign(&SECRET, 0), NOW), Err(Error::Stale)));
        assert!(matches!(verify(&SECRET, &sign(&SECRET, u64::MAX), NOW), Err(Error::Future)));
    }

    #[test]
    fn a_token_is_not_valid_before_its_time() {
        for (nbf, good) in [(0, true), (NOW, true), (NOW + 60, true), (NOW + 61, false)] {
            let token = hs256(&format!(r#"{{"iat":{NOW},"nbf":{nbf}}}"#));
            let verified = verify(&SECRET, &token, NOW);
            assert_eq!(verified.is_ok(), good, "{nbf}: {verified:?}");
            assert!(good || matches!(verified, Err(Error::Future)), "{verified:?}");
        }
    }

    #[test]
    fn other_claims_are_ignored_and_fractions_of_a_second_allowed() {
        for claims in [
            format!(r#"{{"iat":{NOW},"id":"cl-1","clv":"x/1","nested":{{"a":[1]}}}}"#),
            format!(r#"{{"iat":{NOW}.5}}"#),
            format!(r#"{{"exp":{},"iat":{NOW}}}"#, NOW + 10),
        ] {
            assert!(verify(&SECRET, &hs256(&claims), NOW).is_ok(), "{claims}");
        }
    }

    #[test]
    fn wrong_claims_are_refused() {
        let expired = format!(r#"{{"exp":{},"iat":{NOW}}}"#, NOW - 1);
        assert!(matches!(verify(&SECRET, &hs256(&expired), NOW), Err(Error::Stale)));
        assert!(matches!(verify(&SECRET, &hs256("{}"), NOW), Err(Error::MissingIssuedAt)));
        assert!(matches!(
            verify(&SECRET, &hs256(r#"{"iat":null}"#), NOW),
            Err(Error::MissingIssuedAt)
        ));
        for claims in ["", "1", "null", "[]", "{", r#"{"iat":"1750000000"}"#, r#"{"iat":1e999}"#] {
            let refused = verify(&SECRET, &hs256(claims), NOW);
            assert!(
                matches!(refused, Err(Error::Malformed | Error::MissingIssuedAt)),
                "{claims}: {refused:?}"
            );
        }
    }

    #[test]
    fn other_algorithms_are_refused_even_with_a_good_signature() {
        let claims = format!(r#"{{"iat":{NOW}}}"#);
        for alg in ["none", "None", "HS384", "HS512", "RS256", "ES256", "hs256", ""] {
            let token = token(&format!(r#"{{"alg":"{alg}"}}"#), &claims);
            assert!(matches!(verify(&SECRET, &token, NOW), Err(Error::Algorithm)), "{alg}");
        }
        let unsigned = token(r#"{"alg":"none"}"#, &claims);
        let unsigned = format!("{}.", unsigned.rsplit_once('.').unwrap().0);
        assert!(matches!(verify(&SECRET, &unsigned, NOW), Err(Error::Algorithm)));
        let critical = token(r#"{"alg":"HS256","crit":["b64"]}"#, &claims);
        assert!(matches!(verify(&SECRET, &critical, NOW), Err(Error::Algorithm)));
        let twice = token(r#"{"alg":"none","alg":"HS256"}"#, &claims);
        assert!(matches!(verify(&SECRET, &twice, NOW), Err(Error::Malformed)));
    }

    #[test]
    fn another_secret_or_an_empty_or_short_signature_is_refused() {
        let good = sign(&SECRET, NOW);
        assert!(matches!(verify(&Secret::new([8; 32]), &good, NOW), Err(Error::Signature)));
        let (message, signature) = good.rsplit_once('.').unwrap();
        for cut in [0, 2, 10, 42] {
            let short = format!("{message}.{}", &signature[..cut]);
            assert!(verify(&SECRET, &short, NOW).is_err(), "{short}");
        }
    }

    #[test]
    fn no_single_changed_byte_survives() {
        let good = sign(&SECRET, NOW);
        for position in 0..good.len() {
            for byte in [b'A', b'B', b'.', b'=', b' ', b'"', b'_', 0] {
                let mut forged = good.clone().into_bytes();
                if forged[position] == byte {
                    continue;
                }
                forged[position] = byte;
                let forged = String::from_utf8(forged).unwrap();
                assert!(verify(&SECRET, &forged, NOW).is_err(), "{forged}");
            }
        }
    }

    #[test]
    fn noise_is_refused_without_a_panic() {
        let alphabet: Vec<char> = "aA0_-.={}\"\\ é\u{0}eyJ".chars().collect();
        for length in 0..400usize {
            let noise: String =
                (0..length).map(|_| alphabet[rand::random_range(0..alphabet.len())]).collect();
            assert!(verify(&SECRET, &noise, NOW).is_err(), "{noise}");
            // Correctly signed noise reaches the claims.
            assert!(verify(&SECRET, &hs256(&noise), NOW).is_err(), "{noise}");
            assert!(verify(&SECRET, &token(&noise, "{}"), NOW).is_err(), "{noise}");
        }
        for text in ["", ".", "..", "...", "a.b.c.d", &"a".repeat(100_000), &".".repeat(4000)] {
            assert!(matches!(verify(&SECRET, text, NOW), Err(Error::Malformed)));
        }
    }
}
