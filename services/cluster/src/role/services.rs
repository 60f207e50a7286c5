//! Runs the services that call no other service.

use super::{
    Process,
    follower::one_of_storage_writers,
    lead::{follow_lease, lease_settings},
    promotion::Candidate,
};
use crate::{Config, Error, start::persisted};
use std::{net::SocketAddr, sync::Arc, time::Instant};
use tandem_blob_validator::BlobValidator;
use tandem_peer_table::PeerTable;
use tandem_proto::{access, storage::Leadership};
use tandem_rpc::Identity;
use tandem_storage_writer::{FeedPublisher, LeadLease, StorageWriter, grpc::Server};
use tokio::{runtime::Handle, task::spawn_blocking};

/// Starts storage-writer on a data directory that was initialised, with its calls at `grpc`. With `others`,
/// storage-writers such as `http://10.0.0.7:9600`, it is one of several, and follows the one that leads.
///
/// # Errors
/// [`Error::Listen`], [`Error::StorageWriter`], [`Error::Tls`], [`Error::Lease`],
/// [`Error::LeaseReplicas`], [`Error::LeaseWithoutNats`]; with `others`, those of [`super::follower()`].
pub async fn storage_writer(
    process: &mut Process,
    config: Config,
    grpc: SocketAddr,
    others: &[String],
) -> Result<(), Error> {
    if !others.is_empty() {
        return one_of_storage_writers(process, config, grpc, others).await;
    }
    let (listener, identity) =
        process.listen_grpc("grpc", grpc, access::STORAGE_WRITER, &config.tls).await?;
    let on_persisted = persisted(process.bus().clone());
    let deps = tandem_storage_writer::Deps { on_persisted, fatal: process.fatal().clone() };
    let lead = config.storage_writer.lead.clone();
    let lease = lease_settings(&lead)?;
    let storage = blocking(|| Ok(StorageWriter::start(config.storage_writer, deps)?)).await?;
    require_storage(process, &storage);
    let published = FeedPublisher::start(&storage, process.bus(), &Handle::current())?;
    let standing = storage.standing();
    process
        .readiness()
        .require("the lead, which another storage-writer has", move || standing.borrow().leads());
    let candidate = Arc::new(Candidate {
        storage: storage.clone(),
        follower: None,
        leaders: Vec::new(),
        lag_blocks_max: 0,
        started: Instant::now(),
        lease,
        fatal: process.fatal().clone(),
    });
    let right = follow_lease(process, &lead, &candidate, None)?;
    if let Some(right) = &right {
        let held = right.held();
        process.readiness().require("the lease of the lead", move || *held.borrow());
    }
    let server = server(&storage, identity, candidate, right);
    process.serve(server.serve(listener, process.stopping().clone()));
    // Last handle: the database is flushed and marked as closed.
    process.at_end(move || {
        drop(published);
        storage.stop();
    });
    process.started();
    Ok(())
}

/// Returns the server of a storage-writer in a process of its own. With `right` it serves only under a
/// lease.
pub(super) fn server(
    storage: &Arc<StorageWriter>,
    identity: Identity,
    candidate: Arc<Candidate>,
    right: Option<Arc<LeadLease>>,
) -> Server {
    let server = Server::new(storage.clone())
        .feeding(storage.clone())
        .downloading(storage.clone())
        .checkpointing(storage.clone())
        .led_by(candidate)
        .offered_as(identity);
    match right {
        Some(right) => server.leased(right),
        None => server,
    }
}

/// Makes the process ready only while storage-writer can write. The health service of gRPC stays
/// unchanged: executor and workers take it as the sign of life of their connection, and reads go on
/// while writes fail.
pub(crate) fn require_storage(process: &Process, storage: &Arc<StorageWriter>) {
    let (writing, room) = (Arc::downgrade(storage), Arc::downgrade(storage));
    process.readiness().require("the database to be writable", move || {
        writing.upgrade().is_none_or(|storage| storage.can_write())
    });
    process.readiness().require("room on the volume", move || {
        room.upgrade().is_none_or(|storage| storage.has_room())
    });
}

/// Starts blob-validator, with its calls at `grpc`.
///
/// # Errors
/// [`Error::Listen`], [`Error::Threads`], [`Error::Tls`].
pub async fn blob_validator(
    process: &mut Process,
    config: Config,
    grpc: SocketAddr,
) -> Result<(), Error> {
    let (listener, identity) =
        process.listen_grpc("grpc", grpc, access::BLOB_VALIDATOR, &config.tls).await?;
    let deps =
        tandem_blob_validator::Deps { bus: process.bus().clone(), fatal: process.fatal().clone() };
    let bytes_max = config.blob_validator.waiting_bytes_max;
    let blobs = BlobValidator::start(config.blob_validator, deps)?;
    let server = tandem_blob_validator::grpc::Server::new(blobs.clone(), bytes_max);
    let server = server.offered_as(identity);
    process.serve(server.serve(listener, process.stopping().clone()));
    let loaded = blobs.clone();
    process.readiness().require("the trusted setup", move || loaded.ready());
    process.at_end(move || blobs.stop());
    process.started();
    Ok(())
}

/// Starts peer-table with its snapshot, with its calls at `grpc`.
///
/// # Errors
/// [`Error::Listen`], [`Error::Threads`], [`Error::Tls`].
pub async fn peer_table(
    process: &mut Process,
    config: Config,
    grpc: SocketAddr,
) -> Result<(), Error> {
    let (listener, identity) =
        process.listen_grpc("grpc", grpc, access::PEER_TABLE, &config.tls).await?;
    let bus = process.bus().clone();
    let deps = tandem_peer_table::Deps { bus: bus.clone(), fatal: process.fatal().clone() };
    let start = move || {
        std::fs::create_dir_all(&config.peer_table.datadir)?;
        Ok(PeerTable::start(config.peer_table, deps)?)
    };
    let table: Arc<PeerTable> = blocking(start).await?;
    let server = tandem_peer_table::grpc::Server::new(table.clone(), bus).offered_as(identity);
    process.serve(server.serve(listener, process.stopping().clone()));
    process.at_end(move || table.stop());
    process.started();
    Ok(())
}

/// Runs a start function that may wait for a disk or another process.
pub(super) async fn blocking<T: Send + 'static>(
    start: impl FnOnce() -> Result<T, Error> + Send + 'static,
) -> Result<T, Error> {
    spawn_blocking(start).await.map_err(|error| Error::Threads(error.into()))?
}
