//! `tandem secrets`: what the services of a deployment show each other to be let in.

use anyhow::Context;
use std::{
    fmt::Write as _,
    fs, io,
    path::{Path, PathBuf},
    process::ExitCode,
};
use tandem_auth::{Secret, create_private};

/// Whoever logs in at NATS: the six services, and people.
const NATS_USERS: [&str; 7] = [
    "discovery",
    "peer-table",
    "blob-validator",
    "executor",
    "multiproof-workers",
    "storage-writer",
    "operator",
];

/// Options of `tandem secrets`.
#[derive(clap::Args)]
pub struct Args {
    /// Directory to write to; made when missing. It holds `engine/jwt.hex`, the secret of the Engine
    /// API's tokens, `USER/nats-password` for each user of deploy/nats.conf, and
    /// `nats/passwords.conf`, which that file includes
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// A worker with a NATS user of its own, `worker-NAME`, whose password is made too; may be given
    /// several times. deploy/nats.conf says how it is bound to the worker's subject
    #[arg(long = "worker", value_name = "NAME", value_parser = worker_name)]
    workers: Vec<String>,
}

/// A name that is the same as a subject, a folder and, but for `-`, a variable.
fn worker_name(name: &str) -> Result<String, String> {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if (1..=48).contains(&name.len()) && name.bytes().all(fits) {
        Ok(name.to_owned())
    } else {
        Err("expected 1 to 48 lowercase letters, digits and `-`".to_owned())
    }
}

/// Writes what is missing; secrets that are there stay.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    let made = write(&args.folder, &args.workers)?;
    eprintln!("{}: {made} secrets made, the others were there", args.folder.display());
    Ok(ExitCode::SUCCESS)
}

/// How many secrets were made.
fn write(folder: &Path, workers: &[String]) -> anyhow::Result<u32> {
    let jwt = folder.join("engine/jwt.hex");
    let mut made = u32::from(!jwt.exists());
    make_folder(&jwt)?;
    Secret::load_or_create(&jwt)?;
    let mut variables = String::new();
    let workers = workers.iter().map(|worker| format!("worker-{worker}"));
    for user in NATS_USERS.into_iter().map(str::to_owned).chain(workers) {
        let path = folder.join(&user).join("nats-password");
        make_folder(&path)?;
        let password = const_hex::encode(rand::random::<[u8; 32]>());
        match create_private(&path, password.as_bytes()) {
            Ok(()) => made += 1,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error).with_context(|| format!("make {}", path.display())),
        }
        let password = fs::read_to_string(&path);
        let password = password.with_context(|| format!("read {}", path.display()))?;
        let name = user.replace('-', "_");
        let _ = writeln!(variables, "{name}_password: {:?}", password.trim());
    }
    replace(&folder.join("nats/passwords.conf"), &variables)?;
    Ok(made)
}

/// In place of the file that was there, whole or not at all.
pub fn replace(path: &Path, contents: &str) -> anyhow::Result<()> {
    make_folder(path)?;
    let part = path.with_extension("part");
    let written = match fs::remove_file(&part) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => create_private(&part, contents.as_bytes()).and_then(|()| fs::rename(&part, path)),
    };
    written.with_context(|| format!("write {}", path.display()))
}

fn make_folder(file: &Path) -> anyhow::Result<()> {
    let folder = file.parent().unwrap_or(file);
    fs::create_dir_all(folder).with_context(|| format!("make {}", folder.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{collections::BTreeSet, os::unix::fs::PermissionsExt};

    fn files(folder: &Path) -> Vec<PathBuf> {
        let passwords = NATS_USERS.map(|user| folder.join(user).join("nats-password"));
        let others = ["engine/jwt.hex", "nats/passwords.conf"].map(|file| folder.join(file));
        passwords.into_iter().chain(others).collect()
    }

    #[test]
    fn every_secret_differs_and_only_the_owner_reads_it() {
        let folder = tempfile::tempdir().unwrap();
        assert_eq!(write(folder.path(), &[]).unwrap(), 8);
        let files = files(folder.path());
        let texts: BTreeSet<_> = files.iter().map(|file| fs::read(file).unwrap()).collect();
        assert_eq!(texts.len(), files.len());
        for file in files {
            let mode = fs::metadata(&file).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{}", file.display());
        }
    }

    #[test]
    fn what_is_there_stays_and_the_servers_list_follows_it() {
        let folder = tempfile::tempdir().unwrap();
        let chosen = folder.path().join("executor/nats-password");
        make_folder(&chosen).unwrap();
        fs::write(&chosen, "chosen\n").unwrap();
        assert_eq!(write(folder.path(), &[]).unwrap(), 7);
        let before: Vec<_> =
            files(folder.path()).iter().map(|file| fs::read(file).unwrap()).collect();
        assert_eq!(write(folder.path(), &[]).unwrap(), 0);
        let after: Vec<_> =
            files(folder.path()).iter().map(|file| fs::read(file).unwrap()).collect();
        assert!(before == after);
        let list = fs::read_to_string(folder.path().join("nats/passwords.conf")).unwrap();
        assert!(list.contains("executor_password: \"chosen\"\n"), "{list}");
        assert_eq!(list.lines().count(), NATS_USERS.len());
    }

    #[test]
    fn a_worker_with_a_user_of_its_own_has_a_password_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let workers = ["w1", "w-2"].map(str::to_owned);
        assert_eq!(write(folder.path(), &workers).unwrap(), 10);
        let password = |user: &str| {
            fs::read_to_string(folder.path().join(user).join("nats-password")).unwrap()
        };
        let list = fs::read_to_string(folder.path().join("nats/passwords.conf")).unwrap();
        for (user, variable) in [("worker-w1", "worker_w1"), ("worker-w-2", "worker_w_2")] {
            let line = format!("{variable}_password: {:?}\n", password(user));
            assert!(list.contains(&line), "{list}");
        }
        assert_ne!(password("worker-w1"), password("worker-w-2"));
        for name in ["", "a.b", "a*", "a/b", "../a", "A", "a_b"] {
            assert!(worker_name(name).is_err(), "{name}");
        }
    }
}
