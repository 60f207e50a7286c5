//! Direct connections of a client.

use super::{ANSWER_HEAD, MESSAGE_BYTES_MAX, REQUEST_HEAD, UNREAD_MAX, length, recycle};
use crate::{connector::Connector, metrics as names};
use metrics::{Counter, counter};
use parking_lot::Mutex;
use rustls::{ClientConnection, StreamOwned};
use std::{
    io::{self, IoSlice, Read, Write},
    mem,
    net::Shutdown,
    os::unix::net::UnixStream,
    time::Duration,
};
use tracing::debug;

/// Direct connections to the server that a client is connected to.
#[derive(Debug, Default)]
pub struct DirectConnections(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    /// Number of times that connections were closed.
    closed: u64,
    /// Connections without a call.
    free: Vec<DirectConnection>,
    /// Sockets of all connections, to end their calls.
    sockets: Vec<UnixStream>,
}

impl DirectConnections {
    /// Opens connections in place of the earlier ones, as many as the server takes. They are closed when
    /// the guard is dropped.
    pub(crate) async fn open(&self, connector: &Connector, count: usize) -> OpenGuard<'_> {
        let guard = OpenGuard(self);
        for _ in 0..count {
            let opened = connector.clone().connect_directly().await;
            let opened = opened.and_then(|stream| match stream {
                Some(stream) => DirectConnection::new(stream).map(Some),
                None => Ok(None),
            });
            match opened {
                Ok(Some((connection, socket))) => {
                    let mut state = self.0.lock();
                    state.free.push(connection);
                    state.sockets.push(socket);
                }
                Ok(None) => break,
                Err(error) => {
                    debug!(%error, "no direct connection, calls go over HTTP/2");
                    break;
                }
            }
        }
        guard
    }

    /// Makes a call that may be made twice, over a free connection, and waits for its answer: `timeout` for
    /// each piece of it. Blocks the thread. `write` appends the encoded request to the buffer, and the answer
    /// is encoded, too. Returns `None` if the call has to be made over HTTP/2.
    pub fn call(
        &self,
        method: &str,
        context: Option<&str>,
        timeout: Duration,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> Option<Vec<u8>> {
        let (mut connection, closed) = {
            let mut state = self.0.lock();
            (state.free.pop()?, state.closed)
        };
        match connection.call(method, context.unwrap_or_default(), timeout, write) {
            Ok(answer) => {
                counter!(names::DIRECT_CALLS).increment(1);
                let mut state = self.0.lock();
                if state.closed == closed {
                    state.free.push(connection);
                }
                answer
            }
            Err(error) => {
                debug!(method, %error, "a direct connection broke");
                connection.end();
                None
            }
        }
    }

    /// Closes all connections. Calls that wait for their answers get none, and are made over HTTP/2.
    pub fn close(&self) {
        let (_free, sockets) = {
            let mut state = self.0.lock();
            state.closed += 1;
            (mem::take(&mut state.free), mem::take(&mut state.sockets))
        };
        for socket in sockets {
            // An error means that it is closed already.
            let _ = socket.shutdown(Shutdown::Both);
        }
    }
}

/// Guard of open connections, which it closes on drop.
#[must_use]
pub(crate) struct OpenGuard<'a>(&'a DirectConnections);

impl Drop for OpenGuard<'_> {
    fn drop(&mut self) {
        self.0.close();
    }
}

/// Encrypted stream, whose bytes are counted.
pub type DirectStream = StreamOwned<ClientConnection, CountedSocket>;

/// Socket of a client, whose bytes are counted.
#[derive(Debug)]
pub struct CountedSocket {
    socket: UnixStream,
    sent: Counter,
    received: Counter,
}

impl CountedSocket {
    pub fn new(socket: UnixStream, sent: Counter, received: Counter) -> Self {
        Self { socket, sent, received }
    }
}

impl Read for CountedSocket {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let bytes = self.socket.read(buffer)?;
        self.received.increment(bytes as u64);
        Ok(bytes)
    }
}

impl Write for CountedSocket {
    fn write(&mut self, buffer: &[u8]) -> io::Result<usize> {
        let bytes = self.socket.write(buffer)?;
        self.sent.increment(bytes as u64);
        Ok(bytes)
    }

    fn write_vectored(&mut self, slices: &[IoSlice<'_>]) -> io::Result<usize> {
        let bytes = self.socket.write_vectored(slices)?;
        self.sent.increment(bytes as u64);
        Ok(bytes)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Connection that one thread uses at a time.
#[derive(Debug)]
struct DirectConnection {
    stream: DirectStream,
    /// Longest wait for a piece of an answer, as the socket has it.
    timeout: Duration,
    buffer: Vec<u8>,
}

impl DirectConnection {
    /// Makes a connection, and returns its socket too.
    fn new(stream: DirectStream) -> io::Result<(Self, UnixStream)> {
        let socket = stream.sock.socket.try_clone()?;
        socket.set_write_timeout(Some(UNREAD_MAX))?;
        Ok((Self { stream, timeout: Duration::ZERO, buffer: Vec::new() }, socket))
    }

    /// Returns the answer, `None` if the server has none.
    fn call(
        &mut self,
        method: &str,
        context: &str,
        timeout: Duration,
        write: impl FnOnce(&mut Vec<u8>),
    ) -> io::Result<Option<Vec<u8>>> {
        if timeout != self.timeout {
            self.stream.sock.socket.set_read_timeout(Some(timeout))?;
            self.timeout = timeout;
        }
        let of = |text: &str| u8::try_from(text.len()).map_err(io::Error::other);
        let lengths = [of(method)?, of(context)?];
        recycle(&mut self.buffer);
        self.buffer.resize(REQUEST_HEAD, 0);
        self.buffer.extend_from_slice(method.as_bytes());
        self.buffer.extend_from_slice(context.as_bytes());
        let head = self.buffer.len();
        write(&mut self.buffer);
        let Some(message) = length(self.buffer.len() - head) else { return Ok(None) };
        self.buffer[..4].copy_from_slice(&message);
        self.buffer[4..REQUEST_HEAD].copy_from_slice(&lengths);
        self.stream.write_all(&self.buffer)?;
        let mut head = [0; ANSWER_HEAD];
        self.stream.read_exact(&mut head)?;
        let [kind, length @ ..] = head;
        let bytes = u32::from_be_bytes(length) as usize;
        if bytes > MESSAGE_BYTES_MAX {
            return Err(io::Error::other(format!("an answer of {bytes} bytes")));
        }
        let mut answer = vec![0; bytes];
        self.stream.read_exact(&mut answer)?;
        Ok((kind == 1).then_some(answer))
    }

    fn end(&self) {
        // An error means that it has ended already.
        let _ = self.stream.sock.socket.shutdown(Shutdown::Both);
    }
}
