//! Reads flags from environment variables.

use clap::{Arg, Command};

/// Commands that run services. Their flags may come from the environment.
const SERVICES: [&str; 12] = [
    "node",
    "cluster",
    "storage-writer",
    "multiproof-worker",
    "blob-validator",
    "peer-table",
    "peer-sessions",
    "tx-pool",
    "discovery",
    "executor",
    "follower",
    "tx-executor",
];

/// Flags that apply to a single run, and `--policy`, whose values have commas. Policies have
/// variables of their own, `TANDEM__POLICIES__…`.
const NEVER: [&str; 5] = ["help", "version", "print-config", "check", "policy"];

/// Lets each flag `--a.b-c` of a command that runs services be given as `TANDEM_A_B_C` too. A flag
/// that has its own variable keeps it.
pub fn with_variables(command: Command) -> Command {
    SERVICES.into_iter().fold(command, |command, name| {
        command.mut_subcommand(name, |service| service.mut_args(with_variable))
    })
}

/// Returns the variable of a flag.
pub fn variable(flag: &str) -> String {
    format!("TANDEM_{}", flag.to_uppercase().replace(['.', '-'], "_"))
}

fn with_variable(flag: Arg) -> Arg {
    let Some(long) = flag.get_long().filter(|long| !NEVER.contains(long)) else { return flag };
    if flag.get_env().is_some() {
        return flag;
    }
    let name = variable(long);
    // Leaked once per flag, for as long as the process lives.
    flag.env(&*name.leak())
}
