//! Large texts of an operator's port, such as metrics and recent traces. Few are served at a time,
//! because each takes memory until it is sent. `/livez` and `/readyz` need no place, so they answer
//! even while all places are taken.

use crate::connection::Connection;
use crate::methods::off_reactor;
use crate::places::Places;
use crate::refusals::{Reason, Refusals};
use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::http::{Extensions, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::timeout;

/// Maximum wait for a place.
const PLACE_TIME_MAX: Duration = Duration::from_secs(5);

/// Maximum number of simultaneous reports of metrics.
const METRICS_MAX: usize = 8;

/// Maximum number of simultaneous reports of traces: each may have tens of megabytes.
const TRACES_MAX: usize = 2;

/// Returns the newest traces as JSON, at most the requested number. May block.
pub type Traces = Arc<dyn Fn(usize) -> String + Send + Sync>;

/// Returns a text. May block.
pub type Text = Arc<dyn Fn() -> String + Send + Sync>;

struct Reports<T> {
    make: T,
    places: Places,
    refusals: Refusals,
}

impl<T> Reports<T> {
    fn new(make: T, reports_max: usize) -> Arc<Self> {
        let (places, refusals) = (Places::new(reports_max, u64::MAX), Refusals::new("metrics"));
        Arc::new(Self { make, places, refusals })
    }

    async fn serve(
        &self,
        extensions: &Extensions,
        kind: &'static str,
        make: impl FnOnce() -> String + Send + 'static,
    ) -> Response {
        let connection = extensions.get::<Arc<Connection>>();
        let Ok(Some(place)) = timeout(PLACE_TIME_MAX, self.places.wait(connection)).await else {
            let text = "too many reports at once";
            self.refusals.count(Reason::Overload, text);
            return (StatusCode::SERVICE_UNAVAILABLE, format!("{text}\n")).into_response();
        };
        match off_reactor(move || Ok(make())).await {
            Ok(text) => ([(header::CONTENT_TYPE, kind)], place.send_and_keep(text)).into_response(),
            Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        }
    }
}

/// Returns the routes `GET /metrics`, and `GET /debug/traces?n=COUNT` for the recent traces.
pub fn reports_router(metrics: Text, traces: Traces) -> Router {
    let metrics = get(serve_metrics).with_state(Reports::new(metrics, METRICS_MAX));
    let traces = get(serve_traces).with_state(Reports::new(traces, TRACES_MAX));
    Router::new().route("/metrics", metrics).route("/debug/traces", traces)
}

async fn serve_metrics(State(reports): State<Arc<Reports<Text>>>, request: Request) -> Response {
    let (head, body) = request.into_parts();
    drop::<Body>(body);
    let make = reports.make.clone();
    reports.serve(&head.extensions, "text/plain; charset=utf-8", move || make()).await
}

async fn serve_traces(State(reports): State<Arc<Reports<Traces>>>, request: Request) -> Response {
    const TRACES_MAX: usize = 10_000;
    let (head, body) = request.into_parts();
    drop::<Body>(body);
    let count = match head.uri.query() {
        None | Some("") => Some(100),
        Some(query) => query.strip_prefix("n=").and_then(|count| count.parse::<usize>().ok()),
    };
    let Some(count) = count.map(|count| count.min(TRACES_MAX)) else {
        return (StatusCode::BAD_REQUEST, "the only parameter is n=COUNT\n").into_response();
    };
    let make = reports.make.clone();
    reports.serve(&head.extensions, "application/json", move || make(count)).await
}
