//! The fixture formats, one module each.

use crate::Suite;

/// All suites. A file belongs to the first that takes it.
pub const ALL: &[&dyn Suite] = &[];
