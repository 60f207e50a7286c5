//! Identity of a node, a secp256k1 key, and the distance between nodes.

use crate::PacketError;
use alloy_primitives::{B256, B512, keccak256};
use rand::Rng;
use secp256k1::{
    Message, SECP256K1, SecretKey,
    ecdh::shared_secret_point,
    ecdsa::{RecoverableSignature, RecoveryId},
};
use std::fmt;

/// Uncompressed public key of a node without the leading 0x04.
pub type PublicKey = B512;

/// Returns a node's address in the Kademlia space: keccak256 of its public key.
pub fn node_id(key: &PublicKey) -> B256 {
    keccak256(key)
}

/// Returns the distance of two nodes as a big-endian number: the exclusive or of their addresses.
pub fn distance(a: &B256, b: &B256) -> B256 {
    *a ^ *b
}

/// Returns the k-bucket of `other` in the table of `own`: `i` when the distance is in
/// `2^i..2^(i+1)`, `None` for the node itself.
pub fn bucket(own: &B256, other: &B256) -> Option<u8> {
    let distance = distance(own, other);
    let byte = distance.iter().position(|&byte| byte != 0)?;
    Some((255 - byte * 8) as u8 - distance[byte].leading_zeros() as u8)
}

/// Secret key of a node with its public key. The debug form shows only the public key.
#[derive(Clone)]
pub struct NodeKey {
    secret: SecretKey,
    public: PublicKey,
}

impl NodeKey {
    /// Returns the key of these 32 bytes, `None` when they are zero or not below the curve's order.
    pub fn from_bytes(bytes: [u8; 32]) -> Option<Self> {
        SecretKey::from_byte_array(bytes).ok().map(Self::new)
    }

    /// Generates a new key. `rng` must be cryptographically secure if the key is for real use.
    pub fn random(rng: &mut impl Rng) -> Self {
        Self::new(SecretKey::new(rng))
    }

    fn new(secret: SecretKey) -> Self {
        let public = uncompressed(&secret.public_key(SECP256K1));
        Self { secret, public }
    }

    /// Returns the secret, for storing it.
    pub fn secret_bytes(&self) -> [u8; 32] {
        self.secret.secret_bytes()
    }

    /// Returns the public key.
    pub fn public(&self) -> &PublicKey {
        &self.public
    }

    /// Returns the address in the Kademlia space.
    pub fn id(&self) -> B256 {
        node_id(&self.public)
    }

    /// Signs a hash: `r ‖ s ‖ recovery id`.
    pub fn sign_recoverable(&self, hash: B256) -> [u8; 65] {
        let signature =
            SECP256K1.sign_ecdsa_recoverable(Message::from_digest(hash.0), &self.secret);
        let (recovery, compact) = signature.serialize_compact();
        let mut bytes = [0; 65];
        bytes[..64].copy_from_slice(&compact);
        bytes[64] = i32::from(recovery) as u8;
        bytes
    }

    /// Returns the secret that this node shares with the owner of `other`: the x coordinate of the
    /// agreed point. Returns `None` when `other` is not a point of the curve.
    pub fn agree(&self, other: &PublicKey) -> Option<B256> {
        let point = shared_secret_point(&point(other)?, &self.secret);
        point.first_chunk().map(|x: &[u8; 32]| B256::from(*x))
    }

    /// Signs a hash: `r ‖ s`.
    pub(crate) fn sign(&self, hash: B256) -> [u8; 64] {
        SECP256K1.sign_ecdsa(Message::from_digest(hash.0), &self.secret).serialize_compact()
    }

    /// Returns the public key in the form of node records.
    pub(crate) fn compressed(&self) -> [u8; 33] {
        self.secret.public_key(SECP256K1).serialize()
    }
}

impl fmt::Debug for NodeKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("NodeKey").field("public", &self.public).finish_non_exhaustive()
    }
}

/// Recovers the key that signed a hash.
///
/// # Errors
/// [`PacketError::Signature`] if no key made the signature.
pub fn recover(hash: B256, signature: &[u8; 65]) -> Result<PublicKey, PacketError> {
    let recover = || {
        let recovery = RecoveryId::try_from(i32::from(signature[64]))?;
        let signature = RecoverableSignature::from_compact(&signature[..64], recovery)?;
        SECP256K1.recover_ecdsa(Message::from_digest(hash.0), &signature)
    };
    recover().map(|key| uncompressed(&key)).map_err(|_: secp256k1::Error| PacketError::Signature)
}

pub(crate) fn uncompressed(key: &secp256k1::PublicKey) -> PublicKey {
    B512::from_slice(&key.serialize_uncompressed()[1..])
}

/// Returns whether these 64 bytes are a point of the curve.
pub(crate) fn is_on_curve(key: &PublicKey) -> bool {
    point(key).is_some()
}

fn point(key: &PublicKey) -> Option<secp256k1::PublicKey> {
    let mut bytes = [4; 65];
    bytes[1..].copy_from_slice(key.as_slice());
    secp256k1::PublicKey::from_byte_array_uncompressed(bytes).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_powers_of_two() {
        let own = B256::ZERO;
        assert_eq!(bucket(&own, &own), None);
        assert_eq!(bucket(&own, &B256::with_last_byte(1)), Some(0));
        assert_eq!(bucket(&own, &B256::with_last_byte(2)), Some(1));
        assert_eq!(bucket(&own, &B256::with_last_byte(3)), Some(1));
        assert_eq!(bucket(&own, &B256::repeat_byte(0xff)), Some(255));
        assert_eq!(bucket(&own, &B256::repeat_byte(0x7f)), Some(254));
    }

    #[test]
    fn two_nodes_agree_on_a_secret_and_refuse_points_off_the_curve() {
        let [a, b] = [1, 2].map(|byte| NodeKey::from_bytes([byte; 32]).unwrap());
        assert_eq!(a.agree(b.public()).unwrap(), b.agree(a.public()).unwrap());
        assert_ne!(a.agree(a.public()), a.agree(b.public()));
        assert_eq!(a.agree(&PublicKey::ZERO), None);
    }

    #[test]
    fn a_secret_key_stays_out_of_logs() {
        let key = NodeKey::from_bytes([7; 32]).unwrap();
        let text = format!("{key:?}");
        assert!(text.contains(&format!("{:?}", key.public())));
        assert!(!text.contains("0707070707"));
        assert!(NodeKey::from_bytes([0; 32]).is_none());
        assert!(NodeKey::from_bytes([0xff; 32]).is_none());
    }
}
