//! End of a block at a tx-executor.

use tandem_proto::tx_executor::NotSent;

/// How a block ended at a tx-executor.
pub enum End {
    /// Nothing was missing.
    Done,
    /// The connection was lost, or did not take a command.
    Lost,
    /// It did not answer in time.
    Late,
    /// It refused the block.
    Refused,
    /// A result of it was wrong.
    Wrong,
}

impl From<NotSent> for End {
    fn from(_: NotSent) -> Self {
        Self::Lost
    }
}
