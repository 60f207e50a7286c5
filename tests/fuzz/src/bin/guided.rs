//! Coverage-guided fuzzing of one target, which `TANDEM_FUZZ_TARGET` names. `just fuzz` builds it
//! with the compiler's coverage instrumentation and starts it.
//!
//! `TANDEM_FUZZ_START` names a folder for libFuzzer's start files: the target's seeds go to `seeds`
//! in it, its dictionary to the file `dictionary`.

#![no_main]

use libfuzzer_sys::fuzz_target;
use std::{fmt::Write as _, fs, io, path::Path, sync::LazyLock};
use tandem_fuzz::{Target, run, targets};

static TARGET: LazyLock<Target> = LazyLock::new(|| {
    let name = std::env::var("TANDEM_FUZZ_TARGET").unwrap_or_default();
    targets::by_name(&name).unwrap_or_else(|| {
        let names: Vec<_> = targets::ALL.iter().map(|target| target.name).collect();
        eprintln!("no target {name:?}, only {}", names.join(", "));
        std::process::exit(2)
    })
});

fuzz_target!(
    init: {
        LazyLock::force(&TARGET);
        if let Some(folder) = std::env::var_os("TANDEM_FUZZ_START")
            && let Err(error) = write_start(Path::new(&folder))
        {
            eprintln!("{}: {error}", folder.display());
            std::process::exit(2)
        }
    },
    |input: &[u8]| {
        if let Err(reason) = run::run(&TARGET, input) {
            panic!("{reason}");
        }
    }
);

fn write_start(folder: &Path) -> io::Result<()> {
    let seeds = folder.join("seeds");
    fs::create_dir_all(&seeds)?;
    for (index, seed) in (TARGET.seeds)().iter().enumerate() {
        fs::write(seeds.join(index.to_string()), seed)?;
    }
    let mut dictionary = String::new();
    for word in TARGET.dictionary {
        let digits = word.iter().fold(String::new(), |mut digits, byte| {
            let _ = write!(digits, "\\x{byte:02x}");
            digits
        });
        let _ = writeln!(dictionary, "\"{digits}\"");
    }
    fs::write(folder.join("dictionary"), dictionary)
}
