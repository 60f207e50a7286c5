use std::time::{Duration, Instant};

/// Time after which a test gives up.
const PATIENCE: Duration = Duration::from_secs(120);

/// Looks until something is there.
///
/// # Panics
/// If it is not there after two minutes. The message names it.
pub async fn wait<T>(what: &str, mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(begin.elapsed() < PATIENCE, "waited for {what}");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}
