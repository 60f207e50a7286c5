//! Flags from the environment.

use clap::{Arg, Command};

/// Commands that run services: their flags may come from the environment.
const SERVICES: [&str; 8] = [
    "node",
    "cluster",
    "storage-writer",
    "multiproof-worker",
    "blob-validator",
    "peer-table",
    "discovery",
    "executor",
];

/// Flags that say what is to be done this time, and `--policy`, whose values have commas: it is a setting
/// too, `TANDEM__POLICIES__…`.
const NEVER: [&str; 5] = ["help", "version", "print-config", "check", "policy"];

/// Lets the flag `--a.b-c` of a command that runs services be given as `TANDEM_A_B_C` too. A flag that
/// has a variable of its own keeps that.
pub fn with_variables(command: Command) -> Command {
    SERVICES.into_iter().fold(command, |command, name| {
        command.mut_subcommand(name, |service| service.mut_args(with_variable))
    })
}

/// The variable of a flag.
pub fn variable(flag: &str) -> String {
    format!("TANDEM_{}", flag.to_uppercase().replace(['.', '-'], "_"))
}

fn with_variable(flag: Arg) -> Arg {
    let Some(long) = flag.get_long().filter(|long| !NEVER.contains(long)) else { return flag };
    if flag.get_env().is_some() {
        return flag;
    }
    let name = variable(long);
    // Once for each flag, for as long as the process lives.
    flag.env(&*name.leak())
}
