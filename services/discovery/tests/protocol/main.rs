//! One node and what others may do to it.
#![allow(clippy::unwrap_used, missing_docs)]

mod bench;
mod external;
mod packets;
mod strangers;
