//! A connection that leaves its thread to others now and then.

use std::{
    io::{self, IoSlice},
    pin::Pin,
    task::{Context, Poll},
};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tonic::transport::server::Connected;

/// Bytes that are read without a pause: some tens of microseconds of HTTP/2. While megabytes lie in
/// the socket, a connection would go on reading for milliseconds, in which nobody else on its
/// thread is served.
const READ_MAX: usize = 256 << 10;

/// After how many tasks a reactor that serves connections should look at its timers and sockets
/// (`event_interval` of tokio's builder). A task here may have read [`READ_MAX`] bytes: tokio's 61 of
/// them would be milliseconds.
pub const EVENT_INTERVAL: u32 = 8;

/// A socket that says "not now, ask me again" after every [`READ_MAX`] bytes.
pub struct Paced<S> {
    socket: S,
    /// Bytes read since the last pause.
    read: usize,
}

impl<S> Paced<S> {
    pub fn new(socket: S) -> Self {
        Self { socket, read: 0 }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Paced<S> {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let this = self.get_mut();
        if this.read >= READ_MAX {
            this.read = 0;
            context.waker().wake_by_ref();
            return Poll::Pending;
        }
        let before = buffer.filled().len();
        let polled = Pin::new(&mut this.socket).poll_read(context, buffer);
        if polled.is_pending() {
            this.read = 0;
        } else {
            this.read += buffer.filled().len() - before;
        }
        polled
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Paced<S> {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write(context, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        slices: &[IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.socket).poll_write_vectored(context, slices)
    }

    fn is_write_vectored(&self) -> bool {
        self.socket.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.socket).poll_shutdown(context)
    }
}

impl<S: Connected> Connected for Paced<S> {
    type ConnectInfo = S::ConnectInfo;

    fn connect_info(&self) -> S::ConnectInfo {
        self.socket.connect_info()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        future::poll_fn,
        sync::atomic::{AtomicUsize, Ordering::Relaxed},
        task::{Wake, Waker},
    };
    use tokio::{
        io::AsyncWriteExt,
        net::{TcpListener, TcpStream},
    };

    #[derive(Default)]
    struct Woken(AtomicUsize);

    impl Wake for Woken {
        fn wake(self: std::sync::Arc<Self>) {
            self.0.fetch_add(1, Relaxed);
        }
    }

    #[tokio::test]
    async fn a_reader_pauses_after_its_share_and_goes_on_at_once() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let mut far = TcpStream::connect(listener.local_addr().unwrap()).await.unwrap();
        let mut paced = Paced::new(listener.accept().await.unwrap().0);
        let sending = tokio::spawn(async move {
            far.write_all(&vec![7; 4 * READ_MAX]).await.unwrap();
        });
        let woken = std::sync::Arc::new(Woken::default());
        let waker = Waker::from(woken.clone());
        let (mut bytes, mut buffer) = (0, vec![0; READ_MAX / 4]);
        let mut since_pause = 0;
        while bytes < 4 * READ_MAX {
            paced.socket.readable().await.unwrap();
            let mut read = ReadBuf::new(&mut buffer);
            let before = woken.0.load(Relaxed);
            // Each in a poll of its own, without the runtime's budget.
            let polled = poll_fn(|_| {
                let mut context = Context::from_waker(&waker);
                Poll::Ready(Pin::new(&mut paced).poll_read(&mut context, &mut read))
            });
            match polled.await {
                Poll::Ready(result) => {
                    result.unwrap();
                    assert!(read.filled().iter().all(|byte| *byte == 7));
                    bytes += read.filled().len();
                    since_pause += read.filled().len();
                    assert!(since_pause < READ_MAX + READ_MAX / 4);
                }
                Poll::Pending => {
                    let full = since_pause >= READ_MAX;
                    assert!(!full || woken.0.load(Relaxed) > before, "nobody would ask again");
                    since_pause = 0;
                }
            }
        }
        sending.await.unwrap();
    }
}
