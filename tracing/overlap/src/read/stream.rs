//! Reader of sources that are too large for memory, document by document.

use std::io::{BufRead, BufReader, Cursor, ErrorKind, Read};

use super::{Format, HEAD_BYTES, MAX_BYTES, Sink, json, protobuf, zstd};
use crate::model::Input;

/// Beginnings of a document, in the first column. They end the previous document, even a broken
/// one.
const BEGINNINGS: [&[u8]; 6] = [
    b"{\"resourceSpans\"",
    b"{\"resource_spans\"",
    b"{\"result\"",
    b"{\"data\"",
    b"{\"batches\"",
    b"{\"trace\"",
];

/// Reads the formats of [`read`](super::read) from `reader`, piece by piece. `each` receives the
/// spans and the problems of one document at a time. At most one document is held in memory. In a
/// file with one object per line that is a line, in a file of a single object the whole file.
pub fn read_from(source: &str, reader: impl Read, each: &mut dyn FnMut(Input)) {
    let mut pieces = Pieces { source, sink: Sink::default(), each };
    pieces.detect(reader, true);
}

struct Pieces<'a> {
    source: &'a str,
    sink: Sink,
    each: &'a mut dyn FnMut(Input),
}

impl Pieces<'_> {
    fn detect(&mut self, mut reader: impl Read, may_be_gzip: bool) {
        let mut head = Vec::with_capacity(HEAD_BYTES);
        if let Err(error) = reader.by_ref().take(HEAD_BYTES as u64).read_to_end(&mut head) {
            self.failed(&error);
            self.document(&head);
            return;
        }
        let gzip = may_be_gzip && head.starts_with(&[0x1f, 0x8b]);
        let format = Format::of(&head);
        // A trait object, or the compiler would make types of readers in readers without end.
        let reader: Box<dyn Read + '_> = Box::new(Cursor::new(head).chain(reader));
        if gzip {
            self.detect(flate2::read::MultiGzDecoder::new(reader), false);
            return;
        }
        match format {
            Format::Json => self.json(BufReader::with_capacity(1 << 18, reader)),
            Format::Protobuf => self.message(reader),
            Format::PrefixedProtobuf => self.messages(BufReader::new(reader)),
            Format::Zstd => {
                self.sink.input.unreadable(zstd(self.source));
                self.deliver();
            }
        }
    }

    /// Reads JSON. Lines are gathered until every bracket is closed.
    fn json(&mut self, mut reader: impl BufRead) {
        let (mut document, mut line, mut depth) = (Vec::new(), Vec::new(), 0_u64);
        loop {
            line.clear();
            let room = MAX_BYTES.saturating_sub(document.len() as u64);
            match reader.by_ref().take(room).read_until(b'\n', &mut line) {
                Ok(0) if room > 0 => break,
                Ok(0) => {
                    let only = format!("{}: only {MAX_BYTES} bytes of a document", self.source);
                    self.sink.input.unreadable(format!("{only} were read"));
                    break;
                }
                Ok(_) => {}
                Err(error) => {
                    // The line holds the data before the failure.
                    document.append(&mut line);
                    self.document(&document);
                    self.failed(&error);
                    return;
                }
            }
            if depth > 0 && BEGINNINGS.iter().any(|beginning| line.starts_with(beginning)) {
                self.document(&document);
                document.clear();
                depth = 0;
            }
            depth = depth_after(&line, depth);
            document.append(&mut line);
            if depth == 0 {
                self.document(&document);
                document.clear();
            }
        }
        self.document(&document);
    }

    fn document(&mut self, document: &[u8]) {
        json(self.source, document, &mut self.sink);
        self.deliver();
    }

    fn message(&mut self, reader: impl Read) {
        let mut message = Vec::new();
        if let Err(error) = reader.take(MAX_BYTES).read_to_end(&mut message) {
            self.failed(&error);
        }
        protobuf::message(self.source, &message, &mut self.sink);
        self.deliver();
    }

    fn messages(&mut self, mut reader: impl Read) {
        let mut message = Vec::new();
        loop {
            message.clear();
            // Length and message together, as the reader of a whole file gets them.
            let read = (|| {
                reader.by_ref().take(4).read_to_end(&mut message)?;
                let Some(length) = message.first_chunk::<4>() else { return Ok(()) };
                let length = u64::from(u32::from_be_bytes(*length));
                reader.by_ref().take(length).read_to_end(&mut message).map(|_| ())
            })();
            if let Err(error) = &read {
                self.failed(error);
            }
            let damage = self.sink.input.problems.unreadable.len();
            protobuf::messages(self.source, &message, &mut self.sink);
            let sound = self.sink.input.problems.unreadable.len() == damage;
            self.deliver();
            if message.is_empty() || read.is_err() || !sound {
                return;
            }
        }
    }

    fn failed(&mut self, error: &std::io::Error) {
        let what = match error.kind() {
            ErrorKind::UnexpectedEof | ErrorKind::InvalidData | ErrorKind::InvalidInput => {
                "compressed data is damaged or cut off"
            }
            _ => "could not be read further",
        };
        self.sink.input.unreadable(format!("{}: {what}: {error}", self.source));
        self.deliver();
    }

    fn deliver(&mut self) {
        let sink = std::mem::take(&mut self.sink);
        (self.each)(sink.input);
    }
}

/// Returns how many brackets are open after `line`. No JSON string continues past the end of a
/// line.
fn depth_after(line: &[u8], mut depth: u64) -> u64 {
    let (mut in_string, mut escaped) = (false, false);
    for byte in line {
        match byte {
            _ if escaped => escaped = false,
            b'\\' if in_string => escaped = true,
            b'"' => in_string = !in_string,
            _ if in_string => {}
            b'{' | b'[' => depth += 1,
            b'}' | b']' => depth = depth.saturating_sub(1),
            _ => {}
        }
    }
    depth
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn brackets_in_strings_do_not_count() {
        assert_eq!(depth_after(br#"{"a": "}]\"}", "b": ["#, 0), 2);
        assert_eq!(depth_after(br#""\\"}"#, 3), 2);
        assert_eq!(depth_after(b"}}}", 1), 0);
    }
}
