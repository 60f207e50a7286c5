//! Byte stream between two processes: TCP, or a Unix socket if both are on one machine.
//!
//! A Unix socket carries bytes without segments, acknowledgements and network interrupts, so that a
//! message costs less processor time on both sides ([the hop](../../../../lab/results)). It stands
//! beside the TCP port and serves the same calls. Its name is made from the port's address, in the
//! abstract namespace (unix(7)): it ends with its process, leaves no file, and belongs to one network
//! namespace, as loopback does. So a client needs no setting of its own, and where the two do not
//! share a loopback, it finds no socket and uses TCP.

use rustix::{
    net::{RecvFlags, recv},
    process::geteuid,
};
use std::{
    io,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};
use tokio::{
    io::Interest,
    net::{TcpStream, UnixStream},
    time::{Duration, timeout},
};
use tokio_util::either::Either;
use tonic::transport::Uri;

/// Byte stream of a connection.
pub type ByteStream = Either<TcpStream, UnixStream>;

/// Longest wait for the connection to a Unix socket. The kernel answers at once.
const CONNECT_MAX: Duration = Duration::from_millis(100);

/// Returns the name of the Unix socket beside a TCP port, in the form that tokio takes for the abstract
/// namespace. Returns `None` if the port is not reached over loopback.
pub fn name_beside(address: SocketAddr) -> Option<String> {
    let ip = match address.ip() {
        IpAddr::V4(ip) if ip.is_unspecified() => Ipv4Addr::LOCALHOST.into(),
        IpAddr::V6(ip) if ip.is_unspecified() => Ipv6Addr::LOCALHOST.into(),
        ip if ip.is_loopback() => ip,
        _ => return None,
    };
    Some(format!("\0tandem/{}", SocketAddr::new(ip, address.port())))
}

/// Connects to the Unix socket beside the port that a URL names. Returns `None` if there is none, or if
/// it belongs to another user than this process: any user may take a name in the abstract namespace.
pub async fn connect_beside(target: &Uri) -> Option<UnixStream> {
    let ip = match target.host()?.trim_matches(['[', ']']) {
        "localhost" => Ipv4Addr::LOCALHOST.into(),
        host => host.parse::<IpAddr>().ok()?,
    };
    // A client does not connect to the unspecified address.
    let name = name_beside(SocketAddr::new(ip, target.port_u16()?)).filter(|_| ip.is_loopback())?;
    let stream = timeout(CONNECT_MAX, UnixStream::connect(name)).await.ok()?.ok()?;
    let owner = stream.peer_cred().ok()?.uid();
    (owner == geteuid().as_raw()).then_some(stream)
}

/// Returns the first byte that arrives without taking it, `None` if the stream ends before.
///
/// # Errors
/// Error of the stream.
pub async fn peek(stream: &ByteStream) -> io::Result<Option<u8>> {
    let mut first = [0];
    let bytes = match stream {
        Either::Left(tcp) => tcp.peek(&mut first).await?,
        Either::Right(unix) => {
            let look = || Ok(recv(unix, &mut first, RecvFlags::PEEK)?.0);
            unix.async_io(Interest::READABLE, look).await?
        }
    };
    Ok((bytes > 0).then_some(first[0]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::listener::{Accept, Listener};
    use rustix::thread::{Uid, set_thread_res_uid};
    use std::{future::poll_fn, thread};
    use tokio::{
        io::{AsyncReadExt, AsyncWriteExt},
        net::{TcpListener, UnixListener},
    };

    fn url(address: SocketAddr) -> Uri {
        format!("http://{address}").parse().unwrap()
    }

    #[test]
    fn a_port_has_a_name_where_loopback_reaches_it() {
        let name = |address: &str| name_beside(address.parse().unwrap());
        assert_eq!(name("127.0.0.1:9600").as_deref(), Some("\0tandem/127.0.0.1:9600"));
        assert_eq!(name("0.0.0.0:9600"), name("127.0.0.1:9600"));
        assert_eq!(name("[::]:9600").as_deref(), Some("\0tandem/[::1]:9600"));
        assert_ne!(name("127.0.0.2:9600"), name("127.0.0.1:9600"));
        assert_eq!(name("192.0.2.1:9600"), None);
        assert_eq!(name("[2001:db8::1]:9600"), None);
    }

    #[tokio::test]
    async fn a_client_of_loopback_takes_the_unix_socket() {
        let mut listener = Listener::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = listener.local_addr().unwrap();
        let by_name = format!("https://localhost:{}", address.port()).parse().unwrap();
        for target in [url(address), by_name] {
            let mut near = connect_beside(&target).await.expect("a Unix socket");
            let (far, peer) = poll_fn(|cx| listener.poll_accept(cx)).await.unwrap();
            assert!(matches!(far, Either::Right(_)) && peer.ip().is_loopback());
            near.write_all(b"ab").await.unwrap();
            // The byte stays where it is.
            assert_eq!(peek(&far).await.unwrap(), Some(b'a'));
            drop(near);
            let mut all = Vec::new();
            let mut far = far;
            far.read_to_end(&mut all).await.unwrap();
            assert_eq!(all, b"ab");
            assert_eq!(peek(&far).await.unwrap(), None);
        }
        // TCP goes on beside it.
        let _near = TcpStream::connect(address).await.unwrap();
        let (far, _) = poll_fn(|cx| listener.poll_accept(cx)).await.unwrap();
        assert!(matches!(far, Either::Left(_)));
        drop(listener);
        assert!(connect_beside(&url(address)).await.is_none(), "it ends with its listener");
    }

    #[tokio::test]
    async fn without_a_unix_socket_there_is_tcp() {
        let taken = Listener::bind("127.0.0.1:0".parse().unwrap()).await.unwrap();
        let address = taken.local_addr().unwrap();
        assert!(
            connect_beside(&format!("http://192.0.2.1:{}", address.port()).parse().unwrap())
                .await
                .is_none()
        );
        assert!(
            connect_beside(&format!("http://0.0.0.0:{}", address.port()).parse().unwrap())
                .await
                .is_none()
        );
        assert!(connect_beside(&"http://127.0.0.1".parse().unwrap()).await.is_none());
        let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
        assert!(connect_beside(&url(tcp.local_addr().unwrap())).await.is_none());
    }

    #[tokio::test]
    async fn a_unix_socket_of_another_user_is_not_used() {
        let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = tcp.local_addr().unwrap();
        let name = name_beside(address).unwrap();
        let runtime = tokio::runtime::Handle::current();
        // The other user takes the name before the server does. Only root can become another user.
        let bound = thread::spawn(move || {
            let _entered = runtime.enter();
            set_thread_res_uid(None, Some(Uid::from_raw(65_534)), None).ok()?;
            UnixListener::bind(name).ok()
        });
        let Some(_squatter) = bound.join().unwrap() else {
            assert!(!geteuid().is_root(), "root can become another user");
            return;
        };
        assert!(connect_beside(&url(address)).await.is_none());
    }
}
