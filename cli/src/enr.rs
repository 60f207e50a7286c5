//! `tandem enr`: decodes and encodes node records (EIP-778) for people.

mod entries;
#[cfg(test)]
mod tests;

use anyhow::{Context, bail, ensure};
use clap::Subcommand;
use entries::{EncodedEntry, entry};
use serde_json::{Map, Value, json};
use std::{
    fs,
    io::{self, Read, Write},
    net::{IpAddr, Ipv4Addr, Ipv6Addr},
    path::{Path, PathBuf},
    process::ExitCode,
};
use tandem_discv4::{Client, Endpoint, Enr, EnrBuilder, ForkId, Node, NodeKey, NodeUrl};

/// Maximum size of records read from standard input.
const INPUT_BYTES_MAX: u64 = 64 << 20;

/// Options of `tandem enr`.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Decode records; records with an invalid signature are refused
    Decode(DecodeArgs),
    /// Make and sign a record
    Encode(EncodeArgs),
}

#[derive(clap::Args)]
struct DecodeArgs {
    /// Records, as enr:… or 0x and the RLP in hex; - reads them from standard input, one per line
    #[arg(value_name = "RECORD", required = true)]
    records: Vec<String>,
    /// Write JSON, one line per record
    #[arg(long)]
    json: bool,
}

#[derive(clap::Args)]
struct EncodeArgs {
    /// File with the node key, 64 hex digits, such as the file nodekey of a data directory
    #[arg(long, value_name = "FILE")]
    key: PathBuf,
    /// Sequence number; a greater one is newer
    #[arg(long, value_name = "N", default_value_t = 1)]
    seq: u64,
    /// IPv4 address
    #[arg(long, value_name = "IP")]
    ip: Option<Ipv4Addr>,
    /// UDP port, of discovery
    #[arg(long, value_name = "PORT")]
    udp: Option<u16>,
    /// TCP port, of RLPx
    #[arg(long, value_name = "PORT")]
    tcp: Option<u16>,
    /// IPv6 address
    #[arg(long, value_name = "IP")]
    ip6: Option<Ipv6Addr>,
    /// UDP port for IPv6, if different
    #[arg(long, value_name = "PORT")]
    udp6: Option<u16>,
    /// TCP port for IPv6, if different
    #[arg(long, value_name = "PORT")]
    tcp6: Option<u16>,
    /// Fork id (EIP-2124): the hash in hex, and the next fork if one is known
    #[arg(long, value_name = "HASH[,NEXT]", value_parser = fork_id)]
    eth: Option<ForkId>,
    /// Software of the node (EIP-7636)
    #[arg(long, value_name = "NAME,VERSION[,BUILD]", value_parser = client)]
    client: Option<Client>,
    /// Any other entry, its value as RLP in hex; may be given several times
    #[arg(long = "set", value_name = "NAME=0xRLP")]
    entries: Vec<EncodedEntry>,
}

fn fork_id(text: &str) -> Result<ForkId, String> {
    let (hash, next) = text.split_once(',').unwrap_or((text, "0"));
    let hash = const_hex::decode_to_array(hash).map_err(|_| "the hash has 8 hex digits")?;
    let next = next.parse().map_err(|_| format!("{next:?} is not a block number or time"))?;
    Ok(ForkId { hash, next })
}

fn client(text: &str) -> Result<Client, String> {
    let mut parts = text.split(',').map(str::to_owned);
    let (Some(name), Some(version), build, None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Err(
            "expected a name, a version and perhaps a build, with commas between".to_owned()
        );
    };
    if !text.bytes().all(|byte| byte.is_ascii_graphic() || byte == b' ') {
        return Err("expected printable ASCII".to_owned());
    }
    Ok(Client { name, version, build })
}

/// Runs the command.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let mut out = io::stdout().lock();
    let done = match &args.command {
        Command::Decode(args) => decode(args, &mut out),
        Command::Encode(args) => encode(args, &mut out),
    };
    match done {
        // The reader of the output has seen enough.
        Err(error) if is_broken_pipe(&error) => Ok(ExitCode::SUCCESS),
        done => done.map(|()| ExitCode::SUCCESS),
    }
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let error = error.downcast_ref::<io::Error>();
    error.is_some_and(|error| error.kind() == io::ErrorKind::BrokenPipe)
}

fn decode(args: &DecodeArgs, out: &mut impl Write) -> anyhow::Result<()> {
    let mut first = true;
    for text in &args.records {
        let from_stdin = if text == "-" { Some(stdin()?) } else { None };
        let lines = from_stdin.as_ref().unwrap_or(text).lines();
        for text in lines.map(str::trim).filter(|line| !line.is_empty()) {
            let record = parse(text).with_context(|| shortened(text))?;
            if args.json {
                writeln!(out, "{}", as_json(&record))?;
                continue;
            }
            if !std::mem::take(&mut first) {
                writeln!(out)?;
            }
            print(&record, out)?;
        }
    }
    Ok(())
}

fn stdin() -> anyhow::Result<String> {
    let mut text = String::new();
    let read = io::stdin().take(INPUT_BYTES_MAX + 1).read_to_string(&mut text);
    let read = read.context("read standard input")?;
    ensure!(
        read as u64 <= INPUT_BYTES_MAX,
        "standard input is longer than {INPUT_BYTES_MAX} bytes"
    );
    Ok(text)
}

/// Returns the start of a text, enough to find it, with control characters escaped.
fn shortened(text: &str) -> String {
    let start: String = text.chars().take(40).collect();
    let more = if start.len() < text.len() { "…" } else { "" };
    format!("{}{more}", start.escape_debug())
}

fn parse(text: &str) -> anyhow::Result<Enr> {
    match text.strip_prefix("0x") {
        Some(hex) => Ok(Enr::decode(&const_hex::decode(hex).context("the RLP is not hex")?)?),
        None => Ok(text.parse()?),
    }
}

/// Returns the node URL of a record, or `None` if the record has no address or no port for it.
pub fn node_url(record: &Enr) -> Option<NodeUrl> {
    let (ip, udp_port, tcp_port) = match record.ip4() {
        Some(ip) => (IpAddr::from(ip), record.udp4(), record.tcp4()),
        None => (IpAddr::from(record.ip6()?), record.udp6(), record.tcp6()),
    };
    let endpoint = Endpoint { ip, udp_port: udp_port?, tcp_port: tcp_port.unwrap_or(0) };
    Some(NodeUrl(Node { key: *record.key(), endpoint }))
}

fn print(record: &Enr, out: &mut impl Write) -> io::Result<()> {
    writeln!(out, "sequence    {}", record.seq())?;
    writeln!(out, "signature   valid, identity scheme v4")?;
    writeln!(out, "public key  0x{}", const_hex::encode(record.key()))?;
    writeln!(out, "node id     {}", record.id())?;
    if let Some(url) = node_url(record) {
        writeln!(out, "node URL    {url}")?;
    }
    writeln!(out, "size        {} of 300 bytes", record.rlp().len())?;
    let width = record.pairs().map(|(name, _)| name.escape_ascii().count()).max().unwrap_or(0);
    for (name, value) in record.pairs() {
        let shown = entry(name, value);
        writeln!(out, "  {:width$}  {shown}", name.escape_ascii().to_string())?;
    }
    Ok(())
}

fn as_json(record: &Enr) -> Value {
    let pairs: Map<_, _> = record
        .pairs()
        .map(|(name, value)| (name.escape_ascii().to_string(), entry(name, value).to_json()))
        .collect();
    json!({
        "enr": record.to_string(),
        "seq": record.seq(),
        "publicKey": format!("0x{}", const_hex::encode(record.key())),
        "nodeId": record.id(),
        "enode": node_url(record).map(|url| url.to_string()),
        "pairs": pairs,
    })
}

fn encode(args: &EncodeArgs, out: &mut impl Write) -> anyhow::Result<()> {
    let record = build(args)?;
    writeln!(out, "{record}")?;
    Ok(())
}

fn build(args: &EncodeArgs) -> anyhow::Result<Enr> {
    let key = read_key(&args.key)?;
    let mut builder = EnrBuilder::new(args.seq);
    if let Some(ip) = args.ip {
        builder = builder.set("ip", &ip.octets());
    }
    if let Some(ip) = args.ip6 {
        builder = builder.set("ip6", &ip.octets());
    }
    let ports = [("udp", args.udp), ("tcp", args.tcp), ("udp6", args.udp6), ("tcp6", args.tcp6)];
    for (name, port) in ports {
        match port {
            Some(0) => bail!("--{name} 0: a record says no port by leaving it out"),
            Some(port) => builder = builder.set(name, &port),
            None => {}
        }
    }
    if let Some(fork_id) = args.eth {
        builder = builder.eth(fork_id);
    }
    if let Some(client) = &args.client {
        builder = builder.client(client);
    }
    for entry in &args.entries {
        builder = builder.set(&entry.name, entry);
    }
    let record = builder.sign(&key)?;
    // Decoded as a reader would: entries given as RLP may still be unreadable.
    Enr::decode(record.rlp()).context("the entries do not make a valid record")?;
    Ok(record)
}

fn read_key(path: &Path) -> anyhow::Result<NodeKey> {
    let text = fs::read_to_string(path).with_context(|| format!("read {}", path.display()))?;
    let bytes = const_hex::decode_to_array(text.trim()).ok();
    let key = bytes.and_then(NodeKey::from_bytes);
    key.with_context(|| format!("{} does not hold 64 hex digits of a node key", path.display()))
}
