//! Messages, clients and servers generated from `tandem/**/*.proto`, by package. Only this crate
//! and the gRPC modules of the services use them: see [`crate::convert`].
#![allow(missing_docs, clippy::all)]

/// All `.proto` files as an encoded `FileDescriptorSet`, for gRPC's reflection.
pub const DESCRIPTORS: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/descriptors.bin"));

/// Package `tandem.types`.
pub mod types {
    /// Version 1.
    pub mod v1 {
        tonic::include_proto!("tandem.types.v1");
    }
}

/// Package `tandem.event`.
pub mod event {
    /// Version 1.
    pub mod v1 {
        tonic::include_proto!("tandem.event.v1");
    }
}

/// Package `tandem.blob_validator`.
pub mod blob_validator {
    /// Version 1.
    pub mod v1 {
        tonic::include_proto!("tandem.blob_validator.v1");
    }
}

/// Package `tandem.storage_writer`.
pub mod storage_writer {
    /// Version 1.
    pub mod v1 {
        tonic::include_proto!("tandem.storage_writer.v1");
    }
}

/// Package `tandem.multiproof_workers`.
pub mod multiproof_workers {
    /// Version 1.
    pub mod v1 {
        tonic::include_proto!("tandem.multiproof_workers.v1");
    }
}

/// Package `tandem.peer_sessions`.
pub mod peer_sessions {
    /// Version 1.
    pub mod v1 {
        tonic::include_proto!("tandem.peer_sessions.v1");
    }
}

/// Package `tandem.peer_table`.
pub mod peer_table {
    /// Version 1.
    pub mod v1 {
        tonic::include_proto!("tandem.peer_table.v1");
    }
}

/// Package `tandem.tx_pool`.
pub mod tx_pool {
    /// Version 1.
    pub mod v1 {
        tonic::include_proto!("tandem.tx_pool.v1");
    }
}

/// Package `tandem.tx_executor`.
pub mod tx_executor {
    /// Version 1.
    pub mod v1 {
        tonic::include_proto!("tandem.tx_executor.v1");
    }
}
