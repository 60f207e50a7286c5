//! Batches of datagrams: one system call receives or sends many.

use std::{array, io, net::SocketAddr};
use tandem_discv4::PACKET_BYTES_MAX;
use tokio::net::UdpSocket;

/// Largest number of datagrams of one call.
pub const BATCH: usize = 32;
/// Bytes of a slot: one more than a packet may have, so that longer ones are noticed.
const SLOT: usize = PACKET_BYTES_MAX + 1;

/// Address of the other side, and content.
pub type Datagram = (SocketAddr, Vec<u8>);

/// Datagrams received together. Their memory is allocated once.
pub struct Incoming {
    bytes: Box<[u8]>,
    arrived: [(usize, SocketAddr); BATCH],
    len: usize,
    #[cfg(target_os = "linux")]
    headers: linux::Headers,
}

impl Default for Incoming {
    fn default() -> Self {
        Self {
            bytes: vec![0; BATCH * SLOT].into(),
            arrived: [(0, SocketAddr::from(([0; 4], 0))); BATCH],
            len: 0,
            #[cfg(target_os = "linux")]
            headers: linux::headers(),
        }
    }
}

impl Incoming {
    /// Takes the waiting datagrams, at most [`BATCH`]; returns false if there are none.
    pub fn receive(&mut self, socket: &UdpSocket) -> bool {
        // An unreachable receiver of an earlier packet shows up as an error here, which is ignored.
        self.len = self.try_receive(socket).unwrap_or(0);
        self.len > 0
    }

    #[cfg(target_os = "linux")]
    fn try_receive(&mut self, socket: &UdpSocket) -> io::Result<usize> {
        let Self { bytes, arrived, headers, .. } = self;
        socket.try_io(tokio::io::Interest::READABLE, || {
            linux::receive(socket, headers, bytes, arrived)
        })
    }

    #[cfg(not(target_os = "linux"))]
    fn try_receive(&mut self, socket: &UdpSocket) -> io::Result<usize> {
        self.arrived[0] = socket.try_recv_from(&mut self.bytes[..SLOT])?;
        Ok(1)
    }

    /// Returns the datagrams that [`Self::receive`] took. Datagrams over the limit are cut to one
    /// byte more than a packet may have.
    pub fn packets(&self) -> impl Iterator<Item = (SocketAddr, &[u8])> {
        let arrived = self.arrived[..self.len].iter().zip(self.bytes.chunks_exact(SLOT));
        arrived.map(|(&(length, from), bytes)| (from, &bytes[..length.min(SLOT)]))
    }
}

/// Sender of datagrams in batches.
pub struct Outgoing {
    #[cfg(target_os = "linux")]
    headers: linux::Headers,
}

impl Default for Outgoing {
    fn default() -> Self {
        Self {
            #[cfg(target_os = "linux")]
            headers: linux::headers(),
        }
    }
}

impl Outgoing {
    /// Sends all datagrams. Datagrams that the socket has no room for are lost, as on any network.
    /// Leaves `packets` empty and returns the number lost.
    pub fn send(&mut self, socket: &UdpSocket, packets: &mut Vec<Datagram>) -> usize {
        let (mut at, mut lost) = (0, 0);
        while at < packets.len() {
            match self.try_send(socket, &packets[at..packets.len().min(at + BATCH)]) {
                Ok(sent) => at += sent.max(1),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    lost += packets.len() - at;
                    break;
                }
                // The first of them cannot be sent; the others may.
                Err(_) => (at, lost) = (at + 1, lost + 1),
            }
        }
        packets.clear();
        lost
    }

    #[cfg(target_os = "linux")]
    fn try_send(&mut self, socket: &UdpSocket, packets: &[Datagram]) -> io::Result<usize> {
        if let [(to, bytes)] = packets {
            return socket.try_send_to(bytes, *to).map(|_| 1);
        }
        let headers = &mut self.headers;
        socket.try_io(tokio::io::Interest::WRITABLE, || linux::send(socket, headers, packets))
    }

    #[cfg(not(target_os = "linux"))]
    fn try_send(&mut self, socket: &UdpSocket, packets: &[Datagram]) -> io::Result<usize> {
        let (to, bytes) = &packets[0];
        socket.try_send_to(bytes, *to).map(|_| 1)
    }
}

#[cfg(target_os = "linux")]
mod linux {
    use super::{BATCH, Datagram, SLOT, SocketAddr, UdpSocket, array, io};
    use nix::sys::socket::{MsgFlags, MultiHeaders, SockaddrStorage, recvmmsg, sendmmsg};
    use std::{
        io::{IoSlice, IoSliceMut},
        net::{SocketAddrV4, SocketAddrV6},
        os::fd::AsRawFd,
    };

    pub type Headers = MultiHeaders<SockaddrStorage>;

    pub fn headers() -> Headers {
        MultiHeaders::preallocate(BATCH, None)
    }

    pub fn receive(
        socket: &UdpSocket,
        headers: &mut Headers,
        bytes: &mut [u8],
        arrived: &mut [(usize, SocketAddr); BATCH],
    ) -> io::Result<usize> {
        let mut slots = bytes.chunks_exact_mut(SLOT);
        let mut slices: [[IoSliceMut<'_>; 1]; BATCH] =
            array::from_fn(|_| [IoSliceMut::new(slots.next().unwrap_or_default())]);
        let flags = MsgFlags::MSG_DONTWAIT;
        let received = recvmmsg(socket.as_raw_fd(), headers, &mut slices, flags, None)?;
        let mut count = 0;
        for (message, place) in received.zip(arrived) {
            // A datagram without a sender gets an invalid address, and is refused for that.
            let from = message.address.as_ref().and_then(address);
            *place = (message.bytes, from.unwrap_or_else(|| SocketAddr::from(([0; 4], 0))));
            count += 1;
        }
        Ok(count)
    }

    fn address(storage: &SockaddrStorage) -> Option<SocketAddr> {
        let four = storage.as_sockaddr_in().map(|&address| SocketAddrV4::from(address).into());
        four.or_else(|| Some(SocketAddrV6::from(*storage.as_sockaddr_in6()?).into()))
    }

    pub fn send(
        socket: &UdpSocket,
        headers: &mut Headers,
        packets: &[Datagram],
    ) -> io::Result<usize> {
        let packet = |index: usize| packets.get(index);
        let slices: [[IoSlice<'_>; 1]; BATCH] =
            array::from_fn(|index| [IoSlice::new(packet(index).map_or(&[], |(_, bytes)| bytes))]);
        let addresses: [Option<SockaddrStorage>; BATCH] =
            array::from_fn(|index| packet(index).map(|(to, _)| SockaddrStorage::from(*to)));
        let count = packets.len().min(BATCH);
        let flags = MsgFlags::MSG_DONTWAIT;
        let sent = sendmmsg(
            socket.as_raw_fd(),
            headers,
            &slices[..count],
            &addresses[..count],
            [],
            flags,
        )?;
        Ok(sent.count())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    async fn socket(address: &str) -> (UdpSocket, SocketAddr) {
        let socket = UdpSocket::bind(address).await.unwrap();
        // Nothing can be sent before the reactor has seen the socket.
        socket.writable().await.unwrap();
        let address = socket.local_addr().unwrap();
        (socket, address)
    }

    #[tokio::test]
    async fn what_waits_comes_in_few_calls_and_whole() {
        for ip in ["127.0.0.1:0", "[::1]:0"] {
            let Ok(probe) = std::net::UdpSocket::bind(ip) else {
                eprintln!("SKIPPED: no {ip} here");
                continue;
            };
            drop(probe);
            let ((receiver, to), (sender, from)) = (socket(ip).await, socket(ip).await);
            let packet = |index: u8| (to, vec![index; 100 + usize::from(index) * 15]);
            let mut packets = (0..80).map(packet).collect();
            assert_eq!(Outgoing::default().send(&sender, &mut packets), 0);
            // This one is longer than any packet.
            sender.send_to(&[80; 4000], to).await.unwrap();
            let mut incoming = Incoming::default();
            let (mut calls, mut seen) = (0, BTreeSet::new());
            while seen.len() < 81 {
                receiver.readable().await.unwrap();
                if !incoming.receive(&receiver) {
                    continue;
                }
                calls += 1;
                for (source, bytes) in incoming.packets() {
                    assert_eq!(source, from);
                    let length = 100 + usize::from(bytes[0]) * 15;
                    assert_eq!(bytes.len(), length.min(SLOT));
                    assert!(bytes.iter().all(|&byte| byte == bytes[0]));
                    assert!(seen.insert(bytes[0]));
                }
            }
            assert!(!incoming.receive(&receiver), "nothing is left");
            assert_eq!(incoming.packets().count(), 0);
            if cfg!(target_os = "linux") {
                assert_eq!(calls, 3, "81 datagrams, 32 a call");
            }
        }
    }

    #[tokio::test]
    async fn one_that_can_go_nowhere_holds_nobody_up() {
        let ((receiver, to), (sender, _)) =
            (socket("127.0.0.1:0").await, socket("127.0.0.1:0").await);
        // An IPv4 socket does not reach an IPv6 address, and port 0 is unreachable.
        let nowhere: [SocketAddr; 2] = ["[::1]:9".parse().unwrap(), "127.0.0.1:0".parse().unwrap()];
        let mut packets = [to, nowhere[0], to, nowhere[1], to].map(|to| (to, vec![1])).to_vec();
        assert_eq!(Outgoing::default().send(&sender, &mut packets), 2);
        assert!(packets.is_empty(), "nothing is sent twice");
        let (mut incoming, mut came) = (Incoming::default(), 0);
        while came < 3 {
            receiver.readable().await.unwrap();
            if incoming.receive(&receiver) {
                came += incoming.packets().count();
            }
        }
    }
}
