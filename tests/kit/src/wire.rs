//! A peer that speaks RLPx as a test tells it to. Its calls block.

use std::{
    io::{Read, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};
use tandem_discv4::{NodeKey, PublicKey};
use tandem_eth_wire::{
    eth::{self, Status},
    snap,
};
use tandem_primitives::Bytes;
use tandem_rlpx::{
    Capability, DISCONNECT, Decoder, DisconnectReason, Encoder, HEADER_BYTES, HELLO, Hello,
    Initiator, Limits, MESSAGE_BYTES_MAX, Message, PING, PONG, SIZE_BYTES, decode_disconnect,
    packet_bytes,
};

/// Longest wait for a message.
const PATIENCE: Duration = Duration::from_secs(60);

/// Id of the first message of eth.
pub const ETH: u64 = 16;

/// Id of the first message of snap, beside eth/71.
pub const SNAP: u64 = ETH + 20;

/// Connection of a peer to a node. Its messages may break any rule.
pub struct Wire {
    pub socket: TcpStream,
    pub encoder: Encoder,
    pub decoder: Decoder,
    pub key: NodeKey,
    /// Compresses content, once both sides do.
    compressor: Option<::snap::raw::Encoder>,
}

impl Wire {
    /// Connects to the node with this key and agrees on keys.
    pub fn connect(to: SocketAddr, remote: PublicKey, key: NodeKey) -> Self {
        let mut socket = TcpStream::connect(to).unwrap();
        socket.set_read_timeout(Some(PATIENCE)).unwrap();
        let initiator = Initiator::start(&key, remote, &mut rand::rng()).unwrap();
        socket.write_all(initiator.auth()).unwrap();
        let mut size = [0; SIZE_BYTES];
        socket.read_exact(&mut size).unwrap();
        let mut ack = vec![0; packet_bytes(size).unwrap()];
        socket.read_exact(&mut ack).unwrap();
        let opened = initiator.finish(&[&size[..], &ack].concat()).unwrap();
        let (encoder, decoder) = (opened.encoder, opened.decoder);
        Self { socket, encoder, decoder, key, compressor: None }
    }

    /// Returns a Hello that a node accepts, with eth/71 alone.
    pub fn hello(&self) -> Hello {
        Hello {
            version: 5,
            client: "hostile".to_owned(),
            capabilities: vec![Capability { name: eth::NAME.to_owned(), version: 71 }],
            port: 0,
            id: *self.key.public(),
        }
    }

    /// Exchanges Hello.
    pub fn greet(&mut self, hello: &Hello) {
        self.send(HELLO, &hello.encode());
        assert_eq!(self.receive().id, HELLO);
        self.compress();
    }

    /// Establishes a session with eth/71 and snap/1. Sends this Status, or else returns the node's
    /// own to it. Returns the node's.
    pub fn establish(&mut self, own: Option<Status>) -> Status {
        let mut hello = self.hello();
        hello.capabilities.push(Capability { name: snap::NAME.to_owned(), version: 1 });
        self.greet(&hello);
        let message = self.receive();
        assert_eq!(message.id, ETH, "expected the node's Status");
        let theirs = eth::Message::decode(eth::Version::Eth71, 0, &Bytes::from(message.content));
        let Ok(eth::Message::Status(theirs)) = theirs else { panic!("{theirs:?}") };
        self.eth(&eth::Message::Status(own.unwrap_or(theirs)));
        theirs
    }

    /// Compresses and decompresses all messages from now on.
    pub fn compress(&mut self) {
        self.compressor = Some(::snap::raw::Encoder::new());
        self.decoder.decompress(Limits::of_messages(MESSAGE_BYTES_MAX));
    }

    /// Returns the frame of the next message.
    pub fn frame(&mut self, id: u64, content: &[u8]) -> Vec<u8> {
        match &mut self.compressor {
            Some(compressor) => {
                let compressed = compressor.compress_vec(content).unwrap();
                self.frame_as_is(id, &compressed)
            }
            None => self.frame_as_is(id, content),
        }
    }

    /// Like [`Wire::frame`], with content that is not compressed, whatever the node expects.
    pub fn frame_as_is(&mut self, id: u64, content: &[u8]) -> Vec<u8> {
        let mut frame = Vec::new();
        self.encoder.encode(id, content, &mut frame).unwrap();
        frame
    }

    /// Sends a message.
    pub fn send(&mut self, id: u64, content: &[u8]) {
        let frame = self.frame(id, content);
        self.write(&frame);
    }

    /// Sends bytes.
    pub fn write(&mut self, bytes: &[u8]) {
        // A node that has closed already says why, if the test asks.
        let _ = self.socket.write_all(bytes);
    }

    /// Sends a message of eth.
    pub fn eth(&mut self, message: &eth::Message) {
        self.send(ETH + message.number(), &message.encode(eth::Version::Eth71));
    }

    /// Reads a message, `None` if the node has closed the connection.
    pub fn try_receive(&mut self) -> Option<Message> {
        let mut header = [0; HEADER_BYTES];
        self.socket.read_exact(&mut header).ok()?;
        let mut body = vec![0; self.decoder.header(&header).unwrap()];
        self.socket.read_exact(&mut body).ok()?;
        Some(self.decoder.body(body).unwrap())
    }

    /// Reads a message.
    pub fn receive(&mut self) -> Message {
        self.try_receive().expect("the node closed the connection")
    }

    /// Reads until the node ends the session, and returns its reason.
    pub fn reason(&mut self) -> Option<DisconnectReason> {
        loop {
            let message = self.try_receive()?;
            match message.id {
                DISCONNECT => return Some(decode_disconnect(&message.content).unwrap()),
                PING => self.send(PONG, &[0xc0]),
                _ => {}
            }
        }
    }

    /// Like [`Wire::reason`], without a word to the node meanwhile.
    pub fn last_words(&mut self) -> Option<DisconnectReason> {
        loop {
            let message = self.try_receive()?;
            if message.id == DISCONNECT {
                return Some(decode_disconnect(&message.content).unwrap());
            }
        }
    }
}
