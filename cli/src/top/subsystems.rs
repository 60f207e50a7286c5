//! Processors by subsystem: short profiles of all processes, one after the other.

use crate::{profile, target::Target};
use std::time::Duration;
use tandem_profile::{Budget, Profile};
use tokio::{sync::watch, time::sleep};

/// Length of one profile in seconds: long enough for some hundred samples of a busy node.
const SECONDS: u32 = 5;
/// Samples for each second of processor time.
const FREQUENCY: u32 = 99;
/// Pause after a profile that could not be taken.
const AGAIN_AFTER: Duration = Duration::from_secs(5);

/// Processors that each subsystem used, most first, or the reason why this is not known.
pub type Subsystems = Result<Vec<(&'static str, f64)>, String>;

/// Takes one profile after the other, until the receiver is gone.
pub async fn watch(targets: Vec<Target>, newest: watch::Sender<Option<Subsystems>>) {
    loop {
        let taken = take(&targets, SECONDS).await;
        let failed = taken.is_err();
        if newest.send(Some(taken)).is_err() {
            return;
        }
        if failed {
            sleep(AGAIN_AFTER).await;
        }
    }
}

/// Takes one profile of all processes.
pub async fn take(targets: &[Target], seconds: u32) -> Subsystems {
    let profiles = profile::ask(targets, seconds, FREQUENCY).await;
    let profiles = profiles.map_err(|error| format!("{error:#}"))?;
    Profile::merge(profiles).map(|profile| processors(&profile))
}

fn processors(profile: &Profile) -> Vec<(&'static str, f64)> {
    let seconds = profile.duration.as_secs_f64().max(1e-9);
    let period = profile.period.as_secs_f64();
    let used = |samples: u64| samples as f64 * period / seconds;
    let subsystems = Budget::of(profile).subsystems.into_iter();
    subsystems.map(|(subsystem, row)| (subsystem.name(), used(row.flat))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn samples_become_processors() {
        let pprof = include_bytes!("../../tests/cli/profile/two-samples.pb");
        let profile = Profile::parse(pprof).unwrap();
        // Two samples of 10 ms in 2 s.
        assert_eq!(processors(&profile), [("State root (tries)", 0.01), ("Task scheduling", 0.0)]);
    }
}
