//! Forwards flags to the processes.

use clap::{ArgAction, ArgMatches, Command, parser::ValueSource};
use std::ffi::OsString;

/// Flags that are passed on through the environment only if they were given there: their values may
/// be secret, and other users of the machine see command lines.
const INHERITED: [&str; 1] = ["otlp.endpoint"];

/// Returns the given flags, from the command line or the environment, that the command of a service
/// has too. Flags in `but` are excepted.
pub fn forwarded(service: &Command, matches: &ArgMatches, but: &[&str]) -> Vec<OsString> {
    let mut flags = Vec::new();
    for flag in service.get_arguments() {
        let Some(long) = flag.get_long().filter(|long| !but.contains(long)) else { continue };
        let id = flag.get_id().as_str();
        let known = matches.try_contains_id(id).unwrap_or(false);
        let source = if known { matches.value_source(id) } else { None };
        if !matches!(source, Some(ValueSource::CommandLine | ValueSource::EnvVariable)) {
            continue;
        }
        if source == Some(ValueSource::EnvVariable) && INHERITED.contains(&long) {
            continue;
        }
        let name = OsString::from(format!("--{long}"));
        if matches!(flag.get_action(), ArgAction::SetTrue) {
            if matches.get_flag(id) {
                flags.push(name);
            }
            continue;
        }
        for value in matches.get_raw(id).into_iter().flatten() {
            flags.extend([name.clone(), value.to_owned()]);
        }
    }
    flags
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Arg;

    #[test]
    fn only_what_was_given_and_what_the_service_knows_goes_on() {
        let flag = |name: &'static str| Arg::new(name).long(name);
        let switch = |name: &'static str| flag(name).action(ArgAction::SetTrue);
        let list = || flag("list").value_delimiter(',').action(ArgAction::Append);
        let all = Command::new("all")
            .args([flag("a"), flag("b").default_value("1"), flag("c"), flag("d"), list()])
            .args([switch("on"), switch("off")]);
        let service = Command::new("service")
            .args([flag("a"), flag("b"), flag("d"), flag("other"), list()])
            .args([switch("on"), switch("off")]);
        let given = ["all", "--a", "x", "--c", "y", "--d", "z", "--list", "p,q", "--on"];
        let matches = all.get_matches_from(given);
        let flags = forwarded(&service, &matches, &["d"]);
        assert_eq!(flags, ["--a", "x", "--list", "p", "--list", "q", "--on"]);
    }
}
