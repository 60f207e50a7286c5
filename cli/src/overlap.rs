//! `tandem overlap`: tells whether execution and state-root work really ran at the same time.

mod compare;
mod select;
mod source;
mod when;

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::{SystemTime, UNIX_EPOCH};

use crate::output::{print, write};
use compare::CompareArgs;
use select::SelectArgs;
use source::{Source, parse_url};
use tandem_overlap::{Options, Report};

/// Default address of a node that serves its recent traces.
const DEFAULT_NODE: &str = "http://127.0.0.1:9100";

/// Arguments of `tandem overlap`.
#[derive(clap::Args, Debug, Clone)]
#[command(args_conflicts_with_subcommands = true, after_help = EXIT_CODES)]
pub struct Args {
    #[command(subcommand)]
    pub command: Option<Command>,
    /// File with traces: OTLP as JSON or protobuf, or Jaeger's JSON, plain or compressed with
    /// gzip; - for standard input
    #[arg(long, value_name = "FILE")]
    pub otlp: Vec<PathBuf>,
    /// Metrics port of a node whose recent traces to read [default without any source: http://127.0.0.1:9100]
    #[arg(long, value_name = "URL", value_parser = parse_url)]
    pub node: Vec<String>,
    /// Jaeger whose query API to read, such as http://127.0.0.1:16686
    #[arg(long, value_name = "URL", value_parser = parse_url)]
    pub jaeger: Vec<String>,
    /// URL of the Jaeger that shows the pages of the worst traces [default: the first --jaeger]
    #[arg(long, value_name = "URL", value_parser = parse_page)]
    pub jaeger_ui: Option<String>,
    /// Write the timeline as one self-contained HTML file
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Write the report as JSON; - for standard output, instead of the text
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Also say what newPayload would gain if a stage were 10 or 50 % faster
    #[arg(long)]
    pub what_if: bool,
    /// Exit with 1 when the median overlap is under X, from 0 to 1
    #[arg(long, value_name = "X", value_parser = parse_share)]
    pub fail_under: Option<f64>,
    #[command(flatten)]
    pub select: SelectArgs,
}

const EXIT_CODES: &str = "Exit codes: 0; 1 when the median overlap is under --fail-under, there is \
    no verdict (nothing to analyse, or the figures are in doubt), or a source cannot be read; 2 for \
    wrong usage.";

/// Further commands on traces.
#[derive(clap::Subcommand, Debug, Clone)]
pub enum Command {
    /// Say whether a change made newPayload faster or slower, and moved the overlap, beyond noise
    #[command(after_help = "Exit codes: 0; 1 when newPayload is slower and --fail-if-slower is \
        given, the two have no block in common, or a source cannot be read; 2 for wrong usage.")]
    Compare(CompareArgs),
}

fn parse_share(text: &str) -> Result<f64, &'static str> {
    let in_range = |share: &f64| (0.0..=1.0).contains(share);
    text.parse().ok().filter(in_range).ok_or("expected a number from 0 to 1")
}

/// Parses the URL of a page that is only named, not fetched.
pub fn parse_page(text: &str) -> Result<String, &'static str> {
    let usable = ["http://", "https://"]
        .iter()
        .any(|scheme| text.strip_prefix(scheme).is_some_and(|rest| !rest.is_empty()));
    usable.then(|| text.to_owned()).ok_or("expected a URL that begins with http:// or https://")
}

/// Runs the command: reads the traces, prints the report and writes the files. Exit code 0; 1 if
/// the median overlap is under `--fail-under` or there is no verdict. `compare` has its own
/// exit codes.
///
/// # Errors
/// Returns an error if a source cannot be read or a file cannot be written. Damaged traces are not
/// an error: the report is then partial and says so.
pub fn main(args: Args) -> anyhow::Result<ExitCode> {
    if let Some(Command::Compare(args)) = &args.command {
        return compare::main(args);
    }
    let options = Options {
        timeline: args.html.is_some(),
        what_if: args.what_if,
        jaeger_ui: args.jaeger_ui.as_ref().or(args.jaeger.first()).cloned(),
        ..args.select.options()
    };
    let report = source::analyze(&args.sources(), &args.select, options)?;
    publish(&args, &report)?;
    Ok(exit_code(&args, &report))
}

impl Args {
    /// Returns the given sources, or the default node if there is none.
    fn sources(&self) -> Vec<Source> {
        let files = self.otlp.iter().cloned().map(Source::File);
        let nodes = self.node.iter().cloned().map(Source::Node);
        let jaegers = self.jaeger.iter().cloned().map(Source::Jaeger);
        let mut sources: Vec<Source> = files.chain(nodes).chain(jaegers).collect();
        if sources.is_empty() {
            sources.push(Source::Node(DEFAULT_NODE.to_owned()));
        }
        sources
    }
}

/// Returns the current Unix time in nanoseconds.
fn now_ns() -> u64 {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(now.as_nanos()).unwrap_or(u64::MAX)
}

fn publish(args: &Args, report: &Report) -> anyhow::Result<()> {
    if let Some(path) = &args.html {
        write(path, tandem_overlap::html(report))?;
    }
    match &args.json {
        Some(path) if path == Path::new("-") => {
            return print(&format!("{}\n", tandem_overlap::json(report)));
        }
        Some(path) => write(path, tandem_overlap::json(report))?,
        None => {}
    }
    print(&tandem_overlap::text(report))
}

fn exit_code(args: &Args, report: &Report) -> ExitCode {
    let Some(median) = report.median_overlap() else { return ExitCode::FAILURE };
    match args.fail_under {
        Some(least) if median < least => {
            eprintln!("tandem overlap: the median overlap {median:.3} is under {least}");
            ExitCode::FAILURE
        }
        _ => ExitCode::SUCCESS,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Overlap {
        #[command(flatten)]
        args: Args,
    }

    pub(crate) fn parse(line: &str) -> Result<Args, clap::Error> {
        let words = std::iter::once("overlap").chain(line.split_whitespace());
        Overlap::try_parse_from(words).map(|command| command.args)
    }

    #[test]
    fn default_source_is_the_local_node() {
        let sources = |line: &str| parse(line).unwrap().sources();
        assert_eq!(sources(""), [Source::Node("http://127.0.0.1:9100".to_owned())]);
        assert_eq!(sources("--otlp traces.json"), [Source::File("traces.json".into())]);
        assert_eq!(sources("--node http://a --jaeger http://b --otlp c").len(), 3);
    }

    #[test]
    fn wrong_usage_is_refused_by_the_parser() {
        for line in [
            "--fail-under 1.5",
            "--fail-under x",
            "--limit 0",
            "--preset parity",
            "--node https://a",
            "--jaeger a:16686",
            "file",
            "--since yesterday",
            "--blocks 2..1",
            "--min-ms x",
            "--jaeger-ui j:16686",
            "compare one",
            "compare one two three",
            "compare one https://two",
            "compare one two --seed x",
            "--limit 5 compare one two",
        ] {
            assert_eq!(parse(line).err().map(|error| error.exit_code()), Some(2), "{line}");
        }
    }

    #[test]
    fn own_patterns_replace_the_presets() {
        let args = parse("--a execute* --b hash,prove --root block").unwrap();
        let selection = args.select.options().selection;
        assert_eq!(selection.a.label(), "execute*");
        assert_eq!(selection.b.label(), "hash, prove");
        assert_eq!(selection.root.to_string(), "block");
    }

    /// Runs the command on a trace whose sides take 50 and 60 ns, with 40 ns in common.
    fn run(more: &str) -> (ExitCode, tempfile::TempDir) {
        let span = |id: u64, name: &str, start: u64, end: u64| {
            serde_json::json!({
                "traceId": "0000000000000000000000000000000a", "spanId": format!("{id:016x}"),
                "parentSpanId": if id == 1 { "" } else { "0000000000000001" }, "name": name,
                "startTimeUnixNano": start.to_string(), "endTimeUnixNano": end.to_string(),
            })
        };
        let spans = [
            span(1, "on_new_payload", 1_000, 1_100),
            span(2, "payload processor", 1_000, 1_050),
            span(3, "storage worker", 1_010, 1_070),
        ];
        let traces = serde_json::json!({"resourceSpans": [{"scopeSpans": [{"spans": spans}]}]});
        let dir = tempfile::tempdir().unwrap();
        let path = |name: &str| dir.path().join(name).display().to_string();
        std::fs::write(path("traces.json"), traces.to_string()).unwrap();
        let outputs = format!("--html {} --json {}", path("t.html"), path("t.json"));
        let args = parse(&format!("--otlp {} {outputs} {more}", path("traces.json"))).unwrap();
        (main(args).unwrap(), dir)
    }

    #[test]
    fn report_is_written_and_the_limit_decides_the_exit_code() {
        let (code, dir) = run("--fail-under 0.8");
        assert_eq!(code, ExitCode::SUCCESS, "the overlap is 40 of 50");
        let json = std::fs::read(dir.path().join("t.json")).unwrap();
        let report: serde_json::Value = serde_json::from_slice(&json).unwrap();
        assert_eq!(report["payloads"][0]["overlap"], 0.8);
        assert!(dir.path().join("t.html").exists());
        assert_eq!(run("--fail-under 0.81").0, ExitCode::FAILURE);
        assert_eq!(run("--root other").0, ExitCode::FAILURE, "nothing to analyse");
    }

    #[test]
    fn missing_file_is_an_error_with_its_name() {
        let error = main(parse("--otlp /nonexistent/traces.json").unwrap()).unwrap_err();
        assert!(format!("{error:#}").contains("/nonexistent/traces.json"));
    }
}
