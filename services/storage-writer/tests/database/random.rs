//! Random histories in one process.

use crate::histories::{Front, Model, run, seeds};
use std::sync::Arc;
use tandem_proto::storage::StorageApi;
use tandem_storage_writer::StorageWriter;

/// Calls made as function calls.
struct Direct;

impl Front for Direct {
    fn open(&mut self, writer: &Arc<StorageWriter>) -> Arc<dyn StorageApi> {
        writer.clone()
    }
}

#[test]
fn random_histories_agree_with_the_model() {
    for seed in seeds(12) {
        let directory = tempfile::tempdir().unwrap();
        run(Model::new(Direct, directory.path().to_owned(), seed), 60);
    }
}

#[test]
fn random_histories_in_memory_agree_with_the_model() {
    for seed in seeds(12) {
        run(Model::in_memory(Direct, seed), 60);
    }
}
