//! Coverage-guided fuzzing of one target, which `TANDEM_FUZZ_TARGET` names. `just fuzz` builds it
//! with the compiler's coverage instrumentation and starts it.

#![no_main]

use libfuzzer_sys::{fuzz_target, test_input_wrap as _};
use std::sync::LazyLock;
use tandem_fuzz::{Target, run, targets};

static TARGET: LazyLock<Target> = LazyLock::new(|| {
    let name = std::env::var("TANDEM_FUZZ_TARGET").unwrap_or_default();
    targets::by_name(&name).unwrap_or_else(|| panic!("no target {name:?}"))
});

fuzz_target!(|input: &[u8]| {
    if let Err(reason) = run::run(&TARGET, input) {
        panic!("{reason}");
    }
});
