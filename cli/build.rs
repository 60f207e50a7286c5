//! Tells the binary its commit and its profile, for `engine_getClientVersionV1`,
//! `web3_clientVersion` and `--version`.

use std::process::Command;

fn main() {
    let git = |args: &[&str]| {
        let output = Command::new("git").args(args).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        output.status.success().then(|| text.trim().to_owned())
    };
    // A build outside the repository may still be told the commit (40 hex digits).
    let told = || std::env::var("TANDEM_REVISION").ok().filter(|revision| is_commit(revision));
    let commit = git(&["rev-parse", "--short=8", "HEAD"]).or_else(told);
    let commit = commit.as_deref().and_then(|commit| commit.get(..8)).unwrap_or("00000000");
    println!("cargo:rustc-env=TANDEM_COMMIT={commit}");
    let profile = std::env::var("PROFILE").unwrap_or_default();
    println!("cargo:rustc-env=TANDEM_PROFILE={profile}");
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=TANDEM_REVISION");
    if let Some(log) = git(&["rev-parse", "--git-path", "logs/HEAD"]) {
        println!("cargo:rerun-if-changed={log}");
    }
}

fn is_commit(text: &str) -> bool {
    text.len() == 40 && text.bytes().all(|byte| byte.is_ascii_hexdigit())
}
