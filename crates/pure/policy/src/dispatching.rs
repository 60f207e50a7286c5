use crate::text;

/// Whether a worker takes further messages while the paths of a batch are being read.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub enum Dispatching {
    /// Messages are taken meanwhile.
    #[default]
    Streaming,
    /// No message is taken until the last path is there. For comparisons: a published pipeline did
    /// so, and lost its parallelism where batches were large.
    Blocking,
}

text::words!(Dispatching, "dispatch", Streaming => "streaming", Blocking => "blocking");

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_are_read_and_wrong_ones_named() {
        for policy in [Dispatching::Streaming, Dispatching::Blocking] {
            assert_eq!(policy.to_string().parse(), Ok(policy));
        }
        let error = "wait".parse::<Dispatching>().unwrap_err().to_string();
        assert_eq!(
            error,
            "invalid value `wait` for `dispatch`; expected `streaming` or `blocking`"
        );
    }
}
