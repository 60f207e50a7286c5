use std::{
    env,
    path::{Path, PathBuf},
    process::Command,
    sync::OnceLock,
};

/// Returns the path of `nats-server`: on the PATH, in `~/go/bin`, or where `./dev` installs tools.
/// If it is missing and Go is installed, it is compiled there, once. Returns `None` without both.
pub fn nats_server() -> Option<PathBuf> {
    static PLACE: OnceLock<Option<PathBuf>> = OnceLock::new();
    PLACE.get_or_init(|| find().or_else(install)).clone()
}

fn find() -> Option<PathBuf> {
    let home = PathBuf::from(env::var_os("HOME")?);
    let path = env::var_os("PATH").unwrap_or_default();
    let folders = env::split_paths(&path).chain([home.join("go/bin"), tools(&home)]);
    folders.map(|folder| folder.join("nats-server")).find(|file| file.is_file())
}

fn tools(home: &Path) -> PathBuf {
    home.join(".cache/tandem/tools/bin")
}

fn install() -> Option<PathBuf> {
    let folder = tools(Path::new(&env::var_os("HOME")?));
    let go = Command::new("go")
        .args(["install", "github.com/nats-io/nats-server/v2@v2.14.1"])
        .env("GOBIN", &folder)
        .output()
        .ok()?;
    go.status.success().then(|| folder.join("nats-server"))
}
