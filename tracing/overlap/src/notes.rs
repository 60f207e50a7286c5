//! Notes in words that help to read the numbers.

use crate::analyze::PayloadReport;
use crate::clocks::Clock;
use crate::doubt::Doubt;
use crate::report::Report;

/// Processor time as a part of busy time below which a note says so.
const CPU_SHARE_LEAST: f64 = 0.90;

pub(crate) fn notes(report: &Report) -> Vec<String> {
    let mut notes = Vec::new();
    let count =
        |test: fn(&PayloadReport) -> bool| report.payloads.iter().filter(|one| test(one)).count();
    if report.payloads.is_empty() && report.filtered == 0 {
        notes.push(format!(
            "no span is named `{}`: nothing to analyse in {} spans of {} traces",
            report.selection.root, report.spans, report.other_traces
        ));
    }
    if let Some(share) = report.summary.cpu_share.filter(|share| share.p50 < CPU_SHARE_LEAST) {
        notes.push(format!(
            "threads that counted as busy had a processor for {:.0} % of that time in the median \
             payload: others used the processors, or there are too few",
            share.p50 * 100.0
        ));
    }
    let mut note = |n: usize, what: String| {
        if n > 0 {
            notes.push(format!("{n} {what}"));
        }
    };
    // Without this, several runs of one collector become one verdict.
    note(if report.processes > 1 { report.processes } else { 0 }, "processes made the payloads, perhaps in several runs; `--tag service.instance.id=ID` or a tag of a run's own takes one".to_owned());
    note(
        report.lost_sides,
        "payloads lost all spans of side B: they say that the workers were busy (`overlap.b_us`)"
            .to_owned(),
    );
    let at_limit = report.payloads.len() + report.filtered >= report.limit;
    note(
        if at_limit { report.limit } else { 0 },
        "payloads at most are read (`--limit`), so older ones may be missing".to_owned(),
    );
    let (a, b) = (report.selection.a.label(), report.selection.b.label());
    note(report.filtered, "payloads were left out by the filters".to_owned());
    note(count(|one| one.a_ns == 0), format!("payloads without work on side A ({a})"));
    note(count(|one| one.b_ns == 0), format!("payloads without work on side B ({b})"));
    note(
        report.payloads.iter().map(|one| one.whole_spans).sum(),
        "spans without busy intervals counted for their whole length; if they are containers, the \
         overlap is an upper bound"
            .to_owned(),
    );
    for doubt in Doubt::ALL {
        let n = report.payloads.iter().filter(|one| one.doubts.contains(&doubt)).count();
        note(n, format!("payloads without a verdict: {doubt}"));
    }
    note(
        report.payloads.iter().map(|one| one.orphans).sum(),
        "spans whose parent is missing (still open, dropped, or in another file)".to_owned(),
    );
    for skew in &report.skew {
        notes.push(format!(
            "clocks differ: spans of {} start up to {:.3} ms before their parent in {} ({} of {} pairs)",
            skew.child_service,
            skew.at_least_ns as f64 / 1e6,
            skew.parent_service,
            skew.violations,
            skew.pairs
        ));
    }
    let known = |clock: &&Clock| clock.differs || clock.offset_ns.is_some();
    for clock in report.clocks.iter().filter(known) {
        let done = match clock.corrected_ns {
            0 if !clock.differs => ", so they may be the same".to_owned(),
            0 if clock.contradictory => "; times are as they came".to_owned(),
            0 => "; times are as they came, --align-clocks corrects as much as is known".to_owned(),
            ns => format!("; {:.3} ms were taken off its times", ns as f64 / 1e6),
        };
        notes.push(clock.sentence() + &done);
    }
    notes
}
