//! Follows policies in the key-value bucket of live settings.

use std::str;
use tandem_bus::{Bus, Entry, MissingBucket, WatchedKey};
use tandem_policy::{LivePolicies, Policies};
use tandem_proto::event::{POLICIES_KEY, SETTINGS_BUCKET};
use tracing::{info, warn};

/// Sets the policies to the value of the key `policies` until the bus ends. Policies that the text
/// does not name keep their initial values ([`Policies::with_text`]). All policies are the initial
/// ones while the key is missing or deleted. An invalid text changes nothing.
///
/// `tandem_setPolicies` sets the key to all current policies, so they hold in every process that
/// follows the key. The executor makes the bucket, and the other processes wait for it.
pub async fn follow_policies(bus: &Bus, live: &LivePolicies, missing: MissingBucket) {
    let configured = live.load();
    let mut settings: WatchedKey = bus.watch_key(SETTINGS_BUCKET, POLICIES_KEY, missing);
    while let Some(entry) = settings.changed().await {
        match policies(configured, &entry) {
            Ok(policies) => {
                live.store(policies);
                info!(?policies, "policies set by the live settings");
            }
            Err(reason) => warn!(reason, "live policies refused; the earlier ones stay in effect"),
        }
    }
}

fn policies(configured: Policies, entry: &Entry) -> Result<Policies, String> {
    match entry {
        Entry::Missing => Ok(configured),
        Entry::Value(bytes) => match str::from_utf8(bytes) {
            Ok(text) => configured.with_text(text).map_err(|error| error.to_string()),
            Err(_) => Err("the value is not UTF-8".to_owned()),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tandem_policy::Batching;

    #[test]
    fn the_key_changes_what_it_names_and_a_wrong_one_nothing() {
        let configured = Policies { force_chunk_targets: 7, ..Policies::default() };
        let value = |text: &'static [u8]| policies(configured, &Entry::Value(text.into()));
        assert_eq!(policies(configured, &Entry::Missing), Ok(configured));
        assert_eq!(value(b""), Ok(configured));
        let set = value(b"batching=none\n").unwrap();
        assert_eq!(set, Policies { batching: Batching::None, ..configured });
        assert!(
            value(b"batching=none chunking=often")
                .unwrap_err()
                .starts_with("invalid value `often` for `chunking`")
        );
        assert_eq!(value(b"\xff").unwrap_err(), "the value is not UTF-8");
    }

    #[tokio::test]
    async fn a_bus_of_one_process_has_no_live_settings() {
        let live = LivePolicies::default();
        follow_policies(&Bus::default(), &live, MissingBucket::Await).await;
        assert_eq!(live.load(), Policies::default());
    }
}
