//! All nodes that were found, and tables of them.

use super::networks::network_of;
use serde_json::{Value, json};
use std::{
    collections::BTreeMap,
    fmt::Write as _,
    io::{self, Write},
};
use tandem_discv4::{Endpoint, Enr, ForkId, Node, NodeUrl};
use tandem_primitives::B512;
use tandem_proto::event::{Contact, ContactEvent};

/// Nodes that were found.
#[derive(Default)]
pub struct Census {
    nodes: BTreeMap<B512, Found>,
}

/// Facts known about one node.
struct Found {
    endpoint: Endpoint,
    answered: bool,
    record: Option<Enr>,
}

impl Census {
    /// Adds what discovery learned. Returns whether any of it is new.
    pub fn learn(&mut self, contacts: Vec<Contact>) -> bool {
        let before = (self.known(), self.answered(), self.records());
        for contact in contacts {
            self.learn_one(&contact);
        }
        before != (self.known(), self.answered(), self.records())
    }

    fn learn_one(&mut self, contact: &Contact) {
        let Contact { id, ip, udp_port, tcp_port, event, .. } = *contact;
        let answered = matches!(event, ContactEvent::Answered | ContactEvent::EnrReceived);
        if !answered && event != ContactEvent::Seen {
            return;
        }
        let endpoint = Endpoint { ip, udp_port, tcp_port };
        let new = Found { endpoint, answered, record: None };
        let found = self.nodes.entry(id).or_insert(new);
        // The endpoint from which the node answered counts more than what other nodes say.
        if answered {
            let tcp_port = if tcp_port == 0 { found.endpoint.tcp_port } else { tcp_port };
            (found.endpoint, found.answered) = (Endpoint { tcp_port, ..endpoint }, true);
        }
        let record = contact.enr.as_ref().and_then(|rlp| Enr::decode(rlp).ok());
        let newer =
            |record: &Enr| found.record.as_ref().is_none_or(|held| held.seq() < record.seq());
        if let Some(record) = record.filter(|record| *record.key() == id && newer(record)) {
            found.record = Some(record);
        }
    }

    /// Returns the number of nodes heard of.
    pub fn known(&self) -> usize {
        self.nodes.len()
    }

    /// Returns the number of nodes that answered.
    pub fn answered(&self) -> usize {
        self.nodes.values().filter(|found| found.answered).count()
    }

    /// Returns the number of nodes that sent their record.
    pub fn records(&self) -> usize {
        self.nodes.values().filter(|found| found.record.is_some()).count()
    }

    fn counted(&self, answered: bool) -> impl Iterator<Item = (&B512, &Found)> {
        self.nodes.iter().filter(move |(_, found)| found.answered || !answered)
    }

    /// Writes one line of JSON for each node, or only for nodes that answered if `answered`.
    pub fn write_json(&self, out: &mut dyn Write, answered: bool) -> io::Result<()> {
        for (id, found) in self.counted(answered) {
            writeln!(out, "{}", found.to_json(id))?;
        }
        Ok(())
    }

    /// Returns the number of nodes for each fork and client, most first.
    pub fn table(&self, answered: bool) -> String {
        let mut counts: BTreeMap<[String; 3], usize> = BTreeMap::new();
        let mut total = 0;
        for (_, found) in self.counted(answered) {
            *counts.entry(found.row()).or_default() += 1;
            total += 1;
        }
        let mut rows: Vec<_> = counts.into_iter().collect();
        rows.sort_by(|(a, few), (b, many)| many.cmp(few).then_with(|| a.cmp(b)));
        let width = |column: usize, title: &str| {
            rows.iter().map(|(row, _)| row[column].len()).fold(title.len(), usize::max)
        };
        let titles = ["fork id", "network", "client"];
        let widths: [usize; 3] = std::array::from_fn(|column| width(column, titles[column]));
        let mut text = String::new();
        let titles = (titles.map(str::to_owned), "nodes".to_owned());
        let rows = rows.into_iter().map(|(row, count)| (row, count.to_string()));
        for ([fork, network, client], count) in [titles].into_iter().chain(rows) {
            let [a, b, c] = widths;
            let _ = writeln!(text, "{fork:a$}  {network:b$}  {client:c$}  {count:>6}");
        }
        let (answered, records) = (self.answered(), self.records());
        let _ = writeln!(
            text,
            "\n{total} nodes counted, {answered} answered, {records} records. The client is what a \
             record says of itself (entry \"client\", EIP-7636); most say nothing."
        );
        text
    }
}

impl Found {
    fn fork_id(&self) -> Option<ForkId> {
        self.record.as_ref().and_then(Enr::eth)
    }

    /// Returns fork id, network and client, for the table.
    fn row(&self) -> [String; 3] {
        let Some(record) = &self.record else {
            return ["no record".to_owned(), "-".to_owned(), "-".to_owned()];
        };
        let fork_id = self.fork_id();
        let fork = match fork_id {
            Some(ForkId { hash, next: 0 }) => format!("0x{}", const_hex::encode(hash)),
            Some(ForkId { hash, next }) => format!("0x{}, next {next}", const_hex::encode(hash)),
            None => "no entry eth".to_owned(),
        };
        let network = fork_id.and_then(|id| network_of(id.hash));
        let network = network.map_or_else(|| "-".to_owned(), |network| network.to_string());
        let client = record.client().map_or_else(|| "not said".to_owned(), |client| client.name);
        [fork, network, client]
    }

    fn to_json(&self, id: &B512) -> Value {
        let record = self.record.as_ref();
        let fork_id = self.fork_id();
        json!({
            "publicKey": format!("0x{}", const_hex::encode(id)),
            "enode": NodeUrl(Node { key: *id, endpoint: self.endpoint }).to_string(),
            "ip": self.endpoint.ip,
            "udp": self.endpoint.udp_port,
            "tcp": self.endpoint.tcp_port,
            "answered": self.answered,
            "seq": record.map(Enr::seq),
            "forkHash": fork_id.map(|id| format!("0x{}", const_hex::encode(id.hash))),
            "forkNext": fork_id.map(|id| id.next),
            "network": fork_id.and_then(|id| network_of(id.hash)).map(|network| network.to_string()),
            "client": record.and_then(Enr::client).map(|client| client.to_string()),
            "enr": record.map(Enr::to_string),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tandem_discv4::{Client, EnrBuilder, NodeKey};
    use tandem_primitives::Bytes;

    fn key(n: u8) -> NodeKey {
        NodeKey::from_bytes([n; 32]).unwrap()
    }

    fn contact(n: u8, event: ContactEvent, record: Option<&Enr>) -> Contact {
        Contact {
            id: *key(n).public(),
            ip: [127, 0, 0, n].into(),
            udp_port: 30303,
            tcp_port: 0,
            enr_seq: record.map(Enr::seq),
            enr: record.map(|record| Bytes::from(record.rlp().to_vec())),
            event,
        }
    }

    fn record(n: u8, seq: u64, name: &str) -> Enr {
        let client = Client { name: name.into(), version: "1".into(), build: None };
        let fork_id = ForkId { hash: [0x9f, 0x3d, 0x22, 0x54], next: 17 };
        EnrBuilder::new(seq).eth(fork_id).client(&client).sign(&key(n)).unwrap()
    }

    #[test]
    fn nodes_are_counted_once_by_fork_and_client() {
        use ContactEvent::{Answered, Asked, EnrReceived, Failed, Seen};
        let mut census = Census::default();
        assert!(census.learn((1..=6).map(|n| contact(n, Seen, None)).collect()));
        assert!(!census.learn((1..=6).map(|n| contact(n, Seen, None)).collect()), "nothing new");
        assert!(!census.learn(vec![contact(9, Asked, None), contact(9, Failed, None)]));
        census.learn((1..=5).map(|n| contact(n, Answered, None)).collect());
        for n in 1..=2 {
            census.learn(vec![contact(n, EnrReceived, Some(&record(n, 1, "Tandem")))]);
        }
        census.learn(vec![contact(3, EnrReceived, Some(&record(3, 1, "Geth")))]);
        let plain = EnrBuilder::new(1).sign(&key(4)).unwrap();
        census.learn(vec![contact(4, EnrReceived, Some(&plain))]);
        // The record of another node, and an older one, change nothing.
        census.learn(vec![contact(5, EnrReceived, Some(&record(1, 9, "Tandem")))]);
        census.learn(vec![contact(1, EnrReceived, Some(&record(1, 0, "Old")))]);
        assert_eq!((census.known(), census.answered(), census.records()), (6, 5, 4));

        let table = census.table(false);
        let rows: Vec<Vec<_>> = table.lines().map(|row| row.split("  ").collect()).collect();
        let cells = |row: &[&str]| row.iter().map(|cell| cell.trim()).collect::<Vec<_>>().join("|");
        assert!(cells(&rows[0]).starts_with("fork id|"), "{table}");
        for (row, start) in [
            (1, "0x9f3d2254, next 17|mainnet|Tandem|"),
            (2, "no record|"),
            (3, "0x9f3d2254, next 17|mainnet|Geth|"),
            (4, "no entry eth|"),
        ] {
            assert!(cells(&rows[row]).starts_with(start), "{row}: {table}");
        }
        assert!(table.contains("6 nodes counted, 5 answered, 4 records."), "{table}");
        assert!(census.table(true).contains("5 nodes counted"));
    }

    #[test]
    fn a_line_of_json_says_all_that_is_known() {
        let mut census = Census::default();
        census.learn(vec![contact(1, ContactEvent::EnrReceived, Some(&record(1, 3, "Tandem")))]);
        census.learn(vec![contact(2, ContactEvent::Seen, None)]);
        let lines = |answered| {
            let mut out = Vec::new();
            census.write_json(&mut out, answered).unwrap();
            let text = String::from_utf8(out).unwrap();
            text.lines().map(|line| serde_json::from_str(line).unwrap()).collect::<Vec<Value>>()
        };
        assert_eq!(lines(false).len(), 2);
        let node = &lines(true)[0];
        for (name, value) in [
            ("ip", json!("127.0.0.1")),
            ("answered", json!(true)),
            ("seq", json!(3)),
            ("forkHash", json!("0x9f3d2254")),
            ("forkNext", json!(17)),
            ("network", json!("mainnet")),
            ("client", json!("Tandem/1")),
        ] {
            assert_eq!(node[name], value, "{name}");
        }
        assert!(node["enode"].as_str().unwrap().parse::<NodeUrl>().is_ok());
        assert!(node["enr"].as_str().unwrap().parse::<Enr>().is_ok());
    }
}
