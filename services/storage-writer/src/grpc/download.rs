//! Steps of a state download, made for an executor.

use super::call_scheduler::{CallScheduler, Lane};
use std::sync::Weak;
use tandem_proto::{
    snap::DownloadStep,
    storage::{Epoch, Error, StateDownloads},
    wire::storage_writer::v1,
};
use tonic::{Request, Response, Status};

/// Makes a step for the executor that has the right to write. `downloads` is gone once the server has
/// ended, though connections may linger.
pub async fn download(
    downloads: Weak<dyn StateDownloads>,
    lanes: &CallScheduler,
    request: Request<v1::DownloadRequest>,
) -> Result<Response<v1::DownloadResponse>, Status> {
    // Parts are large, and tries take long to build.
    let made = lanes.run(Lane::Long, request, move |api, wire| {
        let (epoch, step) = <(Epoch, DownloadStep)>::try_from(wire)?;
        api.keep_epoch(epoch)?;
        let stopping = || Error::Unavailable("stopping".to_owned());
        let downloads = downloads.upgrade().ok_or_else(stopping)?;
        Ok(step.make(&*downloads)?.into())
    });
    Ok(Response::new(made.await?))
}
