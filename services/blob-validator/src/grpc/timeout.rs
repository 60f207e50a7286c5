//! Timeout that a gRPC caller gives.

use std::time::Duration;
use tonic::metadata::MetadataMap;

/// Parses `grpc-timeout`: at most eight digits and a unit (gRPC over HTTP/2, "Timeout").
pub fn of(metadata: &MetadataMap) -> Option<Duration> {
    let text = metadata.get("grpc-timeout")?.to_str().ok()?;
    let (unit_at, unit) = text.char_indices().next_back()?;
    let digits = &text[..unit_at];
    if digits.is_empty() || digits.len() > 8 || !digits.bytes().all(|byte| byte.is_ascii_digit()) {
        return None;
    }
    let count: u64 = digits.parse().ok()?;
    Some(match unit {
        'H' => Duration::from_secs(count * 3600),
        'M' => Duration::from_secs(count * 60),
        'S' => Duration::from_secs(count),
        'm' => Duration::from_millis(count),
        'u' => Duration::from_micros(count),
        'n' => Duration::from_nanos(count),
        _ => return None,
    })
}

/// Returns the shorter of the timeouts in the message and in the metadata. Zero in the message
/// means none.
pub fn shorter(message: Duration, metadata: Option<Duration>) -> Duration {
    match metadata {
        Some(timeout) if message.is_zero() => timeout,
        Some(timeout) => timeout.min(message),
        None => message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_unit_is_read_and_nothing_else() {
        let read = |text: &str| {
            let mut metadata = MetadataMap::new();
            metadata.insert("grpc-timeout", text.parse().unwrap());
            of(&metadata)
        };
        let expected = [
            ("2H", Duration::from_secs(7200)),
            ("3M", Duration::from_secs(180)),
            ("99999999S", Duration::from_secs(99_999_999)),
            ("250m", Duration::from_millis(250)),
            ("7u", Duration::from_micros(7)),
            ("0n", Duration::ZERO),
        ];
        for (text, timeout) in expected {
            assert_eq!(read(text), Some(timeout), "{text}");
        }
        for text in ["", "S", "5", "5s", "-5S", "+5S", "100000000S", "5.0S", " 5S"] {
            assert_eq!(read(text), None, "{text:?}");
        }
        assert_eq!(of(&MetadataMap::new()), None);
    }

    #[test]
    fn the_shorter_time_holds() {
        let [none, short, long] = [0, 1, 2].map(Duration::from_secs);
        assert_eq!(shorter(long, Some(short)), short);
        assert_eq!(shorter(short, Some(long)), short);
        assert_eq!(shorter(none, Some(long)), long, "the message gives none");
        assert_eq!(shorter(long, None), long);
        assert_eq!(shorter(none, None), none);
    }
}
