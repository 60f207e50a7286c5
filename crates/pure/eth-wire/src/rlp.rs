//! Reading and writing of the lists that messages are.

use crate::Error;
use alloy_primitives::{B256, Bytes};
use alloy_rlp::{Decodable, EMPTY_STRING_CODE, Encodable, Header};

/// List that is being read, item by item.
pub(crate) struct Reader<'a> {
    message: &'static str,
    /// Whole message, whose memory raw items share.
    content: &'a Bytes,
    rest: &'a [u8],
}

impl<'a> Reader<'a> {
    /// Opens the list that a message is.
    pub(crate) fn open(message: &'static str, content: &'a Bytes) -> Result<Self, Error> {
        let mut whole = Self::whole(message, content);
        let list = whole.list()?;
        whole.end()?;
        Ok(list)
    }

    /// Reads a message as if it were the only item of a list.
    pub(crate) fn whole(message: &'static str, content: &'a Bytes) -> Self {
        Self { message, content, rest: content }
    }

    fn malformed(&self, error: alloy_rlp::Error) -> Error {
        Error::Rlp { message: self.message, error }
    }

    /// Reads the next item.
    pub(crate) fn value<T: Decodable>(&mut self) -> Result<T, Error> {
        if self.rest.is_empty() {
            return Err(self.malformed(alloy_rlp::Error::InputTooShort));
        }
        T::decode(&mut self.rest).map_err(|error| self.malformed(error))
    }

    /// Reads a list within this list.
    pub(crate) fn list(&mut self) -> Result<Self, Error> {
        let items = Header::decode_bytes(&mut self.rest, true);
        let rest = items.map_err(|error| self.malformed(error))?;
        Ok(Self { message: self.message, content: self.content, rest })
    }

    /// Reads bytes, at most `max`.
    pub(crate) fn bytes(&mut self, max: usize) -> Result<Bytes, Error> {
        let bytes = Header::decode_bytes(&mut self.rest, false);
        let bytes = bytes.map_err(|error| self.malformed(error))?;
        if bytes.len() > max {
            return Err(self.malformed(alloy_rlp::Error::UnexpectedLength));
        }
        Ok(self.share(bytes))
    }

    /// Reads an item as it is, RLP with its own header.
    pub(crate) fn raw(&mut self, kind: Kind) -> Result<Bytes, Error> {
        let begin = self.rest;
        let header = Header::decode(&mut self.rest).map_err(|error| self.malformed(error))?;
        let right = match kind {
            Kind::List => header.list,
            Kind::ListOrNone => header.list || header.payload_length == 0,
            Kind::Any => true,
        };
        if !right {
            return Err(self.malformed(alloy_rlp::Error::UnexpectedString));
        }
        self.rest = &self.rest[header.payload_length..];
        Ok(self.share(&begin[..begin.len() - self.rest.len()]))
    }

    fn share(&self, part: &[u8]) -> Bytes {
        self.content.slice_ref(part)
    }

    /// Reads a list of at most `max` items.
    pub(crate) fn list_of<T>(
        &mut self,
        max: usize,
        read: impl Fn(&mut Self) -> Result<T, Error>,
    ) -> Result<Vec<T>, Error> {
        let (mut list, mut items) = (self.list()?, Vec::new());
        while !list.is_empty() {
            if items.len() == max {
                return Err(Error::TooMany { message: self.message, max });
            }
            items.push(read(&mut list)?);
        }
        Ok(items)
    }

    /// Reads the first hashes of a list, at most `max`. The others are not looked at.
    pub(crate) fn first_hashes(&mut self, max: usize) -> Result<Vec<B256>, Error> {
        let (mut list, mut hashes) = (self.list()?, Vec::new());
        while !list.is_empty() && hashes.len() < max {
            hashes.push(list.value()?);
        }
        Ok(hashes)
    }

    /// Returns whether all items have been read.
    pub(crate) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    /// Returns the number of bytes of the next item's content, and whether it is a list.
    pub(crate) fn peek(&self) -> Result<Header, Error> {
        Header::decode(&mut &*self.rest).map_err(|error| self.malformed(error))
    }

    /// Ends the list, which must have no other items.
    pub(crate) fn end(self) -> Result<(), Error> {
        if self.is_empty() {
            Ok(())
        } else {
            Err(self.malformed(alloy_rlp::Error::UnexpectedLength))
        }
    }
}

/// Kind of an item that stays RLP.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    List,
    /// A list, or the empty bytes that stand for a missing one.
    ListOrNone,
    /// A list, or bytes.
    Any,
}

/// List that is being written.
#[derive(Default)]
pub(crate) struct Writer(Vec<u8>);

impl Writer {
    pub(crate) fn value(mut self, value: &dyn Encodable) -> Self {
        value.encode(&mut self.0);
        self
    }

    pub(crate) fn bytes(self, bytes: &[u8]) -> Self {
        self.value(&bytes)
    }

    /// Appends a list of items that `write` writes.
    pub(crate) fn list_of<T>(mut self, items: &[T], write: impl Fn(Writer, &T) -> Writer) -> Self {
        let list = items.iter().fold(Self::default(), write);
        list.finish_into(&mut self.0);
        self
    }

    /// Appends a list of items that are RLP.
    pub(crate) fn raws(self, items: &[Bytes]) -> Self {
        self.list_of(items, |list, item| list.raw(item))
    }

    /// Appends an item that is RLP.
    pub(crate) fn raw(mut self, item: &[u8]) -> Self {
        self.0.extend_from_slice(item);
        self
    }

    pub(crate) fn finish(self) -> Vec<u8> {
        let mut out = Vec::with_capacity(self.0.len() + 5);
        self.finish_into(&mut out);
        out
    }

    fn finish_into(self, out: &mut Vec<u8>) {
        Header { list: true, payload_length: self.0.len() }.encode(out);
        out.extend_from_slice(&self.0);
    }
}

/// RLP of an item that a peer does not have.
pub(crate) const NONE: &[u8] = &[EMPTY_STRING_CODE];
