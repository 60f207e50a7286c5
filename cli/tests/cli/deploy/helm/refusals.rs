//! Tests of values that are refused, each with a message that names the value.

use super::{helm, rendered, template};
use std::collections::BTreeMap;

#[test]
fn wrong_values_are_refused_by_name() {
    let Some(helm) = helm() else { return };
    let cases: [(&[&str], &[&str]); 33] = [
        (&["services.executor.replcas=2"], &["services.executor", "replcas"]),
        (&["servcies.executor.replicas=2"], &["servcies"]),
        (&["config.executor.prewarm_thread=2"], &["config.executor", "prewarm_thread"]),
        (&["services.executor.replicas=-1"], &["services.executor.replicas", "-1"]),
        (&["services.executor.replicas=two"], &["services.executor.replicas"]),
        (&["services.storage-writer.enabled=false"], &["services.storage-writer", "enabled"]),
        (&["services.executor.resources.limits.memory=lots"], &["resources.limits.memory"]),
        (&["genesis.source=configmap"], &["genesis.source"]),
        (
            &[
                "services.storage-writer.replicas=2",
                "services.storage-writer.persistence.existingClaim=mine",
            ],
            &["existingClaim is mine", "services.storage-writer.replicas is 2"],
        ),
        (
            &["services.multiproof-workers.replicas=17"],
            &["multiproof-workers.replicas is 17", "16"],
        ),
        (&["services.discovery.replicas=2"], &["services.discovery.replicas is 2"]),
        (&["services.peer-sessions.replicas=2"], &["services.peer-sessions.replicas is 2"]),
        (&["services.tx-pool.replicas=2"], &["services.tx-pool.replicas is 2"]),
        (
            &["services.follower.enabled=true", "services.follower.replicas=17"],
            &["have up to 17 pods that follow", "config.storage_writer.feed_readers_max"],
        ),
        (
            &[
                "services.follower.enabled=true",
                "services.follower.autoscaling.enabled=true",
                "config.storage_writer.feed_readers_max=4",
            ],
            &["have up to 8 pods that follow", "has places for 4"],
        ),
        // The node key is a secret now, and nothing else was on that volume.
        (&["services.discovery.persistence.enabled=true"], &["services.discovery", "persistence"]),
        (
            &["services.peer-table.enabled=false", "services.discovery.enabled=false"],
            &["services.peer-table.enabled is false", "services.peer-sessions.enabled is true"],
        ),
        (&["genesis.source=url"], &["genesis.url.address", "genesis.url.sha256"]),
        (&["genesis.source=claim"], &["genesis.claim.name"]),
        (&["nats.enabled=false"], &["nats.url is empty"]),
        (&["nats.auth.enabled=false"], &["nats.auth.enabled is false"]),
        (&["nats.replicas=2"], &["nats.replicas"]),
        (
            &["nats.replicas=3", "tls.enabled=false"],
            &["tls.enabled is false", "nats.replicas is 3"],
        ),
        (
            &["nats.replicas=3", "nats.persistence.existingClaim=mine"],
            &["nats.persistence.existingClaim is mine", "nats.replicas is 3"],
        ),
        (&["nats.url=nats://other:4222"], &["nats.url is nats://other:4222"]),
        (&["tls.secrets.executor=mine"], &["tls.secrets.blob-validator is empty"]),
        (&["tls.certManager.enabled=true"], &["tls.certManager.issuerName"]),
        (&["tls.generated.renewBeforeDays=1825"], &["renewBeforeDays is 1825", "1825"]),
        (
            &["services.executor.ingress.enabled=true"],
            &["services.executor.ingress.hosts is empty"],
        ),
        (
            &[
                "services.executor.ingress.enabled=true",
                "services.executor.ingress.hosts[0].host=a",
            ],
            &["networkPolicies.httpFrom is empty"],
        ),
        (&["tracing.headersSecret.name=a"], &["tracing.headersSecret.name is a", "jaeger"]),
        (&["services.peer-table.enabled=false"], &["services.peer-table.enabled is false"]),
        (&["services.discovery.expose.type=NodePort"], &["services.discovery.expose.nodePort"]),
    ];
    for (set, want) in cases {
        let error = template(&helm, "minimal", set).expect_err(&format!("{set:?} is taken"));
        // Helm writes the path of a value with slashes.
        let said = error.replace('/', ".");
        for part in want {
            assert!(said.contains(&part.replace('/', ".")), "{set:?}: {error}");
        }
    }
}

#[test]
fn numbers_of_autoscaling_must_fit() {
    let Some(helm) = helm() else { return };
    let own = |value: &str| format!("services.multiproof-workers.autoscaling.{value}");
    for (value, want) in [
        ("minReplicas=20", "autoscaling.minReplicas is 20"),
        ("maxReplicas=17", "autoscaling.maxReplicas is 17"),
        ("cpuPercent=null", "neither cpuPercent nor podMetrics"),
    ] {
        let (enabled, value) = (own("enabled=true"), own(value));
        let error = template(&helm, "minimal", &[&enabled, &value]).unwrap_err();
        assert!(error.contains(want), "{value}: {error}");
    }
}

/// Services are upgraded one after the other, each by its image's tag, as in docs/operations.md.
#[test]
fn an_upgrade_may_go_service_by_service() {
    let Some(helm) = helm() else { return };
    let templates = |set: &[&str]| -> BTreeMap<String, String> {
        let objects = super::Objects::parse(&template(&helm, "minimal", set).unwrap());
        let templates = objects.workloads().filter(|workload| workload.is_ours());
        let pairs = templates.map(|it| (it.component().to_owned(), it.template.to_string()));
        pairs.collect()
    };
    let before = templates(&[]);
    for service in super::SERVICES {
        let after = templates(&[&format!("services.{service}.image.tag=9.9.9")]);
        for (name, template) in &after {
            assert_eq!(
                template != &before[name],
                name == service,
                "{name}, when {service} changes"
            );
        }
        assert!(after[service].contains(":9.9.9"));
    }
}

/// A new release of the chart alone must not restart pods.
#[test]
fn pods_do_not_carry_the_version_of_the_chart() {
    for (case, objects) in rendered() {
        for workload in objects.workloads().filter(|workload| workload.is_ours()) {
            let metadata = workload.template["metadata"].to_string();
            let versions = ["helm.sh/chart", "app.kubernetes.io/version"];
            assert!(!versions.iter().any(|it| metadata.contains(it)), "{case}: {metadata}");
        }
    }
}
