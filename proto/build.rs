//! Generates messages, clients and servers from the `.proto` files; no `protoc` needed.

use prost::Message;
use std::{env, error::Error, fs, io, path::Path};

const FILES: [&str; 8] = [
    "tandem/blob_validator/v1/blob_validator.proto",
    "tandem/event/v1/event.proto",
    "tandem/multiproof_workers/v1/multiproof_workers.proto",
    "tandem/peer_sessions/v1/peer_sessions.proto",
    "tandem/peer_table/v1/peer_table.proto",
    "tandem/storage_writer/v1/storage_writer.proto",
    "tandem/tx_pool/v1/tx_pool.proto",
    "tandem/tx_executor/v1/tx_executor.proto",
];

fn main() -> Result<(), Box<dyn Error>> {
    println!("cargo:rerun-if-changed=tandem");
    let descriptors = protox::compile(FILES, ["."]).map_err(io::Error::other)?;
    // Descriptors for gRPC's reflection.
    let out = env::var("OUT_DIR")?;
    fs::write(Path::new(&out).join("descriptors.bin"), descriptors.encode_to_vec())?;
    // All `bytes` fields become reference-counted slices of the received message.
    tonic_prost_build::configure().bytes(".").compile_fds(descriptors)?;
    Ok(())
}
