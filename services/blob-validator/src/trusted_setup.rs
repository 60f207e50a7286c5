use std::thread;
use tandem_actor::take_background_priority;
use tandem_kzg::Setup;

/// Loads KZG's trusted setup on a background thread: it takes over a second of a processor while the
/// rest of the process starts, or begins to synchronise. Not with the lowest priority, because a
/// cluster is ready only then, even on a busy machine. Blocks until it is loaded. The EVM's precompile
/// needs none of it.
pub fn load_trusted_setup() -> Setup {
    let load = || {
        take_background_priority();
        Setup::load()
    };
    let thread = thread::Builder::new().name("kzg-setup".to_owned()).spawn(load);
    let loaded = thread.ok().and_then(|thread| thread.join().ok());
    loaded.unwrap_or_else(Setup::load)
}
