//! `tandem overlap`: did execution and state-root work really run at the same time?

use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::Context;
use clap::ValueEnum;
use tandem_overlap::{Busy, Input, Pattern, Report, Selection, Side};

use crate::http_client;

/// Where a node serves its recent traces when nothing else is said.
const DEFAULT_NODE: &str = "http://127.0.0.1:8545";
/// Traces asked of a node: all it has. Many of them are no payloads.
const NODE_TRACES: usize = 10_000;

/// Arguments of `tandem overlap`.
#[derive(clap::Args, Debug, Clone)]
pub struct Args {
    /// File with traces: OTLP/JSON or Jaeger's JSON, also compressed with gzip; - for standard input
    #[arg(long, value_name = "FILE")]
    pub otlp: Vec<PathBuf>,
    /// Node whose recent traces to read [default without any source: http://127.0.0.1:8545]
    #[arg(long, value_name = "URL", value_parser = parse_url)]
    pub node: Vec<String>,
    /// Jaeger whose query API to read, such as http://127.0.0.1:16686
    #[arg(long, value_name = "URL", value_parser = parse_url)]
    pub jaeger: Vec<String>,
    /// Service whose traces to ask Jaeger for [default: executor, or reth with --preset reth]
    #[arg(long, value_name = "NAME")]
    pub service: Option<String>,
    /// Write the timeline as one self-contained HTML file
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
    /// Write the report as JSON; - for standard output, instead of the text
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,
    /// Exit with 1 when the median overlap is under X, from 0 to 1
    #[arg(long, value_name = "X", value_parser = parse_share)]
    pub fail_under: Option<f64>,
    /// Vocabulary of span names
    #[arg(long, value_enum, default_value_t = Preset::Tandem)]
    pub preset: Preset,
    /// Name of the span that is one payload; * stands for any characters [default: by preset]
    #[arg(long, value_name = "PATTERN")]
    pub root: Option<String>,
    /// Names of the spans of the payload side, instead of the preset's
    #[arg(long, value_name = "PATTERN", value_delimiter = ',')]
    pub a: Vec<String>,
    /// Names of the spans of the proof side, instead of the preset's
    #[arg(long, value_name = "PATTERN", value_delimiter = ',')]
    pub b: Vec<String>,
    /// Analyse the youngest N payloads
    #[arg(long, value_name = "N", default_value_t = 1_000, value_parser = parse_count)]
    pub limit: usize,
}

/// Known vocabularies of span names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum Preset {
    /// Tandem's names
    Tandem,
    /// reth's names; its workers are busy while their proof calculations run
    Reth,
}

fn parse_url(text: &str) -> Result<String, &'static str> {
    let usable = text.strip_prefix("http://").is_some_and(|rest| !rest.is_empty());
    usable.then(|| text.to_owned()).ok_or("expected a URL that begins with http://")
}

fn parse_share(text: &str) -> Result<f64, &'static str> {
    let in_range = |share: &f64| (0.0..=1.0).contains(share);
    text.parse().ok().filter(in_range).ok_or("expected a number from 0 to 1")
}

fn parse_count(text: &str) -> Result<usize, &'static str> {
    text.parse().ok().filter(|count| *count > 0).ok_or("expected a number above 0")
}

/// The command: reads the traces, prints the report, writes the files. Exit code 0; 1 when the
/// median overlap is under `--fail-under` or there is nothing to analyse.
///
/// # Errors
/// When a source cannot be read or a file cannot be written. Damaged traces are no error: they
/// make a partial report that says so.
pub fn main(args: Args) -> anyhow::Result<ExitCode> {
    let selection = selection(&args);
    let input = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("start the reactor")?
        .block_on(collect(&args, &selection))?;
    let report = tandem_overlap::analyze(&input, &selection, args.limit);
    publish(&args, &report, &input)?;
    Ok(exit_code(&args, &report))
}

fn selection(args: &Args) -> Selection {
    let preset = match args.preset {
        Preset::Tandem => tandem_overlap::Preset::Tandem,
        Preset::Reth => tandem_overlap::Preset::Reth,
    };
    let mut selection = Selection::from(preset);
    if let Some(root) = &args.root {
        selection.root = Pattern::new(root);
    }
    // Names of one's own are taken at their word: a span without busy intervals is busy throughout,
    // unless the vocabulary says that its containers are not.
    let side = |patterns: &[String], busy: Busy| Side::new(patterns.iter().cloned(), busy);
    if !args.a.is_empty() {
        selection.a = side(&args.a, selection.a.busy);
    }
    if !args.b.is_empty() {
        selection.b = side(&args.b, selection.b.busy);
    }
    selection
}

/// All spans of all sources.
async fn collect(args: &Args, selection: &Selection) -> anyhow::Result<Input> {
    let mut input = Input::default();
    for path in &args.otlp {
        let bytes = read_file(path).with_context(|| format!("read {}", path.display()))?;
        input.merge(tandem_overlap::read(&path.display().to_string(), &bytes));
    }
    for url in urls(args, selection) {
        let bytes = http_client::get(&url).await?;
        input.merge(tandem_overlap::read(&url, &bytes));
    }
    Ok(input)
}

fn read_file(path: &Path) -> std::io::Result<Vec<u8>> {
    if path != Path::new("-") {
        return std::fs::read(path);
    }
    let mut bytes = Vec::new();
    std::io::stdin().lock().take(tandem_overlap::MAX_BYTES).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// The URLs to get: of the given nodes and Jaegers, or of the default node if no source is given.
fn urls(args: &Args, selection: &Selection) -> Vec<String> {
    let mut nodes = args.node.clone();
    if args.otlp.is_empty() && args.node.is_empty() && args.jaeger.is_empty() {
        nodes.push(DEFAULT_NODE.to_owned());
    }
    let node = |url: String| format!("{}/debug/traces?n={NODE_TRACES}", url.trim_end_matches('/'));
    let service = args.service.as_deref().unwrap_or(match args.preset {
        Preset::Tandem => "executor",
        Preset::Reth => "reth",
    });
    // Jaeger knows operations by their exact name only.
    let root = selection.root.to_string();
    let operation = match root.contains('*') {
        true => String::new(),
        false => format!("&operation={}", percent_encode(&root)),
    };
    let query = format!("service={}{operation}&limit={}", percent_encode(service), args.limit);
    let jaeger = |url: &String| format!("{}/api/traces?{query}", url.trim_end_matches('/'));
    nodes.into_iter().map(node).chain(args.jaeger.iter().map(jaeger)).collect()
}

/// Percent-encodes everything but the unreserved characters of RFC 3986, section 2.3.
fn percent_encode(text: &str) -> String {
    let mut encoded = String::with_capacity(text.len());
    for byte in text.bytes() {
        if byte.is_ascii_alphanumeric() || b"-._~".contains(&byte) {
            encoded.push(char::from(byte));
        } else {
            encoded.push_str(&format!("%{byte:02X}"));
        }
    }
    encoded
}

fn publish(args: &Args, report: &Report, input: &Input) -> anyhow::Result<()> {
    let write = |path: &Path, text: &str| {
        std::fs::write(path, text).with_context(|| format!("write {}", path.display()))
    };
    if let Some(path) = &args.html {
        write(path, &tandem_overlap::html(report, input))?;
    }
    match &args.json {
        Some(path) if path == Path::new("-") => {
            return print(&format!("{}\n", tandem_overlap::json(report)));
        }
        Some(path) => write(path, &tandem_overlap::json(report))?,
        None => {}
    }
    print(&tandem_overlap::text(report))
}

/// Writes to standard output; a reader that went away, like `head`, is fine.
fn print(text: &str) -> anyhow::Result<()> {
    match std::io::stdout().lock().write_all(text.as_bytes()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => Err(error).context("print"),
        _ => Ok(()),
    }
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
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        args: Args,
    }

    fn parse(line: &str) -> Result<Args, clap::Error> {
        let words = std::iter::once("overlap").chain(line.split_whitespace());
        Command::try_parse_from(words).map(|command| command.args)
    }

    fn urls_of(line: &str) -> Vec<String> {
        let args = parse(line).unwrap();
        urls(&args, &selection(&args))
    }

    #[test]
    fn default_source_is_the_local_node() {
        assert_eq!(urls_of(""), ["http://127.0.0.1:8545/debug/traces?n=10000"]);
        assert!(urls_of("--otlp traces.json").is_empty());
    }

    #[test]
    fn sources_become_urls() {
        assert_eq!(
            urls_of("--node http://a:1/ --jaeger http://j:16686 --limit 5 --preset reth"),
            [
                "http://a:1/debug/traces?n=10000",
                "http://j:16686/api/traces?service=reth&operation=on_new_payload&limit=5",
            ]
        );
        assert_eq!(
            urls_of("--jaeger http://j --service a&b --root new*"),
            ["http://j/api/traces?service=a%26b&limit=1000"]
        );
    }

    #[test]
    fn wrong_usage_is_refused_by_the_parser() {
        for line in [
            "--fail-under 1.5",
            "--fail-under x",
            "--limit 0",
            "--preset geth",
            "--node https://a",
            "--jaeger a:16686",
            "file",
        ] {
            assert_eq!(parse(line).err().map(|error| error.exit_code()), Some(2), "{line}");
        }
    }

    #[test]
    fn own_patterns_replace_the_presets() {
        let args = parse("--a execute* --b hash,prove --root block").unwrap();
        let selection = selection(&args);
        assert_eq!(selection.a.label(), "execute*");
        assert_eq!(selection.b.label(), "hash, prove");
        assert_eq!(selection.root.to_string(), "block");
    }

    /// Runs the command on a trace of 40 ns of both in 50 and 60 ns of either.
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
