//! The threads that do the work.

use crate::{
    common::{TIMEOUT, bundle, constants, garbage},
    host::Host,
};
use std::{
    sync::{Arc, Mutex},
    thread,
};
use tandem_blob_validator::Config;
use tandem_proto::blob_validator::BlobApi;
use tracing::{Subscriber, span};
use tracing_subscriber::{Layer, layer::Context, prelude::*, registry::LookupSpan};

/// Names of the threads that entered a verification.
#[derive(Clone, Default)]
struct Verifying(Arc<Mutex<Vec<String>>>);

impl<S: Subscriber + for<'a> LookupSpan<'a>> Layer<S> for Verifying {
    fn on_enter(&self, id: &span::Id, context: Context<'_, S>) {
        if context.span(id).is_some_and(|span| span.name() == "validate_blobs") {
            let name = thread::current().name().unwrap_or_default().to_owned();
            self.0.lock().unwrap().push(name);
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_thread_that_serves_sockets_verifies() {
    let seen = Verifying::default();
    // Other tests of this process are seen too, which does no harm.
    tracing::subscriber::set_global_default(tracing_subscriber::registry().with(seen.clone()))
        .unwrap();
    let host = Host::start(Config::default()).await;
    let client = host.client().await;
    let sidecars = (0..10).map(|seed| garbage(seed, 2));
    let sidecars = sidecars.chain([bundle(6), constants(1..7)].map(Arc::new));
    let calls: Vec<_> = sidecars.map(|sidecar| client.validate(sidecar, TIMEOUT)).collect();
    for call in calls {
        call.await.unwrap();
    }
    let names = seen.0.lock().unwrap();
    assert!(!names.is_empty());
    let elsewhere = names.iter().find(|name| !name.starts_with("blob-verifier-"));
    assert_eq!(elsewhere, None);
}
