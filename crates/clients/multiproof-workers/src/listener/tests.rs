use super::*;

const NOW: u64 = 1_700_000_000_000;

fn filter() -> HeartbeatFilter {
    HeartbeatFilter {
        rules: EndpointRules::default(),
        members: Members::default(),
        ignored: IgnoredHeartbeats::default(),
        start: Instant::now(),
    }
}

fn beat(name: &str) -> Heartbeat {
    Heartbeat {
        id: name.parse().unwrap(),
        incarnation: NOW,
        sequence: 0,
        endpoint: "http://10.0.0.7:9601".to_owned(),
        interval: Duration::from_secs(1),
        leaving: false,
    }
}

/// Returns a message of a user that may publish on the subject of this worker.
fn said_as(name: &str, heartbeat: Heartbeat) -> Message {
    let payload = WorkerAlive(heartbeat).encode();
    Message { payload, context: None, member: Some(subject_token(name).into()) }
}

fn said(heartbeat: Heartbeat) -> Message {
    said_as(heartbeat.id.clone().as_str(), heartbeat)
}

fn alive(filter: &HeartbeatFilter) -> Vec<&str> {
    filter.members.alive().map(|heartbeat| heartbeat.id.as_str()).collect()
}

#[test]
fn a_worker_speaks_for_itself_alone() {
    let mut filter = filter();
    assert!(filter.receive(&said(beat("host.example:9601")), NOW));
    let goodbye = Heartbeat { leaving: true, sequence: 1, ..beat("host.example:9601") };
    assert!(!filter.receive(&said_as("other", goodbye.clone()), NOW));
    assert!(!filter.receive(&Message { member: None, ..said(goodbye.clone()) }, NOW));
    assert_eq!(alive(&filter), ["host.example:9601"]);
    assert!(filter.receive(&said(goodbye), NOW), "its own word counts");
    assert_eq!(alive(&filter), [""; 0]);
}

#[test]
fn an_endpoint_that_is_not_allowed_is_never_connected_to_and_takes_no_place() {
    let mut filter = filter();
    for (n, endpoint) in [
        "http://127.0.0.1:23333/latest/meta-data",
        "javascript:1",
        "http://user:pw@10.0.0.7:9601",
        "http://169.254.169.254:9601",
        "http://8.8.8.8:9601",
    ]
    .into_iter()
    .cycle()
    .take(500)
    .enumerate()
    {
        let forged = Heartbeat { endpoint: endpoint.to_owned(), ..beat(&format!("invented-{n}")) };
        assert!(!filter.receive(&said(forged), NOW), "{endpoint}");
    }
    assert_eq!(alive(&filter), [""; 0]);
    assert!(filter.receive(&said(beat("real")), NOW));
    // A known worker does not move there either.
    let moved =
        Heartbeat { endpoint: "http://8.8.8.8:9601".to_owned(), sequence: 1, ..beat("real") };
    assert!(!filter.receive(&said(moved), NOW));
    assert_eq!(filter.members.alive().next().unwrap().endpoint, "http://10.0.0.7:9601");
}

#[test]
fn a_heartbeat_of_tomorrow_does_not_silence_the_worker_of_today() {
    let mut filter = filter();
    let tomorrow = Heartbeat { incarnation: NOW + 86_400_000, ..beat("w1") };
    let last = Heartbeat { incarnation: u64::MAX, leaving: true, ..beat("w1") };
    assert!(!filter.receive(&said(tomorrow), NOW));
    assert!(!filter.receive(&said(last), NOW));
    assert!(filter.receive(&said(beat("w1")), NOW));
    assert_eq!(alive(&filter), ["w1"]);
}
