//! Measures the bytes between the services for each block, from their own metrics.

use super::child::Child;
use crate::http_client::get_within;
use std::{collections::BTreeMap, fmt::Write as _, time::Duration};

/// Counter of bytes by sender and receiver.
const BYTES: &str = "tandem_rpc_bytes_total{";
/// Counter of payloads that the executor found valid.
const VALID: &str = "tandem_executor_new_payload_seconds_count{status=\"VALID\"}";
/// Longest wait for one process.
const ANSWER_MAX: Duration = Duration::from_secs(1);

/// Counters of the processes, and the number of blocks they cover.
#[derive(Default)]
pub struct Traffic {
    bytes: BTreeMap<(String, String), f64>,
    /// Payloads that the executor found valid.
    pub blocks: f64,
}

impl Traffic {
    /// Reads the counters of the running processes. Counts from before a restart are lost.
    pub async fn of(children: &[Child]) -> Self {
        let mut traffic = Self::default();
        for port in children.iter().filter_map(|child| child.role.metrics) {
            let url = format!("http://127.0.0.1:{port}/metrics");
            // A process that does not answer is left out.
            if let Ok(text) = get_within(&url, ANSWER_MAX).await {
                traffic.add(&String::from_utf8_lossy(&text));
            }
        }
        traffic
    }

    /// Adds the metrics of one process.
    fn add(&mut self, metrics: &str) {
        for line in metrics.lines() {
            let Some((series, value)) = line.rsplit_once(' ') else { continue };
            let Ok(value) = value.parse::<f64>() else { continue };
            if series == VALID {
                self.blocks += value;
            }
            let Some(labels) = series.strip_prefix(BYTES) else { continue };
            if let (Some(from), Some(to)) = (label(labels, "from"), label(labels, "to")) {
                *self.bytes.entry((from, to)).or_default() += value;
            }
        }
    }

    /// Returns a table for people; empty if there was no block.
    pub fn table(&self) -> String {
        if self.blocks == 0.0 || self.bytes.is_empty() {
            return String::new();
        }
        let mut text = format!("{:<20} {:<20} {:>14}\n", "from", "to", "bytes a block");
        for ((from, to), bytes) in &self.bytes {
            let _ = writeln!(text, "{from:<20} {to:<20} {:>14.0}", bytes / self.blocks);
        }
        let _ = writeln!(text, "of {} valid payloads, all else that was said in it", self.blocks);
        text
    }
}

/// Returns the value of a label in a text such as `from="executor",to="storage-writer"}`.
fn label(labels: &str, name: &str) -> Option<String> {
    let mut pairs = labels.trim_end_matches('}').split(',');
    let value = pairs.find_map(|pair| pair.strip_prefix(name)?.strip_prefix("=\""))?;
    Some(value.trim_end_matches('"').to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_of_all_processes_are_shared_out_over_the_valid_payloads() {
        let mut traffic = Traffic::default();
        traffic.add(
            "# TYPE tandem_rpc_bytes_total counter\n\
             tandem_rpc_bytes_total{from=\"executor\",to=\"storage-writer\"} 5000\n\
             tandem_rpc_bytes_total{from=\"storage-writer\",to=\"executor\"} 100\n\
             tandem_executor_new_payload_seconds_count{status=\"VALID\"} 10\n\
             tandem_executor_new_payload_seconds_count{status=\"INVALID\"} 3\n",
        );
        assert_eq!(traffic.table().lines().count(), 4);
        traffic.add("tandem_rpc_bytes_total{to=\"storage-writer\",from=\"executor\"} 1000\n");
        let text = traffic.table();
        let rows: Vec<Vec<_>> =
            text.lines().map(|line| line.split_whitespace().collect()).collect();
        assert_eq!(rows[1], ["executor", "storage-writer", "600"]);
        assert_eq!(rows[2], ["storage-writer", "executor", "10"]);
        assert_eq!(Traffic { blocks: 0.0, ..traffic }.table(), "");
    }
}
