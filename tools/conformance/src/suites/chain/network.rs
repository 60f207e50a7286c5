//! Names of networks: a fork (`Cancun`), or a transition from one to the next at a time or block
//! (`CancunToPragueAtTime15k`, `FrontierToHomesteadAt5`).

use alloy_primitives::U256;
use serde_json::{Map, Value, json};

/// Way to activate a fork in geth's genesis file.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum By {
    /// By `…Block` keys.
    Block(&'static [&'static str]),
    /// By the terminal total difficulty.
    Difficulty,
    /// By a `…Time` key.
    Time(&'static str),
}

/// Forks as the fixtures name them, in order.
const FORKS: [(&str, By); 24] = [
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
    ("Amsterdam", By::Time("amsterdamTime")),
];
/// Blob forks after which Amsterdam comes on public chains.
const BEFORE_AMSTERDAM: [&str; 2] = ["BPO1", "BPO2"];
const PARIS: usize = 13;

/// Number of a block that no test reaches.
const NEVER: u64 = 10_000_000;

const TERMINAL: &str = "terminalTotalDifficulty";

/// Point at which a transition happens.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum At {
    Block(u64),
    Time(u64),
    Difficulty(u64),
}

/// Target of a transition.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Target {
    To(usize),
    /// The irregular state change of EIP-779.
    Dao,
}
use Target::{Dao, To};

/// Returns `config` of geth's genesis file for a network's name.
///
/// # Errors
/// The reason why its cases do not run: an unknown fork.
pub fn config(name: &str) -> Result<Map<String, Value>, String> {
    let (from, transition) = parse(name)?;
    let mut config = Map::new();
    // With 0 the merge is past, whatever the genesis block's difficulty; the other value is never
    // reached.
    let terminal = if from >= PARIS { U256::ZERO } else { U256::MAX };
    config.insert(TERMINAL.to_owned(), json!(terminal));
    for (fork, by) in &FORKS[..=from] {
        let is_later = fork.starts_with("BPO") && !BEFORE_AMSTERDAM.contains(fork);
        if FORKS[from].0 != "Amsterdam" || !is_later {
            activate(&mut config, *by, 0);
        }
    }
    if FORKS[from].0 == "Constantinople" {
        // Without this key it would come with Constantinople, as in geth: this fork lacks the fix.
        config.insert("petersburgBlock".to_owned(), json!(NEVER));
    }
    match transition {
        None => {}
        Some((Dao, At::Block(block))) => {
            config.insert("daoForkBlock".to_owned(), json!(block));
            config.insert("daoForkSupport".to_owned(), json!(true));
        }
        Some((To(PARIS), At::Difficulty(difficulty))) => {
            config.insert(TERMINAL.to_owned(), json!(difficulty));
        }
        Some((To(to), At::Time(time))) if to > PARIS => activate(&mut config, FORKS[to].1, time),
        Some((To(to), At::Block(block))) if to < PARIS => {
            // The forks between the two activate with the later one.
            FORKS[from + 1..=to].iter().for_each(|(_, by)| activate(&mut config, *by, block));
        }
        Some(_) => return Err(format!("transition {name} is not known")),
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

/// Returns the position of a fork in [`FORKS`].
fn fork(name: &str) -> Result<usize, String> {
    let name = if name == "Merge" { "Paris" } else { name };
    let position = FORKS.iter().position(|(fork, _)| *fork == name);
    position.ok_or_else(|| format!("fork {name} is not supported"))
}

fn parse(name: &str) -> Result<(usize, Option<(Target, At)>), String> {
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
    let to = if to == "Dao" { Dao } else { To(fork(to)?) };
    Ok((fork(from)?, Some((to, at))))
}

/// Parses a number; `k` stands for thousands.
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
        assert_eq!(times("Amsterdam").len(), 7, "blob forks 1 and 2");
        let amsterdam = times("BPO2ToAmsterdamAtTime15k");
        assert_eq!(amsterdam.len(), 7);
        assert!(amsterdam.contains(&("amsterdamTime".into(), 15_000)));
    }

    #[test]
    fn forks_before_the_merge_come_by_block() {
        let london = config("BerlinToLondonAt5").unwrap();
        assert_eq!((&london["berlinBlock"], &london["londonBlock"]), (&json!(0), &json!(5)));
        assert_eq!(london[TERMINAL], json!(U256::MAX));
        // Constantinople without its defect: both at once.
        let fix = config("ByzantiumToConstantinopleFixAt5").unwrap();
        assert_eq!((&fix["constantinopleBlock"], &fix["petersburgBlock"]), (&json!(5), &json!(5)));
        let dao = config("HomesteadToDaoAt5").unwrap();
        assert_eq!((&dao["daoForkBlock"], &dao["daoForkSupport"]), (&json!(5), &json!(true)));
        let merge = config("ArrowGlacierToParisAtDiffC0000").unwrap();
        assert_eq!(merge[TERMINAL], json!(0xC0000));
        assert!(merge.contains_key("arrowGlacierBlock") && !merge.contains_key("shanghaiTime"));
    }

    #[test]
    fn what_does_not_run_has_a_reason() {
        for (name, reason) in [
            ("Bogota", "fork Bogota is not supported"),
            ("AmsterdamToBogotaAtTime15k", "fork Bogota is not supported"),
            ("OsakaToBPO1", "transition OsakaToBPO1 is not known"),
            ("OsakaToBPO1AtTimeX", "transition OsakaToBPO1AtTimeX is not known"),
            ("OsakaToBPO1At5", "transition OsakaToBPO1At5 is not known"),
        ] {
            assert_eq!(config(name).unwrap_err(), reason, "{name}");
        }
    }
}
