//! One run of an input, with a report of any fault.

use crate::{Target, heap};
use std::{
    fs,
    panic::{self, AssertUnwindSafe},
    path::PathBuf,
    sync::{Mutex, PoisonError},
};

/// The current input, for the panic hook: a panic in a thread of a pool ends the process.
static RUNNING: Mutex<Option<(&'static str, Vec<u8>)>> = Mutex::new(None);

/// Heap use of a run.
#[derive(Clone, Copy, Debug)]
pub struct Ran {
    /// Peak of the heap in bytes, beyond the bytes allocated before.
    pub heap: usize,
    /// Part of the peak that [`Target::constant`] must cover.
    pub constant: usize,
}

/// Runs an input.
///
/// # Errors
/// The fault: a panic, or more heap than the bound.
pub fn run(target: &Target, input: &[u8]) -> Result<Ran, String> {
    *RUNNING.lock().unwrap_or_else(PoisonError::into_inner) = Some((target.name, input.to_vec()));
    heap::reset();
    let outcome = panic::catch_unwind(AssertUnwindSafe(|| (target.run)(input)));
    let heap = heap::largest();
    *RUNNING.lock().unwrap_or_else(PoisonError::into_inner) = None;
    outcome.map_err(|cause| {
        let text = cause.downcast_ref::<String>().cloned();
        text.or_else(|| cause.downcast_ref::<&str>().map(|text| (*text).to_owned()))
            .unwrap_or_else(|| "panicked".to_owned())
    })?;
    let proportional = input.len() * target.bytes_per_byte + (target.structures)(input);
    let bound = proportional + target.constant;
    if heap > bound {
        let (name, len) = (target.name, input.len());
        return Err(format!("{name}: {len} bytes took {heap} bytes of heap, more than {bound}"));
    }
    Ok(Ran { heap, constant: heap.saturating_sub(proportional) })
}

/// Makes a panic of any thread write the current input to a file.
pub fn report_panics() {
    let before = panic::take_hook();
    panic::set_hook(Box::new(move |info| {
        before(info);
        let running = RUNNING.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((target, input)) = &*running {
            keep(target, input);
        }
    }));
}

/// Writes an input with a finding to the temporary folder and prints its path.
pub fn keep(target: &str, input: &[u8]) -> PathBuf {
    let path = std::env::temp_dir().join(format!("tandem-fuzz-{target}-finding"));
    match fs::write(&path, input) {
        Ok(()) => eprintln!("{target}: input of {} bytes in {}", input.len(), path.display()),
        Err(error) => eprintln!("{target}: input {input:02x?} ({}: {error})", path.display()),
    }
    path
}
