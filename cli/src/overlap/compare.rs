//! `tandem overlap compare`: tells whether a change moved anything beyond noise.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use tandem_overlap::{Change, Comparison, compare, comparison_json, comparison_text};

use super::select::SelectArgs;
use super::source::{self, Source};
use crate::output::{print, write};

/// Arguments of `tandem overlap compare`.
#[derive(clap::Args, Debug, Clone)]
pub struct CompareArgs {
    /// Traces before the change: a file, http://… for a node, jaeger+http://… (or port 16686) for Jaeger
    #[arg(value_name = "BASE")]
    pub base: Source,
    /// Traces after the change, on the same blocks
    #[arg(value_name = "NEW")]
    pub new: Source,
    #[command(flatten)]
    pub select: SelectArgs,
    /// Write the comparison as JSON; - for standard output, instead of the text
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Exit with 1 when newPayload is slower
    #[arg(long)]
    pub fail_if_slower: bool,
    /// Seed of the bootstrap; the same traces and seed give the same intervals
    #[arg(long, value_name = "N", default_value_t = 1)]
    pub seed: u64,
}

/// Compares and prints. Exit code 0; 1 if there is no block to pair, or if newPayload is slower and
/// `--fail-if-slower` was given.
///
/// # Errors
/// Returns an error if a source cannot be read or the file cannot be written.
pub fn main(args: &CompareArgs) -> anyhow::Result<ExitCode> {
    let report = |source: &Source| {
        source::analyze(std::slice::from_ref(source), &args.select, args.select.options())
    };
    let comparison = compare(&report(&args.base)?, &report(&args.new)?, args.seed);
    match &args.json {
        Some(path) if path == Path::new("-") => {
            print(&format!("{}\n", comparison_json(&comparison)))?;
        }
        json => {
            if let Some(path) = json {
                write(path, comparison_json(&comparison))?;
            }
            print(&comparison_text(&comparison))?;
        }
    }
    Ok(exit_code(args, &comparison))
}

fn exit_code(args: &CompareArgs, comparison: &Comparison) -> ExitCode {
    match comparison.verdict {
        None => {
            eprintln!("tandem overlap: the two have no block in common");
            ExitCode::FAILURE
        }
        Some(Change::Worse) if args.fail_if_slower => {
            eprintln!("tandem overlap: newPayload is slower than in the base");
            ExitCode::FAILURE
        }
        Some(_) => ExitCode::SUCCESS,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::overlap::tests::parse;
    use crate::overlap::{Command, main as overlap};

    /// Writes traces of twelve blocks that take `length` ns plus their number.
    fn traces(path: &Path, length: u64) {
        let span = |block: u64, id: u64, name: &str, start: u64, end: u64| {
            serde_json::json!({
                "traceId": format!("{:032x}", block + 1), "spanId": format!("{id:016x}"),
                "parentSpanId": if id == 1 { "" } else { "0000000000000001" }, "name": name,
                "startTimeUnixNano": (block * 1_000_000 + start).to_string(),
                "endTimeUnixNano": (block * 1_000_000 + end).to_string(),
                "attributes": [{"key": "block.number", "value": {"intValue": block.to_string()}}],
            })
        };
        let spans: Vec<_> = (1..=12)
            .flat_map(|block| {
                [
                    span(block, 1, "on_new_payload", 0, length + block),
                    span(block, 2, "payload processor", 0, 500),
                    span(block, 3, "storage worker", 100, 600),
                ]
            })
            .collect();
        let traces = serde_json::json!({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]});
        std::fs::write(path, traces.to_string()).unwrap();
    }

    #[test]
    fn files_are_compared_and_the_flag_decides_the_exit_code() {
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name);
        traces(&path("base"), 1_000);
        traces(&path("slow"), 1_500);
        let compare = |base: &str, new: &str, more: &str| {
            let json = path("out.json");
            let line = format!(
                "compare {} {} --json {} {more}",
                path(base).display(),
                path(new).display(),
                json.display()
            );
            let code = overlap(parse(&line).unwrap()).unwrap();
            let json: serde_json::Value =
                serde_json::from_slice(&std::fs::read(json).unwrap()).unwrap();
            (code, json)
        };
        let (code, json) = compare("base", "slow", "");
        assert_eq!((code, &json["verdict"]), (ExitCode::SUCCESS, &"worse".into()));
        assert_eq!((&json["pairs"], &json["seed"]), (&12.into(), &1.into()));
        assert_eq!(compare("base", "slow", "--fail-if-slower").0, ExitCode::FAILURE);
        assert_eq!(compare("slow", "base", "--fail-if-slower").0, ExitCode::SUCCESS);
        let (code, json) = compare("base", "base", "--fail-if-slower --seed 9");
        assert_eq!((code, &json["seed"]), (ExitCode::SUCCESS, &9.into()));
        let (_, json) = compare("base", "slow", "--blocks 3..10");
        assert_eq!(json["pairs"], 8, "filters hold for both");
        let (code, json) = compare("base", "slow", "--root nothing");
        assert_eq!((code, &json["verdict"]), (ExitCode::FAILURE, &serde_json::Value::Null));
    }

    #[test]
    fn sources_are_given_by_place() {
        let args = parse("compare before.json http://localhost:9100 --limit 5").unwrap();
        let Some(Command::Compare(args)) = args.command else { panic!("no comparison") };
        assert_eq!(args.base, Source::File("before.json".into()));
        assert_eq!(args.new, Source::Node("http://localhost:9100".to_owned()));
        assert_eq!((args.select.limit, args.seed), (5, 1));
    }
}
