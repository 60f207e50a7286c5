//! Resource usage of this process: processor time by kind of thread and memory, as counted by the
//! kernel, and the allocator's share of that memory. Only Linux has kernel counts to read. On other
//! systems they are not published.

use metrics::{Unit, counter, describe_counter, describe_gauge, gauge};
use std::{
    collections::{BTreeMap, HashMap},
    fs,
    path::{Path, PathBuf},
};

/// Counter: processor time, by kind of thread.
const CPU_MILLISECONDS: &str = "tandem_process_cpu_milliseconds_total";
/// Gauge: memory that is not swapped out.
const RESIDENT_BYTES: &str = "tandem_process_resident_bytes";

/// Gauge: whether the process is ready.
const READY: &str = "tandem_process_ready";

/// Gauge: memory that the allocator holds, by kind.
const ALLOCATOR_BYTES: &str = "tandem_process_allocator_bytes";

/// Duration of one tick of the times in `stat`: the kernel's interface has 100 per second
/// everywhere.
const TICK_MILLISECONDS: u64 = 10;
/// Kind that counts the last moments of threads that have ended. All kinds together therefore equal
/// the time of the process.
const ENDED: &str = "ended";

pub(crate) fn describe() {
    let text = "Processor time, by kind of thread";
    describe_counter!(CPU_MILLISECONDS, Unit::Milliseconds, text);
    describe_gauge!(RESIDENT_BYTES, Unit::Bytes, "Memory that is not swapped out");
    describe_gauge!(READY, Unit::Count, "1 while the process is ready, as `/readyz` says it");
    let text = "What the allocator holds, by kind: allocated by the program, active (pages of that), \
        metadata, resident, mapped, retained (address space without memory)";
    describe_gauge!(ALLOCATOR_BYTES, Unit::Bytes, text);
}

/// Publishes as a metric whether the process is ready.
pub fn publish_ready(ready: bool) {
    gauge!(READY).set(f64::from(u8::from(ready)));
}

/// Memory that an allocator holds, in bytes, with the meaning of jemalloc's `stats.*`.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Allocator {
    /// Memory given to the program.
    pub allocated: u64,
    /// Pages that contain allocated memory. Their excess over `allocated` is lost to fragmentation.
    pub active: u64,
    /// Memory of the allocator's own data.
    pub metadata: u64,
    /// Physical memory: active pages, metadata, and free pages that are not yet returned.
    pub resident: u64,
    /// Address space of chunks in use.
    pub mapped: u64,
    /// Address space kept for later, without memory behind it.
    pub retained: u64,
}

impl Allocator {
    fn kinds(&self) -> [(&'static str, u64); 6] {
        let Self { allocated, active, metadata, resident, mapped, retained } = *self;
        [
            ("allocated", allocated),
            ("active", active),
            ("metadata", metadata),
            ("resident", resident),
            ("mapped", mapped),
            ("retained", retained),
        ]
    }
}

/// Function that queries the process's allocator. It returns `None` when there are no figures.
pub type AskAllocator = fn() -> Option<Allocator>;

/// Processor times at the last reading.
#[derive(Debug)]
pub(crate) struct Process {
    folder: PathBuf,
    allocator: Option<AskAllocator>,
    /// Number of ticks published so far, of all kinds.
    given: u64,
    threads: HashMap<String, u64>,
}

impl Process {
    /// Creates the reader for this process.
    pub fn this(allocator: Option<AskAllocator>) -> Self {
        Self { allocator, ..Self::at(Path::new("/proc/self")) }
    }

    fn at(folder: &Path) -> Self {
        Self { folder: folder.to_owned(), allocator: None, given: 0, threads: HashMap::new() }
    }

    /// Publishes the usage since the last reading, and the present memory.
    pub fn publish(&mut self) {
        for (kind, ticks) in self.used() {
            counter!(CPU_MILLISECONDS, "thread" => kind).increment(ticks * TICK_MILLISECONDS);
        }
        if let Some(bytes) = self.resident_bytes() {
            gauge!(RESIDENT_BYTES).set(bytes as f64);
        }
        if let Some(held) = self.allocator.and_then(|ask| ask()) {
            for (kind, bytes) in held.kinds() {
                gauge!(ALLOCATOR_BYTES, "kind" => kind).set(bytes as f64);
            }
        }
    }

    /// Returns the ticks since the last reading, by kind of thread.
    fn used(&mut self) -> BTreeMap<String, u64> {
        let mut used = BTreeMap::<String, u64>::new();
        let mut threads = HashMap::new();
        for entry in fs::read_dir(self.folder.join("task")).into_iter().flatten().flatten() {
            // A thread may end while it is read.
            let Some((name, ticks)) = stat(&entry.path()) else { continue };
            let id = entry.file_name().to_string_lossy().into_owned();
            let before = self.threads.get(&id).copied().filter(|before| *before <= ticks);
            *used.entry(kind(&name).to_owned()).or_default() += ticks - before.unwrap_or(0);
            threads.insert(id, ticks);
        }
        self.threads = threads;
        // This is read last, so that it is no less than the total of the threads.
        let total = stat(&self.folder).map_or(0, |(_, ticks)| ticks);
        self.given += used.values().sum::<u64>();
        if let Some(ended @ 1..) = total.checked_sub(self.given) {
            self.given = total;
            used.insert(ENDED.to_owned(), ended);
        }
        used
    }

    fn resident_bytes(&self) -> Option<u64> {
        let status = fs::read_to_string(self.folder.join("status")).ok()?;
        let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?;
        let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        Some(kibibytes * 1024)
    }
}

/// Returns name and ticks (user and system, fields 14 and 15) of a process or thread.
fn stat(folder: &Path) -> Option<(String, u64)> {
    let text = fs::read_to_string(folder.join("stat")).ok()?;
    // The name stands in parentheses and may hold any character.
    let (head, fields) = text.rsplit_once(") ")?;
    let (_, name) = head.split_once('(')?;
    let mut times = fields.split(' ').skip(11).map(str::parse::<u64>);
    let (user, system) = (times.next()?.ok()?, times.next()?.ok()?);
    Some((name.to_owned(), user + system))
}

/// Returns the common name of threads whose names differ only by a number: `proof-worker-3` and
/// others are `proof-worker`.
fn kind(name: &str) -> &str {
    let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
    if stem.len() == name.len() { name } else { stem.trim_end_matches(['-', ':', '#', '_']) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(folder: &Path, name: &str, user: u64, system: u64) {
        fs::create_dir_all(folder).unwrap();
        let text =
            format!("7 ({name}) S 1 7 7 0 -1 4194560 100 0 0 0 {user} {system} 0 0 20 0 9\n");
        fs::write(folder.join("stat"), text).unwrap();
    }

    fn used(process: &mut Process) -> Vec<(String, u64)> {
        process.used().into_iter().filter(|(_, ticks)| *ticks > 0).collect()
    }

    fn ticks<const N: usize>(kinds: [(&str, u64); N]) -> Vec<(String, u64)> {
        kinds.map(|(kind, ticks)| (kind.to_owned(), ticks)).into()
    }

    #[test]
    fn kinds_add_up_to_the_process_also_when_threads_come_and_go() {
        let folder =
            std::env::temp_dir().join(format!("tandem-proc-{:016x}", rand::random::<u64>()));
        let thread = |id: u32| folder.join("task").join(id.to_string());
        write(&folder, "tandem", 20, 13);
        write(&thread(1), "engine", 10, 1);
        write(&thread(2), "proof-worker-0", 5, 6);
        write(&thread(3), "proof-worker-11", 5, 6);
        let mut process = Process::at(&folder);
        assert_eq!(used(&mut process), ticks([("engine", 11), ("proof-worker", 22)]));
        assert_eq!(used(&mut process), []);
        // A thread has ended, and another with the same number has replaced it.
        write(&folder, "tandem", 30, 13);
        write(&thread(1), "engine", 12, 1);
        write(&thread(3), "odd) name (", 1, 2);
        assert_eq!(used(&mut process), ticks([("ended", 5), ("engine", 2), ("odd) name (", 3)]));
        fs::remove_dir_all(&folder).unwrap();
        assert_eq!(used(&mut process), []);
    }

    #[test]
    fn kinds_leave_out_numbers_at_the_end_alone() {
        for (name, want) in [("prewarm-12", "prewarm"), ("rocksdb:low0", "rocksdb:low")] {
            assert_eq!(kind(name), want);
        }
        assert_eq!(kind("proof-stream"), "proof-stream");
        assert_eq!(kind("ends-"), "ends-");
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_process_uses_memory_and_time() {
        let mut process = Process::this(None);
        assert!(process.resident_bytes().unwrap() > 1 << 20);
        let mut ticks = 0;
        while ticks == 0 {
            // This work gives the kernel something to count.
            std::hint::black_box((0..1_000_000u64).sum::<u64>());
            ticks = process.used().values().sum();
        }
    }
}
