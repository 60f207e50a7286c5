//! Identity of a process towards its servers and its callers.

use crate::tls::{Tls, TlsConfig, TlsError};
use std::sync::Arc;

/// Name of a process without a role of its own.
const OTHER: &str = "other";

/// Role of a process, with its proof. A plain identity has no proof: its connections are not
/// encrypted, and its callers need not identify themselves.
#[derive(Clone, Debug, Default)]
pub struct Identity {
    role: Option<&'static str>,
    tls: Option<Arc<Tls>>,
}

impl Identity {
    /// Makes an identity with an unproven role.
    pub fn plain(role: &'static str) -> Self {
        Self { role: Some(role), tls: None }
    }

    /// Loads a role with the certificate that these settings name; it is plain if they name none.
    ///
    /// # Errors
    /// [`TlsError`]: a missing or wrong file, or a certificate of other roles.
    pub fn load(role: &'static str, config: &TlsConfig) -> Result<Self, TlsError> {
        let tls = Tls::load(role, config)?.map(Arc::new);
        Ok(Self { role: Some(role), tls })
    }

    /// Returns whether connections are encrypted and both ends prove their identity.
    pub fn is_proven(&self) -> bool {
        self.tls.is_some()
    }

    /// Reads the files again as they change; never ends. New connections use the new content,
    /// existing ones go on. Unusable files leave everything as it was.
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
