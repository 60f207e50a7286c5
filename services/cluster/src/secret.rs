//! Loads the secret file of the Engine API's tokens.

use std::path::Path;
use tandem_auth::{Secret, readable_by_others};
use tracing::warn;

/// Reads the secret file, or creates it if there is none. Logs a warning if other users may read
/// it.
pub fn load_or_create(path: &Path) -> Result<Secret, tandem_auth::Error> {
    let secret = Secret::load_or_create(path)?;
    if readable_by_others(path).unwrap_or(false) {
        warn!(path = %path.display(), "others may read the JWT secret; expected mode 0600");
    }
    Ok(secret)
}
