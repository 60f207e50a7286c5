//! Progress as people see it: rates, time left, and the metrics of both.

use crate::{
    metrics as names,
    state::{Progress, Stage},
};
use metrics::gauge;
use std::time::Duration;
use tandem_primitives::BlockNumber;
use tandem_proto::sync::{StateProgress, SyncProgress};
use tracing::info;

/// Time between two looks at the position.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// Time between two lines of the log.
const LOG_EVERY: Duration = Duration::from_secs(10);

/// Pace of the work.
#[derive(Default)]
pub struct Pace {
    looked: Option<Duration>,
    logged: Option<Duration>,
    starting: Option<BlockNumber>,
    /// Blocks left at the last look, or thousandths of a state, in this stage.
    left: Option<(Stage, u64)>,
    /// Blocks or thousandths a second, on average.
    rate: Option<f64>,
}

impl Pace {
    /// Returns whether progress was shown that has not ended.
    pub fn is_shown(&self) -> bool {
        self.looked.is_some()
    }

    /// Returns what is to be shown, if it is time for it: `Some(None)` once there is nothing to do.
    pub fn look(
        &mut self,
        now: Duration,
        progress: &Progress,
        head: impl Fn() -> BlockNumber,
    ) -> Option<Option<SyncProgress>> {
        if progress.stage == Stage::Idle {
            let was_shown = self.looked.is_some();
            *self = Self::default();
            publish(None, progress);
            return was_shown.then_some(None);
        }
        let since = self.looked.map(|looked| now.saturating_sub(looked));
        if since.is_some_and(|since| since < LOOK_EVERY) {
            return None;
        }
        self.looked = Some(now);
        let starting = *self.starting.get_or_insert_with(&head);
        let current = progress.current.unwrap_or_else(&head);
        let highest = progress.highest.unwrap_or(current).max(current);
        let left = match progress.lowest_header.filter(|_| progress.stage == Stage::Headers) {
            Some(lowest) => lowest.saturating_sub(current),
            None => highest - current,
        };
        let left = progress.downloaded.map_or(left, |state| 1000 - state.permille.min(1000));
        self.measure(progress.stage, left, since);
        let seconds_left = self.rate.filter(|rate| *rate > 0.0).map(|rate| left as f64 / rate);
        let stage = progress.stage.name();
        let shown = SyncProgress {
            stage,
            starting,
            current,
            highest,
            lowest_header: progress.lowest_header,
            peers: progress.peers,
            seconds_left: seconds_left.map(|seconds| seconds as u64),
            state: progress.downloaded,
        };
        publish(Some(&shown), progress);
        if self.logged.is_none_or(|logged| logged + LOG_EVERY <= now) {
            self.logged = Some(now);
            let per_second = self.rate.unwrap_or_default().round();
            let SyncProgress { peers, lowest_header, seconds_left, .. } = shown;
            if let Some(StateProgress { permille, accounts, slots, codes }) = shown.state {
                info!(
                    permille,
                    accounts, slots, codes, peers, seconds_left, "downloading the state"
                );
                return Some(Some(shown));
            }
            info!(
                stage,
                current, highest, lowest_header, peers, per_second, seconds_left, "syncing"
            );
        }
        Some(Some(shown))
    }

    fn measure(&mut self, stage: Stage, left: u64, since: Option<Duration>) {
        let before = self.left.replace((stage, left));
        let (Some((same, before)), Some(since)) = (before, since) else { return };
        if same != stage {
            self.rate = None;
            return;
        }
        // The wanted head may have moved up.
        let rate = before.saturating_sub(left) as f64 / since.as_secs_f64().max(1e-3);
        self.rate = Some(self.rate.map_or(rate, |average| average * 0.9 + rate * 0.1));
    }
}

impl Stage {
    fn name(self) -> &'static str {
        match self {
            Self::Idle => "idle",
            Self::Headers => "headers",
            Self::Blocks => "blocks",
            Self::State => "state",
        }
    }
}

fn publish(shown: Option<&SyncProgress>, progress: &Progress) {
    for stage in [Stage::Headers, Stage::Blocks, Stage::State] {
        let is_now = if progress.stage == stage { 1.0 } else { 0.0 };
        gauge!(names::STAGE, "stage" => stage.name()).set(is_now);
    }
    gauge!(names::WAITING).set(progress.bodies as f64);
    gauge!(names::WAITING_BYTES).set(progress.body_bytes as f64);
    let seconds = shown.and_then(|shown| shown.seconds_left).unwrap_or_default();
    gauge!(names::LEFT).set(seconds as f64);
    if let Some(shown) = shown {
        gauge!(names::CURRENT).set(shown.current as f64);
        gauge!(names::HIGHEST).set(shown.highest as f64);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_left_follows_the_pace_of_the_stage() {
        let mut progress = Progress {
            stage: Stage::Headers,
            current: None,
            highest: Some(1000),
            lowest_header: Some(900),
            bodies: 0,
            body_bytes: 0,
            headers: 0,
            peers: 3,
            requests: 0,
            downloaded: None,
        };
        let mut pace = Pace::default();
        let mut look = |millis, progress: &Progress| {
            pace.look(Duration::from_millis(millis), progress, || 100)
        };
        let shown = look(0, &progress).unwrap().unwrap();
        assert_eq!((shown.starting, shown.current, shown.seconds_left), (100, 100, None));
        assert_eq!(look(900, &progress), None);
        progress.lowest_header = Some(700);
        let shown = look(1000, &progress).unwrap().unwrap();
        assert_eq!((shown.stage, shown.seconds_left), ("headers", Some(3)));
        progress.stage = Stage::Blocks;
        (progress.current, progress.lowest_header) = (Some(100), None);
        assert_eq!(look(2000, &progress).unwrap().unwrap().seconds_left, None);
        progress.current = Some(200);
        let shown = look(3000, &progress).unwrap().unwrap();
        assert_eq!((shown.current, shown.starting, shown.seconds_left), (200, 100, Some(8)));
        let of = |permille| Some(StateProgress { permille, accounts: 1, slots: 2, codes: 3 });
        (progress.stage, progress.downloaded) = (Stage::State, of(100));
        assert_eq!(look(4000, &progress).unwrap().unwrap().seconds_left, None);
        progress.downloaded = of(200);
        let shown = look(5000, &progress).unwrap().unwrap();
        assert_eq!((shown.stage, shown.seconds_left, shown.state), ("state", Some(8), of(200)));
        (progress.stage, progress.downloaded) = (Stage::Idle, None);
        assert_eq!((look(5001, &progress), look(5002, &progress)), (Some(None), None));
    }
}
