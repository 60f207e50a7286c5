//! Standalone discovery, for conformance suites and crawlers:
//!
//!     discovery DATADIR ADDR PORT [BOOTNODE…]
//!
//! Prints its node URL and record, then a line every second, until it is killed or its input ends.
#![allow(clippy::print_stdout)]

#[path = "../tests/common/mod.rs"]
mod common;

use std::{env, error::Error, sync::Arc, thread::sleep, time::Duration};
use tandem_bus::Bus;
use tandem_discovery::{Config, Deps, Discovery};
use tandem_proto::discovery::DiscoveryApi;
use tokio_util::sync::CancellationToken;

fn main() -> Result<(), Box<dyn Error>> {
    let usage = "discovery DATADIR ADDR PORT [BOOTNODE…]";
    let mut arguments = env::args().skip(1);
    let config = Config {
        datadir: arguments.next().ok_or(usage)?.into(),
        addr: arguments.next().ok_or(usage)?.parse()?,
        port: arguments.next().ok_or(usage)?.parse()?,
        bootnodes: arguments.collect(),
        ..Config::default()
    };
    let bus = Bus::default();
    let table = Arc::new(common::MemoryTable::on(&bus));
    let fatal = CancellationToken::new();
    let deps = Deps { table: table.clone(), bus, fork_id: None, fatal: fatal.clone() };
    let discovery = Discovery::start(config, deps)?;
    let status = discovery.status();
    println!("{}\n{}", status.enode, status.enr);
    while !fatal.is_cancelled() {
        sleep(Duration::from_secs(1));
        let status = discovery.status();
        println!(
            "contacts {} proven {} records {} received {} sent {} dropped {}",
            table.contacts().len(),
            table.proven(),
            table.with_enr(),
            status.packets_received,
            status.packets_sent,
            status.packets_dropped,
        );
    }
    Ok(())
}
