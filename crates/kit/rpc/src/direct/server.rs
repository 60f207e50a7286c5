//! Direct connections of a server.

use super::{ANSWER_HEAD, MESSAGE_BYTES_MAX, REQUEST_HEAD, UNREAD_MAX, length, recycle};
use crate::{guard::Access, socket::Caller, stream::ByteStream};
use bytes::Bytes;
use parking_lot::Mutex;
use rustls::{ServerConnection, StreamOwned};
use std::{
    collections::HashMap,
    fmt,
    io::{self, Read, Write},
    net::Shutdown,
    os::unix::net::UnixStream,
    sync::Arc,
    thread,
};
use tokio_rustls::server::TlsStream;
use tokio_util::either::Either;
use tracing::debug;

/// Largest number of direct connections, each with a thread. A client beyond them uses HTTP/2.
const CONNECTIONS_MAX: usize = 64;

/// Call that arrived over a direct connection.
#[derive(Debug)]
pub struct DirectCall<'a> {
    /// Caller, who may make it.
    pub caller: &'a Caller,
    /// Name of the method.
    pub method: &'a str,
    /// Trace context of the caller's span, if it has one.
    pub context: Option<&'a str>,
    /// Encoded request. What is decoded from it shares its memory.
    pub request: Bytes,
}

/// Function that answers direct calls: appends the encoded answer to the buffer. Returns `false` for a
/// call that fails or is not for it; the client then makes the call over HTTP/2, and gets the error there.
pub type DirectCalls = Arc<dyn Fn(&DirectCall<'_>, &mut Vec<u8>) -> bool + Send + Sync>;

/// Server of direct calls.
pub struct DirectServer {
    calls: DirectCalls,
    service: &'static str,
    access: Access,
    open: Mutex<OpenConnections>,
}

struct OpenConnections {
    next: u64,
    /// Sockets of the connections, to end them. `None` once the server has ended.
    sockets: Option<HashMap<u64, UnixStream>>,
}

impl fmt::Debug for DirectServer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DirectServer").field("service", &self.service).finish_non_exhaustive()
    }
}

impl DirectServer {
    /// Makes the server of a service's calls, of which each role may make those that `access` allows.
    pub fn new(service: &'static str, access: Access, calls: DirectCalls) -> Arc<Self> {
        let open = OpenConnections { next: 0, sockets: Some(HashMap::new()) };
        Arc::new(Self { calls, service, access, open: Mutex::new(open) })
    }

    /// Serves a connection on a thread of its own. One that is no Unix socket, or one too many, is closed.
    ///
    /// # Errors
    /// Error of the operating system.
    pub fn take(self: &Arc<Self>, stream: TlsStream<ByteStream>, caller: Caller) -> io::Result<()> {
        let (socket, tls) = stream.into_inner();
        let Either::Right(socket) = socket else { return Ok(()) };
        let socket = socket.into_std()?;
        socket.set_nonblocking(false)?;
        socket.set_write_timeout(Some(UNREAD_MAX))?;
        let Some(open) = self.register(socket.try_clone()?) else { return Ok(()) };
        let stream = StreamOwned::new(tls, socket);
        thread::Builder::new().name("direct-calls".to_owned()).spawn(move || {
            let error = open.server.serve(stream, &caller).unwrap_or_else(|error| error);
            debug!(peer = %caller, %error, "a direct connection ended");
        })?;
        Ok(())
    }

    fn register(self: &Arc<Self>, socket: UnixStream) -> Option<OpenConnection> {
        let mut open = self.open.lock();
        let id = open.next;
        let sockets = open.sockets.as_mut()?;
        if sockets.len() >= CONNECTIONS_MAX {
            return None;
        }
        sockets.insert(id, socket);
        open.next += 1;
        Some(OpenConnection { server: self.clone(), id })
    }

    /// Ends all connections, and takes no more.
    pub fn close(&self) {
        let sockets = self.open.lock().sockets.take();
        for socket in sockets.into_iter().flat_map(HashMap::into_values) {
            // An error means that the client has closed it.
            let _ = socket.shutdown(Shutdown::Both);
        }
    }

    /// Answers calls until the connection ends, and returns why.
    fn serve(
        &self,
        mut stream: StreamOwned<ServerConnection, UnixStream>,
        caller: &Caller,
    ) -> io::Result<io::Error> {
        let (mut names, mut answer) = (Vec::new(), Vec::new());
        loop {
            let mut head = [0; REQUEST_HEAD];
            stream.read_exact(&mut head)?;
            let [a, b, c, d, method, context] = head;
            let (method, context) = (usize::from(method), usize::from(context));
            let message = u32::from_be_bytes([a, b, c, d]) as usize;
            if message > MESSAGE_BYTES_MAX {
                return Ok(io::Error::other(format!("a request of {message} bytes")));
            }
            names.resize(method + context, 0);
            stream.read_exact(&mut names)?;
            let mut request = vec![0; message];
            stream.read_exact(&mut request)?;
            let (method, context) = names.split_at(method);
            let text = |bytes| str::from_utf8(bytes).map_err(io::Error::other);
            let (method, context) = (text(method)?, text(context)?);
            let context = (!context.is_empty()).then_some(context);
            let call = DirectCall { caller, method, context, request: request.into() };
            answer.resize(ANSWER_HEAD, 0);
            let may_call = caller.may_call(self.access, self.service, method);
            let is_answered = may_call && (self.calls)(&call, &mut answer);
            match length(answer.len() - ANSWER_HEAD).filter(|_| is_answered) {
                Some(length) => {
                    answer[0] = 1;
                    answer[1..ANSWER_HEAD].copy_from_slice(&length);
                }
                None => {
                    answer.clear();
                    answer.resize(ANSWER_HEAD, 0);
                }
            }
            stream.write_all(&answer)?;
            recycle(&mut answer);
        }
    }
}

/// Connection among the open ones, which it leaves on drop.
struct OpenConnection {
    server: Arc<DirectServer>,
    id: u64,
}

impl Drop for OpenConnection {
    fn drop(&mut self) {
        if let Some(sockets) = &mut self.server.open.lock().sockets {
            sockets.remove(&self.id);
        }
    }
}
