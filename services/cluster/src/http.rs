//! `/metrics`, `/livez`, `/readyz`.

use axum::{Router, routing::get};
use tandem_telemetry::Telemetry;

/// The operator's port. A node listens only once its services are up, so being reachable is being
/// ready.
pub fn operations_router(telemetry: Telemetry) -> Router {
    Router::new()
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(|| async { "ok\n" }))
        .route("/metrics", get(move || async move { telemetry.render_metrics() }))
}
