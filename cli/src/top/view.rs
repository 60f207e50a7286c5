//! Renders figures into the cells of the screen.

use super::figures::{Block, Figures};
use ratatui_core::{
    buffer::Buffer,
    layout::Rect,
    style::{Color, Modifier, Style},
    text::{Line, Span},
};
use tandem_overlap::Verdict;

/// Columns of a block's line before its bar.
const BLOCK_TEXT: usize = 44;
/// Columns of a service's line before its bar.
const CPU_TEXT: usize = 45;
/// Maximum width of a bar.
const BAR_MAX: usize = 60;
/// Cells, names and colours of a bar's parts, which differ without colours too.
const PARTS: [(&str, &str, Color); 4] = [
    ("█", "both", Color::Green),
    ("▓", "only execution", Color::Blue),
    ("▒", "only state root", Color::Yellow),
    ("░", "neither", Color::DarkGray),
];

/// Draws everything. Lines without room are left out, the oldest blocks first.
pub fn render(figures: &Figures, area: Rect, buffer: &mut Buffer) {
    let width = usize::from(area.width);
    let top = top(figures, width);
    let bottom = bottom(figures, width);
    let room = usize::from(area.height).saturating_sub(top.len() + bottom.len());
    let blocks = blocks(figures, width).into_iter().take(room);
    let lines = top.into_iter().chain(blocks).chain(bottom);
    for (row, line) in (area.top()..area.bottom()).zip(lines) {
        buffer.set_line(area.left(), row, &line, area.width);
    }
}

/// Draws how to quit, in the first line.
pub fn hint(area: Rect, buffer: &mut Buffer) {
    const HINT: &str = " q quits";
    let room = usize::from(area.width).saturating_sub(HINT.len());
    let column = area.left() + u16::try_from(room).unwrap_or(0);
    buffer.set_stringn(column, area.top(), HINT, usize::from(area.width), Style::new());
}

/// Returns the screen as text, with as many lines as needed and without trailing spaces.
pub fn text(figures: &Figures, width: u16) -> String {
    let columns = usize::from(width);
    let sections = [top(figures, columns), blocks(figures, columns), bottom(figures, columns)];
    let rows = sections.iter().map(Vec::len).sum::<usize>();
    let area = Rect::new(0, 0, width, u16::try_from(rows).unwrap_or(u16::MAX));
    let mut buffer = Buffer::empty(area);
    render(figures, area, &mut buffer);
    let mut text = String::new();
    for row in area.top()..area.bottom() {
        let line: String = (area.left()..area.right()).map(|x| buffer[(x, row)].symbol()).collect();
        text += line.trim_end();
        text.push('\n');
    }
    text
}

/// Returns the lines of processes and payloads.
fn top(figures: &Figures, width: usize) -> Vec<Line<'static>> {
    let answering = figures.processes.iter().filter(|process| process.answers).count();
    let processes = if figures.processes.len() == 1 { "process" } else { "processes" };
    let mut lines = vec![Line::from(vec![
        bold("tandem top"),
        Span::raw(format!(
            "   {answering} of {} {processes}   {} resident   over {:.0} s",
            figures.processes.len(),
            bytes(figures.processes.iter().filter_map(|p| p.resident_bytes).reduce(|a, b| a + b)),
            figures.seconds
        )),
    ])];
    for process in figures.processes.iter().filter(|process| !process.answers) {
        let style = Style::new().fg(Color::Red);
        lines.push(Line::from(Span::styled(format!("no answer: {}", process.name), style)));
    }
    let payloads = &figures.payloads;
    lines.push(heading("newPayload", width));
    lines.push(Line::from(format!(
        "{} a second   p50 {}   p95 {}   tail {}   gas {} a second",
        number(payloads.per_second, 1),
        milliseconds(payloads.p50_seconds),
        milliseconds(payloads.p95_seconds),
        percent(payloads.tail),
        scaled(payloads.gas_per_second),
    )));
    lines.push(Line::from(format!(
        "head {}   base {} behind   hashed during execution {}",
        number(payloads.head, 0),
        number(payloads.base_lag, 0),
        percent(figures.workers.hashed_ahead),
    )));
    let verdicts: Vec<String> =
        payloads.verdicts.iter().map(|(word, count)| format!("{word} {count:.0}")).collect();
    lines.push(Line::from(format!(
        "gain {}   weight {}   saved {}, could save {}   {}",
        percent(payloads.reached),
        percent(payloads.weight),
        milliseconds(payloads.saved_seconds),
        milliseconds(payloads.could_save_seconds),
        verdicts.join(", "),
    )));
    let mut legend = vec![Span::raw("overlap by block:")];
    for (symbol, meaning, colour) in PARTS {
        legend.push(Span::raw(" "));
        legend.push(Span::styled(symbol, Style::new().fg(colour)));
        legend.push(Span::raw(format!(" {meaning}")));
    }
    lines.push(Line::from(legend));
    lines
}

/// Returns a line for each payload.
fn blocks(figures: &Figures, width: usize) -> Vec<Line<'static>> {
    if let Some(reason) = &figures.no_blocks {
        return vec![Line::from(format!("  {reason}"))];
    }
    let cells = width.saturating_sub(BLOCK_TEXT).min(BAR_MAX);
    figures.blocks.iter().map(|block| block_line(block, cells)).collect()
}

fn block_line(block: &Block, cells: usize) -> Line<'static> {
    let name = block.number.map_or_else(|| "?".to_owned(), |number| number.to_string());
    let (verdict, colour) = match block.verdict {
        Some(verdict @ Verdict::Parallel) => (verdict.to_string(), Color::Green),
        Some(verdict @ Verdict::Concurrent) => (verdict.to_string(), Color::Yellow),
        Some(verdict @ Verdict::Partial) => (verdict.to_string(), Color::Yellow),
        Some(verdict @ Verdict::Sequential) => (verdict.to_string(), Color::Red),
        Some(Verdict::NothingToGain) => ("no weight".to_owned(), Color::DarkGray),
        None => ("one side".to_owned(), Color::DarkGray),
    };
    let took = milliseconds(Some(block.payload_ns as f64 / 1e9));
    let mut spans = vec![
        Span::raw(format!("{name:>10}  ")),
        Span::styled(format!("{verdict:<10}"), Style::new().fg(colour)),
        Span::raw(format!(" {:>5}  {took:>12}  ", number(block.overlap, 2))),
    ];
    for (cells, (symbol, _, colour)) in shares(block.parts_ns, cells).into_iter().zip(PARTS) {
        spans.push(Span::styled(symbol.repeat(cells), Style::new().fg(colour)));
    }
    Line::from(spans)
}

/// Returns the lines of workers, caches and processors.
fn bottom(figures: &Figures, width: usize) -> Vec<Line<'static>> {
    let workers = &figures.workers;
    let mut lines = vec![heading("workers", width)];
    if workers.alive.is_some() || !workers.uses.is_empty() {
        let uses: Vec<String> =
            workers.uses.iter().map(|(state, count)| format!("{state} {count:.0}")).collect();
        lines.push(Line::from(format!(
            "alive {}   used as: {}",
            number(workers.alive, 0),
            if uses.is_empty() { "-".to_owned() } else { uses.join(", ") }
        )));
    }
    lines.push(Line::from(format!(
        "tries {} cores   readers {} cores   at a dispatch: {} threads busy, {} idle",
        number(workers.trie_cores, 2),
        number(workers.reader_cores, 2),
        number(workers.busy, 1),
        number(workers.idle, 1),
    )));
    let caches = &figures.caches;
    lines.push(heading("caches", width));
    let reads: Vec<String> = caches
        .reads
        .iter()
        .map(|(place, share)| format!("{place} {:.1} %", share * 100.0))
        .collect();
    lines.push(Line::from(format!(
        "state reads: {}   blobs known {}",
        if reads.is_empty() { "-".to_owned() } else { reads.join(", ") },
        percent(caches.blob_hits),
    )));
    lines.push(Line::from(format!(
        "base values {}   layers {}   revealed tries {}",
        bytes(caches.cache_bytes),
        bytes(caches.layer_bytes),
        bytes(caches.trie_bytes),
    )));
    lines.push(heading("processors by service", width));
    lines.extend(processors(figures.cpu.iter().map(|(name, cores)| (&**name, *cores)), width));
    if figures.cpu.is_empty() {
        lines.push(Line::from("  not known yet"));
    }
    match &figures.subsystems {
        None => {}
        Some(Ok(subsystems)) => {
            lines.push(heading("processors by subsystem", width));
            lines.extend(processors(subsystems.iter().copied(), width));
        }
        Some(Err(reason)) => {
            lines.push(heading("processors by subsystem", width));
            lines.push(Line::from(format!("  {reason}")));
        }
    }
    lines
}

/// Returns a line with a bar for each user of processors.
fn processors<'f>(
    users: impl Iterator<Item = (&'f str, f64)> + Clone,
    width: usize,
) -> Vec<Line<'static>> {
    let all: f64 = users.clone().map(|(_, cores)| cores).sum();
    let cells = width.saturating_sub(CPU_TEXT).min(BAR_MAX);
    let line = |(user, cores): (&str, f64)| {
        let share = if all > 0.0 { cores / all } else { 0.0 };
        let bar = "█".repeat((share * cells as f64).round() as usize);
        Line::from(vec![
            Span::raw(format!("{user:<22}{cores:>7.2} cores {:>5.1} %  ", share * 100.0)),
            Span::styled(bar, Style::new().fg(Color::Cyan)),
        ])
    };
    users.map(line).collect()
}

/// Distributes cells over these parts so that they add up. The largest remainders get the rest.
fn shares(parts: [u64; 4], cells: usize) -> [usize; 4] {
    let total: u128 = parts.iter().map(|part| u128::from(*part)).sum();
    if total == 0 {
        return [0, 0, 0, cells];
    }
    let exact = parts.map(|part| u128::from(part) * cells as u128);
    let mut dealt = exact.map(|part| (part / total) as usize);
    let mut order = [0, 1, 2, 3];
    order.sort_by_key(|&at| std::cmp::Reverse(exact[at] % total));
    let left = cells - dealt.iter().sum::<usize>();
    order.into_iter().take(left).for_each(|at| dealt[at] += 1);
    dealt
}

fn bold(text: &'static str) -> Span<'static> {
    Span::styled(text, Style::new().add_modifier(Modifier::BOLD))
}

fn heading(title: &str, width: usize) -> Line<'static> {
    let rule = "─".repeat(width.saturating_sub(title.chars().count() + 4));
    Line::from(Span::styled(format!("── {title} {rule}"), Style::new().fg(Color::DarkGray)))
}

fn number(value: Option<f64>, digits: usize) -> String {
    value.map_or_else(|| "-".to_owned(), |value| format!("{value:.digits$}"))
}

fn milliseconds(seconds: Option<f64>) -> String {
    seconds.map_or_else(|| "-".to_owned(), |seconds| format!("{:.2} ms", seconds * 1e3))
}

fn percent(share: Option<f64>) -> String {
    share.map_or_else(|| "-".to_owned(), |share| format!("{:.0} %", share * 100.0))
}

fn bytes(value: Option<f64>) -> String {
    let Some(value) = value else { return "-".to_owned() };
    let (size, unit) = match value {
        value if value < 1e6 => (value / 1e3, "kB"),
        value if value < 1e9 => (value / 1e6, "MB"),
        value => (value / 1e9, "GB"),
    };
    format!("{size:.1} {unit}")
}

/// Formats a large number with its metric prefix.
fn scaled(value: Option<f64>) -> String {
    let Some(value) = value else { return "-".to_owned() };
    match value {
        value if value < 1e6 => format!("{value:.0}"),
        value if value < 1e9 => format!("{:.1} M", value / 1e6),
        value => format!("{:.1} G", value / 1e9),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::top::figures::{Caches, Payloads, ProcessFigures, Workers};
    use ratatui_core::{backend::TestBackend, terminal::Terminal};

    fn block(number: u64, verdict: Option<Verdict>, parts_ns: [u64; 4]) -> Block {
        let overlap = verdict.map(|_| 0.5);
        Block {
            number: Some(number),
            payload_ns: parts_ns.iter().sum(),
            overlap,
            verdict,
            parts_ns,
        }
    }

    fn figures() -> Figures {
        let process = |name: &str, answers| ProcessFigures {
            name: name.to_owned(),
            answers,
            resident_bytes: answers.then_some(5e8),
        };
        Figures {
            seconds: 30.0,
            processes: vec![process("http://a:1", true), process("http://b:2", false)],
            payloads: Payloads {
                per_second: Some(2.5),
                p50_seconds: Some(0.00321),
                p95_seconds: Some(0.0088),
                tail: Some(0.23),
                gas_per_second: Some(1.2e9),
                head: Some(137.0),
                base_lag: Some(16.0),
                reached: Some(0.84),
                weight: Some(0.3),
                saved_seconds: Some(0.0015),
                could_save_seconds: Some(0.0003),
                verdicts: [("PARALLEL".to_owned(), 2.0)].into(),
            },
            workers: Workers {
                alive: Some(3.0),
                uses: [("active".to_owned(), 2.0), ("quarantined".to_owned(), 1.0)].into(),
                trie_cores: Some(0.42),
                ..Workers::default()
            },
            caches: Caches {
                reads: vec![("cache".to_owned(), 0.9), ("storage".to_owned(), 0.1)],
                cache_bytes: Some(1.2e7),
                ..Caches::default()
            },
            cpu: vec![("executor".to_owned(), 0.75), ("shared".to_owned(), 0.25)],
            subsystems: None,
            blocks: vec![
                block(137, Some(Verdict::Parallel), [4_000_000, 0, 0, 0]),
                block(136, Some(Verdict::Sequential), [0, 1_000_000, 1_000_000, 2_000_000]),
                block(135, None, [0, 3_000_000, 0, 1_000_000]),
            ],
            no_blocks: None,
        }
    }

    #[test]
    fn everything_is_on_a_screen_of_the_usual_size() {
        let mut terminal = Terminal::new(TestBackend::new(84, 24)).unwrap();
        let figures = figures();
        terminal.draw(|frame| render(&figures, frame.area(), frame.buffer_mut())).unwrap();
        let buffer = terminal.backend().buffer();
        let row = |y: u16| -> String {
            let line: String = (0..84).map(|x| buffer[(x, y)].symbol()).collect();
            line.trim_end().to_owned()
        };
        let rows: Vec<String> = (0..24).map(row).collect();
        assert_eq!(rows[0], "tandem top   1 of 2 processes   500.0 MB resident   over 30 s");
        assert_eq!(rows[1], "no answer: http://b:2");
        assert!(rows[2].starts_with("── newPayload ──"), "{}", rows[2]);
        let payloads = "2.5 a second   p50 3.21 ms   p95 8.80 ms   tail 23 %   gas 1.2 G a second";
        assert_eq!(rows[3], payloads);
        assert_eq!(rows[4], "head 137   base 16 behind   hashed during execution -");
        let worth = "gain 84 %   weight 30 %   saved 1.50 ms, could save 0.30 ms   PARALLEL 2";
        assert_eq!(rows[5], worth);
        let full = "█".repeat(40);
        assert_eq!(rows[7], format!("       137  PARALLEL    0.50       4.00 ms  {full}"));
        let bar = ["▓".repeat(10), "▒".repeat(10), "░".repeat(20)].concat();
        assert_eq!(rows[8], format!("       136  SEQUENTIAL  0.50       4.00 ms  {bar}"));
        let bar = ["▓".repeat(30), "░".repeat(10)].concat();
        assert_eq!(rows[9], format!("       135  one side       -       4.00 ms  {bar}"));
        assert!(rows[10].starts_with("── workers ──"));
        assert_eq!(rows[11], "alive 3   used as: active 2, quarantined 1");
        let threads = "tries 0.42 cores   readers - cores   at a dispatch: - threads busy, - idle";
        assert_eq!(rows[12], threads);
        assert_eq!(rows[14], "state reads: cache 90.0 %, storage 10.0 %   blobs known -");
        assert_eq!(rows[15], "base values 12.0 MB   layers -   revealed tries -");
        let bar = "█".repeat(29);
        assert_eq!(rows[17], format!("{:<22}   0.75 cores  75.0 %  {bar}", "executor"));
        assert_eq!(rows[19], "");
        // Colours of the parts of a bar.
        let colour = |x: u16, y: u16| buffer[(x, y)].fg;
        assert_eq!(
            (colour(44, 7), colour(44, 8), colour(54, 8)),
            (Color::Green, Color::Blue, Color::Yellow)
        );
    }

    #[test]
    fn a_small_screen_keeps_the_youngest_blocks_and_what_stands_below() {
        let mut figures = figures();
        figures.blocks = (0..100).rev().map(|n| block(n, None, [1, 1, 1, 1])).collect();
        let area = Rect::new(0, 0, 60, 20);
        let mut buffer = Buffer::empty(area);
        render(&figures, area, &mut buffer);
        hint(area, &mut buffer);
        let row = |y: u16| (0..60).map(|x| buffer[(x, y)].symbol()).collect::<String>();
        let numbers: Vec<String> =
            (7..11).map(|y| row(y).trim().chars().take(2).collect()).collect();
        assert_eq!(numbers, ["99", "98", "97", "96"]);
        assert!(row(11).starts_with("── workers"), "{}", row(11));
        assert!(row(0).ends_with(" q quits"), "{}", row(0));
        // Nothing is drawn outside, however small the area is.
        render(&figures, Rect::new(0, 0, 0, 0), &mut buffer);
        render(&figures, Rect::new(59, 19, 1, 1), &mut buffer);
    }

    #[test]
    fn as_text_there_are_as_many_lines_as_it_takes() {
        let mut figures = figures();
        figures.blocks = (0..50).map(|n| block(n, None, [1, 1, 1, 1])).collect();
        let all = text(&figures, 100);
        assert_eq!(all.lines().filter(|line| line.contains("one side")).count(), 50);
        assert!(all.lines().all(|line| line.trim_end() == line));
        figures.no_blocks = Some("no payload among the recent traces".to_owned());
        assert!(text(&figures, 100).contains("\n  no payload among the recent traces\n"));
        assert!(!text(&figures, 100).contains("by subsystem"), "only if it was asked for");
        figures.subsystems = Some(Ok(vec![("Hashing", 0.3), ("RocksDB", 0.1)]));
        let line = format!("{:<22}   0.30 cores  75.0 %  █", "Hashing");
        assert!(text(&figures, 100).contains(&line), "{}", text(&figures, 100));
        figures.subsystems = Some(Err("no answer".to_owned()));
        assert!(text(&figures, 100).contains("\n  no answer\n"));
        let nothing = text(&Figures::default(), 100);
        assert!(nothing.starts_with("tandem top   0 of 0 processes   - resident"), "{nothing}");
        assert!(nothing.contains("not known yet"), "{nothing}");
    }

    #[test]
    fn cells_add_up_and_follow_the_parts() {
        assert_eq!(shares([1, 1, 1, 0], 10), [4, 3, 3, 0]);
        assert_eq!(shares([0, 0, 0, 0], 10), [0, 0, 0, 10]);
        assert_eq!(shares([u64::MAX, u64::MAX, 0, 0], 7), [4, 3, 0, 0]);
        for parts in [[7, 3, 2, 1], [1, 1_000_000, 1, 1], [5, 0, 0, 0]] {
            for cells in 0..50 {
                assert_eq!(shares(parts, cells).iter().sum::<usize>(), cells);
            }
        }
    }
}
