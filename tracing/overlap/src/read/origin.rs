//! Origin of spans, by the attributes of their resource.

use std::sync::Arc;

use crate::model::Span;

/// Attributes that name a clock, the best one first. Processes of one host share a clock. In a pod,
/// the name of the host is that of the pod, whose clock is the node's.
const CLOCKS: [&str; 3] = ["k8s.node.name", "host.name", "service.instance.id"];
/// Jaeger's own name for `host.name`.
const JAEGER_HOST: &str = "hostname";

/// Service and clock of a resource's spans.
#[derive(Debug, Default)]
pub(super) struct Origin {
    service: Option<Arc<str>>,
    /// Values of the attributes [`CLOCKS`].
    clocks: [Option<Arc<str>>; 3],
    /// All attributes except the service.
    resource: Vec<(String, String)>,
}

impl Origin {
    /// Records an attribute of the resource.
    pub(super) fn attribute(&mut self, key: &str, value: &str) {
        if key == "service.name" {
            self.service = Some(value.into());
            return;
        }
        self.resource.push((key.to_owned(), value.to_owned()));
        let key = if key == JAEGER_HOST { CLOCKS[1] } else { key };
        if let Some(at) = CLOCKS.iter().position(|clock| *clock == key) {
            self.clocks[at] = Some(value.into());
        }
    }

    /// Writes service, host and resource into `spans`.
    pub(super) fn mark(&self, spans: &mut [Span]) {
        if spans.is_empty() {
            return;
        }
        let service = self.service.clone().unwrap_or_else(|| "unknown".into());
        let host = self.clocks.iter().flatten().next().unwrap_or(&service);
        let resource: Arc<[(String, String)]> = self.resource.as_slice().into();
        for span in spans {
            span.resource = Arc::clone(&resource);
            span.service = Arc::clone(&service);
            span.host = Arc::clone(host);
        }
    }
}
