//! A JSON-RPC client over one HTTP/1.1 connection that is kept alive.

use alloy_primitives::{B256, hex};
use anyhow::{Context as _, bail};
use serde_json::{Value, json};
use std::{
    io::{BufRead, BufReader, Write},
    net::{SocketAddr, TcpStream},
    path::Path,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};
use tandem_auth::Secret;

/// An answer, and the time from the first byte sent to the last one received.
pub struct Answer {
    pub value: Value,
    pub elapsed: Duration,
}

/// A client of one port.
pub struct Client {
    address: SocketAddr,
    secret: Option<Secret>,
    time_max: Duration,
    connection: Option<BufReader<TcpStream>>,
}

impl Client {
    /// Returns a client of the public port.
    pub fn public(address: SocketAddr, time_max: Duration) -> Self {
        Self { address, secret: None, time_max, connection: None }
    }

    /// Returns a client of the Engine API with the secret in a file.
    ///
    /// # Errors
    /// If the file holds no secret.
    pub fn engine(address: SocketAddr, secret: &Path, time_max: Duration) -> anyhow::Result<Self> {
        let secret = Some(Secret::load(secret)?);
        Ok(Self { address, secret, time_max, connection: None })
    }

    /// Sends a request body and returns the whole JSON of the answer. A connection that was closed
    /// while idle is reopened once, as any HTTP client does; that time counts.
    ///
    /// # Errors
    /// If there is no answer, or none that is JSON with status 200.
    pub fn post(&mut self, body: &str) -> anyhow::Result<Answer> {
        let started = Instant::now();
        let is_new = self.connection.is_none();
        let mut answer = self.exchange(body);
        if answer.is_err() && !is_new && started.elapsed() < self.time_max {
            answer = self.exchange(body);
        }
        let (status, body) = answer?;
        let elapsed = started.elapsed();
        if status != 200 {
            bail!("HTTP {status}: {:.200}", String::from_utf8_lossy(&body));
        }
        let value = serde_json::from_slice(&body).context("parse the answer")?;
        Ok(Answer { value, elapsed })
    }

    /// Makes a call and returns its result.
    ///
    /// # Errors
    /// As for [`Client::post`], and the error object if the answer is one.
    pub fn call(&mut self, method: &str, params: &Value) -> anyhow::Result<Value> {
        let mut answer = self.post(&request(method, params))?.value;
        if let Some(error) = answer.get("error") {
            bail!("{method}: {error}");
        }
        Ok(answer["result"].take())
    }

    fn exchange(&mut self, body: &str) -> anyhow::Result<(u16, Vec<u8>)> {
        let mut connection = match self.connection.take() {
            Some(connection) => connection,
            None => self.connect()?,
        };
        let mut request = format!(
            "POST / HTTP/1.1\r\nhost: {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\n",
            self.address,
            body.len()
        );
        if let Some(secret) = &self.secret {
            let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
            request += &format!("authorization: Bearer {}\r\n", tandem_auth::sign(secret, now));
        }
        request += "\r\n";
        request += body;
        connection.get_mut().write_all(request.as_bytes()).context("send")?;
        let (status, body, keep) = read_answer(&mut connection)?;
        if keep {
            self.connection = Some(connection);
        }
        Ok((status, body))
    }

    fn connect(&self) -> anyhow::Result<BufReader<TcpStream>> {
        let stream = TcpStream::connect_timeout(&self.address, self.time_max).context("connect")?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(self.time_max))?;
        stream.set_write_timeout(Some(self.time_max))?;
        Ok(BufReader::new(stream))
    }
}

/// Requests a path over a connection of its own and returns status and body.
///
/// # Errors
/// If there is no answer within the time.
pub fn get(address: SocketAddr, path: &str, time_max: Duration) -> anyhow::Result<(u16, String)> {
    let (status, body) = get_bytes(address, path, time_max)?;
    Ok((status, String::from_utf8_lossy(&body).into_owned()))
}

/// Like [`get`], for a body that is not text.
///
/// # Errors
/// As for [`get`].
pub fn get_bytes(
    address: SocketAddr,
    path: &str,
    time_max: Duration,
) -> anyhow::Result<(u16, Vec<u8>)> {
    let mut connection = Client::public(address, time_max).connect()?;
    let request = format!("GET {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\n\r\n");
    connection.get_mut().write_all(request.as_bytes()).context("send")?;
    let (status, body, _) = read_answer(&mut connection)?;
    Ok((status, body))
}

/// Returns the value of one series, such as `name{label="value"}`, 0 if there is none yet.
pub fn series(text: &str, series: &str) -> f64 {
    let values = text.lines().filter_map(|line| line.strip_prefix(series)?.strip_prefix(' '));
    values.filter_map(|value| value.parse::<f64>().ok()).sum()
}

/// Returns the sum of a metric over its labels in Prometheus' text format, `None` if it has no
/// sample.
pub fn sum_of(text: &str, name: &str) -> Option<f64> {
    samples_of(text, name)
        .map(|(_, value)| value)
        .fold(None, |sum, value| Some(sum.unwrap_or(0.0) + value))
}

/// Returns the samples of a metric in Prometheus' text format, each with its labels.
pub fn samples_of<'t>(text: &'t str, name: &str) -> impl Iterator<Item = (&'t str, f64)> {
    text.lines().filter_map(move |line| {
        let rest = line.strip_prefix(name)?;
        let (labels, rest) = match rest.strip_prefix('{') {
            Some(rest) => rest.rsplit_once('}')?,
            None => ("", rest),
        };
        let value = rest.strip_prefix(' ')?.split(' ').next()?.parse().ok()?;
        Some((labels, value))
    })
}

/// Returns the body of a call.
pub fn request(method: &str, params: &Value) -> String {
    format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}","params":{params}}}"#)
}

/// Returns the body of a batch of eth_sendRawTransaction.
pub fn raw_transactions(transactions: &[impl AsRef<[u8]>]) -> String {
    let call = |raw| request("eth_sendRawTransaction", &json!([hex::encode_prefixed(raw)]));
    let calls: Vec<_> = transactions.iter().map(call).collect();
    format!("[{}]", calls.join(","))
}

/// Reads one answer: its status, its body, and whether the connection stays open.
fn read_answer(from: &mut impl BufRead) -> anyhow::Result<(u16, Vec<u8>, bool)> {
    let mut line = String::new();
    from.read_line(&mut line).context("read the status")?;
    let status = line.split(' ').nth(1).and_then(|status| status.parse().ok());
    let Some(status) = status else { bail!("the connection was closed without an answer") };
    let (mut length, mut chunked, mut keep) = (None, false, true);
    loop {
        line.clear();
        from.read_line(&mut line).context("read the head")?;
        let header = line.trim_end().to_ascii_lowercase();
        if header.is_empty() {
            break;
        }
        match header.split_once(':') {
            Some(("content-length", value)) => length = Some(value.trim().parse::<usize>()?),
            Some(("transfer-encoding", value)) => chunked = value.trim() == "chunked",
            Some(("connection", value)) => keep = value.trim() != "close",
            _ => {}
        }
    }
    let mut body = Vec::new();
    if !chunked {
        body.resize(length.unwrap_or(0), 0);
        from.read_exact(&mut body).context("read the body")?;
        return Ok((status, body, keep));
    }
    loop {
        line.clear();
        from.read_line(&mut line).context("read a chunk")?;
        let size = line.trim().split(';').next().unwrap_or_default();
        let size = usize::from_str_radix(size, 16).context("parse a chunk's length")?;
        let start = body.len();
        body.resize(start + size, 0);
        from.read_exact(&mut body[start..]).context("read a chunk")?;
        line.clear();
        from.read_line(&mut line).context("read a chunk's end")?;
        if size == 0 {
            return Ok((status, body, keep));
        }
    }
}

/// Names a head to the Engine API, before Amsterdam. Returns the payload status.
///
/// # Errors
/// If the node does not answer, or refuses the call.
pub fn forkchoice(engine: &mut Client, head: &Value) -> anyhow::Result<Value> {
    let zero = B256::ZERO;
    let state = json!({"headBlockHash": head, "safeBlockHash": zero, "finalizedBlockHash": zero});
    let mut answer = engine.call("engine_forkchoiceUpdatedV3", &json!([state, null]))?;
    Ok(answer["payloadStatus"].take())
}

/// Returns a number that JSON-RPC gives as a hexadecimal quantity.
///
/// # Errors
/// If the value is none.
pub fn quantity(value: &Value) -> anyhow::Result<u64> {
    let text = value.as_str().context("no number")?;
    Ok(u64::from_str_radix(text.trim_start_matches("0x"), 16)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_with_a_length_and_in_chunks_are_read() {
        let plain = "HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}";
        assert_eq!(read_answer(&mut plain.as_bytes()).unwrap(), (200, b"{}".to_vec(), true));
        let chunks = "HTTP/1.1 503 Busy\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n\
            2\r\n{}\r\n1;x=y\r\n \r\n0\r\n\r\n";
        assert_eq!(read_answer(&mut chunks.as_bytes()).unwrap(), (503, b"{} ".to_vec(), false));
        assert!(read_answer(&mut "".as_bytes()).is_err());
        assert!(read_answer(&mut &plain.as_bytes()[..plain.len() - 1]).is_err());
    }

    #[test]
    fn the_samples_of_one_metric_are_summed() {
        let text = "# TYPE a gauge\na{x=\"1\"} 2\na{x=\"2\"} 3.5\na_total 7\nb 1\n";
        assert_eq!(sum_of(text, "a"), Some(5.5));
        assert_eq!(sum_of(text, "b"), Some(1.0));
        assert_eq!(sum_of(text, "c"), None);
    }

    #[test]
    fn a_metric_is_summed_over_its_labels_and_not_taken_for_a_longer_name() {
        let text = "# TYPE a counter\na{x=\"1 }\"} 2\na{x=\"2\"} 3\na_count 9\na 1\n";
        assert_eq!(sum_of(text, "a"), Some(6.0));
        assert_eq!(sum_of(text, "a_count"), Some(9.0));
    }
}
