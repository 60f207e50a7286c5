use std::fmt::{self, Display};

/// A message that is no value of the domain.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConvertError {
    field: String,
    reason: Reason,
}

/// What is wrong with a field.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Reason {
    /// It must be there.
    #[error("is missing")]
    Missing,
    /// It has a fixed length, or one that other fields give.
    #[error("expected {expected} bytes, got {got}")]
    Length {
        /// Bytes there should be.
        expected: u64,
        /// Bytes there are.
        got: u64,
    },
    /// It is a list of items of fixed size, and the last one is cut off.
    #[error("{got} bytes are not a multiple of {unit}")]
    Ragged {
        /// Bytes of one item.
        unit: usize,
        /// Bytes there are.
        got: usize,
    },
    /// Other fields say how many items it has.
    #[error("expected {expected} items, got {got}")]
    Count {
        /// Items there should be.
        expected: u64,
        /// Items there are.
        got: u64,
    },
    /// It has more items or bytes than one message may.
    #[error("{got} are more than {max}")]
    TooMany {
        /// The limit.
        max: usize,
        /// What there is.
        got: usize,
    },
    /// A number is outside its range.
    #[error("{got} is not in {min}..={max}")]
    OutOfRange {
        /// Least value.
        min: u64,
        /// Greatest value.
        max: u64,
        /// The value.
        got: u64,
    },
    /// Items must ascend.
    #[error("is not in ascending order")]
    NotAscending,
    /// Items must differ.
    #[error("is there twice")]
    Duplicate,
    /// It is a share of a whole.
    #[error("is not between 0 and 1")]
    NotAFraction,
    /// It names a worker.
    #[error("is not 1 to 64 characters of visible ASCII")]
    NotAName,
    /// It names a host.
    #[error("is neither an IP address nor the name of a host")]
    NotAHost,
    /// A number of variable length starts with a zero byte.
    #[error("starts with a zero byte")]
    LeadingZero,
}

impl ConvertError {
    /// The field, from the name of the call down, such as `commit.block.parent`.
    pub fn field(&self) -> &str {
        &self.field
    }

    /// What is wrong with it.
    pub fn reason(&self) -> Reason {
        self.reason
    }

    fn prefix(mut self, outer: &str) -> Self {
        if !self.field.is_empty() && !self.field.starts_with('[') {
            self.field.insert(0, '.');
        }
        self.field.insert_str(0, outer);
        self
    }
}

impl Display for ConvertError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.field, self.reason)
    }
}

impl std::error::Error for ConvertError {}

impl From<Reason> for ConvertError {
    fn from(reason: Reason) -> Self {
        Self { field: String::new(), reason }
    }
}

/// Says where an error is, from the inside out.
pub(super) trait At<T> {
    /// The error is in this field (or path of fields).
    fn at(self, field: &str) -> Result<T, ConvertError>;

    /// The error is in the item at this position.
    fn at_index(self, index: usize) -> Result<T, ConvertError>;
}

impl<T, E: Into<ConvertError>> At<T> for Result<T, E> {
    fn at(self, field: &str) -> Result<T, ConvertError> {
        self.map_err(|error| error.into().prefix(field))
    }

    fn at_index(self, index: usize) -> Result<T, ConvertError> {
        self.map_err(|error| error.into().prefix(&format!("[{index}]")))
    }
}
