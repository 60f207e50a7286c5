use serde::Serialize;
use serde_json::value::RawValue;
use std::borrow::Cow;
use std::fmt::Display;
use tracing::info;

/// Error object of a JSON-RPC response (JSON-RPC 2.0, section 5.1; execution-apis,
/// `src/engine/common.md`, section Errors).
#[derive(Debug, Clone, Serialize)]
pub struct RpcError {
    /// One of the codes in [`code`].
    pub code: i32,
    /// One sentence.
    pub message: Cow<'static, str>,
    /// Details for programs.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<Box<RawValue>>,
}

/// Error codes of JSON-RPC 2.0, of the Engine API and, for cases they do not define, of geth.
pub mod code {
    /// The body is not JSON.
    pub const PARSE_ERROR: i32 = -32700;
    /// The JSON is not a request object.
    pub const INVALID_REQUEST: i32 = -32600;
    /// The method does not exist here.
    pub const METHOD_NOT_FOUND: i32 = -32601;
    /// Parameters missing, superfluous or malformed.
    pub const INVALID_PARAMS: i32 = -32602;
    /// The server has a defect.
    pub const INTERNAL: i32 = -32603;
    /// The call failed for a reason that the message names.
    pub const SERVER_ERROR: i32 = -32000;
    /// The time limit of the request was exceeded (as geth answers).
    pub const TIMED_OUT: i32 = -32002;
    /// The answer to a batch grew too large.
    pub const RESPONSE_TOO_LARGE: i32 = -32003;
    /// The payload id is unknown or no longer available.
    pub const UNKNOWN_PAYLOAD: i32 = -38001;
    /// `safeBlockHash` or `finalizedBlockHash` is not on the chain of `headBlockHash`.
    pub const INVALID_FORKCHOICE_STATE: i32 = -38002;
    /// The payload attributes do not fit the head or the method's version.
    pub const INVALID_PAYLOAD_ATTRIBUTES: i32 = -38003;
    /// The request asks for more items than are served at once.
    pub const TOO_LARGE_REQUEST: i32 = -38004;
    /// The timestamp belongs to a fork that this version of the method does not serve.
    pub const UNSUPPORTED_FORK: i32 = -38005;
    /// A query has more results than are served at once (EIP-1474). Also: a request exceeds its
    /// limits, or too many calls wait.
    pub const LIMIT_EXCEEDED: i32 = -32005;
    /// One `eth` call asks for more items than are served at once (as geth answers).
    pub const CLIENT_LIMIT_EXCEEDED: i32 = -38026;
    /// The new head leaves the chain at a block older than the oldest state.
    pub const TOO_DEEP_REORG: i32 = -38006;
    /// `eth_call` reverted.
    pub const EXECUTION_REVERTED: i32 = 3;
}

impl RpcError {
    /// Creates an error without data.
    pub fn new(code: i32, message: impl Into<Cow<'static, str>>) -> Self {
        Self { code, message: message.into(), data: None }
    }

    /// Creates error -32602 with the reason as message.
    pub fn invalid_params(reason: impl Display) -> Self {
        Self::new(code::INVALID_PARAMS, reason.to_string())
    }

    /// Creates error -32000 with the reason as message, as the `eth` methods answer.
    pub fn server(reason: impl Display) -> Self {
        Self::new(code::SERVER_ERROR, reason.to_string())
    }

    /// Creates error -32603. The cause goes to the log, not to the caller.
    pub const fn internal() -> Self {
        Self { code: code::INTERNAL, message: Cow::Borrowed("internal error"), data: None }
    }

    /// Creates an error of the Engine API with the message that the specification fixes for its
    /// code. Only -32000 has data, which holds the reason (execution-apis, `src/engine/common.md`,
    /// section Errors). Other reasons go to the log.
    pub fn engine(code: i32, reason: impl Display) -> Self {
        let message = match code {
            code::INVALID_PARAMS => "Invalid params",
            code::UNKNOWN_PAYLOAD => "Unknown payload",
            code::INVALID_FORKCHOICE_STATE => "Invalid forkchoice state",
            code::INVALID_PAYLOAD_ATTRIBUTES => "Invalid payload attributes",
            code::TOO_LARGE_REQUEST => "Too large request",
            code::UNSUPPORTED_FORK => "Unsupported fork",
            code::TOO_DEEP_REORG => "Too deep reorg",
            _ => {
                let data = ErrorData { err: reason.to_string() };
                return Self::new(code, "Server error").with_data(&data);
            }
        };
        info!(code, message, %reason, "Engine API call refused");
        Self::new(code, message)
    }

    /// Returns the error with data for programs.
    pub fn with_data(mut self, data: &impl Serialize) -> Self {
        self.data = serde_json::value::to_raw_value(data).ok();
        self
    }
}

#[derive(Serialize)]
struct ErrorData {
    err: String,
}
