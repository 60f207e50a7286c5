//! Download of a state into a storage-writer in another process.

use crate::{client::Client, remote_storage::Calls};
use std::time::Duration;
use tandem_primitives::{B256, BlockId, Bytes};
use tandem_proto::{
    snap::{DownloadAnswer, DownloadStep, DownloadedBlock, StatePart},
    storage::{Error, Result, StateDownloads},
    wire::storage_writer::v1,
};
use tonic::Request;

/// Longest wait for tries to be built: they take about a minute for each gigabyte of state.
const BUILD_MAX: Duration = Duration::from_secs(6 * 3600);

/// Size of parts that go together. With an answer of a peer more, they still are one message.
const PUT_BYTES: usize = 2 << 20;

impl Client {
    fn step(&self, step: DownloadStep) -> Result<DownloadAnswer> {
        let options = self.write("download");
        let options = match step {
            DownloadStep::BuildTries | DownloadStep::Finish(_) => options.within(BUILD_MAX),
            _ => options,
        };
        let request = v1::DownloadRequest::from((self.epoch()?, step));
        let send = |mut calls: Calls, request: Request<_>| async move {
            Ok(calls.download(request).await?.into_inner())
        };
        Ok(self.call(options, request, send)?.try_into()?)
    }
}

impl StateDownloads for Client {
    fn download_progress(&self) -> Result<Option<Bytes>> {
        Ok(self.step(DownloadStep::Progress)?.progress)
    }

    fn begin_download(&self) -> Result<()> {
        self.step(DownloadStep::Begin).map(drop)
    }

    fn put_bytes(&self) -> usize {
        PUT_BYTES
    }

    fn put_state(&self, parts: &[StatePart], progress: &[u8]) -> Result<()> {
        let progress = Bytes::copy_from_slice(progress);
        self.step(DownloadStep::PutState(parts.to_vec(), progress)).map(drop)
    }

    fn put_listed(&self, list: &[u8], progress: &[u8]) -> Result<()> {
        let [list, progress] = [list, progress].map(Bytes::copy_from_slice);
        self.step(DownloadStep::PutListed(list, progress)).map(drop)
    }

    fn put_blocks(&self, blocks: &[DownloadedBlock]) -> Result<()> {
        self.step(DownloadStep::PutBlocks(blocks.to_vec())).map(drop)
    }

    fn lacking_codes(&self, hashes: &[B256]) -> Result<Vec<B256>> {
        Ok(self.step(DownloadStep::LackingCodes(hashes.to_vec()))?.hashes)
    }

    fn build_tries(&self) -> Result<B256> {
        match self.step(DownloadStep::BuildTries)?.hashes[..] {
            [root] => Ok(root),
            ref hashes => Err(Error::Store(format!("{} state roots", hashes.len()))),
        }
    }

    fn built_node(&self, owner: Option<B256>, path: &[u8]) -> Result<Option<Bytes>> {
        let path = Bytes::copy_from_slice(path);
        Ok(self.step(DownloadStep::BuiltNode(owner, path))?.node)
    }

    fn built_roots(&self, owners: &[B256]) -> Result<Vec<B256>> {
        let roots = self.step(DownloadStep::BuiltRoots(owners.to_vec()))?.hashes;
        match roots.len() == owners.len() {
            true => Ok(roots),
            false => {
                let (got, asked) = (roots.len(), owners.len());
                Err(Error::Store(format!("{got} storage roots for {asked} accounts")))
            }
        }
    }

    fn finish_download(&self, block: BlockId) -> Result<()> {
        self.step(DownloadStep::Finish(block)).map(drop)
    }
}
