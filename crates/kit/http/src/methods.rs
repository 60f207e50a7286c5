//! Table of methods, and the input of their handlers.

use crate::error::{RpcError, code};
use crate::metrics::CALL_SECONDS;
use crate::pieces::Pieces;
use crate::usage::Usage;
use bytes::Bytes;
use serde::Serialize;
use serde::de::{DeserializeOwned, SeqAccess, Visitor};
use serde_json::value::RawValue;
use std::collections::HashMap;
use std::fmt;
use std::future::{Future, poll_fn};
use std::marker::PhantomData;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Instant;
use tandem_json::{Short, Shortened};
use tracing::error;

/// Maximum bytes of texts parsed on the reactor. Longer ones would block it for over half a
/// millisecond.
pub(crate) const INLINE_BYTES_MAX: usize = 256 * 1024;

/// JSON result, or the error object.
pub type Answer = Result<Box<RawValue>, RpcError>;

/// Result as a whole or in pieces made while sending, or the error object.
pub type Streamed = Result<Output, RpcError>;

/// Result of a method.
#[derive(Debug)]
pub enum Output {
    /// Complete JSON.
    Json(Box<RawValue>),
    /// JSON that is made while sending.
    Pieces(Pieces),
}

type Handler = Box<dyn Fn(Params) -> Pin<Box<dyn Future<Output = Streamed> + Send>> + Send + Sync>;

type GroupHandler =
    Arc<dyn Fn(Vec<Params>) -> Pin<Box<dyn Future<Output = Vec<Answer>> + Send>> + Send + Sync>;

/// Methods by name.
#[derive(Default)]
pub struct Methods {
    table: HashMap<&'static str, Handler>,
    /// Handlers of the methods that take the calls that follow each other in a batch together.
    groups: HashMap<&'static str, GroupHandler>,
}

/// Method that answers the calls that follow each other in a batch together.
pub(crate) struct Grouped {
    pub name: &'static str,
    handler: GroupHandler,
}

impl Grouped {
    /// Makes the calls. Returns an answer for each.
    pub async fn call(&self, calls: Vec<Params>) -> Vec<Answer> {
        let (count, started) = (calls.len(), Instant::now());
        let mut answers = run(self.name, || (self.handler)(calls)).await.unwrap_or_default();
        answers.resize_with(count, || Err(RpcError::internal()));
        answers.iter().for_each(|answer| record(self.name, started, answer));
        answers
    }
}

impl fmt::Debug for Methods {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.table.keys()).finish()
    }
}

impl Methods {
    /// Creates a table without methods.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a method, or replaces the one of that name.
    pub fn add<F, Fut>(&mut self, name: &'static str, handler: F)
    where
        F: Fn(Params) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Answer> + Send + 'static,
    {
        self.add_streaming(name, move |params| {
            let answer = handler(params);
            async move { answer.await.map(Output::Json) }
        });
    }

    /// Adds a method whose results may be made while sending.
    pub fn add_streaming<F, Fut>(&mut self, name: &'static str, handler: F)
    where
        F: Fn(Params) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Streamed> + Send + 'static,
    {
        self.table.insert(name, Box::new(move |params| Box::pin(handler(params))));
    }

    /// Adds a method that answers the calls that follow each other in a batch together. The handler returns their
    /// answers in order.
    pub fn add_grouped<F, Fut>(&mut self, name: &'static str, handler: F)
    where
        F: Fn(Vec<Params>) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = Vec<Answer>> + Send + 'static,
    {
        let handler: GroupHandler = Arc::new(move |calls| Box::pin(handler(calls)));
        let group = handler.clone();
        self.add(name, move |params| {
            let answers = group(vec![params]);
            async move { answers.await.pop().unwrap_or_else(|| Err(RpcError::internal())) }
        });
        self.groups.insert(name, handler);
    }

    /// Adds all methods of another table.
    pub fn extend(&mut self, other: Methods) {
        self.table.extend(other.table);
        self.groups.extend(other.groups);
    }

    /// Returns the names, in no particular order.
    pub fn names(&self) -> impl Iterator<Item = &'static str> {
        self.table.keys().copied()
    }

    /// Returns a method that answers calls together, `None` if this one does not.
    pub(crate) fn grouped(&self, method: &str) -> Option<Grouped> {
        let (&name, handler) = self.groups.get_key_value(method)?;
        Some(Grouped { name, handler: handler.clone() })
    }

    /// Calls a method, and waits until the whole result is available.
    ///
    /// # Errors
    /// Same as [`Methods::call_streaming`].
    pub async fn call(&self, method: &str, params: Params) -> Answer {
        match self.call_streaming(method, params).await? {
            Output::Json(json) => Ok(json),
            Output::Pieces(pieces) => off_reactor(move || pieces.collect()).await,
        }
    }

    /// Calls a method. A handler that panics answers -32603; the panic goes no further.
    ///
    /// # Errors
    /// Returns the handler's error, or -32601 if there is no such method.
    pub async fn call_streaming(&self, method: &str, params: Params) -> Streamed {
        let Some((&name, handler)) = self.table.get_key_value(method) else {
            return Err(not_found(method));
        };
        let started = Instant::now();
        let answer = run(name, || handler(params)).await;
        let answer = answer.unwrap_or_else(|| Err(RpcError::internal()));
        record(name, started, &answer);
        answer
    }
}

/// Runs a handler to its end. Returns `None` if it panics.
async fn run<T, F>(name: &'static str, handler: F) -> Option<T>
where
    F: FnOnce() -> Pin<Box<dyn Future<Output = T> + Send>>,
{
    let answer = match catch_unwind(AssertUnwindSafe(handler)) {
        Ok(future) => guarded(future).await,
        Err(_) => None,
    };
    if answer.is_none() {
        error!(method = name, "request handler panicked");
    }
    answer
}

/// Records how long a call took.
fn record<T>(name: &'static str, started: Instant, answer: &Result<T, RpcError>) {
    let status = match answer {
        Ok(_) => "ok".to_owned(),
        Err(error) => error.code.to_string(),
    };
    metrics::histogram!(CALL_SECONDS, "method" => name, "status" => status)
        .record(started.elapsed().as_secs_f64());
}

/// Runs a future to its end. Returns `None` if it panics.
async fn guarded<T>(mut future: Pin<Box<dyn Future<Output = T> + Send>>) -> Option<T> {
    poll_fn(|cx| match catch_unwind(AssertUnwindSafe(|| future.as_mut().poll(cx))) {
        Ok(poll) => poll.map(Some),
        Err(_) => Poll::Ready(None),
    })
    .await
}

fn not_found(method: &str) -> RpcError {
    const NAME_CHARS_MAX: usize = 100;
    let name: String = method.chars().take(NAME_CHARS_MAX).collect();
    RpcError::new(
        code::METHOD_NOT_FOUND,
        format!("the method {name} does not exist/is not available"),
    )
}

/// Converts a value to the JSON of a result.
///
/// # Errors
/// -32603 if the value has no JSON form.
pub fn to_result(value: &impl Serialize) -> Answer {
    serde_json::value::to_raw_value(value).map_err(|error| {
        error!(%error, "result has no JSON form");
        RpcError::internal()
    })
}

/// Runs blocking work (database, much computing, much JSON) off the reactor.
///
/// # Errors
/// Returns the work's error, or -32603 if it panics.
pub async fn off_reactor<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, RpcError> + Send + 'static,
) -> Result<T, RpcError> {
    let span = tracing::Span::current();
    match tokio::task::spawn_blocking(move || span.in_scope(work)).await {
        Ok(result) => result,
        Err(error) => {
            error!(%error, "blocking part of a request failed");
            Err(RpcError::internal())
        }
    }
}

/// Parameters of a call as JSON text, still part of the request body.
#[derive(Debug, Clone)]
pub struct Params {
    text: Bytes,
    usage: Arc<Usage>,
}

impl Params {
    /// Creates parameters from their JSON text, which may be empty.
    pub fn new(text: Bytes) -> Self {
        Self::of_request(text, &Arc::default())
    }

    /// Creates parameters of one call of a request. All calls of the request share `usage`.
    pub fn of_request(text: Bytes, usage: &Arc<Usage>) -> Self {
        Self { text, usage: usage.clone() }
    }

    /// Returns the usage of limits by the calls of the request.
    pub fn usage(&self) -> Arc<Usage> {
        self.usage.clone()
    }

    /// Decodes the positional parameters, in one pass. `T` is a tuple with an [`Option`] (or
    /// another type with a default) for each parameter of the method. Missing ones get the default.
    /// `null` also gets it if the type is an `Option`.
    ///
    /// # Errors
    /// -32602 if the parameters are not an array, too many, or malformed.
    pub fn decode<T: Positional>(&self) -> Result<T, RpcError> {
        let text = self.text.trim_ascii();
        if text.is_empty() || text == b"null" {
            return Ok(T::default());
        }
        if text.first() != Some(&b'[') {
            return Err(RpcError::invalid_params("non-array args"));
        }
        let mut deserializer = serde_json::Deserializer::from_slice(text);
        let visitor = PositionalVisitor(PhantomData);
        let deserializer = Shortened(&mut deserializer);
        serde::Deserializer::deserialize_seq(deserializer, visitor).map_err(params_error)
    }

    /// Decodes like [`Params::decode`], on another thread if the text is large.
    ///
    /// # Errors
    /// Same as [`Params::decode`].
    pub async fn decode_large<T: Positional + Send + 'static>(self) -> Result<T, RpcError> {
        if !self.is_large() {
            return self.decode();
        }
        off_reactor(move || self.decode()).await
    }

    /// Decodes the parameters of several calls, on another thread if they are large together.
    pub async fn decode_all<T: Positional + Send + 'static>(
        calls: Vec<Self>,
    ) -> Vec<Result<T, RpcError>> {
        let (count, bytes) =
            (calls.len(), calls.iter().map(|params| params.text.len()).sum::<usize>());
        let decode = move || calls.iter().map(Self::decode).collect();
        if bytes <= INLINE_BYTES_MAX {
            return decode();
        }
        let decoded = off_reactor(move || Ok(decode())).await;
        decoded.unwrap_or_else(|error| (0..count).map(|_| Err(error.clone())).collect())
    }

    /// Returns whether decoding would block the reactor.
    pub fn is_large(&self) -> bool {
        self.text.len() > INLINE_BYTES_MAX
    }
}

/// Returns the reason without the position in the text, which is meaningless to a caller.
fn params_error(error: Short) -> RpcError {
    let text = error.to_string();
    RpcError::invalid_params(text.split(" at line ").next().unwrap_or_default())
}

/// Returns the value of a required parameter.
///
/// # Errors
/// -32602 if it is missing or `null`.
pub fn required<T>(value: Option<T>, position: usize) -> Result<T, RpcError> {
    value.ok_or_else(|| {
        RpcError::invalid_params(format_args!("missing value for required argument {position}"))
    })
}

/// Tuples of parameters by position.
pub trait Positional: Default + Sized {
    /// Reads the elements in order; missing ones keep their default.
    fn read<'de, A: SeqAccess<'de>>(seq: &mut A) -> Result<Self, A::Error>;
}

/// Reads one element. An error names its position.
fn element<'de, T: DeserializeOwned + Default, A: SeqAccess<'de>>(
    seq: &mut A,
    position: usize,
) -> Result<T, A::Error> {
    match seq.next_element::<T>() {
        Ok(value) => Ok(value.unwrap_or_default()),
        Err(error) => {
            Err(serde::de::Error::custom(format_args!("invalid argument {position}: {error}")))
        }
    }
}

macro_rules! positional {
    ($($name:ident $position:literal),+) => {
        impl<$($name: DeserializeOwned + Default),+> Positional for ($($name,)+) {
            fn read<'de, Access: SeqAccess<'de>>(seq: &mut Access) -> Result<Self, Access::Error> {
                let read = ($(element::<$name, Access>(seq, $position)?,)+);
                const LEN: usize = [$($position),+].len();
                if seq.next_element::<serde::de::IgnoredAny>()?.is_some() {
                    let error = format_args!("too many arguments, want at most {LEN}");
                    return Err(serde::de::Error::custom(error));
                }
                Ok(read)
            }
        }
    };
}
positional!(A 0);
positional!(A 0, B 1);
positional!(A 0, B 1, C 2);
positional!(A 0, B 1, C 2, D 3);

struct PositionalVisitor<T>(PhantomData<T>);

impl<'de, T: Positional> Visitor<'de> for PositionalVisitor<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("an array of parameters")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<T, A::Error> {
        T::read(&mut seq)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode<T: Positional>(text: &'static str) -> Result<T, String> {
        let params = Params::new(Bytes::from_static(text.as_bytes()));
        params.decode().map_err(|error| {
            assert_eq!(error.code, code::INVALID_PARAMS);
            error.message.into_owned()
        })
    }

    type Pair = (Option<u64>, Option<String>);

    #[test]
    fn missing_parameters_and_null_are_none() {
        for text in ["", " ", "null", "[]", "[null]", "[null,null]", " [ ] "] {
            assert_eq!(decode::<Pair>(text), Ok((None, None)), "{text}");
        }
        assert_eq!(decode::<Pair>("[1]"), Ok((Some(1), None)));
        assert_eq!(decode::<Pair>(r#"[1,"x"]"#), Ok((Some(1), Some("x".into()))));
    }

    #[test]
    fn wrong_parameters_are_named() {
        for (text, reason) in [
            ("{}", "non-array args"),
            ("7", "non-array args"),
            (r#""x""#, "non-array args"),
            (r#"["x"]"#, "invalid argument 0: invalid type: string \"x\", expected u64"),
            ("[1,2]", "invalid argument 1: invalid type: integer `2`, expected a string"),
            (r#"[1,"x",3]"#, "too many arguments, want at most 2"),
            (r#"[1,"x",null]"#, "too many arguments, want at most 2"),
        ] {
            assert_eq!(decode::<Pair>(text), Err(reason.into()), "{text}");
        }
        let long = format!("[\"{}\"]", "x".repeat(1 << 16));
        let error = Params::new(long.into()).decode::<Pair>().unwrap_err();
        assert!(error.message.starts_with("invalid argument 0: invalid type: string \"xxx"));
        assert!(error.message.len() < 1024, "{}", error.message.len());
        assert!(required::<u64>(None, 0).unwrap_err().message.ends_with("argument 0"));
    }

    #[tokio::test]
    async fn a_panicking_handler_answers_an_internal_error() {
        async fn later(_: Params) -> Answer {
            tokio::task::yield_now().await;
            panic!("in the future")
        }
        fn at_once(_: Params) -> std::future::Ready<Answer> {
            panic!("before there is a future")
        }
        async fn blocking(_: Params) -> Answer {
            off_reactor(|| panic!("on another thread")).await
        }
        let mut methods = Methods::new();
        methods.add("later", later);
        methods.add("at_once", at_once);
        methods.add("blocking", blocking);
        for method in ["later", "at_once", "blocking"] {
            let answer = methods.call(method, Params::new(Bytes::new())).await;
            assert_eq!(answer.unwrap_err().code, code::INTERNAL, "{method}");
        }
        let answer = methods.call("absent", Params::new(Bytes::new())).await;
        assert_eq!(answer.unwrap_err().code, code::METHOD_NOT_FOUND);
    }
}
