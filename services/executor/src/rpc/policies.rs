//! The `tandem` methods, which read and change the policies of the proof pipeline at runtime.

use serde_json::{Map, Value};
use std::{future::ready, sync::Arc};
use tandem_bus::Bus;
use tandem_http::RpcError;
use tandem_http::{Answer, Methods, Params, required, to_result};
use tandem_policy::LivePolicies;
use tandem_proto::event::{POLICIES_KEY, SETTINGS_BUCKET};
use tokio::sync::Mutex;
use tracing::info;

/// Returns the methods `tandem_policies` and `tandem_setPolicies`.
///
/// `tandem_policies` returns all policies. `tandem_setPolicies` takes an object with some of them,
/// sets them from the next block on, and returns all. It sets either all given policies or none.
///
/// With other processes on the bus, the key of the live settings is set first, which the workers
/// follow. If that fails, no policy changes here either.
pub fn policy_methods(policies: &LivePolicies, bus: &Bus) -> Methods {
    let mut methods = Methods::new();
    let live = policies.clone();
    methods.add("tandem_policies", move |_| ready(to_result(&live.load())));
    let settings = Settings { live: policies.clone(), bus: bus.clone(), turn: Arc::default() };
    methods.add("tandem_setPolicies", move |params| settings.clone().set(params));
    methods
}

/// Policies of this process and of the processes that follow the live settings.
#[derive(Clone)]
struct Settings {
    live: LivePolicies,
    bus: Bus,
    /// Held during a change, so that of two simultaneous changes neither is lost.
    turn: Arc<Mutex<()>>,
}

impl Settings {
    async fn set(self, params: Params) -> Answer {
        let (changes,) = params.decode::<(Option<Map<String, Value>>,)>()?;
        let changes = required(changes, 0)?;
        let _turn = self.turn.lock().await;
        let mut all = self.live.load();
        for (key, value) in &changes {
            let set = match value {
                Value::String(text) => all.set(key, text),
                // Numbers as they are written; any other value causes an error that names it.
                other => all.set(key, &other.to_string()),
            };
            set.map_err(RpcError::invalid_params)?;
        }
        let told = self.bus.set_key(SETTINGS_BUCKET, POLICIES_KEY, all.text().into()).await;
        told.map_err(|error| RpcError::server(format!("policies stay as they are: {error}")))?;
        self.live.store(all);
        info!(policies = ?all, "policies set");
        to_result(&all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tandem_http::code;
    use tandem_policy::{Batching, Policies};

    async fn call(methods: &Methods, method: &str, params: &'static str) -> Result<Value, String> {
        let answer = methods.call(method, Params::new(params.into())).await;
        let text = answer.map_err(|error| {
            assert_eq!(error.code, code::INVALID_PARAMS);
            error.message.into_owned()
        })?;
        Ok(serde_json::from_str(text.get()).unwrap())
    }

    #[tokio::test]
    async fn policies_are_read_and_some_of_them_changed() {
        let live = LivePolicies::default();
        let methods = policy_methods(&live, &Bus::default());
        let all = call(&methods, "tandem_policies", "").await.unwrap();
        assert_eq!(all, serde_json::to_value(Policies::default()).unwrap());
        let change = r#"[{"batching":"fixed{16,500}","chunk_targets":60}]"#;
        let all = call(&methods, "tandem_setPolicies", change).await.unwrap();
        assert_eq!(
            (&all["batching"], &all["chunk_targets"]),
            (&"fixed{16,500}".into(), &60.into())
        );
        assert_eq!(all["chunking"], Policies::default().chunking.to_string());
        assert_eq!(live.load().batching, Batching::Fixed { messages: 16, targets: 500 });
        assert_eq!(call(&methods, "tandem_setPolicies", "[{}]").await, Ok(all.clone()));
        assert_eq!(call(&methods, "tandem_policies", "[]").await, Ok(all));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn changes_at_the_same_time_are_all_kept() {
        let live = LivePolicies::default();
        let methods = Arc::new(policy_methods(&live, &Bus::default()));
        let changes = [
            r#"[{"batching":"none"}]"#,
            r#"[{"chunking":"never"}]"#,
            r#"[{"chunk_targets":7}]"#,
            r#"[{"receipts_root":"at-end"}]"#,
        ];
        let calls = changes.map(|change| {
            let methods = methods.clone();
            tokio::spawn(async move { call(&methods, "tandem_setPolicies", change).await })
        });
        for call in calls {
            call.await.unwrap().unwrap();
        }
        let text = "batching=none chunking=never chunk_targets=7 receipts_root=at-end";
        assert_eq!(live.load(), Policies::default().with_text(text).unwrap());
    }

    #[tokio::test]
    async fn a_wrong_change_is_named_and_changes_nothing() {
        let live = LivePolicies::default();
        let methods = policy_methods(&live, &Bus::default());
        for (params, reason) in [
            ("[]", "missing value for required argument 0"),
            ("[null]", "missing value for required argument 0"),
            (r#"["drain"]"#, "invalid argument 0: invalid type: string"),
            (
                r#"[{"batchin":"none"}]"#,
                "unknown policy `batchin`; expected one of `batching`, `chunking`",
            ),
            (
                r#"[{"batching":"fixed{0,1}"}]"#,
                "invalid value `fixed{0,1}` for `batching`; expected `none`",
            ),
            (r#"[{"batching":null}]"#, "invalid value `null` for `batching`; expected `none`"),
            (
                r#"[{"chunk_targets":0}]"#,
                "invalid value `0` for `chunk_targets`; expected a number from 1",
            ),
            (r#"[{"chunk_targets":-1.5}]"#, "invalid value `-1.5` for `chunk_targets`"),
            (
                r#"[{"batching":"drain","chunking":"often"}]"#,
                "invalid value `often` for `chunking`",
            ),
            (r#"[{"batching":"drain"},1]"#, "too many arguments, want at most 1"),
        ] {
            let error = call(&methods, "tandem_setPolicies", params).await.unwrap_err();
            assert!(error.starts_with(reason), "{params}: {error}");
        }
        assert_eq!(live.load(), Policies::default());
    }
}
