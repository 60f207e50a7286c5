//! `.io` files of ethereum/execution-apis: exchanges with a client over JSON-RPC, on a chain stored
//! beside them.
//!
//! A result has to equal the fixture's. An exchange marked `speconly` fixes only the members and
//! their types. An error's code has to equal the fixture's. So does its message, unless it names
//! types of the Go program that recorded it.

use crate::{Case, CaseNode, Outcome, RpcFault, Setting, Suite, http};
use anyhow::{Context as _, bail, ensure};
use serde::Deserialize;
use serde_json::{Value, value::RawValue};
use std::{
    collections::HashMap,
    fs,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, OnceLock, PoisonError, Weak},
};
use tandem_cluster::BlockFile;
use tandem_policy::Policies;

const NAME: &str = "execution_apis";

/// Methods that this client does not serve. Any other missing method is a failure.
const NOT_SERVED: [(&str, &str); 4] = [
    ("debug_traceBlockByHash", "there is no tracer"),
    ("debug_traceBlockByNumber", "there is no tracer"),
    ("debug_traceTransaction", "there is no tracer"),
    ("eth_simulateV1", "there is no simulation of blocks"),
];

/// Start of the names of methods that a node has for tests alone, and with default settings not at all.
const FOR_TESTS: &str = "testing_";

/// Members that the specification makes optional.
const OPTIONAL: [&str; 3] = ["deleteStrategy", "error", "reward"];

/// Suite of folders that hold `chain.rlp`, `genesis.json` and `headfcu.json`, and folders of `.io`
/// files.
pub struct ExecutionApis;

impl Suite for ExecutionApis {
    fn name(&self) -> &'static str {
        NAME
    }

    fn takes(&self, path: &Path, _: &str) -> bool {
        path.extension().is_some_and(|extension| extension == "io")
    }

    fn uses_node(&self) -> bool {
        true
    }

    fn load(&self, path: &Path) -> anyhow::Result<Vec<Case>> {
        let text = fs::read_to_string(path)?;
        let script = Script::parse(&text)?;
        let chain = chain_folder(path)?;
        let name = path.with_extension("");
        let name = name.strip_prefix(&chain).unwrap_or(&name).to_string_lossy().into_owned();
        let run = move |setting: &Setting| {
            let reason = script.not_served().or_else(|| setting.rpc.and(script.for_tests()));
            if let Some(reason) = reason {
                return Outcome::Skipped(reason);
            }
            let played = match setting.rpc {
                Some(address) => script.replay(|method, params| {
                    let answer = http::call(address, None, method, params);
                    answer.map_err(|error| RpcFault::transport(&error))?
                }),
                None => shared_node(&chain, *setting).and_then(|node| {
                    let node = node.get()?;
                    script.replay(|method, params| node.call_raw(method, params))
                }),
            };
            match played {
                Ok(()) => Outcome::Passed,
                Err(error) => Outcome::Failed(format!("{error:#}")),
            }
        };
        Ok(vec![Case { suite: NAME, fork: "-".to_owned(), name, run: Box::new(run) }])
    }
}

/// Returns the folder of the chain that a file's exchanges use.
fn chain_folder(path: &Path) -> anyhow::Result<PathBuf> {
    let mut folders = path.ancestors().skip(1);
    let found = folders.find(|folder| folder.join("chain.rlp").is_file());
    Ok(found.context("no chain.rlp in the folders above")?.to_owned())
}

/// The exchanges of a file, in order.
struct Script {
    exchanges: Vec<Exchange>,
    /// Whether the answers fix only the shape of the result.
    shape_only: bool,
}

struct Exchange {
    request: Request,
    /// The result, or the error object.
    answer: Result<Value, Fault>,
}

#[derive(Deserialize)]
struct Request {
    method: String,
    params: Option<Box<RawValue>>,
}

#[derive(Deserialize)]
struct Reply {
    result: Option<Value>,
    error: Option<Fault>,
}

#[derive(Debug, Deserialize)]
struct Fault {
    code: i64,
    message: String,
    data: Option<Value>,
}

impl Script {
    fn parse(text: &str) -> anyhow::Result<Self> {
        let (mut exchanges, mut shape_only, mut pending) = (Vec::new(), false, None);
        for line in text.lines().map(str::trim).filter(|line| !line.is_empty()) {
            if let Some(comment) = line.strip_prefix("//") {
                shape_only |= comment.trim_start().starts_with("speconly:");
            } else if let Some(request) = line.strip_prefix(">>") {
                ensure!(pending.is_none(), "two requests without an answer between them");
                pending = Some(serde_json::from_str::<Request>(request).context("request")?);
            } else if let Some(reply) = line.strip_prefix("<<") {
                let request = pending.take().context("an answer without a request")?;
                let reply: Reply = serde_json::from_str(reply).context("answer")?;
                let answer = match reply.error {
                    Some(fault) => Err(fault),
                    None => Ok(reply.result.unwrap_or(Value::Null)),
                };
                exchanges.push(Exchange { request, answer });
            } else {
                bail!("a line is neither comment nor request nor answer: {line:.80}");
            }
        }
        ensure!(pending.is_none() && !exchanges.is_empty(), "a request without an answer");
        Ok(Self { exchanges, shape_only })
    }

    /// Returns the reason why the script cannot be played.
    fn not_served(&self) -> Option<String> {
        self.exchanges.iter().find_map(|Exchange { request, .. }| {
            let method = &request.method;
            let (_, reason) = NOT_SERVED.iter().find(|(name, _)| name == method)?;
            Some(format!("method {method} is not served: {reason}"))
        })
    }

    /// Returns the reason why the script cannot be played to a node with default settings.
    fn for_tests(&self) -> Option<String> {
        let mut methods = self.exchanges.iter().map(|exchange| &exchange.request.method);
        let method = methods.find(|method| method.starts_with(FOR_TESTS))?;
        Some(format!("method {method} is for tests alone"))
    }

    /// Sends the requests by `call`, which takes a method and its parameters, and compares the answers.
    fn replay(
        &self,
        call: impl Fn(&str, &str) -> Result<Box<RawValue>, RpcFault>,
    ) -> anyhow::Result<()> {
        for (number, Exchange { request, answer }) in self.exchanges.iter().enumerate() {
            let params = request.params.as_ref().map_or("[]", |params| params.get());
            let got = match call(&request.method, params) {
                Ok(text) => Ok(serde_json::from_str(text.get())?),
                Err(fault) => Err(fault),
            };
            let verdict = match (answer, got) {
                (Ok(want), Ok(got)) if self.shape_only => same_shape(want, &got),
                (Ok(want), Ok(got)) => same_value(want, &got),
                (Err(want), Err(got)) => same_fault(want, &got),
                (Ok(want), Err(got)) => Err(format!("wanted {}, got {got}", short(want))),
                (Err(want), Ok(got)) => Err(format!(
                    "wanted error {}: {}, got {}",
                    want.code,
                    want.message,
                    short(&got)
                )),
            };
            if let Err(difference) = verdict {
                bail!("exchange {}, {}: {difference}", number + 1, request.method);
            }
        }
        Ok(())
    }
}

fn short(value: &Value) -> String {
    const CHARS_MAX: usize = 300;
    let text = value.to_string();
    match text.char_indices().nth(CHARS_MAX) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text,
    }
}

/// Compares two values; the error names the place of the first difference.
fn same_value(want: &Value, got: &Value) -> Result<(), String> {
    match (want, got) {
        (Value::Object(want), Value::Object(got)) => {
            let keys = want.keys().chain(got.keys());
            for key in keys {
                let (want, got) = (want.get(key), got.get(key));
                let (want, got) = (want.unwrap_or(&Value::Null), got.unwrap_or(&Value::Null));
                same_value(want, got).map_err(|difference| format!(".{key}{difference}"))?;
            }
            match want.len() == got.len() {
                true => Ok(()),
                false => Err(": other members".to_owned()),
            }
        }
        (Value::Array(want), Value::Array(got)) if want.len() == got.len() => {
            for (index, (want, got)) in want.iter().zip(got).enumerate() {
                same_value(want, got).map_err(|difference| format!("[{index}]{difference}"))?;
            }
            Ok(())
        }
        (want, got) if want == got => Ok(()),
        (want, got) => Err(format!(": wanted {}, got {}", short(want), short(got))),
    }
}

/// Compares the shapes of two values: the same type, the same members, hexadecimal if the other is.
/// Lists have the same shape if all their elements match the first.
fn same_shape(want: &Value, got: &Value) -> Result<(), String> {
    match (want, got) {
        (Value::Object(want), Value::Object(got)) => {
            for key in want.keys().chain(got.keys()) {
                match (want.get(key), got.get(key)) {
                    (Some(want), Some(got)) => {
                        same_shape(want, got)
                            .map_err(|difference| format!(".{key}{difference}"))?;
                    }
                    _ if OPTIONAL.contains(&key.as_str()) => {}
                    _ => return Err(format!(".{key}: not in both")),
                }
            }
            Ok(())
        }
        (Value::Array(want), Value::Array(got)) => {
            let Some(want) = want.first() else { return Ok(()) };
            got.iter().try_for_each(|got| same_shape(want, got))
        }
        (Value::String(want), Value::String(got)) if want.starts_with("0x") => {
            let digits = got.strip_prefix("0x").unwrap_or("-");
            match digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
                true => Ok(()),
                false => Err(format!(": {got} is not hexadecimal")),
            }
        }
        (want, got) if std::mem::discriminant(want) == std::mem::discriminant(got) => Ok(()),
        (want, got) => Err(format!(": wanted the like of {}, got {}", short(want), short(got))),
    }
}

fn same_fault(want: &Fault, got: &RpcFault) -> Result<(), String> {
    // Types of the recording client.
    let is_of_go = want.message.contains("Go value") || want.message.contains("Go struct");
    let same_message = is_of_go || want.message == got.message;
    let same_data = want.data.is_none() || want.data == got.data;
    match want.code == got.code && same_message && same_data {
        true => Ok(()),
        false => Err(format!("wanted error {want:?}, got {got:?}")),
    }
}

/// A node with a chain imported.
struct ChainNode(Option<CaseNode>);

impl Drop for ChainNode {
    fn drop(&mut self) {
        if let Some(node) = self.0.take() {
            node.stop();
        }
    }
}

/// Nodes in use, by chain and setting.
type Nodes = HashMap<(PathBuf, bool, bool), Weak<ChainNode>>;

/// Returns a node that concurrent cases of one chain share, because exchanges only read. The last
/// case stops it.
fn shared_node(chain: &Path, setting: Setting) -> anyhow::Result<Arc<ChainNode>> {
    static NODES: OnceLock<Mutex<Nodes>> = OnceLock::new();
    let nodes = NODES.get_or_init(Mutex::default);
    let mut nodes = nodes.lock().unwrap_or_else(PoisonError::into_inner);
    let entry = nodes.entry((chain.to_owned(), setting.http, setting.database)).or_default();
    if let Some(node) = entry.upgrade() {
        return Ok(node);
    }
    // The node serves many cases, so it does not use the policies of one of them.
    let setting = Setting { policies: Policies::default(), ..setting };
    let node = Arc::new(start(chain, setting)?);
    *entry = Arc::downgrade(&node);
    Ok(node)
}

fn start(chain: &Path, setting: Setting) -> anyhow::Result<ChainNode> {
    let read = |name| fs::read_to_string(chain.join(name)).context(name);
    // Requests may ask for the state of any block.
    let node = CaseNode::start_keeping_states(&read("genesis.json")?, setting)?;
    let node = ChainNode(Some(node));
    let inner = node.get()?;
    let mut file = BlockFile::open(&chain.join("chain.rlp")).context("chain.rlp")?;
    while let Some(block) = file.next_block().context("chain.rlp")? {
        let id = block.id;
        // The file starts with the first block after genesis or with genesis itself.
        if id.number > 0 {
            inner.import(block).with_context(|| format!("import block {id}"))?;
            inner.make_head(id.hash)?;
        }
    }
    let head: Request = serde_json::from_str(&read("headfcu.json")?).context("headfcu.json")?;
    let params = head.params.context("headfcu.json has no parameters")?;
    let answer = inner.call(&head.method, params.get()).context("headfcu.json")?;
    ensure!(answer["payloadStatus"]["status"] == "VALID", "headfcu.json: {answer}");
    Ok(node)
}

impl ChainNode {
    fn get(&self) -> anyhow::Result<&CaseNode> {
        self.0.as_ref().context("the node is stopped")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn scripts_hold_requests_and_answers_in_turn() {
        let script = Script::parse(
            "// about\n// speconly: x\n>> {\"method\":\"m\",\"params\":[1]}\n\
             << {\"result\":null}\n>> {\"method\":\"n\"}\n\
             << {\"error\":{\"code\":-1,\"message\":\"no\"}}\n",
        )
        .unwrap();
        assert!(script.shape_only);
        assert_eq!(script.exchanges.len(), 2);
        assert!(matches!(script.exchanges[0].answer, Ok(Value::Null)));
        assert!(
            script.exchanges[1].answer.is_err() && script.exchanges[1].request.params.is_none()
        );
        for text in ["", ">> {\"method\":\"m\"}", "<< {}", ">> {}", "hello", ">> x\n<< {}"] {
            assert!(Script::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn differences_are_named_by_their_place() {
        let want = json!({"a": [1, {"b": "0x1"}], "c": null});
        assert_eq!(same_value(&want, &want), Ok(()));
        let other = json!({"a": [1, {"b": "0x2"}], "c": null});
        assert_eq!(same_value(&want, &other).unwrap_err(), ".a[1].b: wanted \"0x1\", got \"0x2\"");
        for other in [json!({"a": [1, {"b": "0x1"}]}), json!({"a": [1], "c": null}), json!([])] {
            assert!(same_value(&want, &other).is_err() && same_value(&other, &want).is_err());
        }
        assert_eq!(same_shape(&json!({"a": ["0x1"]}), &json!({"a": ["0x2", "0x3"]})), Ok(()));
        for other in [json!({"a": ["x"]}), json!({"a": "0x1"}), json!({}), json!({"a": [], "b": 1})]
        {
            assert!(same_shape(&json!({"a": ["0x1"]}), &other).is_err(), "{other}");
        }
    }

    /// Runs the whole set, with HTTP and without.
    #[test]
    fn every_exchange_of_a_served_method_passes() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fixtures/execution-apis/tests");
        let (mut passed, mut skipped) = (0, 0);
        for http in [false, true] {
            let setting = Setting { http, database: http, ..Setting::default() };
            let mut cases = Vec::new();
            for method in fs::read_dir(&folder).unwrap().map(|entry| entry.unwrap().path()) {
                if !method.is_dir() {
                    continue;
                }
                for file in fs::read_dir(&method).unwrap().map(|entry| entry.unwrap().path()) {
                    assert!(ExecutionApis.takes(&file, ""));
                    cases.extend(ExecutionApis.load(&file).unwrap());
                }
            }
            // Held while the cases run, so that they share it.
            let _node = shared_node(&folder, setting).unwrap();
            let mut failures = Vec::new();
            for case in cases {
                match (case.run)(&setting) {
                    Outcome::Passed => passed += 1,
                    Outcome::Skipped(_) => skipped += 1,
                    Outcome::Failed(reason) => failures.push(format!("{}: {reason}", case.name)),
                }
            }
            assert!(failures.is_empty(), "{}", failures.join("\n"));
        }
        assert_eq!((passed, skipped), (2 * 99, 2 * 79));
    }
}
