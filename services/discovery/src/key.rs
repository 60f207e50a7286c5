//! The node key: the identity of this node across restarts.

use crate::Error;
use std::{fs, io::ErrorKind, path::Path};
use tandem_auth::{create_private, readable_by_others};
use tandem_discv4::NodeKey;
use tracing::{info, warn};

/// File of the key in the data directory: 64 hex digits.
const FILE: &str = "nodekey";

/// Reads the node key from the data directory. Creates it if it is missing, readable by the owner
/// alone. discovery and sessions share the key, as a node has one identity: if two processes create
/// it at once, both get the same.
///
/// # Errors
/// [`Error::NodeKey`], [`Error::Io`].
pub fn load_or_create(datadir: &Path) -> Result<NodeKey, Error> {
    let path = datadir.join(FILE);
    match load(&path)? {
        Some(key) => Ok(key),
        None => create(&path),
    }
}

/// Reads the key, or returns `None` if there is no file.
fn load(path: &Path) -> Result<Option<NodeKey>, Error> {
    let text = match fs::read_to_string(path) {
        Ok(text) => text,
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(Error::io(format!("read {}", path.display()))(error)),
    };
    if readable_by_others(path).unwrap_or(false) {
        warn!(path = %path.display(), "others may read the node key");
    }
    let bytes = const_hex::decode_to_array(text.trim()).ok();
    bytes.and_then(NodeKey::from_bytes).map(Some).ok_or_else(|| Error::NodeKey(path.to_owned()))
}

fn create(path: &Path) -> Result<NodeKey, Error> {
    let what = || Error::io(format!("write {}", path.display()));
    let key = NodeKey::random(&mut rand::rng());
    if let Some(datadir) = path.parent() {
        fs::create_dir_all(datadir).map_err(what())?;
    }
    match create_private(path, const_hex::encode(key.secret_bytes()).as_bytes()) {
        Ok(()) => {
            info!(path = %path.display(), "node key created");
            Ok(key)
        }
        // Another process was faster. Its key is never overwritten.
        Err(error) if error.kind() == ErrorKind::AlreadyExists => {
            load(path)?.ok_or_else(|| what()(error))
        }
        Err(error) => Err(what()(error)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_made_once_and_kept_from_others() {
        let folder = tempfile::tempdir().unwrap();
        let datadir = folder.path().join("new");
        let key = load_or_create(&datadir).unwrap();
        assert!(!readable_by_others(&datadir.join(FILE)).unwrap());
        assert_eq!(load_or_create(&datadir).unwrap().public(), key.public());
    }

    /// discovery and peer-sessions start at the same time, over one directory.
    #[test]
    fn those_that_make_the_key_at_once_get_the_same() {
        for _ in 0..20 {
            let folder = tempfile::tempdir().unwrap();
            let datadir = folder.path().join("new");
            let keys: Vec<_> = std::thread::scope(|scope| {
                let load = || *load_or_create(&datadir).unwrap().public();
                let threads: Vec<_> = (0..4).map(|_| scope.spawn(load)).collect();
                threads.into_iter().map(|thread| thread.join().unwrap()).collect()
            });
            assert!(keys.iter().all(|key| *key == keys[0]), "{keys:?}");
            assert_eq!(fs::read_dir(&datadir).unwrap().count(), 1, "only the key is there");
        }
    }

    #[test]
    fn a_file_that_holds_no_key_is_refused_and_left_alone() {
        let folder = tempfile::tempdir().unwrap();
        for text in ["", "0x", "zz", &"00".repeat(32), &"ff".repeat(32), &"11".repeat(31)] {
            fs::write(folder.path().join(FILE), text).unwrap();
            assert!(matches!(load_or_create(folder.path()), Err(Error::NodeKey(_))), "{text}");
            assert_eq!(fs::read_to_string(folder.path().join(FILE)).unwrap(), text);
        }
    }
}
