//! Answers to "what if this stage were faster?", by replaying the payload.
//!
//! The critical path says how long the answer waited for each stage. Making a stage faster gains at
//! most that, and less if another chain of work takes over. The replay has two chains:
//!
//! * **The path**: every part of the critical path takes its time, scaled by the speed of its stage.
//!   An instant of the payload so gets a new time.
//! * **Side B**: its busy intervals, scaled by its speed. An interval begins when it did, in new time,
//!   because side A's updates start it, but never before the one before it ended. So side B becomes
//!   the bottleneck once side A is fast enough. Work after the end of side A stays after it.
//!
//! `await_state_root` ends when both chains allow it. What came after it takes its scaled time.
//!
//! The replay knows nothing of processors: on a machine that is full, faster work of one stage also
//! makes room for the others, and the gain is larger than said here. It knows side B only as a whole,
//! not which worker waits for which.
//!
//! Idea of asking for the gain instead of the share: Curtsinger and Berger, "Coz: Finding Code that
//! Counts with Causal Profiling", SOSP 2015.

use std::collections::HashMap;

use serde::Serialize;

use crate::critical_path::Part;
use crate::intervals::Intervals;
use crate::model::{Attribute, Span};
use crate::payloads::Index;
use crate::stats::Estimate;

/// Parts of its time that a stage is asked to lose.
pub const FASTER: [f64; 2] = [0.1, 0.5];

/// Name of the stage that is all of side B.
const STATE_ROOT: &str = "state root";

/// Waits of execution, by the attribute that has their time.
const WAITS: [(&str, &str); 3] = [
    ("wait.state_ns", "execution waits: for state"),
    ("wait.workers_ns", "execution waits: for room in a worker's queue"),
    ("wait.ahead_ns", "execution waits: for a transaction executed ahead"),
];
/// Waits of execution for something else, such as a processor.
const OTHER_WAIT: &str = "execution waits: other";

/// Gain of one payload if one stage were faster.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PayloadGain {
    pub(crate) stage: String,
    /// Time of the stage on the critical path.
    pub(crate) on_path_ns: f64,
    /// Time that the payload would take less, for each of [`FASTER`].
    pub(crate) gains_ns: [f64; FASTER.len()],
    /// Time that the payload would take less if the stage lost the part that was asked for.
    pub(crate) asked_ns: Option<f64>,
}

/// Share of a stage, and the gain if it were faster, over all payloads.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct StageGain {
    /// Name of the spans, `state root` for side B, or what execution waits for.
    pub stage: String,
    /// Part of the payload that the answer waited for the stage: the median of all payloads.
    pub on_path: Estimate,
    /// Part of the payload gained if the stage took 10 % less time.
    pub gain_10: Estimate,
    /// Part of the payload gained if the stage took half of its time.
    pub gain_50: Estimate,
    /// Part of the payload gained if the stage lost the part of its time that was asked for
    /// ([`Options::what_if_part`](crate::Options)).
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gain_asked: Option<Estimate>,
}

/// Piece of the critical path, with the stages that its time belongs to.
struct Segment {
    start: u64,
    end: u64,
    /// Stages with their shares, which add up to 1.
    stages: Vec<(usize, f64)>,
    /// Whether side B worked.
    is_b: bool,
}

/// A payload that can be replayed.
struct Replay<'r> {
    segments: Vec<Segment>,
    stages: Vec<String>,
    b: &'r Intervals,
    a_end: Option<u64>,
    /// Start and end of the last waiting span.
    wait: Option<(u64, u64)>,
}

/// Returns the gains of one payload. `path` covers the payload in order of time, `a` and `b` are the
/// busy intervals of the sides, `a_members` and `b_members` their spans. `asked` is a part of its
/// time that each stage is asked to lose besides [`FASTER`].
pub(crate) fn gains(
    index: &Index<'_>,
    path: &[Part],
    [a, b]: [&Intervals; 2],
    [a_members, b_members]: [&[usize]; 2],
    last_wait: Option<usize>,
    asked: Option<f64>,
) -> Vec<PayloadGain> {
    let spans = index.spans;
    let engine = a_members.iter().copied().max_by_key(|at| spans[*at].duration_ns());
    let mut stages = Stages::default();
    let segments = path
        .iter()
        .map(|part| {
            let span = &spans[part.span];
            let is_b = b_members.contains(&part.span) && !part.queued;
            let waits = engine.filter(|engine| is_waiting(index, *engine, part));
            let stages = match waits {
                _ if is_b => vec![(stages.number(STATE_ROOT), 1.0)],
                Some(engine) => stages.waits(&spans[engine]),
                None if part.queued => {
                    vec![(stages.number(&format!("{}, queued", span.name)), 1.0)]
                }
                None => vec![(stages.number(&span.name), 1.0)],
            };
            Segment { start: part.start_ns, end: part.end_ns, stages, is_b }
        })
        .collect();
    let replay = Replay {
        segments,
        stages: stages.names,
        b,
        a_end: a.hull().map(|(_, end)| end),
        wait: last_wait.map(|at| (spans[at].start_ns, spans[at].end_ns)),
    };
    replay.gains(asked)
}

/// Returns whether execution waited in this part: it was open, and the path is on a span above it.
fn is_waiting(index: &Index<'_>, engine: usize, part: &Part) -> bool {
    const DEPTH_MAX: usize = 64;
    let span = &index.spans[engine];
    let open = part.start_ns >= span.start_ns && part.end_ns <= span.end_ns;
    let above = std::iter::successors(Some(engine), |at| index.parent(*at));
    open && !part.queued && above.skip(1).take(DEPTH_MAX).any(|at| at == part.span)
}

#[derive(Default)]
struct Stages {
    names: Vec<String>,
    numbers: HashMap<String, usize>,
}

impl Stages {
    fn number(&mut self, name: &str) -> usize {
        if let Some(number) = self.numbers.get(name) {
            return *number;
        }
        let number = self.names.len();
        self.names.push(name.to_owned());
        self.numbers.insert(name.to_owned(), number);
        number
    }

    /// Returns the waits of execution with their shares, as its span tells them.
    fn waits(&mut self, engine: &Span) -> Vec<(usize, f64)> {
        let time = |key| engine.attribute(key).and_then(Attribute::as_u64).unwrap_or(0) as f64;
        let total: f64 = WAITS.iter().map(|(key, _)| time(*key)).sum();
        if total == 0.0 {
            return vec![(self.number(OTHER_WAIT), 1.0)];
        }
        let told = WAITS.iter().map(|(key, name)| (*name, time(*key) / total));
        told.filter(|(_, share)| *share > 0.0)
            .map(|(name, share)| (self.number(name), share))
            .collect()
    }
}

impl Replay<'_> {
    fn gains(&self, asked: Option<f64>) -> Vec<PayloadGain> {
        let before = self.length(|_| 1.0);
        let gain = |at: usize| {
            let share = |segment: &Segment| -> f64 {
                let of_stage = segment.stages.iter().filter(|(stage, _)| *stage == at);
                of_stage.map(|(_, share)| share).sum()
            };
            let time = |segment: &Segment| (segment.end - segment.start) as f64 * share(segment);
            let faster = |part: f64| {
                before - self.length(|stage| if stage == at { 1.0 - part } else { 1.0 })
            };
            PayloadGain {
                stage: self.stages[at].clone(),
                on_path_ns: self.segments.iter().map(time).sum(),
                gains_ns: FASTER.map(faster),
                asked_ns: asked.map(faster),
            }
        };
        (0..self.stages.len()).map(gain).collect()
    }

    /// Returns the length of the payload if each stage takes its time multiplied by `scale`.
    fn length(&self, scale: impl Fn(usize) -> f64) -> f64 {
        let factor = |segment: &Segment| -> f64 {
            segment.stages.iter().map(|(stage, share)| share * scale(*stage)).sum()
        };
        let clock = |until: u64| -> f64 {
            let before = self.segments.iter().take_while(|segment| segment.start < until);
            let time = |segment: &Segment| (segment.end.min(until) - segment.start) as f64;
            before.map(|segment| time(segment) * factor(segment)).sum()
        };
        let all = clock(u64::MAX);
        let (Some((wait_start, wait_end)), Some(a_end)) = (self.wait, self.a_end) else {
            return all;
        };
        let Some(last) = self.b.clip(0, wait_end).hull().map(|(_, end)| end) else { return all };
        let of_b = self.stages.iter().position(|name| name == STATE_ROOT);
        let b_factor = of_b.map_or(1.0, &scale);
        let b_end = self.replay_b(a_end, wait_end, b_factor, &clock);
        // The wait's other work comes after its start.
        let own = self
            .segments
            .iter()
            .filter(|segment| !segment.is_b && segment.start >= wait_start && segment.end <= last);
        let own: f64 = own.map(|own| (own.end - own.start) as f64 * factor(own)).sum();
        let rest = all - clock(last.max(wait_start));
        b_end.max(clock(wait_start) + own) + rest
    }

    /// Returns the new time at which side B ends its work of before `wait_end`.
    fn replay_b(&self, a_end: u64, wait_end: u64, factor: f64, clock: &impl Fn(u64) -> f64) -> f64 {
        let (mut old, mut new) = (0, 0.0_f64);
        let worked = self.b.clip(0, wait_end);
        let while_a = worked.clip(0, a_end);
        for (start, end) in while_a.as_slice() {
            new = new.max(clock(*start)) + (end - start) as f64 * factor;
            old = *end;
        }
        old = old.max(a_end);
        new = new.max(clock(a_end));
        for (start, end) in worked.clip(a_end, u64::MAX).as_slice() {
            // Pauses after side A had other causes.
            new += (start - old) as f64 + (end - start) as f64 * factor;
            old = *end;
        }
        new
    }
}

/// Returns the stages of all payloads, those with the largest gain first. Payloads in which a stage
/// is not on the path count with 0.
pub(crate) fn over_all(payloads: &[(u64, &[PayloadGain])]) -> Vec<StageGain> {
    const SEED: u64 = 28;
    let mut stages: HashMap<&str, Vec<[f64; 4]>> = HashMap::new();
    let has_asked =
        payloads.iter().flat_map(|(_, gains)| *gains).any(|gain| gain.asked_ns.is_some());
    for (at, (payload_ns, gains)) in payloads.iter().enumerate() {
        for gain in gains.iter().filter(|_| *payload_ns > 0) {
            let parts = stages.entry(&gain.stage).or_insert_with(|| vec![[0.0; 4]; payloads.len()]);
            let part = |ns: f64| ns / *payload_ns as f64;
            let [tenth, half] = gain.gains_ns.map(part);
            let asked = gain.asked_ns.map_or(0.0, part);
            parts[at] = [part(gain.on_path_ns), tenth, half, asked];
        }
    }
    let stage = |(stage, parts): (&str, Vec<[f64; 4]>)| {
        let estimate = |which: usize| {
            let blocks: Vec<Vec<f64>> = parts.iter().map(|part| vec![part[which]]).collect();
            Estimate::of(&blocks, SEED)
        };
        let (on_path, gain_10, gain_50) = (estimate(0)?, estimate(1)?, estimate(2)?);
        let gain_asked = if has_asked { Some(estimate(3)?) } else { None };
        Some(StageGain { stage: stage.to_owned(), on_path, gain_10, gain_50, gain_asked })
    };
    let mut gains: Vec<StageGain> = stages.into_iter().filter_map(stage).collect();
    gains.sort_by(|one, other| {
        let size = |gain: &StageGain| (gain.gain_50.median, gain.on_path.median);
        let by_size = size(other).partial_cmp(&size(one)).unwrap_or(std::cmp::Ordering::Equal);
        by_size.then_with(|| one.stage.cmp(&other.stage))
    });
    gains
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A path of stages one after the other, with side B and the wait beside it.
    fn replay<'r>(
        path: &[(&str, u64)],
        b: &'r Intervals,
        a_end: u64,
        wait: (u64, u64),
    ) -> Replay<'r> {
        let (mut stages, mut segments, mut now) = (Stages::default(), Vec::new(), 0);
        for (name, ns) in path {
            let (start, end, is_b) = (now, now + ns, *name == STATE_ROOT);
            segments.push(Segment { start, end, stages: vec![(stages.number(name), 1.0)], is_b });
            now = end;
        }
        Replay { segments, stages: stages.names, b, a_end: Some(a_end), wait: Some(wait) }
    }

    fn halved(replay: &Replay<'_>, stage: &str) -> f64 {
        let gains = replay.gains(None);
        gains.iter().find(|gain| gain.stage == stage).unwrap().gains_ns[1]
    }

    #[test]
    fn what_is_alone_gains_what_it_loses() {
        // decode 10, execution 80 with the workers beside it, 4 of them after it, then commit 6.
        let b = Intervals::union([(30, 40), (60, 70), (90, 94)]);
        let path = [("decode", 10), ("execution", 80), (STATE_ROOT, 4), ("commit", 6)];
        let replay = replay(&path, &b, 90, (90, 94));
        assert_eq!(halved(&replay, "decode"), 5.0);
        assert_eq!(halved(&replay, "execution"), 40.0);
        assert_eq!(halved(&replay, STATE_ROOT), 2.0);
        assert_eq!(halved(&replay, "commit"), 3.0);
        let shares: f64 = replay.gains(None).iter().map(|gain| gain.on_path_ns).sum();
        assert_eq!(shares, 100.0, "the path is the whole payload");
        assert_eq!(replay.gains(None)[0].gains_ns[0], 1.0, "a tenth of decode");
        // Execution would end at 26, but the workers go on until 34, and then for 4 more.
        assert_eq!(replay.gains(Some(0.8))[1].asked_ns, Some(94.0 - 38.0), "what was asked for");
    }

    #[test]
    fn the_other_side_limits_the_gain() {
        // Workers are busy for 60 of execution's 80: half an execution would wait for them.
        let b = Intervals::union([(10, 70), (80, 84)]);
        let replay = replay(&[("execution", 80), (STATE_ROOT, 4)], &b, 80, (80, 84));
        // Execution ends at 40, but the workers begin at 5 and work until 65, and then for 4 more.
        assert_eq!(halved(&replay, "execution"), 84.0 - 69.0);
        assert_eq!(halved(&replay, STATE_ROOT), 2.0);
    }

    #[test]
    fn a_sequential_payload_gains_on_both_sides() {
        let b = Intervals::union([(50, 90)]);
        let replay = replay(&[("execution", 50), (STATE_ROOT, 40)], &b, 50, (50, 90));
        assert_eq!(halved(&replay, "execution"), 25.0);
        assert_eq!(halved(&replay, STATE_ROOT), 20.0);
    }

    #[test]
    fn pauses_of_the_workers_after_execution_stay() {
        let b = Intervals::union([(52, 60), (70, 80)]);
        let path = [
            ("execution", 50),
            ("await", 2),
            (STATE_ROOT, 8),
            ("await", 10),
            (STATE_ROOT, 10),
            ("await", 1),
        ];
        let replay = replay(&path, &b, 50, (50, 81));
        assert_eq!(halved(&replay, STATE_ROOT), 9.0);
        assert_eq!(halved(&replay, "execution"), 25.0);
    }

    #[test]
    fn nothing_faster_changes_nothing() {
        let b = Intervals::union([(5, 30), (40, 52), (55, 58)]);
        let path = [("x", 10), ("execution", 40), (STATE_ROOT, 8), ("rest", 7)];
        let replay = replay(&path, &b, 50, (50, 60));
        assert_eq!(replay.length(|_| 1.0), 65.0);
        let without = Replay { wait: None, ..replay };
        assert_eq!(without.length(|_| 1.0), 65.0);
    }

    #[test]
    fn stages_are_ordered_by_what_they_gain() {
        let gain = |stage: &str, ns: f64| PayloadGain {
            stage: stage.to_owned(),
            on_path_ns: 2.0 * ns,
            gains_ns: [ns / 5.0, ns],
            asked_ns: None,
        };
        let payloads = [vec![gain("a", 10.0), gain("b", 30.0)], vec![gain("b", 20.0)]];
        let payloads: Vec<(u64, &[PayloadGain])> =
            payloads.iter().map(|gains| (100, &gains[..])).collect();
        let all = over_all(&payloads);
        let named: Vec<_> = all.iter().map(|one| (&*one.stage, one.gain_50.median)).collect();
        assert_eq!(named, [("b", 0.25), ("a", 0.05)]);
        assert!(all.iter().all(|one| one.gain_asked.is_none()));
        let asked = [PayloadGain { asked_ns: Some(70.0), ..gain("a", 10.0) }];
        let asked = over_all(&[(100, &asked)]);
        assert_eq!(asked[0].gain_asked.map(|gain| gain.median), Some(0.7));
        assert_eq!(over_all(&[]), []);
    }
}
