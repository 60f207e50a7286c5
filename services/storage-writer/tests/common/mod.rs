//! Databases of the tests, over the small world of the test kit.
#![allow(dead_code, unused_imports, clippy::unwrap_used)]

use std::{fs, path::Path, sync::Arc};
use tandem_primitives::BlockId;
use tandem_storage_writer::{Config, Deps, StorageWriter, init};
pub use tandem_testkit::world::*;

/// Creates a database directory over [`genesis`]. Returns its block and state.
pub fn new_chain(datadir: &Path) -> (BlockId, World) {
    let (json, world) = genesis();
    let genesis = datadir.join("genesis.json");
    fs::create_dir_all(datadir).unwrap();
    fs::write(&genesis, json).unwrap();
    let initialized = init(&genesis, datadir, |_| {}).unwrap();
    assert!(!initialized.already);
    (initialized.genesis, world)
}

/// Creates a database in memory over [`genesis`]. Returns it and its state.
pub fn new_chain_in_memory(deps: Deps) -> (Arc<StorageWriter>, World) {
    let (json, world) = genesis();
    let config = Config::with_small_limits("");
    (StorageWriter::create_in_memory(json.as_bytes(), config, deps).unwrap(), world)
}
