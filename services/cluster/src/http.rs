//! Serves `/metrics`, `/livez`, `/readyz`, `/debug/traces` and `/debug/pprof/profile`.

use crate::profile::serve_profile;
use axum::{Router, extract::RawQuery, http::StatusCode, routing::get};
use parking_lot::RwLock;
use std::sync::Arc;
use tandem_http::reports_router;
use tandem_telemetry::{Telemetry, publish_ready};

/// Conditions under which a service is ready, for `/readyz`.
#[derive(Clone, Default)]
pub struct Readiness {
    conditions: Arc<RwLock<Vec<Condition>>>,
}

struct Condition {
    /// Name of the thing that is available while the condition holds, such as `storage-writer`.
    name: &'static str,
    holds: Box<dyn Fn() -> bool + Send + Sync>,
}

impl Readiness {
    /// Adds a condition. `holds` is called on the reactor and must not block.
    pub fn require(&self, name: &'static str, holds: impl Fn() -> bool + Send + Sync + 'static) {
        self.conditions.write().push(Condition { name, holds: Box::new(holds) });
    }

    /// Returns the name of the first condition that does not hold, or `None` if all hold.
    pub fn missing(&self) -> Option<&'static str> {
        let conditions = self.conditions.read();
        conditions.iter().find(|condition| !(condition.holds)()).map(|condition| condition.name)
    }
}

/// Returns the routes of the operator's port. `/debug/traces` returns the recent spans of this
/// process. Processes without another HTTP port offer it too. `/readyz` returns 503 with the reason
/// while a condition does not hold. It and `/livez` answer at once, whatever other requests are
/// running.
pub fn operations_router(telemetry: Telemetry, readiness: Readiness) -> Router {
    let asked = readiness.clone();
    let ready = async move || match asked.missing() {
        None => (StatusCode::OK, "ok\n".to_owned()),
        Some(name) => (StatusCode::SERVICE_UNAVAILABLE, format!("waiting for: {name}\n")),
    };
    let ring = telemetry.clone();
    let metrics = Arc::new(move || {
        publish_ready(readiness.missing().is_none());
        telemetry.render_metrics()
    });
    let traces = Arc::new(move |count| ring.traces_json(count));
    reports_router(metrics, traces)
        .route("/debug/pprof/profile", get(async |RawQuery(query)| serve_profile(query).await))
        .route("/livez", get(|| async { "ok\n" }))
        .route("/readyz", get(ready))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    #[test]
    fn all_conditions_must_hold_and_the_first_that_does_not_is_named() {
        let (readiness, connected) = (Readiness::default(), Arc::new(AtomicBool::new(false)));
        assert_eq!(readiness.missing(), None);
        let seen = connected.clone();
        readiness.require("one", || true);
        readiness.require("two", move || seen.load(Relaxed));
        assert_eq!(readiness.missing(), Some("two"));
        connected.store(true, Relaxed);
        assert_eq!(readiness.missing(), None);
        readiness.require("three", || false);
        assert_eq!(readiness.missing(), Some("three"));
    }
}
