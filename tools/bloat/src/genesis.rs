//! The state of a plan as a genesis file.

use crate::{Base, CODE, Plan};
use alloy_primitives::hex;
use anyhow::Context;
use flate2::{Compression, write::GzEncoder};
use std::{
    fs::File,
    io::{self, BufWriter, Write},
    path::Path,
};
use tandem_primitives::EMPTY_CODE_HASH;
use tandem_storage_writer::StateAt;

/// Writes the state as a genesis file in geth's format; in gzip if the name ends with `.gz`. The memory
/// that this takes does not grow with the state, but a program that reads the file may need much. If the
/// state is that of block 1, the genesis file has no account.
///
/// # Errors
/// Returns an error that names the file.
pub fn write_genesis(plan: &Plan, base: &Base, at: StateAt, path: &Path) -> anyhow::Result<()> {
    let write = || {
        let file = BufWriter::with_capacity(1 << 20, File::create(path)?);
        if path.extension().is_some_and(|extension| extension == "gz") {
            let mut out =
                BufWriter::with_capacity(1 << 16, GzEncoder::new(file, Compression::fast()));
            write_json(plan, base, at, &mut out)?;
            out.into_inner().map_err(io::IntoInnerError::into_error)?.finish()?.flush()
        } else {
            let mut out = file;
            write_json(plan, base, at, &mut out)?;
            out.flush()
        }
    };
    write().with_context(|| format!("write {}", path.display()))
}

fn write_json(plan: &Plan, base: &Base, at: StateAt, out: &mut impl Write) -> io::Result<()> {
    // The base is an object without `alloc`: that comes before its end.
    let json = base.json.strip_suffix('}').unwrap_or_default();
    let comma = if json.len() > 1 { "," } else { "" };
    write!(out, "{json}{comma}\"alloc\":{{")?;
    if at == StateAt::Block1 {
        return writeln!(out, "}}}}");
    }
    let mut separator = "\n";
    for (address, entry) in &base.alloc {
        write!(out, "{separator}{}:{entry}", serde_json::Value::from(address.as_str()))?;
        separator = ",\n";
    }
    let code = hex::encode_prefixed(CODE);
    for number in 0..plan.accounts() {
        let account = plan.account(number);
        write!(
            out,
            "{separator}\"{:#x}\":{{\"nonce\":\"{:#x}\",\"balance\":\"{:#x}\"",
            plan.address(number),
            account.nonce,
            account.balance
        )?;
        separator = ",\n";
        if account.code_hash != EMPTY_CODE_HASH {
            write!(out, ",\"code\":\"{code}\",\"storage\":{{")?;
            for slot in 0..plan.slots_of(number) {
                let comma = if slot == 0 { "" } else { "," };
                let value = plan.value(number, slot);
                write!(out, "{comma}\"{:#x}\":\"{value:#066x}\"", Plan::slot(slot))?;
            }
            write!(out, "}}")?;
        }
        write!(out, "}}")?;
    }
    write!(out, "\n}}}}\n")
}
