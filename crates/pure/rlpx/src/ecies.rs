//! ECIES as RLPx uses it: `0x04 ‖ R(64) ‖ iv(16) ‖ AES-128-CTR(message) ‖ HMAC-SHA-256(32)`.

use crate::Error;
use aes::Aes128;
use alloy_primitives::{B256, B512};
use ctr::{
    Ctr128BE,
    cipher::{KeyIvInit, StreamCipher},
};
use hmac::{Hmac, KeyInit, Mac};
use rand::Rng;
use sha2::{Digest, Sha256};
use tandem_discv4::{NodeKey, PublicKey};

const POINT_BYTES: usize = 65;
const IV_BYTES: usize = 16;
const TAG_BYTES: usize = 32;

/// Number of bytes that encryption adds to a message.
pub(crate) const OVERHEAD: usize = POINT_BYTES + IV_BYTES + TAG_BYTES;

/// First byte of an uncompressed point (SEC 1, section 2.3.3).
const UNCOMPRESSED: u8 = 4;

/// Encrypts `message` to the owner of `to`. `authenticated` is under the tag, but not in the
/// result. Returns `None` when `to` is not a point of the curve.
pub(crate) fn encrypt(
    to: &PublicKey,
    mut message: Vec<u8>,
    authenticated: &[u8],
    rng: &mut impl Rng,
) -> Option<Vec<u8>> {
    let ephemeral = NodeKey::random(rng);
    let keys = Keys::derive(&ephemeral.agree(to)?);
    let iv: [u8; IV_BYTES] = rng.random();
    keys.apply(&iv, &mut message);
    let mut bytes = Vec::with_capacity(message.len() + OVERHEAD);
    bytes.push(UNCOMPRESSED);
    bytes.extend_from_slice(ephemeral.public().as_slice());
    bytes.extend_from_slice(&iv);
    bytes.extend_from_slice(&message);
    let tag = keys.tag(&bytes[POINT_BYTES..], authenticated).finalize().into_bytes();
    bytes.extend_from_slice(&tag);
    Some(bytes)
}

/// Decrypts a message to `key`.
pub(crate) fn decrypt(key: &NodeKey, bytes: &[u8], authenticated: &[u8]) -> Result<Vec<u8>, Error> {
    let (point, rest) = bytes.split_at_checked(POINT_BYTES).ok_or(Error::Decrypt)?;
    let (sealed, tag) = rest.split_last_chunk::<TAG_BYTES>().ok_or(Error::Decrypt)?;
    let (iv, content) = sealed.split_first_chunk::<IV_BYTES>().ok_or(Error::Decrypt)?;
    if point[0] != UNCOMPRESSED {
        return Err(Error::Decrypt);
    }
    let shared = key.agree(&B512::from_slice(&point[1..])).ok_or(Error::Decrypt)?;
    let keys = Keys::derive(&shared);
    keys.tag(sealed, authenticated).verify_slice(tag).map_err(|_| Error::Decrypt)?;
    let mut content = content.to_vec();
    keys.apply(iv, &mut content);
    Ok(content)
}

/// Keys of one message.
struct Keys {
    encryption: [u8; 16],
    authentication: [u8; 32],
}

impl Keys {
    /// Derives the keys with the concatenation KDF of NIST SP 800-56 over SHA-256. Its first block
    /// is all of the 32 bytes.
    fn derive(shared: &B256) -> Self {
        let block = Sha256::new().chain_update(1u32.to_be_bytes()).chain_update(shared).finalize();
        let (encryption, authentication) = block.split_at(16);
        let mut keys = Self { encryption: [0; 16], authentication: [0; 32] };
        keys.encryption.copy_from_slice(encryption);
        keys.authentication.copy_from_slice(&Sha256::digest(authentication));
        keys
    }

    fn apply(&self, iv: &[u8; IV_BYTES], bytes: &mut [u8]) {
        Ctr128BE::<Aes128>::new(&self.encryption.into(), iv.into()).apply_keystream(bytes);
    }

    fn tag(&self, sealed: &[u8], authenticated: &[u8]) -> Hmac<Sha256> {
        let mac = <Hmac<Sha256> as KeyInit>::new(&self.authentication_block());
        mac.chain_update(sealed).chain_update(authenticated)
    }

    /// Returns the key of the tag, padded with zeros to the block of the hash (RFC 2104).
    fn authentication_block(&self) -> hmac::digest::Key<Hmac<Sha256>> {
        let mut block = hmac::digest::Key::<Hmac<Sha256>>::default();
        block[..32].copy_from_slice(&self.authentication);
        block
    }
}
