//! Imports blocks from a file: the RLP of the blocks in sequence, as geth's `export` writes it,
//! optionally in gzip, or a history file, era1 or ere.

use flate2::bufread::MultiGzDecoder;
use std::{
    fs::File,
    io::{self, BufRead, BufReader, Read, Seek},
    ops::Range,
    path::Path,
};
use tandem_chain::{Block, BlockError};
use tandem_era::is_era;
use tandem_executor::{BlockTag, Handle, Status};
use tandem_primitives::{B256, BlockId};

/// Maximum size of a block, in bytes of RLP: eight times the limit of Osaka.
const BLOCK_LEN_MAX: u64 = 64 << 20;

/// Number of blocks after which the head moves, so that the base can follow and memory does not
/// grow.
const HEAD_EVERY: u64 = 64;

const GZIP_MAGIC: [u8; 2] = [0x1f, 0x8b];

/// Reason why an import stopped. The blocks imported before it stay.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The file cannot be read, or ends inside a block.
    #[error("byte {offset}: {error}")]
    Read {
        /// Offset of the item in the (unpacked) file.
        offset: u64,
        /// Error from the operating system or the decompressor.
        error: io::Error,
    },
    /// The item is not a block.
    #[error("byte {offset}: not a block: {reason}")]
    NoBlock {
        /// Offset of the item in the (unpacked) file.
        offset: u64,
        /// Description of the item.
        reason: String,
    },
    /// The parts of a block cannot be decoded, or do not match each other.
    #[error("byte {offset}: {error}")]
    Malformed {
        /// Offset of the item in the (unpacked) file.
        offset: u64,
        /// The rule that the block breaks.
        error: BlockError,
    },
    /// A history file is damaged, or its blocks are not those of its accumulator.
    #[error(transparent)]
    History(#[from] tandem_era::Error),
    /// The file starts with the genesis of another chain.
    #[error("block {got} of the file is not the genesis {want}")]
    OtherGenesis {
        /// Block in the file.
        got: BlockId,
        /// Genesis of the data directory.
        want: B256,
    },
    /// The parent of a block is not known.
    #[error("block {block}: its parent {parent} is not known")]
    UnknownParent {
        /// The block.
        block: BlockId,
        /// The parent's hash.
        parent: B256,
    },
    /// A block breaks a rule.
    #[error("block {block}: {rule}")]
    Invalid {
        /// The block.
        block: BlockId,
        /// The rule.
        rule: String,
    },
    /// The executor failed before it reached a verdict.
    #[error("block {block}: {error}")]
    Executor {
        /// The block.
        block: BlockId,
        /// Cause of the failure.
        error: tandem_executor::Error,
    },
}

/// Reader of the blocks in a file, one by one.
pub struct BlockFile {
    source: Source,
    offset: u64,
}

enum Source {
    /// RLP of blocks.
    Sequence(Box<dyn BufRead + Send>),
    /// History file, the root by which it is named, and the numbers of the blocks that are left.
    History { reader: tandem_era::Reader<BufReader<File>>, root: B256, left: Range<u64> },
}

impl BlockFile {
    /// Opens a file of blocks. Gzip and history files are recognised by their first bytes. The
    /// headers of a history file are checked as a whole.
    ///
    /// # Errors
    /// [`ImportError::Read`], [`ImportError::History`].
    pub fn open(path: &Path) -> Result<Self, ImportError> {
        let read_error = |error| ImportError::Read { offset: 0, error };
        let mut file = BufReader::new(File::open(path).map_err(read_error)?);
        if !is_era(file.fill_buf().map_err(read_error)?) {
            return Self::new(file).map_err(read_error);
        }
        file.rewind().map_err(read_error)?;
        let mut reader = tandem_era::Reader::new(file)?;
        let root = reader.check()?;
        let left = reader.numbers();
        Ok(Self { source: Source::History { reader, root, left }, offset: 0 })
    }

    /// Reads blocks in sequence from any reader.
    ///
    /// # Errors
    /// Returns an error if the first bytes cannot be read.
    pub fn new(mut reader: impl BufRead + Send + 'static) -> io::Result<Self> {
        let reader: Box<dyn BufRead + Send> = match reader.fill_buf()?.starts_with(&GZIP_MAGIC) {
            true => Box::new(BufReader::new(MultiGzDecoder::new(reader))),
            false => Box::new(reader),
        };
        Ok(Self { source: Source::Sequence(reader), offset: 0 })
    }

    /// Returns the root by which a history file is named, `None` for other files: the accumulator
    /// of era1, the hash of the last block of ere.
    pub fn root(&self) -> Option<B256> {
        match &self.source {
            Source::History { root, .. } => Some(*root),
            Source::Sequence(_) => None,
        }
    }

    /// Returns the number of bytes of the (unpacked) file that have been read.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Returns the next block, or `None` at the end of the file.
    ///
    /// # Errors
    /// [`ImportError::Read`], [`ImportError::NoBlock`], [`ImportError::Malformed`],
    /// [`ImportError::History`].
    pub fn next_block(&mut self) -> Result<Option<Block>, ImportError> {
        let (offset, rlp) = match &mut self.source {
            Source::Sequence(reader) => {
                let offset = self.offset;
                let Some(rlp) = next_item(reader, offset)? else { return Ok(None) };
                self.offset += rlp.len() as u64;
                (offset, rlp)
            }
            Source::History { reader, left, .. } => {
                let Some(number) = left.next() else { return Ok(None) };
                self.offset = reader.offset(number);
                (self.offset, reader.block(number)?)
            }
        };
        let block =
            Block::from_rlp(&rlp).map_err(|error| ImportError::Malformed { offset, error })?;
        Ok(Some(block))
    }
}

/// Returns the next RLP list with its header.
fn next_item(reader: &mut impl BufRead, offset: u64) -> Result<Option<Vec<u8>>, ImportError> {
    let read_error = |error| ImportError::Read { offset, error };
    let no_block = |reason| ImportError::NoBlock { offset, reason };
    let Some(&first) = reader.fill_buf().map_err(read_error)?.first() else {
        return Ok(None);
    };
    // A block has more than 55 bytes, so its length stands after the first byte.
    let length_len = match first {
        0xf8.. => usize::from(first - 0xf7),
        _ => return Err(no_block(format!("it starts with {first:#04x}"))),
    };
    let mut rlp = vec![0; 1 + length_len];
    reader.read_exact(&mut rlp).map_err(read_error)?;
    let length = rlp[1..].iter().fold(0, |length: u64, &byte| length << 8 | u64::from(byte));
    if length > BLOCK_LEN_MAX {
        return Err(no_block(format!("it has {length} bytes")));
    }
    // The buffer grows with the bytes that are there, not to the length that the header claims.
    let read = reader.by_ref().take(length).read_to_end(&mut rlp).map_err(read_error)?;
    if read as u64 != length {
        return Err(read_error(io::ErrorKind::UnexpectedEof.into()));
    }
    Ok(Some(rlp))
}

/// Progress of an import.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Imported {
    /// Number of blocks executed.
    pub new: u64,
    /// Number of blocks that were known already.
    pub known: u64,
    /// Last block read from the file.
    pub last: Option<BlockId>,
}

/// Imports all blocks of a file in order, including those from before the merge. The last block
/// becomes the head, unless it is already on the canonical chain. `progress` is called after each
/// block. Known blocks are skipped, genesis too. Reads the database in between, so it must not run
/// on the threads of the async reactor.
///
/// # Errors
/// [`ImportError`] at the first invalid block. The block before it is the head then.
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

/// Returns the id of the block, and whether the block was new.
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
        assert_eq!(error(b"hello".to_vec()), "byte 0: not a block: it starts with 0x68");
        assert_eq!(error(vec![0xf9, 1]), "byte 0: failed to fill whole buffer");
        assert_eq!(error(vec![0xf9, 1, 0, 7]), "byte 0: unexpected end of file");
        let huge = [&[0xff][..], &[0xff; 8]].concat();
        assert_eq!(error(huge), format!("byte 0: not a block: it has {} bytes", u64::MAX));
        let list = [&[0xf8, 60][..], &[0x80; 60]].concat();
        assert!(error(list).starts_with("byte 0: malformed"));
    }

    #[test]
    fn gzip_is_told_by_its_first_bytes() {
        let mut packed = GzEncoder::new(Vec::new(), Compression::fast());
        packed.write_all(b"hello").unwrap();
        let packed = packed.finish().unwrap();
        assert_eq!(error(packed), "byte 0: not a block: it starts with 0x68");
    }
}
