//! A collector of OTLP over gRPC that keeps what it receives.

use opentelemetry_proto::tonic::{
    collector::trace::v1::{
        ExportTraceServiceRequest, ExportTraceServiceResponse,
        trace_service_server::{TraceService, TraceServiceServer},
    },
    common::v1::{KeyValue, any_value},
};
use std::{
    collections::BTreeMap,
    net::SocketAddr,
    path::PathBuf,
    sync::{Arc, Mutex, mpsc},
    thread,
};
use tandem_cluster_tests::repository;
use tokio::net::TcpListener;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{
    Request, Response, Status,
    transport::{self, Identity, ServerTlsConfig},
};

/// A span as received.
#[derive(Clone, Debug)]
pub struct Span {
    pub trace: Vec<u8>,
    pub id: Vec<u8>,
    /// Id of the parent; empty for the root.
    pub parent: Vec<u8>,
    pub name: String,
    /// Role in a call, as a number of OTLP.
    pub kind: i32,
    /// Reason of its failure, if it failed.
    pub error: Option<String>,
    pub start_ns: u64,
    pub end_ns: u64,
    pub attributes: BTreeMap<String, String>,
    /// Attributes of the process that made it.
    pub resource: BTreeMap<String, String>,
}

impl Span {
    pub fn service(&self) -> &str {
        &self.resource["service.name"]
    }
}

/// Receiver of spans, with the spans so far. It listens until the test ends.
pub struct Receiver {
    scheme: &'static str,
    address: SocketAddr,
    spans: Arc<Mutex<Vec<Span>>>,
}

impl Receiver {
    pub fn start() -> Self {
        Self::start_with("http", transport::Server::builder(), &[])
    }

    /// Starts a receiver that speaks TLS, with a certificate of `localhost` and 127.0.0.1. It
    /// accepts spans only with these headers.
    pub fn start_tls(headers: &'static [(&'static str, &'static str)]) -> Self {
        let file = |name: &str| std::fs::read(Self::certificate(name)).unwrap();
        let identity = Identity::from_pem(file("server.pem"), file("server.key"));
        let server = transport::Server::builder();
        let server = server.tls_config(ServerTlsConfig::new().identity(identity)).unwrap();
        Self::start_with("https", server, headers)
    }

    /// Returns a file of the tests' certificates: `ca.pem` vouches for the receiver, `other-ca.pem`
    /// does not.
    pub fn certificate(name: &str) -> PathBuf {
        repository().join("tests/bus/tests/data").join(name)
    }

    fn start_with(
        scheme: &'static str,
        mut server: transport::Server,
        headers: &'static [(&'static str, &'static str)],
    ) -> Self {
        let spans = Arc::<Mutex<Vec<Span>>>::default();
        let service = TraceServiceServer::new(Service { spans: spans.clone(), headers });
        let (sender, address) = mpsc::channel();
        thread::spawn(move || {
            let mut runtime = tokio::runtime::Builder::new_current_thread();
            runtime.enable_all().build().unwrap().block_on(async {
                let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
                sender.send(listener.local_addr().unwrap()).unwrap();
                let server = server.add_service(service);
                server.serve_with_incoming(TcpListenerStream::new(listener)).await.unwrap();
            });
        });
        Self { scheme, address: address.recv().unwrap(), spans }
    }

    pub fn url(&self) -> String {
        format!("{}://{}", self.scheme, self.address)
    }

    pub fn spans(&self) -> Vec<Span> {
        self.spans.lock().unwrap().clone()
    }

    /// Returns all spans of the trace in which this block was answered.
    pub fn trace_of(&self, block: u64) -> Vec<Span> {
        let spans = self.spans();
        let is_root = |span: &&Span| {
            span.name == "on_new_payload"
                && span.attributes.get("block.number") == Some(&block.to_string())
        };
        let Some(trace) = spans.iter().find(is_root).map(|span| span.trace.clone()) else {
            return Vec::new();
        };
        spans.into_iter().filter(|span| span.trace == trace).collect()
    }
}

struct Service {
    spans: Arc<Mutex<Vec<Span>>>,
    headers: &'static [(&'static str, &'static str)],
}

#[tonic::async_trait]
impl TraceService for Service {
    async fn export(
        &self,
        request: Request<ExportTraceServiceRequest>,
    ) -> Result<Response<ExportTraceServiceResponse>, Status> {
        for (name, value) in self.headers {
            let found = request.metadata().get(*name).map(|found| found.as_bytes());
            if found != Some(value.as_bytes()) {
                return Err(Status::unauthenticated(format!("no {name}: {value}")));
            }
        }
        for of_resource in request.into_inner().resource_spans {
            let resource = texts(of_resource.resource.unwrap_or_default().attributes);
            let spans = of_resource.scope_spans.into_iter().flat_map(|scope| scope.spans);
            self.spans.lock().unwrap().extend(spans.map(|span| Span {
                trace: span.trace_id,
                id: span.span_id,
                parent: span.parent_span_id,
                name: span.name,
                kind: span.kind,
                error: span.status.filter(|status| status.code == 2).map(|status| status.message),
                start_ns: span.start_time_unix_nano,
                end_ns: span.end_time_unix_nano,
                attributes: texts(span.attributes),
                resource: resource.clone(),
            }));
        }
        Ok(Response::new(ExportTraceServiceResponse::default()))
    }
}

fn texts(attributes: Vec<KeyValue>) -> BTreeMap<String, String> {
    let text = |value: any_value::Value| match value {
        any_value::Value::StringValue(text) => text,
        any_value::Value::IntValue(number) => number.to_string(),
        other => format!("{other:?}"),
    };
    let pairs = attributes.into_iter().filter_map(|pair| Some((pair.key, pair.value?.value?)));
    pairs.map(|(key, value)| (key, text(value))).collect()
}
