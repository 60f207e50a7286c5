//! Code that the benches of blob-validator share.
#![allow(dead_code)]

use blst::min_pk::SecretKey;
use std::{
    io::Write,
    net::SocketAddr,
    sync::Arc,
    time::{Duration, Instant},
};
use tandem_blob_validator::{BlobValidator, Config, Deps, grpc::Server};
use tandem_blob_validator_client::{Client, ClientConfig};
use tandem_bus::Bus;
use tandem_kzg::{Setup, versioned_hash};
use tandem_primitives::U256;
use tandem_proto::blob_validator::{BLOB_BYTES, Bundle, CELLS, Form, Rule};
use tokio::{net::TcpListener, runtime::Runtime};
use tokio_util::sync::CancellationToken;

pub const TIMEOUT: Duration = Duration::from_secs(120);

/// Returns whether `cargo bench` runs this, and not `cargo test` over all targets.
pub fn is_bench() -> bool {
    std::env::args().any(|argument| argument == "--bench")
}

pub fn say(line: &str) {
    let _ = writeln!(std::io::stdout().lock(), "{line}");
}

/// Returns a number from the environment.
pub fn number(name: &str) -> Option<u64> {
    let value = std::env::var_os(name)?;
    let number = value.to_str().and_then(|text| text.parse().ok());
    Some(number.unwrap_or_else(|| panic!("{name} is not a number: {value:?}")))
}

pub fn start(config: Config) -> Arc<BlobValidator> {
    Setup::load();
    let deps = Deps { bus: Bus::default(), fatal: CancellationToken::new() };
    BlobValidator::start(config, deps).unwrap()
}

/// Starts a server of this service on loopback.
pub fn serve(runtime: &Runtime, service: Arc<BlobValidator>) -> SocketAddr {
    let _entered = runtime.enter();
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    listener.set_nonblocking(true).unwrap();
    let address = listener.local_addr().unwrap();
    let listener = TcpListener::from_std(listener).unwrap();
    runtime.spawn(Server::new(service, 512 << 20).serve(listener, CancellationToken::new()));
    address
}

/// Makes a connected client of the server.
pub fn connect(runtime: &Runtime, address: SocketAddr) -> Arc<Client> {
    let endpoint = format!("http://{address}");
    let client = Client::connect(&endpoint, ClientConfig::default(), runtime.handle()).unwrap();
    while !client.is_connected() {
        std::thread::sleep(Duration::from_millis(1));
    }
    client
}

pub fn empty(form: Form) -> Bundle {
    Bundle {
        form,
        blobs: vec![],
        commitments: vec![],
        proofs: vec![],
        versioned_hashes: vec![],
        rule: Rule { form, blobs_max: 64 },
    }
}

/// Adds the blob of the constant polynomial `number`, which is valid and needs no KZG to make.
pub fn push_constant(bundle: &mut Bundle, number: u64) {
    let mut infinity = [0; 48];
    infinity[0] = 0xc0;
    let element = U256::from(number).to_be_bytes::<32>();
    let commitment = SecretKey::from_bytes(&element).unwrap().sk_to_pk().compress();
    bundle.blobs.push(element.repeat(BLOB_BYTES / 32).into());
    bundle.versioned_hashes.push(versioned_hash(&commitment));
    bundle.commitments.push(commitment);
    bundle.proofs.push(infinity);
}

/// Adds the blob of `number·x^64`. All its cell proofs are `number` times the generator: points
/// like any others, so verifying them costs as much as always.
fn push_real(setup: Setup, bundle: &mut Bundle, number: u64) {
    let modulus = "52435875175126190479447740508185965837690552500527637822603658699938581184513";
    let modulus: U256 = modulus.parse().unwrap();
    let root = U256::from(7).pow_mod((modulus - U256::ONE) / U256::from(64), modulus);
    let values: Vec<[u8; 32]> = (0..64)
        .map(|exponent| root.pow_mod(U256::from(exponent), modulus))
        .map(|value| value.mul_mod(U256::from(number), modulus).to_be_bytes())
        .collect();
    let mut blob = vec![0; BLOB_BYTES];
    for (place, element) in blob.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        *element = values[((place as u32).reverse_bits() >> 20) as usize % 64];
    }
    let commitment = setup.commit(&blob).unwrap();
    match bundle.form {
        Form::BlobProofs => bundle.proofs.push(setup.prove_blob(&blob, &commitment).unwrap()),
        Form::CellProofs => {
            let scalar = U256::from(number).to_be_bytes::<32>();
            let proof = SecretKey::from_bytes(&scalar).unwrap().sk_to_pk().compress();
            bundle.proofs.extend([proof; CELLS]);
        }
    }
    bundle.blobs.push(blob.into());
    bundle.commitments.push(commitment);
    bundle.versioned_hashes.push(versioned_hash(&commitment));
}

/// Makes `count` valid sidecars of six blobs each, numbered from `first`, on all cores.
pub fn sidecars(form: Form, first: u64, count: u64) -> Vec<Arc<Bundle>> {
    let setup = Setup::load();
    let make = |index: u64| {
        let mut bundle = empty(form);
        (0..6).for_each(|blob| push_real(setup, &mut bundle, first + index * 6 + blob));
        Arc::new(bundle)
    };
    let half = count / 2;
    std::thread::scope(|scope| {
        let later = scope.spawn(|| (half..count).map(make).collect::<Vec<_>>());
        let mut made: Vec<_> = (0..half).map(make).collect();
        made.extend(later.join().unwrap());
        made
    })
}

/// Returns the CPU time of all threads of this process that live now.
pub fn cpu_time() -> Duration {
    let tasks = std::fs::read_dir("/proc/self/task").unwrap();
    let nanos = tasks.filter_map(|task| {
        let text = std::fs::read_to_string(task.ok()?.path().join("schedstat")).ok()?;
        text.split_whitespace().next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(nanos.sum())
}

/// Returns how long this thread was ready and had no CPU. The kernel updates the time on a CPU tick
/// by tick, but this value is exact whenever the thread runs.
pub fn thread_ready_time() -> Duration {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap();
    Duration::from_nanos(text.split_whitespace().nth(1).unwrap().parse().unwrap())
}

pub fn micros(took: Duration, count: usize) -> f64 {
    took.as_secs_f64() * 1e6 / count as f64
}

pub fn timed<T>(run: impl FnOnce() -> T) -> (Duration, T) {
    let started = Instant::now();
    let value = run();
    (started.elapsed(), value)
}
