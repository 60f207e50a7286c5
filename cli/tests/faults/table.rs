//! Table of the recovery times for each fault.

use std::{
    collections::BTreeMap,
    fmt::{Display, Formatter, Result},
    time::Duration,
};

/// Times by fault.
#[derive(Default)]
pub struct Table(BTreeMap<String, Vec<Duration>>);

impl Table {
    /// Adds the recovery time of a fault.
    pub fn add(&mut self, fault: impl Into<String>, took: Duration) {
        self.0.entry(fault.into()).or_default().push(took);
    }
}

impl Display for Table {
    fn fmt(&self, f: &mut Formatter<'_>) -> Result {
        writeln!(f, "| fault | times | recovered p50 | max |\n|---|---:|---:|---:|")?;
        for (fault, times) in &self.0 {
            let mut times = times.clone();
            times.sort();
            let (middle, most) = (times[times.len() / 2], times[times.len() - 1]);
            writeln!(f, "| {fault} | {} | {middle:.2?} | {most:.2?} |", times.len())?;
        }
        Ok(())
    }
}
