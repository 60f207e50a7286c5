//! The table beside a plain map that is scanned. On the map it measures collecting and choosing, a
//! full scan with insertion sort, and a heap over everything. Also news for the table's thread in one
//! message, and each in its own.
#![allow(clippy::unwrap_used, missing_docs)]

use alloy_primitives::map::HashMap;
use criterion::{BenchmarkId, Criterion, criterion_group, criterion_main};
use rand::{Rng, SeedableRng, rngs::StdRng, seq::IndexedRandom};
use std::{collections::BinaryHeap, hint::black_box, net::IpAddr, time::Duration};
use tandem_bus::Bus;
use tandem_peer_table::{Config, Deps, PeerTable, table::Table};
use tandem_primitives::{B256, B512, Bytes, keccak256};
use tandem_proto::{
    event::{Contact, ContactEvent},
    peer_table::PeerTableApi,
};
use tokio_util::sync::CancellationToken;

const SIZES: [usize; 3] = [1_000, 100_000, 1_000_000];
const CLOSEST: usize = 16;
const BATCH: usize = 1000;

/// Makes a contact with a public address and a record of usual size; every tenth contact has no
/// record yet.
fn contact(rng: &mut StdRng, event: ContactEvent) -> Contact {
    let mut id = [0; 64];
    rng.fill(&mut id);
    let ip = IpAddr::from([rng.random_range(11..100), rng.random(), rng.random(), rng.random()]);
    let enr = rng.random_bool(0.9).then(|| Bytes::from(vec![7; 140]));
    let enr_seq = enr.is_some().then_some(1);
    Contact { id: B512::from(id), ip, udp_port: 30303, tcp_port: 30303, enr_seq, enr, event }
}

fn contacts(count: usize) -> Vec<Contact> {
    let mut rng = StdRng::seed_from_u64(count as u64);
    (0..count).map(|_| contact(&mut rng, ContactEvent::Answered)).collect()
}

fn table(contacts: &[Contact], contacts_max: usize) -> Table {
    let mut table = Table::new(&Config { contacts_max, ..Config::default() });
    table.apply(contacts, 0);
    assert!(table.counts().proven > contacts.len() * 98 / 100);
    table
}

/// Plain implementation, for comparison.
struct Reference {
    contacts: HashMap<B256, ReferenceContact>,
}

struct ReferenceContact {
    contact: Contact,
    asked: u32,
    failures: u32,
    disposable: bool,
}

impl Reference {
    fn new(contacts: &[Contact]) -> Self {
        let plain = |contact: &Contact| ReferenceContact {
            contact: contact.clone(),
            asked: 0,
            failures: 0,
            disposable: false,
        };
        Self { contacts: contacts.iter().map(|c| (keccak256(c.id), plain(c))).collect() }
    }

    fn collect_and_choose(&self, rng: &mut StdRng) -> Option<Contact> {
        let candidates: Vec<_> =
            self.contacts.values().filter(|c| c.asked < 20 && !c.disposable).collect();
        candidates.choose(rng).map(|c| c.contact.clone())
    }

    fn scan(&self, target: B256) -> Vec<Contact> {
        let mut nearest: Vec<(B256, &Contact)> = Vec::with_capacity(CLOSEST + 1);
        for (hash, c) in &self.contacts {
            let distance = *hash ^ target;
            let place = nearest.iter().position(|(other, _)| distance < *other);
            nearest.insert(place.unwrap_or(nearest.len()), (distance, &c.contact));
            nearest.truncate(CLOSEST);
        }
        nearest.into_iter().map(|(_, contact)| contact.clone()).collect()
    }

    fn heap(&self, target: B256) -> Vec<Contact> {
        let mut heap = BinaryHeap::with_capacity(CLOSEST + 1);
        for hash in self.contacts.keys() {
            heap.push((*hash ^ target, *hash));
            if heap.len() > CLOSEST {
                heap.pop();
            }
        }
        let nearest = heap.into_sorted_vec();
        nearest.into_iter().map(|(_, hash)| self.contacts[&hash].contact.clone()).collect()
    }

    fn apply(&mut self, contacts: &[Contact]) {
        for contact in contacts {
            let Some(known) = self.contacts.get_mut(&keccak256(contact.id)) else { continue };
            match contact.event {
                ContactEvent::Seen => {}
                ContactEvent::Asked => known.asked += 1,
                ContactEvent::Failed => known.failures += 1,
                ContactEvent::Answered | ContactEvent::EnrReceived => {
                    known.failures = 0;
                    known.contact = contact.clone();
                }
            }
            known.disposable = known.failures > 4;
        }
    }
}

fn sample(c: &mut Criterion) {
    let mut group = c.benchmark_group("sample");
    for size in SIZES {
        let contacts = contacts(size);
        let mut rng = StdRng::seed_from_u64(1);
        let table = table(&contacts, size);
        group.bench_function(BenchmarkId::new("lookup", size), |b| {
            b.iter(|| black_box(table.sample_for_lookup(&mut rng)));
        });
        group.bench_function(BenchmarkId::new("enr", size), |b| {
            b.iter(|| black_box(table.sample_for_enr(&mut rng)));
        });
        let reference = Reference::new(&contacts);
        group.bench_function(BenchmarkId::new("reference collect and choose", size), |b| {
            b.iter(|| black_box(reference.collect_and_choose(&mut rng)));
        });
    }
}

fn closest(c: &mut Criterion) {
    let mut group = c.benchmark_group("16 closest");
    for size in SIZES {
        let contacts = contacts(size);
        let mut rng = StdRng::seed_from_u64(1);
        let table = table(&contacts, size);
        group.bench_function(BenchmarkId::new("index", size), |b| {
            b.iter(|| black_box(table.closest(B256::new(rng.random()), CLOSEST)));
        });
        let reference = Reference::new(&contacts);
        group.bench_function(BenchmarkId::new("reference scan", size), |b| {
            b.iter(|| black_box(reference.scan(B256::new(rng.random()))));
        });
        group.bench_function(BenchmarkId::new("reference heap", size), |b| {
            b.iter(|| black_box(reference.heap(B256::new(rng.random()))));
        });
    }
}

/// Returns a thousand updates of existing contacts, as discovery sends them: mostly hearsay and
/// answers, the rest requests, failures and records.
fn batch(rng: &mut StdRng, contacts: &[Contact]) -> Vec<Contact> {
    use ContactEvent::{Answered, Asked, EnrReceived, Failed, Seen};
    let events =
        [Seen, Seen, Seen, Answered, Answered, Answered, Asked, Asked, Failed, EnrReceived];
    let update = |_| {
        let event = *events.choose(rng).unwrap();
        Contact { event, ..contacts.choose(rng).unwrap().clone() }
    };
    (0..BATCH).map(update).collect()
}

fn apply(c: &mut Criterion) {
    let mut group = c.benchmark_group("batch of 1000");
    for size in SIZES {
        let contacts = contacts(size);
        let mut rng = StdRng::seed_from_u64(1);
        let batches: Vec<_> = (0..64).map(|_| batch(&mut rng, &contacts)).collect();
        let mut known = table(&contacts, size);
        let (mut next, mut now) = (0, 0);
        group.bench_function(BenchmarkId::new("updates", size), |b| {
            b.iter(|| {
                (next, now) = ((next + 1) % batches.len(), now + 1000);
                known.advance(now);
                known.apply(&batches[next], now);
            });
        });
        let mut reference = Reference::new(&contacts);
        group.bench_function(BenchmarkId::new("reference updates", size), |b| {
            b.iter(|| {
                next = (next + 1) % batches.len();
                reference.apply(&batches[next]);
            });
        });
        // Every new contact evicts the oldest one.
        let mut full = table(&contacts, size.min(contacts.len() * 99 / 100));
        let mut strangers = |_| contact(&mut rng, ContactEvent::Answered);
        let mut strangers: Vec<Vec<_>> =
            (0..64).map(|_| (0..BATCH).map(&mut strangers).collect()).collect();
        let mut round = 0u64;
        group.bench_function(BenchmarkId::new("strangers into a full table", size), |b| {
            b.iter_batched_ref(
                || {
                    round += 1;
                    let batch = &mut strangers[(round % 64) as usize];
                    batch.iter_mut().for_each(|c| c.id[..8].copy_from_slice(&round.to_be_bytes()));
                    batch.clone()
                },
                |batch| full.apply(batch, now),
                criterion::BatchSize::LargeInput,
            );
        });
    }
}

/// News of a moment for the table's thread: in one message, or a message each. Ends when the table
/// has taken all.
fn messages(c: &mut Criterion) {
    const NEWS: usize = 256;
    let contacts = contacts(SIZES[0]);
    let config = Config { mailbox_capacity: 4 * NEWS, ..Config::default() };
    let deps = Deps { bus: Bus::default(), fatal: CancellationToken::new() };
    let table = PeerTable::start(config, deps).unwrap();
    contacts.chunks(NEWS).for_each(|part| table.apply_batch(part.to_vec()).unwrap());
    let news = &contacts[..NEWS];
    let mut group = c.benchmark_group("256 contacts to the table's thread");
    group.bench_function("one message", |b| {
        b.iter(|| {
            table.apply_batch(news.to_vec()).unwrap();
            black_box(table.stats().unwrap())
        });
    });
    group.bench_function("a message each", |b| {
        b.iter(|| {
            news.iter().for_each(|one| table.apply_batch(vec![one.clone()]).unwrap());
            black_box(table.stats().unwrap())
        });
    });
    group.finish();
    table.stop();
}

fn config() -> Criterion {
    let seconds = Duration::from_secs;
    Criterion::default().sample_size(20).warm_up_time(seconds(1)).measurement_time(seconds(2))
}

criterion_group! { name = benches; config = config(); targets = sample, closest, apply, messages }
criterion_main!(benches);
