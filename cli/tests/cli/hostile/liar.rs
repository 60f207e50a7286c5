//! A peer that speaks the protocol and lies.

use super::Place;
use alloy_consensus::Header;
use std::{
    thread::{self, JoinHandle, sleep},
    time::Duration,
};
use tandem_discv4::NodeKey;
use tandem_eth_wire::{
    eth::{self, Announcement, BlockRange},
    limits::{ANNOUNCEMENTS_MAX, HEADERS_MAX},
    snap,
};
use tandem_primitives::{B128, B256, Bytes};
use tandem_rlpx::{DISCONNECT, DisconnectReason, Message, PING, PONG, decode_disconnect};
use tandem_testkit::wire::{ETH, SNAP, Wire};

/// Messages of headers that one liar sends: 102,400 headers.
const ENDLESS: usize = 100;

/// Pause after each byte of a slow answer.
const BYTE_EVERY: Duration = Duration::from_millis(20);

/// Lie of a peer. Until it is told, the peer relays the honest peer's answers.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Lie {
    /// Proves a range of accounts, but another one than was asked for.
    WrongRange,
    /// Sends the right accounts without their proof.
    MissingProofs,
    /// Changes one account of a range, and leaves its proof as it is.
    ChangedAccount,
    /// Answers with one message of headers after the other.
    EndlessHeaders,
    /// Answers with a few bytes of Snappy that claim to be 3.9 GB.
    SnappyBomb,
    /// Answers with zeros as large as the largest message, in a twentieth of the bytes.
    LargestZeros,
    /// Announces more transactions in a message than any client sends.
    HugeAnnouncement,
    /// Says that its oldest block is newer than its newest.
    BackwardRange,
    /// Sends its answer byte by byte.
    ByteByByte,
    /// Answers pings alone.
    Silence,
}

impl Lie {
    /// Returns whether the peer tells it until the session ends: one wrong answer is no lie yet.
    fn is_told_again(self) -> bool {
        matches!(
            self,
            Self::WrongRange | Self::MissingProofs | Self::ChangedAccount | Self::Silence
        )
    }
}

/// Establishes a session with a node, and one with the honest peer. The thread returns the reason that
/// the liar was told, `None` if the connection ended without one.
pub fn start(
    lie: Lie,
    number: u8,
    node: Place,
    honest: Place,
) -> JoinHandle<Option<DisconnectReason>> {
    let key = |of: u8| NodeKey::from_bytes([0x40 + of + 2 * number; 32]).unwrap();
    let mut mirror = Wire::connect(honest.0, honest.1, key(0));
    // The liar says of itself what the honest peer says.
    let status = mirror.establish(None);
    let mut wire = Wire::connect(node.0, node.1, key(1));
    wire.establish(Some(status));
    thread::spawn(move || run(lie, wire, mirror))
}

/// Serves a node until the session ends.
fn run(lie: Lie, mut wire: Wire, mut mirror: Wire) -> Option<DisconnectReason> {
    loop {
        let Message { id, content } = wire.try_receive()?;
        match id {
            DISCONNECT => return Some(decode_disconnect(&content).unwrap()),
            PING => wire.send(PONG, &[0xc0]),
            id if is_request(id) => {
                if !tells(lie, &mut wire, &mut mirror, id, &content) {
                    let answer = relay(&mut mirror, id, &content);
                    wire.send(id + 1, &answer);
                } else if !lie.is_told_again() {
                    return wire.last_words();
                }
            }
            _ => {}
        }
    }
}

fn is_request(id: u64) -> bool {
    match id.checked_sub(SNAP) {
        Some(number) => !snap::is_answer(number),
        // Headers, bodies and receipts.
        None => id.checked_sub(ETH).is_some_and(|number| [3, 5, 15].contains(&number)),
    }
}

/// Returns the honest peer's answer, whose id is the next one.
fn relay(mirror: &mut Wire, id: u64, content: &[u8]) -> Vec<u8> {
    mirror.send(id, content);
    loop {
        let message = mirror.receive();
        match message.id {
            PING => mirror.send(PONG, &[0xc0]),
            answer if answer == id + 1 => return message.content,
            _ => {}
        }
    }
}

/// Tells the lie, if this request allows it. Returns whether it was told.
fn tells(lie: Lie, wire: &mut Wire, mirror: &mut Wire, id: u64, content: &[u8]) -> bool {
    match lie {
        Lie::WrongRange | Lie::MissingProofs | Lie::ChangedAccount => {
            return id == SNAP && lies_about_accounts(lie, wire, mirror, content);
        }
        Lie::EndlessHeaders => {
            let header =
                |number| Bytes::from(alloy_rlp::encode(Header { number, ..Header::default() }));
            let headers = (0..HEADERS_MAX as u64).map(header).collect();
            let message = eth::Message::BlockHeaders { id: request_id(content), headers };
            let content = message.encode(eth::Version::Eth71);
            let frames = (0..ENDLESS).flat_map(|_| wire.frame(ETH + 4, &content)).collect();
            send_beside(wire, frames, usize::MAX, Duration::ZERO);
        }
        Lie::SnappyBomb => {
            let frame = wire.frame_as_is(id + 1, &[0xff, 0xff, 0xff, 0xff, 0x0e, 0, 0]);
            wire.write(&frame);
        }
        Lie::LargestZeros => wire.send(id + 1, &vec![0; tandem_rlpx::MESSAGE_BYTES_MAX]),
        Lie::HugeAnnouncement => {
            let announced = |n: usize| {
                let hash = B256::left_padding_from(&n.to_be_bytes());
                Announcement { kind: 2, bytes: u64::MAX, hash }
            };
            let transactions = (0..=ANNOUNCEMENTS_MAX).map(announced).collect();
            wire.eth(&eth::Message::Announcements { transactions, cells: B128::ZERO });
        }
        Lie::BackwardRange => {
            let range = BlockRange { earliest: 9, latest: 8, latest_hash: B256::ZERO };
            wire.eth(&eth::Message::BlockRangeUpdate(range));
        }
        Lie::ByteByByte => {
            let answer = relay(mirror, id, content);
            let frame = wire.frame(id + 1, &answer);
            send_beside(wire, frame, 1, BYTE_EVERY);
        }
        Lie::Silence => {}
    }
    true
}

/// Writes on a thread of its own, so that this one can read the node's reason.
fn send_beside(wire: &Wire, bytes: Vec<u8>, at_once: usize, pause: Duration) {
    use std::io::Write;
    let mut socket = wire.socket.try_clone().unwrap();
    thread::spawn(move || {
        for piece in bytes.chunks(at_once) {
            // The node has ended the session.
            if socket.write_all(piece).is_err() {
                return;
            }
            sleep(pause);
        }
    });
}

/// Answers a request of accounts with a lie. Returns false for a part of the state without accounts,
/// about which there is nothing to lie.
fn lies_about_accounts(lie: Lie, wire: &mut Wire, mirror: &mut Wire, content: &[u8]) -> bool {
    let version = snap::Version::Snap1;
    let decode = |number, content: &[u8]| {
        snap::Message::decode(version, number, &Bytes::copy_from_slice(content))
    };
    let Ok(mut request) = decode(0, content) else { panic!("a request of accounts") };
    if let (Lie::WrongRange, snap::Message::GetAccountRange { start, limit, .. }) =
        (lie, &mut request)
    {
        // The range on the other side of the state.
        start[0] ^= 0x80;
        limit[0] ^= 0x80;
    }
    let answer = relay(mirror, SNAP, &request.encode());
    let Ok(snap::Message::AccountRange { id, mut accounts, mut proof }) = decode(1, &answer) else {
        panic!("accounts")
    };
    if accounts.is_empty() || proof.is_empty() {
        return false;
    }
    match lie {
        Lie::MissingProofs => proof.clear(),
        Lie::ChangedAccount => {
            // The nonce stands behind the list's header, and is small.
            let mut value = accounts[0].value.to_vec();
            let at = if value[0] > 0xf7 { 2 } else { 1 };
            value[at] = if value[at] < 0x7f { value[at] + 1 } else { 1 };
            accounts[0].value = value.into();
        }
        _ => {}
    }
    let lie = snap::Message::AccountRange { id, accounts, proof };
    wire.send(SNAP + 1, &lie.encode());
    true
}

/// Returns the number of a request, the first item of its list.
fn request_id(content: &[u8]) -> u64 {
    let mut items = alloy_rlp::Header::decode_bytes(&mut &content[..], true).unwrap();
    alloy_rlp::Decodable::decode(&mut items).unwrap()
}
