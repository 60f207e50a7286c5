//! Both halves of a connection, and the handshake that makes a session of it.

use crate::{chain::ChainStatus, error::SessionError, metrics};
use ::metrics::counter;
use std::{io, time::Duration};
use tandem_discv4::{NodeKey, PublicKey};
use tandem_eth_wire::{
    eth::{self, Status, Version},
    snap,
};
use tandem_primitives::Bytes;
use tandem_proto::peer_sessions::Direction;
use tandem_rlpx::{
    DISCONNECT, Decoder, DisconnectReason, Encoder, HEADER_BYTES, HELLO, Hello, Initiator, Limits,
    Message, Offer, Opened, PING, PONG, SIZE_BYTES, Shared, accept, decode_disconnect,
    encode_disconnect, negotiate, packet_bytes,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{
        TcpStream,
        tcp::{OwnedReadHalf, OwnedWriteHalf},
    },
    time::{Instant, timeout, timeout_at},
};

/// Content of a message that a peer may send without being asked. Announcements and transactions
/// stay far below it; a longer answer is only read while a request is under way.
pub(crate) const UNASKED_BYTES_MAX: usize = 1 << 20;

/// Content of a ping and of its answer.
pub(crate) const EMPTY: [u8; 1] = [alloy_rlp::EMPTY_LIST_CODE];

/// Bytes for which memory is taken before any of a body have arrived.
const BODY_BYTES_FIRST: usize = 16 << 10;

/// Time that a peer gets to read why the session ends.
pub(crate) const FAREWELL: Duration = Duration::from_millis(500);

/// Receiving half.
pub(crate) struct Reader {
    socket: OwnedReadHalf,
    decoder: Decoder,
}

impl Reader {
    /// Waits for the next message. Must not be cancelled: the bytes so far would be lost.
    /// `message_bytes_max` is asked when the header is there.
    pub(crate) async fn message(
        &mut self,
        message_bytes_max: impl Fn() -> Option<usize>,
    ) -> Result<Message, SessionError> {
        let mut header = [0; HEADER_BYTES];
        self.socket.read_exact(&mut header).await?;
        if let Some(bytes) = message_bytes_max() {
            self.decoder.decompress(Limits::of_messages(bytes));
        }
        let bytes = self.decoder.header(&header)?;
        // Memory grows with what has arrived, not with what the header states.
        let mut body = Vec::with_capacity(bytes.min(BODY_BYTES_FIRST));
        (&mut self.socket).take(bytes as u64).read_to_end(&mut body).await?;
        if body.len() < bytes {
            return Err(io::Error::from(io::ErrorKind::UnexpectedEof).into());
        }
        let message = self.decoder.body(body)?;
        counter!(metrics::MESSAGES, "direction" => "in").increment(1);
        counter!(metrics::BYTES, "direction" => "in").increment(message.content.len() as u64);
        Ok(message)
    }

    /// Waits for the peer to close, and reads what it still sends, so that the reason is not lost.
    async fn drain(&mut self) {
        let mut rest = [0; 4096];
        while matches!(self.socket.read(&mut rest).await, Ok(bytes) if bytes > 0) {}
    }
}

/// Sending half.
pub(crate) struct Writer {
    socket: OwnedWriteHalf,
    encoder: Encoder,
    frame: Vec<u8>,
}

impl Writer {
    /// Sends a message.
    pub(crate) async fn send(&mut self, id: u64, content: &[u8]) -> Result<(), SessionError> {
        self.frame.clear();
        self.encoder.encode(id, content, &mut self.frame)?;
        self.socket.write_all(&self.frame).await?;
        self.frame.shrink_to(BODY_BYTES_FIRST);
        counter!(metrics::MESSAGES, "direction" => "out").increment(1);
        counter!(metrics::BYTES, "direction" => "out").increment(content.len() as u64);
        Ok(())
    }

    /// Tells the peer why the session ends, and closes this half.
    pub(crate) async fn farewell(&mut self, reason: DisconnectReason) {
        let told = async {
            self.send(DISCONNECT, &encode_disconnect(reason)).await?;
            self.socket.shutdown().await.map_err(SessionError::Io)
        };
        // A peer that does not read is not waited for.
        let _ = timeout(FAREWELL, told).await;
    }
}

/// Both halves.
pub(crate) struct Link {
    pub(crate) reader: Reader,
    pub(crate) writer: Writer,
}

impl Link {
    /// Ends the connection; tells the peer why, if it can be told.
    pub(crate) async fn close(mut self, error: &SessionError) {
        if let Some(reason) = error.reason() {
            self.writer.farewell(reason).await;
            let _ = timeout(FAREWELL, self.reader.drain()).await;
        }
    }

    /// Waits for a message other than pings, which are answered.
    async fn message(&mut self, bytes_max: Option<usize>) -> Result<Message, SessionError> {
        loop {
            let message = self.reader.message(|| bytes_max).await?;
            match message.id {
                DISCONNECT => {
                    return Err(SessionError::Remote(decode_disconnect(&message.content)?));
                }
                PING if bytes_max.is_some() => {
                    self.writer.send(PONG, &EMPTY).await?;
                }
                _ => return Ok(message),
            }
        }
    }
}

/// Statements of both sides of a session about themselves.
#[derive(Clone, Debug)]
pub(crate) struct Greeting {
    pub(crate) hello: Hello,
    pub(crate) version: Version,
    pub(crate) shared: Shared,
    /// The protocol snap, if the peer has it.
    pub(crate) snap: Option<Snap>,
    pub(crate) status: Status,
}

/// The protocol snap on a session.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Snap {
    pub(crate) version: snap::Version,
    pub(crate) shared: Shared,
}

/// Agrees on keys with the peer. `remote` is the key that the peer has to prove, if this node has
/// dialled it.
pub(crate) async fn agree(
    mut stream: TcpStream,
    key: &NodeKey,
    remote: Option<PublicKey>,
) -> Result<(Link, PublicKey), SessionError> {
    let opened = match remote {
        Some(remote) => {
            let initiator = Initiator::start(key, remote, &mut rand::rng())?;
            stream.write_all(initiator.auth()).await?;
            initiator.finish(&packet(&mut stream).await?)?
        }
        None => {
            let auth = packet(&mut stream).await?;
            let (opened, ack) = accept(key, &auth, &mut rand::rng())?;
            stream.write_all(&ack).await?;
            opened
        }
    };
    let Opened { remote, encoder, decoder } = opened;
    let (read, write) = stream.into_split();
    let reader = Reader { socket: read, decoder };
    let writer = Writer { socket: write, encoder, frame: Vec::new() };
    Ok((Link { reader, writer }, remote))
}

/// Reads a handshake packet, whose size is checked before it is read.
async fn packet(stream: &mut TcpStream) -> Result<Vec<u8>, SessionError> {
    let mut size = [0; SIZE_BYTES];
    stream.read_exact(&mut size).await?;
    let mut packet = vec![0; SIZE_BYTES + packet_bytes(size)?];
    packet[..SIZE_BYTES].copy_from_slice(&size);
    stream.read_exact(&mut packet[SIZE_BYTES..]).await?;
    Ok(packet)
}

/// Statements of this node about itself.
pub(crate) struct Introduction<'a> {
    pub(crate) hello: &'a Hello,
    pub(crate) offers: &'a [Offer],
    pub(crate) chain: ChainStatus,
}

/// Exchanges Hello and Status until `deadline`. `admit` decides, once the peer's Hello is there,
/// whether there is room for it.
pub(crate) async fn greet(
    link: &mut Link,
    remote: PublicKey,
    own: Introduction<'_>,
    deadline: Instant,
    admit: impl FnOnce() -> Result<(), DisconnectReason>,
) -> Result<Greeting, SessionError> {
    let greeting = async {
        let Introduction { hello, offers, chain } = own;
        link.writer.send(HELLO, &hello.encode()).await?;
        let theirs = link.message(None).await?;
        if theirs.id != HELLO {
            return Err(SessionError::Unexpected("expected Hello"));
        }
        let theirs = Hello::decode(&theirs.content)?;
        if theirs.version < tandem_rlpx::VERSION {
            return Err(SessionError::Local(DisconnectReason::Version));
        }
        link.writer.compress();
        if theirs.id != remote {
            return Err(SessionError::Local(DisconnectReason::UnexpectedIdentity));
        }
        let all = negotiate(offers, &theirs.capabilities);
        let named = |name| all.iter().find(|shared| shared.offer.name == name).copied();
        let snap = named(snap::NAME).and_then(|shared| {
            let version = snap::Version::from_number(shared.offer.version)?;
            Some(Snap { version, shared })
        });
        let shared = named(eth::NAME);
        let version = shared.and_then(|shared| Version::from_number(shared.offer.version));
        let (Some(shared), Some(version)) = (shared, version) else {
            return Err(SessionError::Local(DisconnectReason::Useless));
        };
        admit().map_err(SessionError::Local)?;
        let status = eth::Message::Status(chain.message(version));
        link.writer.send(shared.first_id + eth::STATUS, &status.encode(version)).await?;
        let theirs_status = link.message(Some(UNASKED_BYTES_MAX)).await?;
        if shared.number(theirs_status.id) != Some(eth::STATUS) {
            return Err(SessionError::Unexpected("expected Status"));
        }
        let content = Bytes::from(theirs_status.content);
        let eth::Message::Status(status) = eth::Message::decode(version, eth::STATUS, &content)?
        else {
            return Err(SessionError::Unexpected("expected Status"));
        };
        chain.check(version, &status)?;
        Ok(Greeting { hello: theirs, version, shared, snap, status })
    };
    timeout_at(deadline, greeting).await.unwrap_or(Err(SessionError::Timeout("handshake")))
}

impl Writer {
    fn compress(&mut self) {
        self.encoder.compress();
    }
}

/// Returns the side as a word for logs.
pub(crate) fn word(direction: Direction) -> &'static str {
    match direction {
        Direction::Inbound => "inbound",
        Direction::Outbound => "outbound",
    }
}
