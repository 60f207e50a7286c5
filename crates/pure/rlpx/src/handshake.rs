//! The handshake of EIP-8: two encrypted packets, from which both sides derive the same secrets.

use crate::{Decoder, Encoder, Error, ecies, frame::Direction};
use alloy_primitives::{B256, Keccak256, keccak256};
use alloy_rlp::{BytesMut, Decodable, Encodable, Header};
use rand::Rng;
use tandem_discv4::{NodeKey, PublicKey, recover};

/// Number of bytes before a handshake packet, which state its size.
pub const SIZE_BYTES: usize = 2;

/// Largest handshake packet that is accepted, without its size. The fields take about 200 bytes,
/// encryption 113, and the padding of EIP-8 up to 300; the rest is for fields of later versions.
pub const HANDSHAKE_BYTES_MAX: usize = 2048;

/// Version that packets state (EIP-8: receivers ignore it).
const VERSION: u8 = 4;

/// Bytes of a key and a nonce, which the shorter of the two packets has.
const ACK_BODY_BYTES_MIN: usize = 64 + 32;

/// Bytes of padding, so that a packet cannot be recognized by its size (EIP-8).
const PADDING_BYTES: core::ops::RangeInclusive<usize> = 100..=300;

/// Returns how many bytes follow the size of a handshake packet.
///
/// # Errors
/// [`Error::HandshakeSize`] if no packet has that size.
pub fn packet_bytes(size: [u8; SIZE_BYTES]) -> Result<usize, Error> {
    let bytes = usize::from(u16::from_be_bytes(size));
    let (min, max) = (ecies::OVERHEAD + ACK_BODY_BYTES_MIN, HANDSHAKE_BYTES_MAX);
    let fits = (min..=max).contains(&bytes);
    if fits { Ok(bytes) } else { Err(Error::HandshakeSize { bytes, min, max }) }
}

/// Session whose keys are agreed on. The first frame of each side proves that they are the same.
pub struct Opened {
    /// Public key that the other side has proven to own.
    pub remote: PublicKey,
    /// Sending side.
    pub encoder: Encoder,
    /// Receiving side.
    pub decoder: Decoder,
}

/// Side that opened the connection, after its packet and before the answer.
pub struct Initiator<'a> {
    key: &'a NodeKey,
    remote: PublicKey,
    ephemeral: NodeKey,
    nonce: B256,
    auth: Vec<u8>,
}

impl<'a> Initiator<'a> {
    /// Begins a handshake with the owner of `remote`. `rng` must be cryptographically secure.
    ///
    /// # Errors
    /// [`Error::PublicKey`] if `remote` is not a point of the curve.
    pub fn start(key: &'a NodeKey, remote: PublicKey, rng: &mut impl Rng) -> Result<Self, Error> {
        let (ephemeral, nonce) = (NodeKey::random(rng), B256::from(rng.random::<[u8; 32]>()));
        let shared = key.agree(&remote).ok_or(Error::PublicKey)?;
        let fields = Auth {
            signature: ephemeral.sign_recoverable(shared ^ nonce),
            initiator: *key.public(),
            nonce,
        };
        let auth = seal(&remote, fields.encode(), rng).ok_or(Error::PublicKey)?;
        Ok(Self { key, remote, ephemeral, nonce, auth })
    }

    /// Returns the packet to send, with its size.
    pub fn auth(&self) -> &[u8] {
        &self.auth
    }

    /// Ends the handshake with the recipient's packet, given with its size.
    ///
    /// # Errors
    /// The packet is not encrypted to this node, or its fields are malformed.
    pub fn finish(self, ack: &[u8]) -> Result<Opened, Error> {
        let fields = Ack::decode(&open(self.key, ack)?)?;
        let ephemeral = self.ephemeral.agree(&fields.ephemeral).ok_or(Error::PublicKey)?;
        let secrets = Secrets::derive(&ephemeral, &self.nonce, &fields.nonce);
        let (encoder, decoder) = secrets.directions(
            (&fields.nonce, &self.auth), // sent
            (&self.nonce, ack),          // received
        );
        Ok(Opened { remote: self.remote, encoder, decoder })
    }
}

/// Answers an initiator's packet, given with its size. Returns the session and the packet to send.
/// `rng` must be cryptographically secure.
///
/// # Errors
/// The packet is not encrypted to this node, or its fields or signature are malformed.
pub fn accept(key: &NodeKey, auth: &[u8], rng: &mut impl Rng) -> Result<(Opened, Vec<u8>), Error> {
    let (ephemeral, nonce) = (NodeKey::random(rng), B256::from(rng.random::<[u8; 32]>()));
    let fields = Auth::decode(&open(key, auth)?)?;
    let shared = fields.ephemeral_secret(key, &ephemeral)?;
    let answer = Ack { ephemeral: *ephemeral.public(), nonce };
    let ack = seal(&fields.initiator, answer.encode(), rng).ok_or(Error::PublicKey)?;
    let secrets = Secrets::derive(&shared, &fields.nonce, &nonce);
    let (encoder, decoder) = secrets.directions((&fields.nonce, &ack), (&nonce, auth));
    Ok((Opened { remote: fields.initiator, encoder, decoder }, ack))
}

/// Fields of the initiator's packet.
#[derive(PartialEq, Eq, Debug)]
struct Auth {
    /// Signature of the ephemeral key over the static shared secret, combined with the nonce.
    signature: [u8; 65],
    initiator: PublicKey,
    nonce: B256,
}

impl Auth {
    fn encode(&self) -> BytesMut {
        list(&[&self.signature, &self.initiator, &self.nonce, &VERSION])
    }

    fn decode(plain: &[u8]) -> Result<Self, Error> {
        let mut fields = fields(plain).map_err(Error::Handshake)?;
        let mut decode = || {
            let signature = Decodable::decode(&mut fields)?;
            let initiator = Decodable::decode(&mut fields)?;
            let nonce = Decodable::decode(&mut fields)?;
            Ok(Self { signature, initiator, nonce })
        };
        decode().map_err(Error::Handshake)
    }

    /// Returns the secret that the two ephemeral keys agree on.
    fn ephemeral_secret(&self, key: &NodeKey, ephemeral: &NodeKey) -> Result<B256, Error> {
        let shared = key.agree(&self.initiator).ok_or(Error::PublicKey)?;
        let remote = recover(shared ^ self.nonce, &self.signature);
        let remote = remote.map_err(|_| Error::Signature)?;
        ephemeral.agree(&remote).ok_or(Error::PublicKey)
    }
}

/// Fields of the recipient's packet.
#[derive(PartialEq, Eq, Debug)]
struct Ack {
    ephemeral: PublicKey,
    nonce: B256,
}

impl Ack {
    fn encode(&self) -> BytesMut {
        list(&[&self.ephemeral, &self.nonce, &VERSION])
    }

    fn decode(plain: &[u8]) -> Result<Self, Error> {
        let mut fields = fields(plain).map_err(Error::Handshake)?;
        let mut decode = || {
            let ephemeral = Decodable::decode(&mut fields)?;
            Ok(Self { ephemeral, nonce: Decodable::decode(&mut fields)? })
        };
        decode().map_err(Error::Handshake)
    }
}

fn list(items: &[&dyn Encodable]) -> BytesMut {
    let payload_length = items.iter().map(|item| item.length()).sum();
    let mut out = BytesMut::new();
    Header { list: true, payload_length }.encode(&mut out);
    items.iter().for_each(|item| item.encode(&mut out));
    out
}

/// Returns the items of the list at the start of `plain`. Anything after the known items and after
/// the list is ignored (EIP-8), also the version.
fn fields(mut plain: &[u8]) -> alloy_rlp::Result<&[u8]> {
    Header::decode_bytes(&mut plain, true)
}

/// Encrypts fields with padding, and puts the size before them.
fn seal(to: &PublicKey, fields: BytesMut, rng: &mut impl Rng) -> Option<Vec<u8>> {
    let mut plain = fields.to_vec();
    let padding = rng.random_range(PADDING_BYTES);
    let begin = plain.len();
    plain.resize(begin + padding, 0);
    rng.fill(&mut plain[begin..]);
    let size = ((plain.len() + ecies::OVERHEAD) as u16).to_be_bytes();
    let sealed = ecies::encrypt(to, plain, &size, rng)?;
    Some([size.as_slice(), &sealed].concat())
}

fn open(key: &NodeKey, packet: &[u8]) -> Result<Vec<u8>, Error> {
    let (size, sealed) = packet.split_first_chunk::<SIZE_BYTES>().ok_or(Error::Decrypt)?;
    if packet_bytes(*size)? != sealed.len() {
        return Err(Error::Decrypt);
    }
    ecies::decrypt(key, sealed, size)
}

/// Secrets of a session.
struct Secrets {
    aes: B256,
    mac: B256,
}

impl Secrets {
    fn derive(ephemeral: &B256, initiator_nonce: &B256, recipient_nonce: &B256) -> Self {
        let both = |a: &B256, b: &B256| keccak256([a.as_slice(), b.as_slice()].concat());
        let shared = both(ephemeral, &both(recipient_nonce, initiator_nonce));
        let aes = both(ephemeral, &shared);
        Self { aes, mac: both(ephemeral, &aes) }
    }

    /// Returns the hash with which a direction's MAC begins: the nonce of its receiver, and the
    /// handshake packet of its sender.
    fn hash(&self, nonce: &B256, packet: &[u8]) -> Keccak256 {
        let mut hash = Keccak256::new();
        hash.update(self.mac ^ *nonce);
        hash.update(packet);
        hash
    }

    fn directions(&self, sent: (&B256, &[u8]), received: (&B256, &[u8])) -> (Encoder, Decoder) {
        let [sent, received] = [sent, received]
            .map(|(nonce, packet)| Direction::new(&self.aes, &self.mac, self.hash(nonce, packet)));
        (Encoder::new(sent), Decoder::new(received))
    }
}

#[cfg(test)]
mod tests;
