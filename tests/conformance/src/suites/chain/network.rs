//! Names of networks: a fork (`Cancun`), or a transition from one to the next at some time or
//! block (`CancunToPragueAtTime15k`, `FrontierToHomesteadAt5`).

use serde_json::{Map, Value, json};

/// How a fork is activated in geth's genesis file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum By {
    /// `…Block` keys.
    Block(&'static [&'static str]),
    /// The terminal total difficulty.
    Difficulty,
    /// A `…Time` key.
    Time(&'static str),
}

/// Forks as the fixtures name them, in order.
const FORKS: [(&str, By); 23] = [
    ("Frontier", By::Block(&[])),
    ("Homestead", By::Block(&["homesteadBlock"])),
    ("EIP150", By::Block(&["eip150Block"])),
    ("EIP158", By::Block(&["eip155Block", "eip158Block"])),
    ("Byzantium", By::Block(&["byzantiumBlock"])),
    ("Constantinople", By::Block(&["constantinopleBlock"])),
    ("ConstantinopleFix", By::Block(&["petersburgBlock"])),
    ("Istanbul", By::Block(&["istanbulBlock"])),
    ("MuirGlacier", By::Block(&["muirGlacierBlock"])),
    ("Berlin", By::Block(&["berlinBlock"])),
    ("London", By::Block(&["londonBlock"])),
    ("ArrowGlacier", By::Block(&["arrowGlacierBlock"])),
    ("GrayGlacier", By::Block(&["grayGlacierBlock"])),
    ("Paris", By::Difficulty),
    ("Shanghai", By::Time("shanghaiTime")),
    ("Cancun", By::Time("cancunTime")),
    ("Prague", By::Time("pragueTime")),
    ("Osaka", By::Time("osakaTime")),
    ("BPO1", By::Time("bpo1Time")),
    ("BPO2", By::Time("bpo2Time")),
    ("BPO3", By::Time("bpo3Time")),
    ("BPO4", By::Time("bpo4Time")),
    ("BPO5", By::Time("bpo5Time")),
];
const PARIS: usize = 13;

/// When a transition happens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum At {
    Block(u64),
    Time(u64),
    Difficulty(u64),
}

/// What a network's name says, or why its cases do not run.
///
/// # Errors
/// The reason, for the report: a fork before the merge, or one that is not known.
pub fn config(name: &str) -> Result<Map<String, Value>, String> {
    let (from, transition) = parse(name)?;
    if from < PARIS {
        return Err("before the merge".to_owned());
    }
    let mut config = Map::new();
    // After the merge at genesis: no total difficulty is too low.
    config.insert("terminalTotalDifficulty".to_owned(), json!(0));
    for (_, by) in &FORKS[..=from] {
        activate(&mut config, *by, 0);
    }
    match transition {
        None => {}
        Some((to, At::Time(time))) => activate(&mut config, FORKS[to].1, time),
        Some((_, At::Block(_) | At::Difficulty(_))) => return Err("before the merge".to_owned()),
    }
    Ok(config)
}

fn activate(config: &mut Map<String, Value>, by: By, at: u64) {
    match by {
        By::Block(keys) => {
            config.extend(keys.iter().map(|key| ((*key).to_owned(), json!(at))));
        }
        By::Difficulty => {}
        By::Time(key) => {
            config.insert(key.to_owned(), json!(at));
        }
    }
}

/// Position of a fork in [`FORKS`].
fn fork(name: &str) -> Result<usize, String> {
    let name = if name == "Merge" { "Paris" } else { name };
    let position = FORKS.iter().position(|(fork, _)| *fork == name);
    position.ok_or_else(|| format!("fork {name} is not supported"))
}

fn parse(name: &str) -> Result<(usize, Option<(usize, At)>), String> {
    let Some((from, rest)) = name.split_once("To") else { return Ok((fork(name)?, None)) };
    let unknown = || format!("transition {name} is not known");
    let (to, at) = rest.split_once("At").ok_or_else(unknown)?;
    let at = if let Some(time) = at.strip_prefix("Time") {
        At::Time(number(time).ok_or_else(unknown)?)
    } else if let Some(difficulty) = at.strip_prefix("Diff") {
        At::Difficulty(u64::from_str_radix(difficulty, 16).map_err(|_| unknown())?)
    } else {
        At::Block(number(at).ok_or_else(unknown)?)
    };
    if to == "Dao" {
        return Err("before the merge".to_owned());
    }
    Ok((fork(from)?, Some((fork(to)?, at))))
}

/// A number, `k` for thousands.
fn number(text: &str) -> Option<u64> {
    match text.strip_suffix('k') {
        Some(thousands) => thousands.parse::<u64>().ok()?.checked_mul(1000),
        None => text.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn times(name: &str) -> Vec<(String, u64)> {
        let config = config(name).unwrap();
        let times = config.into_iter().filter(|(key, _)| key.ends_with("Time"));
        times.map(|(key, value)| (key, value.as_u64().unwrap())).collect()
    }

    #[test]
    fn transitions_have_the_later_fork_at_their_time() {
        assert_eq!(times("Paris"), []);
        assert_eq!(times("Merge"), []);
        assert_eq!(times("ParisToShanghaiAtTime15k"), [("shanghaiTime".into(), 15_000)]);
        let (cancun, shanghai) = (("cancunTime".into(), 15), ("shanghaiTime".into(), 0));
        assert_eq!(times("ShanghaiToCancunAtTime15"), [cancun, shanghai]);
        let osaka = times("OsakaToBPO1AtTime15k");
        assert_eq!(osaka.iter().filter(|(_, time)| *time == 0).count(), 4);
        assert!(osaka.contains(&("bpo1Time".into(), 15_000)));
        assert_eq!(times("BPO2ToBPO3AtTime15k").len(), 7);
    }

    #[test]
    fn what_does_not_run_has_a_reason() {
        for (name, reason) in [
            ("London", "before the merge"),
            ("FrontierToHomesteadAt5", "before the merge"),
            ("HomesteadToDaoAt5", "before the merge"),
            ("ArrowGlacierToParisAtDiffC0000", "before the merge"),
            ("Amsterdam", "fork Amsterdam is not supported"),
            ("BPO2ToAmsterdamAtTime15k", "fork Amsterdam is not supported"),
            ("OsakaToBPO1", "transition OsakaToBPO1 is not known"),
            ("OsakaToBPO1AtTimeX", "transition OsakaToBPO1AtTimeX is not known"),
        ] {
            assert_eq!(config(name).unwrap_err(), reason, "{name}");
        }
    }
}
