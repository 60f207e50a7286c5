//! Tells the binary which commit it was made from, for `engine_getClientVersionV1` and
//! `web3_clientVersion`.

use std::process::Command;

fn main() {
    let git = |args: &[&str]| {
        let output = Command::new("git").args(args).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| text.trim().to_owned())
    };
    // Outside a repository (a source archive) the commit is not known.
    let commit = git(&["rev-parse", "--short=8", "HEAD"]).unwrap_or_else(|| "00000000".to_owned());
    println!("cargo:rustc-env=TANDEM_COMMIT={commit}");
    println!("cargo:rerun-if-changed=build.rs");
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"]) {
        println!("cargo:rerun-if-changed={log}");
    }
}
