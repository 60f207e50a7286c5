//! Authentication of the Engine API: JSON web tokens signed with HMAC-SHA-256. The key is a secret
//! of 32 bytes that the execution and the consensus client share through a file.
//!
//! Source: execution-apis, `src/engine/authentication.md`; RFC 7515 and RFC 7519.

#![forbid(unsafe_code)]
#![cfg_attr(test, allow(clippy::unwrap_used))]

mod error;
mod secret;
mod token;

pub use error::Error;
pub use secret::{Secret, create_private, readable_by_others};
pub use token::{IAT_TOLERANCE_SECONDS, sign, verify};
