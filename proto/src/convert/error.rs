use std::fmt::{self, Display};

/// Error: a message does not convert to a value of the domain.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct ConvertError {
    field: String,
    reason: Reason,
}

/// Fault of a field.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
pub enum Reason {
    /// A required field is missing.
    #[error("is missing")]
    Missing,
    /// A field does not have its fixed length, or the length that other fields give.
    #[error("expected {expected} bytes, got {got}")]
    Length {
        /// Expected number of bytes.
        expected: u64,
        /// Number of bytes received.
        got: u64,
    },
    /// The last item in a list of fixed-size items is cut off.
    #[error("{got} bytes are not a multiple of {unit}")]
    Ragged {
        /// Number of bytes in one item.
        unit: usize,
        /// Number of bytes received.
        got: usize,
    },
    /// The number of items differs from the number that other fields give.
    #[error("expected {expected} items, got {got}")]
    Count {
        /// Expected number of items.
        expected: u64,
        /// Number of items received.
        got: u64,
    },
    /// The field has more items or bytes than one message may have.
    #[error("{got} are more than {max}")]
    TooMany {
        /// Maximum number.
        max: usize,
        /// Number received.
        got: usize,
    },
    /// A number is outside its range.
    #[error("{got} is not in {min}..={max}")]
    OutOfRange {
        /// Minimum value.
        min: u64,
        /// Maximum value.
        max: u64,
        /// Value received.
        got: u64,
    },
    /// Items do not ascend.
    #[error("is not in ascending order")]
    NotAscending,
    /// An item occurs twice.
    #[error("is there twice")]
    Duplicate,
    /// A fraction is not between 0 and 1.
    #[error("is not between 0 and 1")]
    NotAFraction,
    /// The text is not a valid name of a worker.
    #[error("is not 1 to 64 characters of visible ASCII")]
    NotAName,
    /// The text is not a valid host.
    #[error("is neither an IP address nor the name of a host")]
    NotAHost,
    /// The text is not a valid name of a reason.
    #[error("is not 1 to 64 lower-case letters, digits and underscores")]
    NotAKind,
    /// Bytes that hold a message of their own cannot be decoded.
    #[error("is not a message of its kind")]
    Malformed,
    /// A number of variable length starts with a zero byte.
    #[error("starts with a zero byte")]
    LeadingZero,
}

impl ConvertError {
    /// Returns the path of the field, beginning with the name of the call: `commit.block.parent`.
    pub fn field(&self) -> &str {
        &self.field
    }

    /// Returns the fault of the field.
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

/// Adds the location to an error, from the inside out.
pub(super) trait At<T> {
    /// Locates the error in this field (or path of fields).
    fn at(self, field: &str) -> Result<T, ConvertError>;

    /// Locates the error in the item at this position.
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
