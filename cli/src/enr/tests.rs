use super::*;
use clap::Parser;

/// The example record of EIP-778.
const EXAMPLE: &str = "enr:-IS4QHCYrYZbAKWCBRlAy5zzaDZXJBGkcnh4MHcBFZntXNFrdvJjX04jRzjzCBOonrkT\
                       fj499SZuOh8R33Ls8RRcy5wBgmlkgnY0gmlwhH8AAAGJc2VjcDI1NmsxoQPKY0yuDUmstAHYpMa2_oxVt\
                       w0RW_QAdpzBQA8yWM0xOIN1ZHCCdl8";

#[derive(Parser)]
struct Cli {
    #[command(flatten)]
    args: Args,
}

fn decoded(record: &str, json: bool) -> Result<String, String> {
    let args = DecodeArgs { records: vec![record.to_owned()], json };
    let mut out = Vec::new();
    match decode(&args, &mut out) {
        Ok(()) => Ok(String::from_utf8(out).unwrap()),
        Err(error) => Err(format!("{error:#}")),
    }
}

#[test]
fn the_example_of_eip_778_is_decoded_as_the_eip_says() {
    let text = decoded(EXAMPLE, false).unwrap();
    for line in [
        "sequence    1\n",
        "node id     0xa448f24c6d18e575453db13171562b71999873db5b286df957af199ec94617f7\n",
        "  id         v4\n",
        "  ip         127.0.0.1\n",
        "  secp256k1  0x03ca634cae0d49acb401d8a4c6b6fe8c55b70d115bf400769cc1400f3258cd3138\n",
        "  udp        30303\n",
    ] {
        assert!(text.contains(line), "{line:?} in\n{text}");
    }
    let json: Value = serde_json::from_str(&decoded(EXAMPLE, true).unwrap()).unwrap();
    assert_eq!(json["pairs"]["udp"], json!(30303));
    assert_eq!(json["enr"], json!(EXAMPLE));
    let url = json["enode"].as_str().unwrap();
    assert!(url.ends_with("@127.0.0.1:0?discport=30303"), "{url}");
    let rlp = EXAMPLE.parse::<Enr>().unwrap().rlp().to_string();
    assert_eq!(decoded(&rlp, false).unwrap(), text, "the RLP is the same record");
}

#[test]
fn what_is_no_record_is_refused_with_the_reason() {
    let changed = EXAMPLE.replace("HCYr", "HCYs");
    let cases = [
        ("enode://00@1.2.3.4:1", "record text is not enr: and base64"),
        ("enr:!!", "record text is not enr: and base64"),
        ("0xzz", "the RLP is not hex"),
        ("0xc0", "record: input too short"),
        ("\u{1b}[2J", "\\u{1b}[2J: record text is not enr: and base64"),
        (changed.as_str(), "record signature is invalid"),
    ];
    for (text, reason) in cases {
        let error = decoded(text, false).unwrap_err();
        assert!(error.contains(reason), "{text}: {error}");
    }
    let long = format!("enr:{}", "A".repeat(1000));
    assert!(decoded(&long, false).unwrap_err().contains("larger than 300 bytes"));
}

fn encoded(options: &[&str]) -> Result<Enr, String> {
    let folder = tempfile::tempdir().unwrap();
    let key = folder.path().join("nodekey");
    fs::write(&key, "b71c71a67e1177ad4e901695e1b4b9ee17ae16c6668d313eac2f96dbcda3f291\n").unwrap();
    let command = ["enr", "encode", "--key", key.to_str().unwrap()];
    let cli = Cli::try_parse_from(command.iter().chain(options)).map_err(|e| e.to_string())?;
    let Command::Encode(args) = cli.args.command else { unreachable!() };
    build(&args).map_err(|error| format!("{error:#}"))
}

#[test]
fn the_example_of_eip_778_is_what_its_key_makes() {
    let record = encoded(&["--seq", "1", "--ip", "127.0.0.1", "--udp", "30303"]).unwrap();
    let example: Enr = EXAMPLE.parse().unwrap();
    assert_eq!(record.key(), example.key());
    // The signature in the EIP was made with another nonce, and is equally valid.
    assert!(record.pairs().eq(example.pairs()) && record.seq() == example.seq());
}

#[test]
fn all_entries_come_back_from_the_text() {
    let options = [
        "--seq=7",
        "--ip=1.2.3.4",
        "--udp=1",
        "--tcp=2",
        "--ip6=2001:db8::1",
        "--udp6=3",
        "--tcp6=4",
        "--eth=0x9f3d2254,17",
        "--client=Tandem,0.1.0,abc",
        "--set",
        "snap=0xc0",
        "--set",
        "zz=0x83010203",
    ];
    let record = encoded(&options).unwrap();
    let text = decoded(&record.to_string(), false).unwrap();
    for line in [
        "  client     Tandem, 0.1.0, abc\n",
        "  eth        fork 0x9f3d2254, next at 17\n",
        "  ip6        2001:db8::1\n",
        "  tcp6       4\n",
        "  snap       RLP 0xc0\n",
        "  zz         RLP 0x83010203\n",
    ] {
        assert!(text.contains(line), "{line:?} in\n{text}");
    }
}

#[test]
fn what_makes_no_record_is_refused_with_the_reason() {
    let large = format!("zz=0xb8fa{}", "00".repeat(250));
    let cases: [(&[&str], &str); 9] = [
        (&["--udp", "0"], "--udp 0: a record says no port by leaving it out"),
        (&["--eth", "9f3d"], "the hash has 8 hex digits"),
        (&["--eth", "9f3d2254,soon"], "\"soon\" is not a block number or time"),
        (&["--client", "Tandem"], "expected a name, a version and perhaps a build"),
        (&["--set", "id=0x8276"], "id comes from the key"),
        (&["--set", "zz"], "expected NAME=0xRLP"),
        (&["--set", "zz=0x8101"], "no RLP"),
        (&["--set", "zz=0x0102"], "more than one item"),
        (&["--set", &large], "record is larger than 300 bytes"),
    ];
    for (options, reason) in cases {
        let error = encoded(options).unwrap_err();
        assert!(error.contains(reason), "{options:?}: {error}");
    }
    let missing = read_key(Path::new("/nowhere/nodekey")).unwrap_err();
    assert_eq!(missing.to_string(), "read /nowhere/nodekey");
}
