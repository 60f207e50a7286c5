//! Payloads on the big state for a long time, with compactions beside them.

use super::{Work, limit::Group, run::Replay};
use crate::figure::{Figure, Limit};
use tandem_overlap::stats::quantile;

/// Largest ratio of the slow payloads at the end to those at the begin.
const RATIO_MAX: f64 = 1.2;
/// Blocks, and with `--quick`.
const BLOCKS: u64 = 5_000;
const BLOCKS_QUICK: u64 = 400;
/// Part of the blocks that is the begin, and the end.
const PART: usize = 5;

/// Compares the slow payloads at the end with those at the begin, in so much memory.
pub fn measure(work: &Work<'_>, mib: u64) -> anyhow::Result<Vec<Figure>> {
    let blocks = if work.setting.quick { BLOCKS_QUICK } else { BLOCKS };
    let corpus = work.folder.path().join("over-time");
    work.tandem.payloads(&work.big, &corpus, work.plan.seed, &[("--blocks", blocks)])?;
    let limit = Group::with_memory(mib << 20)?;
    let replay = Replay::of(&work.tandem, &work.big, &corpus);
    let replayed = Replay { limit: Some(&limit), ..replay }.run()?;
    let peak = limit.peak_bytes()? as f64 / f64::from(1 << 20);
    let times = &replayed.times;
    let part = times.len() / PART;
    let of = |times: &[f64], part| {
        let mut times = times.to_vec();
        times.sort_by(f64::total_cmp);
        quantile(&times, part).unwrap_or(f64::NAN)
    };
    let (begin, end) = (&times[..part], &times[times.len() - part..]);
    let (slow_begin, slow_end) = (of(begin, 0.99), of(end, 0.99));
    let note = format!(
        "p99 {slow_begin:.1} and {slow_end:.1} ms, p50 {:.1} and {:.1} ms",
        of(begin, 0.5),
        of(end, 0.5)
    );
    let name = format!("over time: newPayload p99, last / first {part} of {blocks}");
    Ok(vec![
        Figure::new(name, slow_end / slow_begin, Limit::AtMost(RATIO_MAX)).note(note),
        Figure::new("over time: memory of the node, MiB", peak, Limit::AtMost(mib as f64))
            .note("with its page cache"),
        Figure::new(
            "over time: milliseconds of write stalls",
            replayed.stalled,
            Limit::Exactly(0.0),
        ),
    ])
}
