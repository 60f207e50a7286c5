use crate::Error;
use std::fmt;
use std::fs::{self, File, FileType, OpenOptions};
use std::io::{self, Read, Write};
use std::path::Path;

/// Longest secret file that is read, in bytes: 66 characters and some white space.
const FILE_BYTES_MAX: u64 = 1024;

/// Key that both ends of the Engine API share. Its bytes never appear in logs.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret([u8; 32]);

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

impl Secret {
    /// Makes a secret of these bytes.
    pub const fn new(bytes: [u8; 32]) -> Self {
        Self(bytes)
    }

    /// Makes a secret from the operating system's randomness.
    pub fn random() -> Self {
        Self(rand::random())
    }

    /// Reads a secret file: 64 hex digits, with or without `0x`. White space around them is
    /// ignored.
    ///
    /// # Errors
    /// [`Error::SecretFile`] if the file cannot be read, [`Error::SecretKind`] if it is a
    /// directory, a FIFO or a device, [`Error::SecretFormat`] if it holds anything else.
    pub fn load(path: &Path) -> Result<Self, Error> {
        let file = open(path).map_err(|error| file_error(path, error))?;
        let kind = file.metadata().map_err(|error| file_error(path, error))?.file_type();
        if !kind.is_file() {
            return Err(Error::SecretKind { path: path.into(), found: kind_of(kind) });
        }
        let text = read(file).map_err(|error| file_error(path, error))?;
        parse(&text).map_err(|found| Error::SecretFormat { path: path.into(), found })
    }

    /// Reads the secret file, or creates it with a random secret if it is missing. Only its owner
    /// may read a file created here (mode 0600).
    ///
    /// # Errors
    /// See [`Secret::load`]; also [`Error::SecretFile`] if the file cannot be created.
    pub fn load_or_create(path: &Path) -> Result<Self, Error> {
        match create(path) {
            Ok(secret) => Ok(secret),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Self::load(path),
            // A directory that cannot be written to may still hold a secret that can be read.
            Err(error) => Self::load(path).map_err(|load_error| match load_error {
                Error::SecretFile { error: reason, .. }
                    if reason.kind() == io::ErrorKind::NotFound =>
                {
                    file_error(path, error)
                }
                other => other,
            }),
        }
    }

    /// Returns the 32 bytes.
    pub(crate) fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

/// Returns whether users other than the owner may read this file, which deserves a warning but no
/// error. A file of another user that is readable by its group is shared with this process on
/// purpose, like a mounted volume.
///
/// # Errors
/// Error of the operating system if the file's metadata cannot be read.
pub fn readable_by_others(path: &Path) -> io::Result<bool> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let metadata = fs::metadata(path)?;
        let is_own = metadata.uid() == rustix::process::geteuid().as_raw();
        Ok(metadata.mode() & if is_own { 0o077 } else { 0o007 } != 0)
    }
    #[cfg(not(unix))]
    {
        fs::metadata(path).map(|_| false)
    }
}

fn file_error(path: &Path, error: io::Error) -> Error {
    Error::SecretFile { path: path.into(), error }
}

/// Opens a file without blocking: opening a FIFO would otherwise wait for a writer.
fn open(path: &Path) -> io::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        options.custom_flags(rustix::fs::OFlags::NONBLOCK.bits() as i32);
    }
    options.open(path)
}

fn kind_of(kind: FileType) -> &'static str {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        if kind.is_fifo() {
            return "a FIFO";
        }
        if kind.is_char_device() || kind.is_block_device() {
            return "a device";
        }
    }
    if kind.is_dir() { "a directory" } else { "something else" }
}

fn read(file: File) -> io::Result<Vec<u8>> {
    let mut text = Vec::new();
    file.take(FILE_BYTES_MAX + 1).read_to_end(&mut text)?;
    Ok(text)
}

fn parse(text: &[u8]) -> Result<Secret, String> {
    let text = text.trim_ascii();
    if text.is_empty() {
        return Err("nothing".into());
    }
    let digits = text.strip_prefix(b"0x").unwrap_or(text);
    let mut bytes = [0; 32];
    if digits.len() != 64 {
        return Err(match digits.len() as u64 > FILE_BYTES_MAX - 2 {
            true => format!("more than {FILE_BYTES_MAX} bytes"),
            false => format!("{} characters", digits.len()),
        });
    }
    const_hex::decode_to_slice(digits, &mut bytes)
        .map_err(|_| "64 characters that are not all hex digits".to_owned())?;
    Ok(Secret(bytes))
}

fn create(path: &Path) -> io::Result<Secret> {
    let secret = Secret::random();
    create_private(path, const_hex::encode(secret.0).as_bytes())?;
    Ok(secret)
}

/// Creates a file that only its owner may read (mode 0600), and syncs it to disk. It appears whole
/// or not at all: it is written under a temporary name beside `path`, and linked into place. Of
/// several processes that create it at once, one succeeds, and the others may read it at once.
///
/// # Errors
/// Error of the operating system; [`io::ErrorKind::AlreadyExists`] if the file exists, which is
/// left unchanged.
pub fn create_private(path: &Path, contents: &[u8]) -> io::Result<()> {
    if fs::symlink_metadata(path).is_ok() {
        return Err(io::ErrorKind::AlreadyExists.into());
    }
    let name = path.file_name().ok_or(io::ErrorKind::InvalidInput)?.to_string_lossy();
    let part = path.with_file_name(format!(".{name}.{:016x}", rand::random::<u64>()));
    let created = write_private(&part, contents).and_then(|()| fs::hard_link(&part, path));
    // A part that stays behind is not read by anything.
    let _ = fs::remove_file(&part);
    created
}

/// Writes a new file that only its owner may read.
fn write_private(path: &Path, contents: &[u8]) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        options.mode(0o600);
    }
    let mut file = options.open(path)?;
    file.write_all(contents)?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    /// Temporary path for one test, removed afterwards.
    struct TempPath(PathBuf);

    impl TempPath {
        fn new() -> Self {
            let name = format!("tandem-auth-{:016x}", rand::random::<u64>());
            Self(std::env::temp_dir().join(name))
        }

        fn with(text: &str) -> Self {
            let path = Self::new();
            fs::write(&path.0, text).unwrap();
            path
        }
    }

    impl Drop for TempPath {
        fn drop(&mut self) {
            let _ = fs::remove_file(&self.0);
        }
    }

    #[test]
    fn a_missing_file_is_made_once_and_private() {
        let path = TempPath::new();
        let secret = Secret::load_or_create(&path.0).unwrap();
        assert_eq!(Secret::load_or_create(&path.0).unwrap(), secret);
        assert_eq!(Secret::load(&path.0).unwrap(), secret);
        assert!(!readable_by_others(&path.0).unwrap());
        assert_eq!(fs::read(&path.0).unwrap().len(), 64);
    }

    #[test]
    fn a_private_file_never_takes_the_place_of_another() {
        let path = TempPath::with("old");
        let error = create_private(&path.0, b"new").unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
        assert_eq!(fs::read(&path.0).unwrap(), b"old");
    }

    /// A reader never finds half of the file, and all processes end up with one content.
    #[test]
    fn of_many_that_create_a_file_at_once_one_succeeds_and_the_others_read_its_content() {
        let path = TempPath::new();
        let create = |number: usize| {
            let contents = number.to_string().repeat(1000);
            match create_private(&path.0, contents.as_bytes()) {
                Ok(()) => (true, contents),
                Err(error) => {
                    assert_eq!(error.kind(), io::ErrorKind::AlreadyExists);
                    (false, fs::read_to_string(&path.0).unwrap())
                }
            }
        };
        let barrier = std::sync::Barrier::new(8);
        let found: Vec<_> = std::thread::scope(|scope| {
            let start = |number| {
                let barrier = &barrier;
                scope.spawn(move || {
                    barrier.wait();
                    create(number)
                })
            };
            let threads: Vec<_> = (0..8).map(start).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(found.iter().filter(|(created, _)| *created).count(), 1);
        assert!(found.iter().all(|(_, contents)| *contents == found[0].1), "{found:?}");
        let own = format!(".{}.", path.0.file_name().unwrap().to_string_lossy());
        let parts = fs::read_dir(std::env::temp_dir()).unwrap();
        let mut parts = parts.map(|part| part.unwrap().file_name().into_string().unwrap());
        assert!(parts.all(|name| !name.starts_with(&own)), "a part stays behind");
    }

    #[test]
    fn prefix_case_and_white_space_do_not_matter() {
        let digits = "0123456789abcdefABCDEF000000000000000000000000000000000000000001";
        let want = Secret::load(&TempPath::with(digits).0).unwrap();
        for text in [format!("0x{digits}"), format!("\n {digits}\r\n"), format!("0x{digits}\n")] {
            assert_eq!(Secret::load(&TempPath::with(&text).0).unwrap(), want);
        }
    }

    #[test]
    fn a_wrong_content_is_named_but_not_shown() {
        for (text, found) in [
            (String::new(), "nothing"),
            ("ab".repeat(31), "62 characters"),
            ("ab".repeat(33), "66 characters"),
            ("zz".repeat(32), "64 characters that are not all hex digits"),
            ("a".repeat(5000), "more than 1024 bytes"),
        ] {
            let error = Secret::load(&TempPath::with(&text).0).unwrap_err().to_string();
            assert!(error.ends_with(found), "{error}");
        }
    }

    #[test]
    fn what_is_no_regular_file_is_named_at_once() {
        let fifo = TempPath::new();
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        rustix::fs::mkfifoat(rustix::fs::CWD, &fifo.0, mode).unwrap();
        let directory = std::env::temp_dir();
        for (path, found) in [
            (fifo.0.as_path(), "a FIFO"),
            (Path::new("/dev/zero"), "a device"),
            (&directory, "a directory"),
        ] {
            let error = Secret::load_or_create(path).unwrap_err().to_string();
            let want = format!("{}: expected a regular file, found {found}", path.display());
            assert!(error.ends_with(&want), "{error}");
        }
    }

    #[test]
    fn a_file_that_others_may_read_is_noticed() {
        use std::os::unix::fs::PermissionsExt;
        let path = TempPath::with("text");
        for (mode, noticed) in [(0o600, false), (0o400, false), (0o640, true), (0o604, true)] {
            fs::set_permissions(&path.0, fs::Permissions::from_mode(mode)).unwrap();
            assert_eq!(readable_by_others(&path.0).unwrap(), noticed, "{mode:o}");
        }
    }

    #[test]
    fn a_file_that_cannot_be_made_is_an_error_with_its_path() {
        let path = Path::new("/nonexistent-directory/jwt.hex");
        let error = Secret::load_or_create(path).unwrap_err().to_string();
        assert!(error.contains("/nonexistent-directory/jwt.hex"), "{error}");
        assert!(Secret::load_or_create(Path::new("/")).is_err());
    }

    #[test]
    fn the_bytes_stay_out_of_debug_output() {
        assert_eq!(format!("{:?}", Secret::new([0xab; 32])), "Secret(..)");
    }
}
