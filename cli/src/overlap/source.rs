//! Sources of traces: files, nodes, Jaeger.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::str::FromStr;

use anyhow::{Context, ensure};
use bytes::Bytes;
use tandem_overlap::{Analyzer, Options, Report, WINDOW_SPANS, read_from};

use super::select::{Align, SelectArgs};
use super::when::to_rfc3339;
use crate::http_client;

/// Traces requested from a node: all it has, because many of them are not payloads.
const NODE_TRACES: usize = 10_000;
/// Time range asked of Jaeger's v3 API without `--since`, in ns; v2 has a limit of its own.
const LOOK_BACK_NS: u64 = 2 * 86_400 * 1_000_000_000;
/// Name of standard input in notes.
const STANDARD_INPUT: &str = "standard input";
/// Default port of Jaeger.
const JAEGER_PORT: &str = ":16686";

/// One source of traces.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Source {
    /// A file, or `-` for standard input.
    File(PathBuf),
    /// A node with `/debug/traces`.
    Node(String),
    /// A Jaeger with its query API.
    Jaeger(String),
}

impl FromStr for Source {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.is_empty() {
            return Err("expected a file or a URL");
        }
        if let Some(rest) = text.strip_prefix("jaeger+") {
            return parse_url(rest).map(Self::Jaeger);
        }
        if !text.contains("://") {
            return Ok(Self::File(text.into()));
        }
        let url = parse_url(text)?;
        let is_jaeger = url.trim_end_matches('/').ends_with(JAEGER_PORT);
        Ok(if is_jaeger { Self::Jaeger(url) } else { Self::Node(url) })
    }
}

pub fn parse_url(text: &str) -> Result<String, &'static str> {
    let usable = text.strip_prefix("http://").is_some_and(|rest| !rest.is_empty());
    usable.then(|| text.to_owned()).ok_or("expected a URL that begins with http://")
}

/// A source whose bytes are in memory, or that is read during the analysis.
enum Loaded {
    File(PathBuf),
    StandardInput,
    Bytes(String, Bytes),
}

/// Reads all sources and analyses them; twice if clocks differ and are to be aligned.
///
/// # Errors
/// Returns an error if a source cannot be read. Damaged traces are not an error: they make a
/// partial report.
pub fn analyze(
    sources: &[Source],
    args: &SelectArgs,
    mut options: Options,
) -> anyhow::Result<Report> {
    let reactor = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .context("start the reactor")?;
    let mut loaded = Vec::with_capacity(sources.len());
    for source in sources {
        loaded.push(reactor.block_on(load(source, args, &options))?);
    }
    if args.align_clocks == Align::None {
        return pass(&loaded, options);
    }
    let first = pass(&loaded, options.clone())?;
    let one_sided = args.align_clocks == Align::All;
    let clocks = first.clocks.iter().cloned().map(|clock| clock.corrected(one_sided));
    options.align = clocks.collect();
    let can_read_again = !loaded.iter().any(|source| matches!(source, Loaded::StandardInput));
    if can_read_again && options.align.iter().any(|clock| clock.corrected_ns != 0) {
        return pass(&loaded, options);
    }
    Ok(first)
}

fn pass(sources: &[Loaded], options: Options) -> anyhow::Result<Report> {
    // One of several sources may have the rest of another's traces, so all are held until the end.
    let window = (sources.len() == 1).then_some(WINDOW_SPANS);
    let mut analyzer = Analyzer::new(options, window);
    for source in sources {
        let mut add = |input| analyzer.add(input);
        match source {
            Loaded::Bytes(name, bytes) => read_from(name, &bytes[..], &mut add),
            Loaded::StandardInput => read_from(STANDARD_INPUT, std::io::stdin().lock(), &mut add),
            Loaded::File(path) => {
                let file = open(path)?;
                read_from(&path.display().to_string(), file, &mut add);
            }
        }
    }
    Ok(analyzer.finish())
}

fn open(path: &Path) -> anyhow::Result<File> {
    ensure!(!path.is_dir(), "read {}: it is a directory", path.display());
    File::open(path).with_context(|| format!("read {}", path.display()))
}

async fn load(source: &Source, args: &SelectArgs, options: &Options) -> anyhow::Result<Loaded> {
    match source {
        Source::File(path) if path == Path::new("-") && args.align_clocks == Align::All => {
            // Standard input can be read only once.
            let (mut bytes, input) = (Vec::new(), std::io::stdin().lock());
            input
                .take(tandem_overlap::MAX_BYTES)
                .read_to_end(&mut bytes)
                .context("read standard input")?;
            Ok(Loaded::Bytes(STANDARD_INPUT.to_owned(), bytes.into()))
        }
        Source::File(path) if path == Path::new("-") => Ok(Loaded::StandardInput),
        Source::File(path) => open(path).map(|_| Loaded::File(path.clone())),
        Source::Node(url) => {
            let url = node_url(url);
            let bytes = http_client::get(&url).await.context(
                "a node has its traces on its metrics port, such as http://127.0.0.1:9100",
            )?;
            Ok(Loaded::Bytes(url, bytes))
        }
        Source::Jaeger(base) => {
            let mut all = Vec::new();
            for service in args.services() {
                let urls = jaeger_urls(base, service, options);
                all.extend_from_slice(&jaeger(&urls).await?);
                all.push(b'\n');
            }
            Ok(Loaded::Bytes(base.clone(), all.into()))
        }
    }
}

/// Asks the older API, which has more limits on the query, and the newer one if the older is not
/// served. Jaeger answers unknown addresses with a page for people.
async fn jaeger([v2, v3]: &[String; 2]) -> anyhow::Result<Bytes> {
    let is_json = |bytes: &Bytes| bytes.trim_ascii_start().starts_with(b"{");
    let first = match http_client::get(v2).await {
        Ok(bytes) if is_json(&bytes) => return Ok(bytes),
        Ok(_) => anyhow::anyhow!("get {v2}: the answer is not JSON"),
        Err(error) => error,
    };
    match http_client::get(v3).await {
        Ok(bytes) if is_json(&bytes) => Ok(bytes),
        Ok(_) => Err(anyhow::anyhow!("get {v3}: the answer is not JSON").context(first)),
        // Jaeger's message is in the first error, unless that is about the address.
        Err(second) => Err(second.context(format!("{first:#}"))),
    }
}

fn node_url(base: &str) -> String {
    format!("{}/debug/traces?n={NODE_TRACES}", base.trim_end_matches('/'))
}

/// Returns the URLs of one query for Jaeger's two APIs.
fn jaeger_urls(base: &str, service: &str, options: &Options) -> [String; 2] {
    let base = base.trim_end_matches('/');
    let filter = &options.filter;
    // Jaeger knows operations by their exact names only.
    let root = options.selection.root.to_string();
    let operation = (!root.contains('*')).then(|| percent_encode(&root));
    let (service, limit) = (percent_encode(service), options.limit);
    let mut v2 = format!("{base}/api/traces?service={service}");
    let mut v3 = format!("{base}/api/v3/traces?query.service_name={service}");
    if let Some(operation) = operation {
        v2 += &format!("&operation={operation}");
        v3 += &format!("&query.operation_name={operation}");
    }
    v2 += &format!("&limit={limit}");
    // The name of the limit depends on the version.
    v3 += &format!("&query.num_traces={limit}&query.search_depth={limit}");
    if let Some(since) = filter.since_unix_ns {
        v2 += &format!("&start={}", since / 1_000);
    }
    if let Some(until) = filter.until_unix_ns {
        v2 += &format!("&end={}", until / 1_000);
    }
    if let Some(least) = filter.least_ns {
        v2 += &format!("&minDuration={}us", least / 1_000);
        v3 += &format!("&query.duration_min={}us", least / 1_000);
    }
    // Both ends are required. One minute is added, because clocks differ.
    let until = filter.until_unix_ns.unwrap_or_else(|| super::now_ns() + 60_000_000_000);
    let since = filter.since_unix_ns.unwrap_or(until.saturating_sub(LOOK_BACK_NS));
    let [since, until] = [since, until].map(|ns| percent_encode(&to_rfc3339(ns)));
    v3 += &format!("&query.start_time_min={since}&query.start_time_max={until}");
    [v2, v3]
}

/// Percent-encodes everything except the unreserved characters of RFC 3986, section 2.3.
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

#[cfg(test)]
mod tests {
    use std::io::Write;

    use super::*;
    use crate::overlap::tests::parse;

    /// Returns the queries to Jaeger of a command line, for its first service.
    fn questions(line: &str) -> [String; 2] {
        let args = parse(line).unwrap();
        let Some(Source::Jaeger(base)) = args.sources().into_iter().next() else {
            panic!("{line} names no Jaeger")
        };
        jaeger_urls(&base, args.select.services()[0], &args.select.options())
    }

    #[test]
    fn sources_are_told_apart() {
        for (text, source) in [
            ("traces.json", Source::File("traces.json".into())),
            ("-", Source::File("-".into())),
            ("http://a:9100", Source::Node("http://a:9100".to_owned())),
            ("http://a:16686/", Source::Jaeger("http://a:16686/".to_owned())),
            ("jaeger+http://a:1/jaeger", Source::Jaeger("http://a:1/jaeger".to_owned())),
        ] {
            assert_eq!(text.parse(), Ok(source), "{text}");
        }
        for wrong in ["", "https://a", "jaeger+a:16686", "jaeger+https://a", "ftp://a"] {
            assert!(wrong.parse::<Source>().is_err(), "{wrong}");
        }
        assert_eq!(node_url("http://a:1/"), "http://a:1/debug/traces?n=10000");
    }

    #[test]
    fn jaeger_is_asked_for_what_is_wanted() {
        let [v2, _] = questions("--jaeger http://j:16686 --limit 5 --preset reth");
        assert_eq!(v2, "http://j:16686/api/traces?service=reth&operation=on_new_payload&limit=5");
        let [v2, _] = questions("--jaeger http://j:16686 --preset geth");
        assert!(v2.contains("service=geth&operation=engine.newPayload&"), "{v2}");
        let [v2, _] = questions("--jaeger http://j --service a&b --root new*");
        assert_eq!(v2, "http://j/api/traces?service=a%26b&limit=1000");
        let [v2, v3] = questions(
            "--jaeger http://j/ --since 2024-02-29T12:34:56Z --until 2024-02-29T12:35:56Z --min-ms 2.5",
        );
        assert_eq!(
            v2,
            "http://j/api/traces?service=executor&operation=on_new_payload&limit=1000\
             &start=1709210096000000&end=1709210156000000&minDuration=2500us"
        );
        assert_eq!(
            v3,
            "http://j/api/v3/traces?query.service_name=executor&query.operation_name=on_new_payload\
             &query.num_traces=1000&query.search_depth=1000&query.duration_min=2500us\
             &query.start_time_min=2024-02-29T12%3A34%3A56.000Z\
             &query.start_time_max=2024-02-29T12%3A35%3A56.000Z"
        );
    }

    /// Starts a server with `answers`: pairs of the beginning of a path and the text to return.
    fn server(answers: &'static [(&str, &str)]) -> String {
        let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        std::thread::spawn(move || {
            while let Ok((mut stream, _)) = listener.accept() {
                let mut request = Vec::new();
                while !request.ends_with(b"\r\n\r\n") {
                    let mut byte = [0];
                    if stream.read_exact(&mut byte).is_err() {
                        break;
                    }
                    request.extend(byte);
                }
                let request = String::from_utf8_lossy(&request).into_owned();
                let path = request.split(' ').nth(1).unwrap_or_default();
                let found = answers.iter().find(|(start, _)| path.starts_with(start));
                let (status, body) =
                    found.map_or(("404 Not Found", "no"), |(_, body)| ("200 OK", *body));
                let length = body.len();
                let answer = format!("HTTP/1.1 {status}\r\nContent-Length: {length}\r\n\r\n{body}");
                let _ = stream.write_all(answer.as_bytes());
            }
        });
        format!("http://{address}")
    }

    const V2: &str = r#"{"data": [{"spans": [{"traceID": "a", "spanID": "1",
        "operationName": "on_new_payload", "startTime": 1, "duration": 5, "processID": "p"}],
        "processes": {"p": {"serviceName": "executor"}}}]}"#;
    const V3: &str = r#"{"result": {"resourceSpans": [{"resource": {"attributes": [
        {"key": "service.name", "value": {"stringValue": "executor"}}]}, "scopeSpans": [{"spans": [
        {"traceId": "0000000000000000000000000000000a", "spanId": "0000000000000001",
        "name": "on_new_payload", "startTimeUnixNano": "1000", "endTimeUnixNano": "6000"}]}]}]}}"#;
    const PAGE: &str = "<!doctype html><title>Jaeger UI</title>";

    fn ask(answers: &'static [(&str, &str)]) -> anyhow::Result<Report> {
        let args = parse("").unwrap();
        let source = Source::Jaeger(server(answers));
        analyze(&[source], &args.select, args.select.options())
    }

    #[test]
    fn both_of_jaegers_apis_are_understood() {
        let v2 = ask(&[("/api/traces?", V2)]).unwrap();
        let v3 = ask(&[("/api/v3/traces?", V3), ("/", PAGE)]).unwrap();
        let refused = ask(&[("/api/v3/traces?", V3)]).unwrap();
        for report in [v2, v3, refused] {
            assert!(!report.partial, "{:?}", report.problems);
            assert_eq!((report.payloads.len(), report.payloads[0].payload_ns), (1, 5_000));
            assert_eq!(report.payloads[0].start_unix_ns, 1_000);
        }
    }

    #[test]
    fn what_is_no_jaeger_is_named() {
        let error = format!("{:#}", ask(&[("/", PAGE)]).unwrap_err());
        assert!(error.contains("/api/traces") && error.contains("/api/v3/traces"), "{error}");
        assert!(error.contains("is not JSON"), "{error}");
        let error = format!("{:#}", ask(&[]).unwrap_err());
        assert!(error.contains("HTTP 404"), "{error}");
    }

    #[test]
    fn several_files_are_one_input() {
        let dir = tempfile::tempdir().unwrap();
        let args = parse("").unwrap();
        let files = [V3.to_owned(), V3.replace("00000001\"", "00000002\"")];
        let sources: Vec<Source> =
            (0..2).map(|n| Source::File(dir.path().join(n.to_string()))).collect();
        for (source, text) in sources.iter().zip(&files) {
            let Source::File(path) = source else { panic!("{source:?}") };
            std::fs::write(path, text).unwrap();
        }
        let report = analyze(&sources, &args.select, args.select.options()).unwrap();
        assert_eq!((report.spans, report.payloads.len(), report.other_traces), (2, 2, 0));
        let folder = Source::File(dir.path().to_owned());
        let error = analyze(&[folder], &args.select, args.select.options()).unwrap_err();
        assert!(format!("{error:#}").contains("it is a directory"), "{error:#}");
    }
}
