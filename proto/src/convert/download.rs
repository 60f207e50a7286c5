//! Steps of the download of a state.

use super::{
    error::{At, ConvertError, Reason},
    field::{
        at_most, count, hash, hash_bytes, hash_list, items, range, required, size, split, total,
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
        downloaded_state::{AccountRanges, Codes, SlotRanges},
    },
};
use tandem_primitives::{Account, B256, BlockId, Bytes, U256};

impl From<(Epoch, DownloadStep)> for v1::DownloadRequest {
    fn from((epoch, step): (Epoch, DownloadStep)) -> Self {
        let step = match step {
            DownloadStep::Progress => Step::GetProgress(Nothing {}),
            DownloadStep::Begin => Step::Begin(Nothing {}),
            DownloadStep::PutState(parts, progress) => Step::PutState(state_of(&parts, progress)),
            DownloadStep::PutListed(list, progress) => {
                Step::PutListed(v1::ListedChanges { list: list.0, progress: progress.0 })
            }
            DownloadStep::PutBlocks(blocks) => Step::PutBlocks(blocks_of(&blocks)),
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
            Step::PutListed(v1::ListedChanges { list, progress }) => {
                at_most(DOWNLOAD_PROGRESS_BYTES_MAX, progress.len())
                    .at("download.put_listed.progress")?;
                DownloadStep::PutListed(list.into(), progress.into())
            }
            Step::PutBlocks(wire) => {
                DownloadStep::PutBlocks(blocks(wire).at("download.put_blocks")?)
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
    at_most(DOWNLOAD_PROGRESS_BYTES_MAX, wire.progress.len()).at("progress")?;
    let mut parts = Vec::new();
    if let Some(ranges) = &wire.accounts {
        account_ranges(ranges, &mut parts).at("accounts")?;
    }
    if let Some(ranges) = &wire.slots {
        slot_ranges(ranges, &mut parts).at("slots")?;
    }
    if let Some(found) = wire.codes {
        parts.push(StatePart::Codes(codes(found).at("codes")?));
    }
    Ok(DownloadStep::PutState(parts, wire.progress.into()))
}

/// Columns of the parts. Accounts come first, then slots, then codes.
fn state_of(parts: &[StatePart], progress: Bytes) -> v1::DownloadedState {
    let (mut account_ranges, mut slot_ranges) = (Vec::new(), Vec::new());
    let mut all_codes: Option<Vec<&(B256, Bytes)>> = None;
    for part in parts {
        match part {
            StatePart::Accounts { first, last, accounts } => {
                account_ranges.push((first, last, accounts));
            }
            StatePart::Slots { owner, first, last, slots } => {
                slot_ranges.push((owner, first, last, slots));
            }
            StatePart::Codes(codes) => all_codes.get_or_insert_default().extend(codes),
        }
    }
    let accounts = || account_ranges.iter().flat_map(|(_, _, accounts)| *accounts);
    let slots = || slot_ranges.iter().flat_map(|(_, _, _, slots)| *slots);
    let accounts = AccountRanges {
        firsts: hash_list(account_ranges.iter().map(|(first, ..)| *first)),
        lasts: hash_list(account_ranges.iter().map(|(_, last, _)| *last)),
        counts: account_ranges.iter().map(|(_, _, accounts)| size(accounts.len())).collect(),
        keys: accounts().flat_map(|it| it.key.0).collect(),
        accounts: Some(account_list(accounts().map(|it| Some(it.account)))),
        have_storage: accounts().map(|it| u8::from(it.has_storage)).collect(),
    };
    let slots = SlotRanges {
        owners: hash_list(slot_ranges.iter().map(|(owner, ..)| *owner)),
        firsts: hash_list(slot_ranges.iter().map(|(_, first, ..)| *first)),
        lasts: hash_list(slot_ranges.iter().map(|(_, _, last, _)| *last)),
        counts: slot_ranges.iter().map(|(.., slots)| size(slots.len())).collect(),
        keys: slots().flat_map(|(key, _)| key.0).collect(),
        values: Some(number_list(slots().map(|(_, value)| *value))),
    };
    let codes = all_codes.map(|codes| Codes {
        hashes: hash_list(codes.iter().map(|(hash, _)| hash)),
        sizes: codes.iter().map(|(_, code)| size(code.len())).collect(),
        codes: codes.iter().flat_map(|(_, code)| code).copied().collect(),
    });
    v1::DownloadedState {
        accounts: (!account_ranges.is_empty()).then_some(accounts),
        slots: (!slot_ranges.is_empty()).then_some(slots),
        codes,
        progress: progress.0,
    }
}

/// Reads the bounds of ranges, and the keys of each, of which each is greater than the one before.
fn ranges(
    firsts: &[u8],
    lasts: &[u8],
    counts: &[u32],
    keys: &[u8],
) -> Result<Vec<(B256, B256, Vec<B256>)>, ConvertError> {
    let firsts = items::<32>(firsts).at("firsts")?;
    at_most(DOWNLOADED_PARTS_MAX, firsts.len()).at("firsts")?;
    let lasts = items::<32>(lasts).at("lasts")?;
    count(firsts.len() as u64, lasts.len()).at("lasts")?;
    count(firsts.len() as u64, counts.len()).at("counts")?;
    let keys = items::<32>(keys).at("keys")?;
    count(total(counts), keys.len()).at("keys")?;
    let (mut rest, mut ranges) = (keys, Vec::with_capacity(firsts.len()));
    for ((first, last), count) in firsts.iter().zip(lasts).zip(counts) {
        let begin = keys.len() - rest.len();
        // The numbers add up to that of the keys, so the range is complete.
        let (own, others) = rest.split_at(*count as usize);
        rest = others;
        if let Some(at) = own.windows(2).position(|pair| pair[0] >= pair[1]) {
            return Err(Reason::NotAscending).at_index(begin + at + 1).at("keys");
        }
        ranges.push((first.into(), last.into(), own.iter().map(B256::from).collect()));
    }
    Ok(ranges)
}

fn account_ranges(wire: &AccountRanges, parts: &mut Vec<StatePart>) -> Result<(), ConvertError> {
    let ranges = ranges(&wire.firsts, &wire.lasts, &wire.counts, &wire.keys)?;
    let keys = total(&wire.counts) as usize;
    count(keys as u64, wire.have_storage.len()).at("have_storage")?;
    for (index, flag) in wire.have_storage.iter().enumerate() {
        range(0, 1, *flag).at_index(index).at("have_storage")?;
    }
    let found = required(wire.accounts.as_ref()).at("accounts")?;
    let found = accounts(found, keys).at("accounts")?;
    if let Some(index) = found.iter().position(Option::is_none) {
        return Err(Reason::Missing).at_index(index).at("accounts");
    }
    let mut values = found.into_iter().flatten().zip(&wire.have_storage);
    for (first, last, keys) in ranges {
        let account = |(key, (account, flag)): (B256, (Account, &u8))| DownloadedAccount {
            key,
            account,
            has_storage: *flag == 1,
        };
        let accounts = keys.into_iter().zip(values.by_ref()).map(account).collect();
        parts.push(StatePart::Accounts { first, last, accounts });
    }
    Ok(())
}

fn slot_ranges(wire: &SlotRanges, parts: &mut Vec<StatePart>) -> Result<(), ConvertError> {
    let ranges = ranges(&wire.firsts, &wire.lasts, &wire.counts, &wire.keys)?;
    let owners = items::<32>(&wire.owners).at("owners")?;
    count(ranges.len() as u64, owners.len()).at("owners")?;
    let values = required(wire.values.as_ref()).at("values")?;
    let values = numbers(values, total(&wire.counts) as usize).at("values")?;
    if let Some(at) = values.iter().position(U256::is_zero) {
        return Err(Reason::OutOfRange { min: 1, max: 32, got: 0 })
            .at_index(at)
            .at("values.lengths");
    }
    let mut values = values.into_iter();
    for ((first, last, keys), owner) in ranges.into_iter().zip(owners) {
        let slots = keys.into_iter().zip(values.by_ref()).collect();
        parts.push(StatePart::Slots { owner: owner.into(), first, last, slots });
    }
    Ok(())
}

fn codes(wire: Codes) -> Result<Vec<(B256, Bytes)>, ConvertError> {
    let hashes = items::<32>(&wire.hashes).at("hashes")?;
    at_most(CODES_MAX, hashes.len()).at("hashes")?;
    count(hashes.len() as u64, wire.sizes.len()).at("sizes")?;
    let codes = split(&wire.sizes, wire.codes).at("codes")?;
    Ok(hashes.iter().map(B256::from).zip(codes).collect())
}

fn blocks_of(blocks: &[DownloadedBlock]) -> v1::DownloadedBlocks {
    let contents = |block: &DownloadedBlock| {
        [block.header.clone(), block.body.clone(), block.receipts.clone()]
    };
    v1::DownloadedBlocks {
        numbers: blocks.iter().map(|block| block.id.number).collect(),
        hashes: hash_list(blocks.iter().map(|block| &block.id.hash)),
        sizes: blocks.iter().flat_map(contents).map(|part| size(part.len())).collect(),
        contents: blocks.iter().flat_map(contents).flatten().collect(),
    }
}

fn blocks(wire: v1::DownloadedBlocks) -> Result<Vec<DownloadedBlock>, ConvertError> {
    let count_of = wire.numbers.len();
    range(1, DOWNLOADED_BLOCKS_MAX as u64, count_of as u64).at("numbers")?;
    let hashes = items::<32>(&wire.hashes).at("hashes")?;
    count(count_of as u64, hashes.len()).at("hashes")?;
    count(3 * count_of as u64, wire.sizes.len()).at("sizes")?;
    let mut contents = split(&wire.sizes, wire.contents).at("contents")?;
    // There are three parts for each block.
    let block = |(number, hash): (&u64, &[u8; 32])| {
        let [header, body, receipts] = [(); 3].map(|()| contents.next().unwrap_or_default());
        DownloadedBlock { id: BlockId::new(*number, hash.into()), header, body, receipts }
    };
    Ok(wire.numbers.iter().zip(hashes).map(block).collect())
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
