//! Blocks from a file: what geth's `export` writes, one block's RLP after the other, also in gzip.

use flate2::bufread::MultiGzDecoder;
use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read},
    path::Path,
};
use tandem_chain::{Block, BlockError};
use tandem_executor::{BlockTag, Handle, Status};
use tandem_primitives::{B256, BlockId};

/// Bytes of RLP over which an item is taken for no block: eight times what Osaka allows.
const BLOCK_LEN_MAX: u64 = 64 << 20;

/// Blocks after which the head follows, so that the base can, and memory does not grow.
const HEAD_EVERY: u64 = 64;

const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// Why an import stopped. What came before it stays.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The file cannot be read, or ends inside a block.
    #[error("byte {offset}: {error}")]
    Read {
        /// Where in the (unpacked) file the item starts.
        offset: u64,
        /// What the operating system or the decompressor said.
        error: io::Error,
    },
    /// Something else than a block.
    #[error("byte {offset}: no block: {reason}")]
    NoBlock {
        /// Where in the (unpacked) file the item starts.
        offset: u64,
        /// What it is.
        reason: String,
    },
    /// A block whose parts cannot be decoded, or do not belong together.
    #[error("byte {offset}: {error}")]
    Malformed {
        /// Where in the (unpacked) file the item starts.
        offset: u64,
        /// The rule it breaks.
        error: BlockError,
    },
    /// The file starts with the genesis of another chain.
    #[error("block {got} of the file is not the genesis {want}")]
    OtherGenesis {
        /// In the file.
        got: BlockId,
        /// Of the data directory.
        want: B256,
    },
    /// A block whose parent is not known.
    #[error("block {block}: its parent {parent} is not known")]
    UnknownParent {
        /// The block.
        block: BlockId,
        /// The parent's hash.
        parent: B256,
    },
    /// A block that breaks a rule.
    #[error("block {block}: {rule}")]
    Invalid {
        /// The block.
        block: BlockId,
        /// The rule.
        rule: String,
    },
    /// The executor has no verdict.
    #[error("block {block}: {error}")]
    Executor {
        /// The block.
        block: BlockId,
        /// Why.
        error: tandem_executor::Error,
    },
}

/// The blocks of a file, read one by one.
pub struct BlockFile {
    reader: Box<dyn BufRead + Send>,
    offset: u64,
}

impl BlockFile {
    /// Opens a file of blocks; gzip is told by its first bytes.
    ///
    /// # Errors
    /// The operating system's.
    pub fn open(path: &Path) -> io::Result<Self> {
        Self::new(BufReader::new(File::open(path)?))
    }

    /// Reads from anything.
    ///
    /// # Errors
    /// When the first bytes cannot be read.
    pub fn new(mut reader: impl BufRead + Send + 'static) -> io::Result<Self> {
        let reader: Box<dyn BufRead + Send> = match reader.fill_buf()?.starts_with(&GZIP_MAGIC) {
            true => Box::new(BufReader::new(MultiGzDecoder::new(reader))),
            false => Box::new(reader),
        };
        Ok(Self { reader, offset: 0 })
    }

    /// Bytes of the (unpacked) file that are read.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The next block, `None` at the end of the file.
    ///
    /// # Errors
    /// [`ImportError::Read`], [`ImportError::NoBlock`], [`ImportError::Malformed`].
    pub fn next_block(&mut self) -> Result<Option<Block>, ImportError> {
        let offset = self.offset;
        let Some(rlp) = self.next_item()? else { return Ok(None) };
        self.offset += rlp.len() as u64;
        let block =
            Block::from_rlp(&rlp).map_err(|error| ImportError::Malformed { offset, error })?;
        Ok(Some(block))
    }

    /// The next RLP list, its header included.
    fn next_item(&mut self) -> Result<Option<Vec<u8>>, ImportError> {
        let offset = self.offset;
        let read_error = |error| ImportError::Read { offset, error };
        let no_block = |reason| ImportError::NoBlock { offset, reason };
        let Some(&first) = self.reader.fill_buf().map_err(read_error)?.first() else {
            return Ok(None);
        };
        // A block has more than the 55 bytes after which the length stands on its own.
        let length_len = match first {
            0xf8.. => usize::from(first - 0xf7),
            _ => return Err(no_block(format!("it starts with {first:#04x}"))),
        };
        let mut rlp = vec![0; 1 + length_len];
        self.reader.read_exact(&mut rlp).map_err(read_error)?;
        let length = rlp[1..].iter().fold(0, |length: u64, &byte| length << 8 | u64::from(byte));
        if length > BLOCK_LEN_MAX {
            return Err(no_block(format!("it has {length} bytes")));
        }
        // Grows with what is there, not with what the header promises.
        let read = self.reader.by_ref().take(length).read_to_end(&mut rlp).map_err(read_error)?;
        if read as u64 != length {
            return Err(read_error(io::ErrorKind::UnexpectedEof.into()));
        }
        Ok(Some(rlp))
    }
}

/// What an import did so far.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Imported {
    /// Blocks executed.
    pub new: u64,
    /// Blocks that were known.
    pub known: u64,
    /// The newest block of the file.
    pub last: Option<BlockId>,
}

/// Imports all blocks of a file in their order, those of before the merge among them; the last one
/// ends as the head, unless it is below one already. `progress` hears of each block. Known blocks
/// are skipped, genesis too. Reads the database in between: not for the async reactor's threads.
///
/// # Errors
/// [`ImportError`] at the first block that is not valid: the one before it is the head then.
pub async fn import(
    handle: &Handle,
    file: &mut BlockFile,
    mut progress: impl FnMut(Imported, u64),
) -> Result<Imported, ImportError> {
    let mut done = Imported::default();
    loop {
        let taken = match file.next_block() {
            Ok(Some(block)) => import_block(handle, block).await,
            Ok(None) => break,
            Err(error) => Err(error),
        };
        match taken {
            Ok((block, new)) => {
                done.last = Some(block);
                *(if new { &mut done.new } else { &mut done.known }) += 1;
                progress(done, file.offset());
            }
            Err(error) => {
                make_head(handle, done.last).await?;
                return Err(error);
            }
        }
        if (done.new + done.known).is_multiple_of(HEAD_EVERY) {
            make_head(handle, done.last).await?;
        }
    }
    make_head(handle, done.last).await?;
    Ok(done)
}

/// The block's id, and whether it was new.
async fn import_block(handle: &Handle, block: Block) -> Result<(BlockId, bool), ImportError> {
    let (id, parent) = (block.id, block.header.parent_hash);
    let executor = |error| ImportError::Executor { block: id, error };
    if handle.chain().header(BlockTag::Hash(id.hash)).map_err(executor)?.is_some() {
        return Ok((id, false));
    }
    let genesis = handle.chain().resolve(BlockTag::Earliest).map_err(executor)?;
    if let Some(genesis) = genesis
        && id.number <= genesis.number
    {
        return Err(ImportError::OtherGenesis { got: id, want: genesis.hash });
    }
    let status = handle.import(block).await.map_err(executor)?;
    match status.status {
        Status::Valid => Ok((id, true)),
        Status::Invalid | Status::InvalidBlockHash => {
            let rule = status.validation_error.unwrap_or_default();
            Err(ImportError::Invalid { block: id, rule })
        }
        Status::Syncing | Status::Accepted => Err(ImportError::UnknownParent { block: id, parent }),
    }
}

async fn make_head(handle: &Handle, block: Option<BlockId>) -> Result<(), ImportError> {
    let Some(block) = block else { return Ok(()) };
    let error = |error| ImportError::Executor { block, error };
    if handle.chain().resolve(BlockTag::Number(block.number)).map_err(error)? != Some(block) {
        handle.make_head(block.hash).await.map_err(error)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::{Compression, write::GzEncoder};
    use std::io::{Cursor, Write};

    fn file(bytes: Vec<u8>) -> BlockFile {
        BlockFile::new(Cursor::new(bytes)).unwrap()
    }

    fn error(bytes: Vec<u8>) -> String {
        file(bytes).next_block().unwrap_err().to_string()
    }

    #[test]
    fn a_file_without_blocks_is_at_its_end() {
        assert!(file(vec![]).next_block().unwrap().is_none());
    }

    #[test]
    fn what_is_no_block_is_named_with_its_place() {
        assert_eq!(error(b"hello".to_vec()), "byte 0: no block: it starts with 0x68");
        assert_eq!(error(vec![0xf9, 1]), "byte 0: failed to fill whole buffer");
        assert_eq!(error(vec![0xf9, 1, 0, 7]), "byte 0: unexpected end of file");
        let huge = [&[0xff][..], &[0xff; 8]].concat();
        assert_eq!(error(huge), format!("byte 0: no block: it has {} bytes", u64::MAX));
        let list = [&[0xf8, 60][..], &[0x80; 60]].concat();
        assert!(error(list).starts_with("byte 0: malformed"));
    }

    #[test]
    fn gzip_is_told_by_its_first_bytes() {
        let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
        packed.write_all(b"hello").unwrap();
        let packed = packed.finish().unwrap();
        assert_eq!(error(packed), "byte 0: no block: it starts with 0x68");
    }
}
