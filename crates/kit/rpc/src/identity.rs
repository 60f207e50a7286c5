//! Who a process is to those that it calls and to those that call it.

use crate::tls::{Tls, TlsConfig, TlsError};
use std::sync::Arc;

/// What a process goes by without a role of its own.
const OTHER: &str = "other";

/// The role of a process, and what proves it. Plain where nothing does: then connections are neither
/// encrypted nor is anybody asked who he is.
#[derive(Clone, Debug, Default)]
pub struct Identity {
    role: Option<&'static str>,
    tls: Option<Arc<Tls>>,
}

impl Identity {
    /// A role that nothing proves.
    pub fn plain(role: &'static str) -> Self {
        Self { role: Some(role), tls: None }
    }

    /// A role with the certificate that these settings name, plain if they name none.
    ///
    /// # Errors
    /// [`TlsError`]: a file that is missing or wrong, or a certificate of other roles.
    pub fn load(role: &'static str, config: &TlsConfig) -> Result<Self, TlsError> {
        let tls = Tls::load(role, config)?.map(Arc::new);
        Ok(Self { role: Some(role), tls })
    }

    /// Whether connections are encrypted and both ends prove who they are.
    pub fn is_proven(&self) -> bool {
        self.tls.is_some()
    }

    /// Reads the files again as they change; never ends. New connections use what is in them, those
    /// that there are go on. Files that cannot be used leave everything as it was.
    pub async fn follow(&self) {
        match &self.tls {
            Some(tls) => tls.follow().await,
            None => std::future::pending().await,
        }
    }

    pub(crate) fn name(&self) -> &'static str {
        self.role.unwrap_or(OTHER)
    }

    pub(crate) fn tls(&self) -> Option<&Arc<Tls>> {
        self.tls.as_ref()
    }
}
