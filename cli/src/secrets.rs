//! `tandem secrets`: makes the secrets by which the services of a deployment log in to each other.

use anyhow::{Context, bail};
use std::{
    fmt::Write as _,
    fs::{self, Permissions},
    io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::ExitCode,
};
use tandem_auth::{Secret, create_private};

/// Users of NATS: the services, and people.
const NATS_USERS: [&str; 9] = [
    "discovery",
    "peer-table",
    "peer-sessions",
    "tx-pool",
    "blob-validator",
    "executor",
    "multiproof-workers",
    "storage-writer",
    "operator",
];

/// Secret of the Engine API's tokens.
const JWT: &str = "engine/jwt.hex";

/// Password of Grafana's administrator.
const GRAFANA: &str = "grafana/admin-password";

/// Options of `tandem secrets`.
#[derive(clap::Args)]
pub struct Args {
    /// Directory to write to; created if missing. It holds `engine/jwt.hex`, the secret of the
    /// Engine API's tokens, `USER/nats-password` for each user of deploy/nats.conf,
    /// `nats/passwords.conf`, which that file includes, and `grafana/admin-password`, which the
    /// group may read too
    #[arg(value_name = "DIR")]
    folder: PathBuf,
    /// A worker with its own NATS user, `worker-NAME`, whose password is made too; may be given
    /// several times. deploy/nats.conf says how to bind the user to the worker's subject
    #[arg(long = "worker", value_name = "NAME", value_parser = worker_name)]
    workers: Vec<String>,
    /// A secret to replace by a new one, named by its directory: `engine`, `grafana`, or a NATS
    /// user, such as `executor` or `worker-NAME`; may be given several times
    #[arg(long, value_name = "NAME")]
    renew: Vec<String>,
}

/// Checks a name that serves as a subject, as a folder and, except for `-`, as a variable.
fn worker_name(name: &str) -> Result<String, String> {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    if (1..=48).contains(&name.len()) && name.bytes().all(fits) {
        Ok(name.to_owned())
    } else {
        Err("expected 1 to 48 lowercase letters, digits and `-`".to_owned())
    }
}

/// Writes missing secrets; existing ones stay.
pub fn run(args: &Args) -> anyhow::Result<ExitCode> {
    for name in &args.renew {
        remove(&args.folder, name, &args.workers)?;
    }
    let made = write(&args.folder, &args.workers)?;
    eprintln!("{}: {made} secrets made, the others were there", args.folder.display());
    Ok(ExitCode::SUCCESS)
}

/// Removes the secret of this name, if there is one.
fn remove(folder: &Path, name: &str, workers: &[String]) -> anyhow::Result<()> {
    let is_worker = || workers.iter().any(|worker| name == format!("worker-{worker}"));
    let path = match name {
        "engine" => folder.join(JWT),
        "grafana" => folder.join(GRAFANA),
        user if NATS_USERS.contains(&user) || is_worker() => nats_password(folder, user),
        other => bail!(
            "invalid name `{other}` for --renew; expected engine, grafana, {}, or worker-NAME \
             beside --worker NAME",
            NATS_USERS.join(", ")
        ),
    };
    match fs::remove_file(&path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("remove {}", path.display()))
        }
        _ => Ok(()),
    }
}

/// Writes missing secrets, and returns how many were made.
fn write(folder: &Path, workers: &[String]) -> anyhow::Result<u32> {
    let jwt = folder.join(JWT);
    let is_new = !jwt.exists();
    make_folder(&jwt)?;
    Secret::load_or_create(&jwt)?;
    let nats = write_nats(folder, workers)?;
    replace(&folder.join("nats/passwords.conf"), &nats.variables)?;
    let grafana = folder.join(GRAFANA);
    let has_made = make_password(&grafana)?;
    // Grafana's image runs as a user of its own, which is added to the group.
    fs::set_permissions(&grafana, Permissions::from_mode(0o640))
        .with_context(|| format!("set the mode of {}", grafana.display()))?;
    Ok(u32::from(is_new) + nats.made + u32::from(has_made))
}

/// Writes a random password if there is none. Returns whether it was written.
fn make_password(path: &Path) -> anyhow::Result<bool> {
    make_folder(path)?;
    let password = const_hex::encode(rand::random::<[u8; 32]>());
    match create_private(path, password.as_bytes()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error).with_context(|| format!("make {}", path.display())),
    }
}

/// Passwords of the NATS users.
pub struct NatsPasswords {
    /// Number of passwords that were made.
    pub made: u32,
    /// All passwords, as variables of a configuration file of nats-server.
    pub variables: String,
}

/// Returns the file with the password of a NATS user.
pub fn nats_password(folder: &Path, user: &str) -> PathBuf {
    folder.join(user).join("nats-password")
}

/// Writes missing NATS passwords.
pub fn write_nats(folder: &Path, workers: &[String]) -> anyhow::Result<NatsPasswords> {
    let (mut made, mut variables) = (0, String::new());
    let workers = workers.iter().map(|worker| format!("worker-{worker}"));
    for user in NATS_USERS.into_iter().map(str::to_owned).chain(workers) {
        let path = nats_password(folder, &user);
        made += u32::from(make_password(&path)?);
        let password = fs::read_to_string(&path);
        let password = password.with_context(|| format!("read {}", path.display()))?;
        let name = user.replace('-', "_");
        let _ = writeln!(variables, "{name}_password: {:?}", password.trim());
    }
    Ok(NatsPasswords { made, variables })
}

/// Replaces a file as a whole or not at all.
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
    use std::collections::BTreeSet;

    fn files(folder: &Path) -> Vec<PathBuf> {
        let passwords = NATS_USERS.map(|user| folder.join(user).join("nats-password"));
        let others = ["engine/jwt.hex", "nats/passwords.conf"].map(|file| folder.join(file));
        passwords.into_iter().chain(others).collect()
    }

    #[test]
    fn every_secret_differs_and_only_the_owner_reads_it() {
        let folder = tempfile::tempdir().unwrap();
        // The secret of the Engine API and the password of Grafana besides.
        assert_eq!(write(folder.path(), &[]).unwrap() as usize, NATS_USERS.len() + 2);
        let files = files(folder.path());
        let texts: BTreeSet<_> = files.iter().map(|file| fs::read(file).unwrap()).collect();
        assert_eq!(texts.len(), files.len());
        for file in files {
            let mode = fs::metadata(&file).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o600, "{}", file.display());
        }
        let grafana = folder.path().join("grafana/admin-password");
        assert_eq!(fs::metadata(&grafana).unwrap().permissions().mode() & 0o777, 0o640);
        assert!(!texts.contains(&fs::read(grafana).unwrap()));
    }

    #[test]
    fn what_is_there_stays_and_the_servers_list_follows_it() {
        let folder = tempfile::tempdir().unwrap();
        let chosen = folder.path().join("executor/nats-password");
        make_folder(&chosen).unwrap();
        fs::write(&chosen, "chosen\n").unwrap();
        assert_eq!(write(folder.path(), &[]).unwrap() as usize, NATS_USERS.len() + 1);
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
    fn one_secret_is_replaced_and_the_others_stay() {
        let folder = tempfile::tempdir().unwrap();
        let workers = ["w1".to_owned()];
        write(folder.path(), &workers).unwrap();
        let secrets = [
            ("engine", JWT),
            ("grafana", GRAFANA),
            ("executor", "executor/nats-password"),
            ("worker-w1", "worker-w1/nats-password"),
        ];
        let read =
            || secrets.map(|(_, file)| fs::read_to_string(folder.path().join(file)).unwrap());
        for (at, (name, _)) in secrets.iter().enumerate() {
            let before = read();
            remove(folder.path(), name, &workers).unwrap();
            assert_eq!(write(folder.path(), &workers).unwrap(), 1, "{name}");
            let after = read();
            for (other, (before, after)) in before.iter().zip(&after).enumerate() {
                assert_eq!(before == after, other != at, "{name}");
            }
            let list = fs::read_to_string(folder.path().join("nats/passwords.conf")).unwrap();
            assert!(list.contains(&after[2]) && list.contains(&after[3]), "{list}");
        }
        for name in ["worker-w2", "../executor", ""] {
            let error = remove(folder.path(), name, &workers).unwrap_err().to_string();
            assert!(error.starts_with(&format!("invalid name `{name}` for --renew")), "{error}");
        }
    }

    #[test]
    fn a_worker_with_a_user_of_its_own_has_a_password_of_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let workers = ["w1", "w-2"].map(str::to_owned);
        assert_eq!(write(folder.path(), &workers).unwrap() as usize, NATS_USERS.len() + 4);
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
