//! `tandem db`: the files of a stopped node's database.

use crate::output::print;
use anyhow::Context;
use indicatif::{BinaryBytes, ProgressBar, ProgressDrawTarget, ProgressStyle};
use serde_json::{Value, json};
use std::{
    fmt::Write,
    path::{Path, PathBuf},
    process::ExitCode,
};
use tandem_storage_writer::{
    Compaction, DatabaseFiles, TableShape, compact_tables, copy_database, database_files,
    spread_state, table_names,
};

/// Options of `tandem db`.
#[derive(clap::Args)]
pub struct Args {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand)]
enum Command {
    /// Show each table's files by level, keys and amplification
    Stats {
        /// Directory with the database of a stopped node
        #[arg(long, value_name = "DIR")]
        datadir: PathBuf,
        /// Print the result as JSON
        #[arg(long)]
        json: bool,
    },
    /// Write all data of tables anew into their lowest level, where a read finds it in one place
    Compact {
        /// Directory with the database of a stopped node
        #[arg(long, value_name = "DIR")]
        datadir: PathBuf,
        /// A table to compact; may be repeated
        #[arg(long, value_name = "NAME", required_unless_present = "all", conflicts_with = "all",
            value_parser = clap::builder::PossibleValuesParser::new(table_names()))]
        table: Vec<String>,
        /// Compact all tables
        #[arg(long)]
        all: bool,
        /// Print the result as JSON
        #[arg(long)]
        json: bool,
    },
    /// Copy the database into another data directory. On one volume, both share the files that never
    /// change, so a copy of any size takes a moment
    Copy {
        /// Directory with the database of a stopped node
        #[arg(long, value_name = "DIR")]
        datadir: PathBuf,
        /// Data directory for the copy; created if missing
        #[arg(long, value_name = "DIR")]
        to: PathBuf,
    },
    /// Spread the state over directories, one disk each, which are read at the same time. Without directories, gather
    /// it in the data directory again, also after an interruption
    Spread {
        /// Directory with the database of a stopped node
        #[arg(long, value_name = "DIR")]
        datadir: PathBuf,
        /// Directory for an even part of the 16 shards, missing or empty; may be repeated
        #[arg(long, value_name = "DIR")]
        directory: Vec<PathBuf>,
    },
}

/// Runs a command on the database.
pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    match args.command {
        Command::Stats { datadir, json } => {
            let files = database_files(&datadir)?;
            print(&if json { format!("{}\n", stats_json(&files)) } else { stats(&files) })?;
        }
        Command::Compact { datadir, table, all, json } => {
            let tables = if all { table_names().map(str::to_owned).collect() } else { table };
            let done = compact(&datadir, &tables)?;
            print(&if json {
                format!("{}\n", compactions_json(&done))
            } else {
                compactions(&done)
            })?;
        }
        Command::Copy { datadir, to } => copy_database(&datadir, &to)
            .with_context(|| format!("copy {} to {}", datadir.display(), to.display()))?,
        Command::Spread { datadir, directory } => {
            let bar = bar("copied");
            spread_state(&datadir, &directory, |table, bytes| {
                bar.set_message(table.to_owned());
                bar.set_position(bytes);
            })?;
            bar.finish_and_clear();
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// Makes a progress bar of bytes to which this was done.
fn bar(done: &str) -> ProgressBar {
    let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(5));
    let template =
        format!("{{msg:14}} {{binary_bytes}} {done}  {{binary_bytes_per_sec}}  {{elapsed}}");
    if let Ok(style) = ProgressStyle::with_template(&template) {
        bar.set_style(style);
    }
    bar
}

/// Compacts tables. Shows progress on standard error if that is a terminal.
fn compact(datadir: &Path, tables: &[String]) -> anyhow::Result<Vec<(String, Compaction)>> {
    let bar = bar("written");
    let mut compacted = Vec::new();
    let progress = |table: &str, written| {
        if written == 0 {
            bar.reset();
        }
        bar.set_message(table.to_owned());
        bar.set_position(written);
    };
    let done = |table: &str, compaction| compacted.push((table.to_owned(), compaction));
    compact_tables(datadir, tables, progress, done)?;
    bar.finish_and_clear();
    Ok(compacted)
}

/// Returns the shapes as a table for people.
fn stats(database: &DatabaseFiles) -> String {
    let mut text = format!(
        "{:<14} {:>12} {:>6} {:>13} {:>5} {:>6} {:>11}  {}\n",
        "table", "bytes", "files", "keys", "runs", "space", "blob files", "bytes by level"
    );
    let (mut bytes, mut files) = (0, 0);
    for shape in &database.tables {
        bytes += shape.file_bytes();
        files += shape.files() + shape.blob_files;
        let space = shape.space_amplification().map_or("-".to_owned(), |it| format!("{it:.2}"));
        let blobs = match shape.blob_files {
            0 => "-".to_owned(),
            _ => BinaryBytes(shape.blob_bytes).to_string(),
        };
        let levels: Vec<String> = shape
            .levels
            .iter()
            .map(|it| format!("L{} {} in {}", it.level, BinaryBytes(it.bytes), it.files))
            .collect();
        let _ = writeln!(
            text,
            "{:<14} {:>12} {:>6} {:>13} {:>5} {:>6} {:>11}  {}",
            shape.table,
            BinaryBytes(shape.file_bytes()).to_string(),
            shape.files(),
            shape.keys_estimate,
            shape.sorted_runs(),
            space,
            blobs,
            levels.join(", "),
        );
    }
    let _ = writeln!(text, "{:<14} {:>12} {files:>6}", "all", BinaryBytes(bytes).to_string());
    for (shards, path) in &database.directories {
        let _ = writeln!(text, "shards {shards} in {}", path.display());
    }
    text
}

fn stats_json(database: &DatabaseFiles) -> Value {
    let tables: Vec<Value> = database
        .tables
        .iter()
        .map(|shape| {
            let mut value = json!(shape);
            value["file_bytes"] = shape.file_bytes().into();
            value["sorted_runs"] = shape.sorted_runs().into();
            value["space_amplification"] = shape.space_amplification().into();
            value
        })
        .collect();
    let bytes: u64 = database.tables.iter().map(TableShape::file_bytes).sum();
    let directory = |(shards, path): &(String, PathBuf)| json!({ "shards": shards, "path": path });
    let directories: Vec<Value> = database.directories.iter().map(directory).collect();
    json!({ "file_bytes": bytes, "tables": tables, "directories": directories })
}

/// Returns the results as a table for people.
fn compactions(done: &[(String, Compaction)]) -> String {
    let mut text = format!(
        "{:<14} {:>12} {:>12} {:>12} {:>12}\n",
        "table", "before", "after", "read", "written"
    );
    for (table, compaction) in done {
        let Compaction { bytes_before, bytes_after, read_bytes, written_bytes } = *compaction;
        let [before, after, read, written] = [bytes_before, bytes_after, read_bytes, written_bytes]
            .map(|it| BinaryBytes(it).to_string());
        let _ = writeln!(text, "{table:<14} {before:>12} {after:>12} {read:>12} {written:>12}");
    }
    text
}

fn compactions_json(done: &[(String, Compaction)]) -> Value {
    let table = |(table, compaction): &(String, Compaction)| {
        let mut value = json!(compaction);
        value["table"] = table.as_str().into();
        value
    };
    done.iter().map(table).collect()
}
