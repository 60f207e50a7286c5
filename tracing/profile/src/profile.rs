//! Samples of stacks, with the names of their functions.

use std::{
    collections::{BTreeMap, HashMap},
    time::Duration,
};

/// A stack, and how often it was seen.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Stack {
    /// Name of the process, if several were merged.
    pub process: String,
    /// Name of the thread.
    pub thread: String,
    /// Functions from the innermost one outwards, by their number in the profile.
    pub functions: Vec<u32>,
    /// Number of samples.
    pub samples: u64,
}

/// Samples of one process, or of several.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Profile {
    /// Time over which samples were taken.
    pub duration: Duration,
    /// Processor time that one sample stands for.
    pub period: Duration,
    functions: Vec<String>,
    stacks: Vec<Stack>,
}

impl Profile {
    /// Creates a profile without samples.
    pub fn new(duration: Duration, period: Duration) -> Self {
        Self { duration, period, ..Self::default() }
    }

    /// Returns the stacks.
    pub fn stacks(&self) -> &[Stack] {
        &self.stacks
    }

    /// Returns the name of a function.
    pub fn function(&self, number: u32) -> &str {
        self.functions.get(number as usize).map_or("", String::as_str)
    }

    /// Returns the number of functions.
    pub(crate) fn functions_len(&self) -> u32 {
        self.functions.len() as u32
    }

    /// Returns the number of samples.
    pub fn samples(&self) -> u64 {
        self.stacks.iter().map(|stack| stack.samples).sum()
    }

    /// Returns the processor time of all samples.
    pub fn processor_time(&self) -> Duration {
        self.period.saturating_mul(u32::try_from(self.samples()).unwrap_or(u32::MAX))
    }

    /// Assigns all stacks to a process.
    #[must_use]
    pub fn of_process(mut self, name: &str) -> Self {
        for stack in &mut self.stacks {
            name.clone_into(&mut stack.process);
        }
        self
    }

    /// Returns several profiles as one. The longest one gives the duration.
    ///
    /// # Errors
    /// Returns an error if samples do not stand for the same time.
    pub fn merge(profiles: impl IntoIterator<Item = Self>) -> Result<Self, String> {
        let mut builder: Option<Builder> = None;
        for profile in profiles {
            let merged = builder
                .get_or_insert_with(|| Builder::new(Self::new(profile.duration, profile.period)));
            let (period, other) = (merged.profile.period, profile.period);
            if period != other {
                return Err(format!("one sample stands for {period:?} here and {other:?} there"));
            }
            merged.profile.duration = merged.profile.duration.max(profile.duration);
            for stack in &profile.stacks {
                let names = stack.functions.iter().map(|number| profile.function(*number));
                merged.add(&stack.process, &stack.thread, names, stack.samples);
            }
        }
        Ok(builder.map(Builder::finish).unwrap_or_default())
    }
}

/// Collects stacks. Equal ones become one.
pub(crate) struct Builder {
    profile: Profile,
    numbers: HashMap<String, u32>,
    stacks: BTreeMap<(String, String, Vec<u32>), u64>,
}

impl Builder {
    pub fn new(profile: Profile) -> Self {
        Self { profile, numbers: HashMap::new(), stacks: BTreeMap::new() }
    }

    /// Adds samples of a stack, from its innermost function outwards.
    pub fn add<'a>(
        &mut self,
        process: &str,
        thread: &str,
        functions: impl Iterator<Item = &'a str>,
        samples: u64,
    ) {
        let functions = functions.map(|name| self.number(name)).collect();
        let key = (process.to_owned(), thread.to_owned(), functions);
        *self.stacks.entry(key).or_default() += samples;
    }

    fn number(&mut self, name: &str) -> u32 {
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        let number = self.profile.functions.len() as u32;
        self.profile.functions.push(name.to_owned());
        self.numbers.insert(name.to_owned(), number);
        number
    }

    pub fn finish(mut self) -> Profile {
        let stack =
            |((process, thread, functions), samples)| Stack { process, thread, functions, samples };
        self.profile.stacks = self.stacks.into_iter().map(stack).collect();
        self.profile
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn profile(stacks: &[(&str, &[&str], u64)]) -> Profile {
        let period = Duration::from_millis(10);
        let mut builder = Builder::new(Profile::new(Duration::from_secs(1), period));
        for (thread, functions, samples) in stacks {
            builder.add("", thread, functions.iter().copied(), *samples);
        }
        builder.finish()
    }

    #[test]
    fn equal_stacks_of_one_thread_are_one() {
        let one = profile(&[("t", &["b", "a"], 1), ("t", &["b", "a"], 2), ("u", &["b", "a"], 4)]);
        assert_eq!(one.stacks().len(), 2);
        assert_eq!((one.samples(), one.processor_time()), (7, Duration::from_millis(70)));
    }

    #[test]
    fn merged_profiles_keep_their_processes_apart() {
        let one = || profile(&[("t", &["b", "a"], 1)]);
        let both = Profile::merge([one().of_process("x"), one().of_process("y")]).unwrap();
        let processes: Vec<_> = both.stacks().iter().map(|stack| &*stack.process).collect();
        assert_eq!(processes, ["x", "y"]);
        assert_eq!(both.samples(), 2);
        let coarse = Profile { period: Duration::from_millis(1), ..one() };
        assert!(Profile::merge([one(), coarse]).is_err());
        assert_eq!(Profile::merge([]).unwrap(), Profile::default());
    }
}
