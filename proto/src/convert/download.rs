//! Steps of the download of a state.

use super::{
    error::{At, ConvertError, Reason},
    field::{
        at_most, count, hash, hash_bytes, hash_list, items, length, nested, range, required, size,
        total,
    },
    state::{account_list, accounts, number_list, numbers},
    storage::{epoch, token_bytes},
};
use crate::{
    limits::{
        CODES_MAX, DOWNLOAD_HASHES_MAX, DOWNLOAD_PROGRESS_BYTES_MAX, DOWNLOADED_BLOCKS_MAX,
        DOWNLOADED_PARTS_MAX,
    },
    snap::{DownloadAnswer, DownloadStep, DownloadedAccount, DownloadedBlock, StatePart},
    storage::Epoch,
    wire::storage_writer::v1::{
        self,
        download_request::{BuiltNode, Nothing, Step},
        downloaded_part::{Accounts, Codes, Part, Slots},
    },
};
use tandem_primitives::{B256, Bytes};

impl From<(Epoch, DownloadStep)> for v1::DownloadRequest {
    fn from((epoch, step): (Epoch, DownloadStep)) -> Self {
        let step = match step {
            DownloadStep::Progress => Step::GetProgress(Nothing {}),
            DownloadStep::Begin => Step::Begin(Nothing {}),
            DownloadStep::PutState(parts, progress) => {
                let parts = parts.into_iter().map(Into::into).collect();
                Step::PutState(v1::DownloadedState { parts, progress: progress.0 })
            }
            DownloadStep::PutBlocks(blocks) => {
                let blocks = blocks.into_iter().map(Into::into).collect();
                Step::PutBlocks(v1::DownloadedBlocks { blocks })
            }
            DownloadStep::LackingCodes(hashes) => Step::ListLackingCodes(hash_list(hashes.iter())),
            DownloadStep::BuildTries => Step::BuildTries(Nothing {}),
            DownloadStep::BuiltNode(owner, path) => {
                let owner = owner.map(hash_bytes).unwrap_or_default();
                Step::GetBuiltNode(BuiltNode { owner, path: path.0 })
            }
            DownloadStep::BuiltRoots(owners) => Step::ListBuiltRoots(hash_list(owners.iter())),
            DownloadStep::Finish(block) => Step::Finish(block.into()),
        };
        Self { epoch: epoch.number, token: token_bytes(epoch), step: Some(step) }
    }
}

impl TryFrom<v1::DownloadRequest> for (Epoch, DownloadStep) {
    type Error = ConvertError;

    fn try_from(wire: v1::DownloadRequest) -> Result<Self, ConvertError> {
        let epoch = epoch(wire.epoch, &wire.token).at("download.token")?;
        let step = match required(wire.step).at("download.step")? {
            Step::GetProgress(Nothing {}) => DownloadStep::Progress,
            Step::Begin(Nothing {}) => DownloadStep::Begin,
            Step::PutState(state) => put_state(state).at("download.put_state")?,
            Step::PutBlocks(v1::DownloadedBlocks { blocks }) => {
                range(1, DOWNLOADED_BLOCKS_MAX as u64, blocks.len() as u64)
                    .at("download.put_blocks")?;
                let convert = |(index, block)| block_of(block).at_index(index);
                let blocks = blocks.into_iter().enumerate().map(convert);
                DownloadStep::PutBlocks(blocks.collect::<Result<_, _>>().at("download.put_blocks")?)
            }
            Step::ListLackingCodes(bytes) => {
                DownloadStep::LackingCodes(hashes(&bytes).at("download.list_lacking_codes")?)
            }
            Step::BuildTries(Nothing {}) => DownloadStep::BuildTries,
            Step::GetBuiltNode(BuiltNode { owner, path }) => {
                let owner = match owner.is_empty() {
                    true => None,
                    false => Some(hash(&owner).at("download.get_built_node.owner")?),
                };
                at_most(64, path.len()).at("download.get_built_node.path")?;
                if let Some(nibble) = path.iter().find(|nibble| **nibble > 15) {
                    range(0, 15, *nibble).at("download.get_built_node.path")?;
                }
                DownloadStep::BuiltNode(owner, path.into())
            }
            Step::ListBuiltRoots(bytes) => {
                DownloadStep::BuiltRoots(hashes(&bytes).at("download.list_built_roots")?)
            }
            Step::Finish(block) => DownloadStep::Finish(block.try_into().at("download.finish")?),
        };
        Ok((epoch, step))
    }
}

fn hashes(bytes: &[u8]) -> Result<Vec<B256>, Reason> {
    let hashes = items::<32>(bytes)?;
    at_most(DOWNLOAD_HASHES_MAX, hashes.len())?;
    Ok(hashes.iter().map(B256::from).collect())
}

fn put_state(wire: v1::DownloadedState) -> Result<DownloadStep, ConvertError> {
    at_most(DOWNLOADED_PARTS_MAX, wire.parts.len()).at("parts")?;
    at_most(DOWNLOAD_PROGRESS_BYTES_MAX, wire.progress.len()).at("progress")?;
    let convert = |(index, part)| part_of(part).at_index(index);
    let parts = wire.parts.into_iter().enumerate().map(convert);
    let parts = parts.collect::<Result<_, _>>().at("parts")?;
    Ok(DownloadStep::PutState(parts, wire.progress.into()))
}

impl From<StatePart> for v1::DownloadedPart {
    fn from(part: StatePart) -> Self {
        let part = match part {
            StatePart::Accounts { first, last, accounts } => {
                let have_storage: Vec<_> =
                    accounts.iter().map(|it| u8::from(it.has_storage)).collect();
                Part::Accounts(Accounts {
                    first: hash_bytes(first),
                    last: hash_bytes(last),
                    keys: hash_list(accounts.iter().map(|it| &it.key)),
                    accounts: Some(account_list(accounts.iter().map(|it| Some(it.account)))),
                    have_storage: have_storage.into(),
                })
            }
            StatePart::Slots { owner, first, last, slots } => Part::Slots(Slots {
                owner: hash_bytes(owner),
                first: hash_bytes(first),
                last: hash_bytes(last),
                keys: hash_list(slots.iter().map(|(key, _)| key)),
                values: Some(number_list(slots.iter().map(|(_, value)| *value))),
            }),
            StatePart::Codes(codes) => Part::Codes(Codes {
                hashes: hash_list(codes.iter().map(|(hash, _)| hash)),
                sizes: codes.iter().map(|(_, code)| size(code.len())).collect(),
                codes: codes.iter().flat_map(|(_, code)| code).copied().collect(),
            }),
        };
        Self { part: Some(part) }
    }
}

fn part_of(wire: v1::DownloadedPart) -> Result<StatePart, ConvertError> {
    match required(wire.part)? {
        Part::Accounts(wire) => accounts_of(&wire).at("accounts"),
        Part::Slots(wire) => slots_of(&wire).at("slots"),
        Part::Codes(wire) => codes_of(wire).at("codes"),
    }
}

/// Reads keys of which each is greater than the one before.
fn rising(bytes: &[u8]) -> Result<Vec<B256>, ConvertError> {
    let keys = items::<32>(bytes)?;
    if let Some(at) = keys.windows(2).position(|pair| pair[0] >= pair[1]) {
        return Err(Reason::NotAscending).at_index(at + 1);
    }
    Ok(keys.iter().map(B256::from).collect())
}

fn accounts_of(wire: &Accounts) -> Result<StatePart, ConvertError> {
    let (first, last) = (hash(&wire.first).at("first")?, hash(&wire.last).at("last")?);
    let keys = rising(&wire.keys).at("keys")?;
    count(keys.len() as u64, wire.have_storage.len()).at("have_storage")?;
    let found = required(wire.accounts.as_ref()).at("accounts")?;
    let found = accounts(found, keys.len()).at("accounts")?;
    let account = |(index, (key, account))| {
        let flag = wire.have_storage[index];
        range(0, 1, flag).at_index(index).at("have_storage")?;
        let account = required(account).at_index(index).at("accounts")?;
        Ok(DownloadedAccount { key, account, has_storage: flag == 1 })
    };
    let accounts = keys.into_iter().zip(found).enumerate().map(account);
    Ok(StatePart::Accounts {
        first,
        last,
        accounts: accounts.collect::<Result<_, ConvertError>>()?,
    })
}

fn slots_of(wire: &Slots) -> Result<StatePart, ConvertError> {
    let owner = hash(&wire.owner).at("owner")?;
    let (first, last) = (hash(&wire.first).at("first")?, hash(&wire.last).at("last")?);
    let keys = rising(&wire.keys).at("keys")?;
    let values = required(wire.values.as_ref()).at("values")?;
    let values = numbers(values, keys.len()).at("values")?;
    if let Some(at) = values.iter().position(|value| value.is_zero()) {
        return Err(Reason::OutOfRange { min: 1, max: 32, got: 0 })
            .at_index(at)
            .at("values.lengths");
    }
    Ok(StatePart::Slots { owner, first, last, slots: keys.into_iter().zip(values).collect() })
}

fn codes_of(wire: Codes) -> Result<StatePart, ConvertError> {
    let hashes = items::<32>(&wire.hashes).at("hashes")?;
    at_most(CODES_MAX, hashes.len()).at("hashes")?;
    count(hashes.len() as u64, wire.sizes.len()).at("sizes")?;
    length(total(&wire.sizes), wire.codes.len()).at("codes")?;
    let mut rest = wire.codes;
    // The lengths add up to the number of bytes, so each code is complete.
    let code = |(hash, size): (&[u8; 32], &u32)| {
        (B256::from(hash), Bytes::from(rest.split_to(*size as usize)))
    };
    Ok(StatePart::Codes(hashes.iter().zip(&wire.sizes).map(code).collect()))
}

impl From<DownloadedBlock> for v1::DownloadedBlock {
    fn from(block: DownloadedBlock) -> Self {
        Self {
            id: Some(block.id.into()),
            header: block.header.0,
            body: block.body.0,
            receipts: block.receipts.0,
        }
    }
}

fn block_of(wire: v1::DownloadedBlock) -> Result<DownloadedBlock, ConvertError> {
    Ok(DownloadedBlock {
        id: nested(wire.id).at("id")?,
        header: wire.header.into(),
        body: wire.body.into(),
        receipts: wire.receipts.into(),
    })
}

impl From<DownloadAnswer> for v1::DownloadResponse {
    fn from(answer: DownloadAnswer) -> Self {
        Self {
            progress: answer.progress.map(|progress| progress.0),
            hashes: hash_list(answer.hashes.iter()),
            node: answer.node.map(|node| node.0),
        }
    }
}

impl TryFrom<v1::DownloadResponse> for DownloadAnswer {
    type Error = ConvertError;

    fn try_from(wire: v1::DownloadResponse) -> Result<Self, ConvertError> {
        Ok(Self {
            progress: wire.progress.map(Into::into),
            hashes: hashes(&wire.hashes).at("download.hashes")?,
            node: wire.node.map(Into::into),
        })
    }
}
