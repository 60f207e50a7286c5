//! `/metrics`, `/livez`, `/readyz`, `/debug/traces`.

use axum::{Router, http::StatusCode, routing::get};
use parking_lot::RwLock;
use std::sync::Arc;
use tandem_executor::rpc::reports_router;
use tandem_telemetry::{Telemetry, publish_ready};

/// What must hold for a service to be of use, for `/readyz`.
#[derive(Clone, Default)]
pub struct Readiness {
    conditions: Arc<RwLock<Vec<Condition>>>,
}

struct Condition {
    /// What is there when it holds, such as `storage-writer`.
    name: &'static str,
    holds: Box<dyn Fn() -> bool + Send + Sync>,
}

impl Readiness {
    /// From now on this must hold too. It is asked on the reactor and must not wait.
    pub fn require(&self, name: &'static str, holds: impl Fn() -> bool + Send + Sync + 'static) {
        self.conditions.write().push(Condition { name, holds: Box::new(holds) });
    }

    /// The first that does not hold, `None` when all do.
    pub fn missing(&self) -> Option<&'static str> {
        let conditions = self.conditions.read();
        conditions.iter().find(|condition| !(condition.holds)()).map(|condition| condition.name)
    }
}

/// The operator's port. `/debug/traces` has the recent spans of this process, also of one that has no
/// other port for HTTP. `/readyz` is 503 with the reason while a condition does not hold. It and
/// `/livez` answer at once, whatever else is asked for.
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
