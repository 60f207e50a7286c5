//! One node, and packets that others may send it.
#![allow(clippy::unwrap_used, missing_docs)]

mod bench;
mod external;
mod packets;
mod strangers;
