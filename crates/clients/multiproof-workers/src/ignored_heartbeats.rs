use crate::metrics;
use ::metrics::counter;
use std::time::Instant;
use tandem_membership::{EndpointRefusal, Ignored, WorkerId};
use tandem_rpc::LogRateLimit;
use tracing::warn;

/// Heartbeats that are ignored: all are counted, and the log names each worker once a minute.
pub struct IgnoredHeartbeats(LogRateLimit<(Option<WorkerId>, &'static str)>);

impl Default for IgnoredHeartbeats {
    fn default() -> Self {
        Self(LogRateLimit::minutely())
    }
}

impl IgnoredHeartbeats {
    /// Notes a heartbeat that cannot be read.
    pub fn malformed(&self, bytes: usize) {
        if let Some(kept_back) = self.count(None, "malformed") {
            warn!(bytes, kept_back, "malformed heartbeat of a worker");
        }
    }

    /// Notes a heartbeat that names a worker other than that of its subject.
    pub fn name(&self, worker: &WorkerId, subject: Option<&str>) {
        if let Some(kept_back) = self.count(Some(worker), "name") {
            warn!(%worker, subject, kept_back, "heartbeat in the name of another worker");
        }
    }

    /// Notes a heartbeat with an endpoint that is not allowed. The endpoint may be any text.
    pub fn endpoint(&self, worker: &WorkerId, endpoint: &str, refusal: &EndpointRefusal) {
        if let Some(kept_back) = self.count(Some(worker), "endpoint") {
            warn!(%worker, ?endpoint, reason = %refusal, kept_back,
                "endpoint of a worker refused; `fleet.heard_*` says which are allowed");
        }
    }

    /// Notes a heartbeat that is ignored for its time, or because there is no place for its worker.
    pub fn ignored(&self, worker: &WorkerId, ignored: &Ignored) {
        if let Some(kept_back) = self.count(Some(worker), ignored.name()) {
            warn!(%worker, reason = %ignored, kept_back, "heartbeat of a worker ignored");
        }
    }

    fn count(&self, worker: Option<&WorkerId>, reason: &'static str) -> Option<u64> {
        counter!(metrics::HEARTBEATS_IGNORED, "reason" => reason).increment(1);
        self.0.allow(Instant::now(), (worker.cloned(), reason))
    }
}
