//! A bucket: as much of S3's protocol as snapshots need.

use axum::{
    Router,
    body::Bytes,
    extract::{DefaultBodyLimit, State},
    http::{HeaderMap, Method, StatusCode, Uri, header},
    response::{IntoResponse, Response},
};
use std::{
    collections::BTreeMap,
    fmt::Write,
    net::SocketAddr,
    sync::{Arc, Mutex},
};
use tokio::net::TcpListener;

/// Name of the bucket.
pub const BUCKET: &str = "backups";

const TIME: &str = "Thu, 26 Nov 2026 12:00:00 GMT";

/// Objects by key, and the requests that were refused for the lack of a signature.
#[derive(Default)]
pub struct Bucket {
    pub objects: Mutex<BTreeMap<String, Bytes>>,
    pub unsigned: Mutex<u64>,
}

impl Bucket {
    /// Starts the server. Returns it with its address.
    pub async fn start() -> (Arc<Self>, SocketAddr) {
        let bucket = Arc::new(Self::default());
        let router = Router::new()
            .fallback(answer)
            .layer(DefaultBodyLimit::disable())
            .with_state(bucket.clone());
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async { axum::serve(listener, router).await });
        (bucket, address)
    }

    fn list(&self, prefix: &str) -> String {
        let mut text = "<ListBucketResult>".to_owned();
        for (key, object) in self.objects.lock().unwrap().iter() {
            if key.starts_with(prefix) {
                let _ = write!(
                    text,
                    "<Contents><Key>{key}</Key><Size>{}</Size>\
                     <LastModified>2026-11-26T12:00:00.000Z</LastModified></Contents>",
                    object.len()
                );
            }
        }
        text + "</ListBucketResult>"
    }
}

async fn answer(
    State(bucket): State<Arc<Bucket>>,
    method: Method,
    uri: Uri,
    headers: HeaderMap,
    body: Bytes,
) -> Response {
    let signature = headers.get(header::AUTHORIZATION).and_then(|it| it.to_str().ok());
    if !signature.is_some_and(|it| it.starts_with("AWS4-HMAC-SHA256 Credential=user/")) {
        *bucket.unsigned.lock().unwrap() += 1;
        return StatusCode::FORBIDDEN.into_response();
    }
    let key = uri.path().trim_start_matches('/').strip_prefix(BUCKET).unwrap_or_default();
    let key = key.trim_start_matches('/').to_owned();
    if key.is_empty() {
        let query = uri.query().unwrap_or_default().replace("%2F", "/");
        let prefix = query.split('&').find_map(|it| it.strip_prefix("prefix=")).unwrap_or_default();
        return bucket.list(prefix).into_response();
    }
    let tags = [(header::ETAG, "\"1\""), (header::LAST_MODIFIED, TIME)];
    if method == Method::PUT {
        bucket.objects.lock().unwrap().insert(key, body);
        return (tags, ()).into_response();
    }
    let found = bucket.objects.lock().unwrap().get(&key).cloned();
    match found {
        None => StatusCode::NOT_FOUND.into_response(),
        Some(object) if method == Method::HEAD => {
            (tags, [(header::CONTENT_LENGTH, object.len().to_string())]).into_response()
        }
        Some(object) => (tags, object).into_response(),
    }
}
