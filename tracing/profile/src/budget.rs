//! Processor time by subsystem and by function.

use crate::{Profile, Subsystem};
use std::{
    collections::{BTreeMap, HashSet},
    fmt::{self, Write},
    hash::Hash,
};

/// Samples of one subsystem or function.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Row {
    /// Samples in which it worked itself: over all subsystems, they add up to all samples.
    pub flat: u64,
    /// Samples in which it was anywhere on the stack. So it counts what it called too.
    pub cumulative: u64,
}

/// Processor time of a profile, by what it was spent on.
#[derive(Clone, PartialEq, Debug, Default)]
pub struct Budget {
    /// Number of all samples.
    pub samples: u64,
    /// By subsystem, most flat samples first.
    pub subsystems: Vec<(Subsystem, Row)>,
    /// By function, most flat samples first.
    pub functions: Vec<(String, Row)>,
    /// By process and thread, with most samples first.
    pub threads: Vec<(String, u64)>,
}

impl Budget {
    /// Counts the samples of a profile.
    pub fn of(profile: &Profile) -> Self {
        let (mut subsystems, mut functions) = (BTreeMap::new(), BTreeMap::new());
        let mut threads = BTreeMap::<String, u64>::new();
        for stack in profile.stacks() {
            let names: Vec<_> =
                stack.functions.iter().map(|number| profile.function(*number)).collect();
            let known = names.iter().filter_map(|name| Subsystem::of_function(name));
            let worker = Subsystem::of_stack(names.iter().copied());
            count(&mut subsystems, Some(worker), known.chain([worker]), stack.samples);
            let innermost = names.first().copied();
            count(&mut functions, innermost, names.iter().copied(), stack.samples);
            *threads.entry(thread(&stack.process, &stack.thread)).or_default() += stack.samples;
        }
        let functions = functions.into_iter().map(|(name, row)| (name.to_owned(), row)).collect();
        let mut threads: Vec<_> = threads.into_iter().collect();
        threads.sort_by_key(|(_, samples)| std::cmp::Reverse(*samples));
        Self {
            samples: profile.samples(),
            subsystems: sorted(subsystems.into_iter().collect()),
            functions: sorted(functions),
            threads,
        }
    }

    /// Returns a part of all samples in percent.
    pub fn percent(&self, samples: u64) -> f64 {
        100.0 * samples as f64 / self.samples.max(1) as f64
    }

    /// Returns the budget as text, with this number of functions and threads.
    pub fn text(&self, profile: &Profile, rows_max: usize) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        let _ = self.write(&mut text, profile, rows_max);
        text
    }

    fn write(&self, text: &mut String, profile: &Profile, rows_max: usize) -> fmt::Result {
        let (spent, over) = (profile.processor_time(), profile.duration);
        let processors = spent.as_secs_f64() / over.as_secs_f64().max(1e-9);
        writeln!(
            text,
            "{:.1} s, {} samples of {:.1} ms: {:.2} s of processor time, {processors:.2} processors",
            over.as_secs_f64(),
            self.samples,
            profile.period.as_secs_f64() * 1e3,
            spent.as_secs_f64(),
        )?;
        let seconds = |samples: u64| samples as f64 * profile.period.as_secs_f64();
        let mut table = |title: &str, rows: &[(String, Row)]| {
            writeln!(text, "\n   flat %    cum. %    flat s    cum. s  {title}")?;
            for (name, row) in rows {
                let name = shorten(name);
                writeln!(
                    text,
                    "{:>8.1}  {:>8.1}  {:>8.2}  {:>8.2}  {name}",
                    self.percent(row.flat),
                    self.percent(row.cumulative),
                    seconds(row.flat),
                    seconds(row.cumulative),
                )?;
            }
            fmt::Result::Ok(())
        };
        let subsystems: Vec<_> =
            self.subsystems.iter().map(|(it, row)| (it.name().to_owned(), *row)).collect();
        table("subsystem", &subsystems)?;
        table("function", &self.functions[..self.functions.len().min(rows_max)])?;
        writeln!(text, "\n   time %    time s  thread")?;
        for (name, samples) in self.threads.iter().take(rows_max) {
            let (percent, seconds) = (self.percent(*samples), seconds(*samples));
            writeln!(text, "{percent:>9.1}  {seconds:>8.2}  {name}")?;
        }
        Ok(())
    }
}

/// Returns a name that fits into a line: generic arguments can make one very long.
fn shorten(name: &str) -> String {
    const LETTERS_MAX: usize = 110;
    match name.char_indices().nth(LETTERS_MAX) {
        Some((end, _)) => format!("{}…", &name[..end]),
        None => name.to_owned(),
    }
}

/// Returns the name of a kind of thread: threads that differ only in their numbers are one kind.
fn thread(process: &str, thread: &str) -> String {
    let kind = thread.trim_end_matches(|letter: char| letter.is_ascii_digit());
    let kind = if kind.is_empty() { thread } else { kind.trim_end_matches(['-', ' ', '#']) };
    if process.is_empty() { kind.to_owned() } else { format!("{process}: {kind}") }
}

fn count<K: Copy + Ord + Hash>(
    rows: &mut BTreeMap<K, Row>,
    flat: Option<K>,
    all: impl Iterator<Item = K>,
    samples: u64,
) {
    if let Some(key) = flat {
        rows.entry(key).or_default().flat += samples;
    }
    // Recursion counts once.
    for key in all.collect::<HashSet<_>>() {
        rows.entry(key).or_default().cumulative += samples;
    }
}

fn sorted<K>(mut rows: Vec<(K, Row)>) -> Vec<(K, Row)> {
    rows.sort_by_key(|(_, row)| std::cmp::Reverse((row.flat, row.cumulative)));
    rows
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Builder;
    use std::time::Duration;

    fn profile() -> Profile {
        let mut builder =
            Builder::new(Profile::new(Duration::from_secs(1), Duration::from_millis(10)));
        let mut add = |thread, names: &[&str], samples| {
            builder.add("", thread, names.iter().copied(), samples);
        };
        add("execution", &["memcpy", "revm::sload", "tandem_executor::run"], 5);
        add("worker-0", &["keccak::f", "tandem_trie::hash", "tandem_trie::hash"], 3);
        add("worker-1", &["tandem_trie::hash"], 1);
        add("other", &["start_thread"], 1);
        builder.finish()
    }

    #[test]
    fn flat_is_who_worked_and_cumulative_who_was_there() {
        let budget = Budget::of(&profile());
        let row = |flat, cumulative| Row { flat, cumulative };
        let expected = [
            (Subsystem::Execution, row(5, 5)),
            (Subsystem::Hashing, row(3, 3)),
            (Subsystem::StateRoot, row(1, 4)),
            (Subsystem::Other, row(1, 1)),
        ];
        assert_eq!(budget.subsystems, expected);
        let of = |name| budget.functions.iter().find(|(it, _)| it == name).unwrap().1;
        assert_eq!(of("memcpy"), row(5, 5));
        assert_eq!(of("revm::sload"), row(0, 5));
        assert_eq!(of("tandem_trie::hash"), row(1, 4), "recursion counts once");
        let flat: u64 = budget.subsystems.iter().map(|(_, row)| row.flat).sum();
        assert_eq!(flat, budget.samples);
        let threads = [("execution", 5), ("worker", 4), ("other", 1)];
        assert_eq!(budget.threads, threads.map(|(name, samples)| (name.to_owned(), samples)));
    }

    #[test]
    fn the_text_has_a_line_per_subsystem() {
        let profile = profile();
        let text = Budget::of(&profile).text(&profile, 1);
        let expected = "\
1.0 s, 10 samples of 10.0 ms: 0.10 s of processor time, 0.10 processors

   flat %    cum. %    flat s    cum. s  subsystem
    50.0      50.0      0.05      0.05  EVM execution
    30.0      30.0      0.03      0.03  Hashing
    10.0      40.0      0.01      0.04  State root (tries)
    10.0      10.0      0.01      0.01  Other

   flat %    cum. %    flat s    cum. s  function
    50.0      50.0      0.05      0.05  memcpy

   time %    time s  thread
     50.0      0.05  execution
";
        assert_eq!(text, expected);
    }

    #[test]
    fn long_names_are_cut_between_letters() {
        let long = "ä".repeat(200);
        assert_eq!(shorten(&long), format!("{}…", "ä".repeat(110)));
        assert_eq!(shorten("short"), "short");
    }

    #[test]
    fn an_empty_profile_has_an_empty_budget() {
        let empty = Profile::default();
        assert_eq!(Budget::of(&empty), Budget::default());
        assert!(Budget::of(&empty).text(&empty, 9).starts_with("0.0 s, 0 samples"));
    }
}
