//! A profile as a flame graph: one SVG without outside parts. The width of a box is the share of
//! samples in which its function was on the stack, at that place. What called it is below.
//!
//! Idea: Brendan Gregg, "The Flame Graph", CACM 59(6), 2016.

use crate::{Profile, Subsystem};
use std::{collections::BTreeMap, fmt::Write};

const WIDTH: f64 = 1_200.0;
const ROW: f64 = 16.0;
const HEAD: f64 = 24.0;
/// Width of a letter, on average.
const LETTER: f64 = 6.6;
/// Boxes that are narrower than this are left out.
const NARROWEST: f64 = 0.3;

#[derive(Default)]
struct Frame {
    samples: u64,
    inside: BTreeMap<String, Frame>,
}

impl Frame {
    fn height(&self) -> usize {
        1 + self.inside.values().map(Self::height).max().unwrap_or(0)
    }
}

/// Draws a profile as SVG. A pointer on a box shows the function, its samples and its share.
pub fn flamegraph(profile: &Profile) -> String {
    let mut root = Frame::default();
    for stack in profile.stacks() {
        root.samples += stack.samples;
        let mut at = &mut root;
        let process = (!stack.process.is_empty()).then_some(&*stack.process);
        let outer = process.into_iter().chain([&*stack.thread]);
        let functions = stack.functions.iter().rev().map(|number| profile.function(*number));
        for name in outer.chain(functions) {
            at = at.inside.entry(name.to_owned()).or_default();
            at.samples += stack.samples;
        }
    }
    let height = HEAD + ROW * root.height() as f64;
    let mut svg = String::new();
    // Writing to a string cannot fail.
    let _ = write!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{WIDTH}\" height=\"{height}\" \
         font-family=\"monospace\" font-size=\"11\">\n\
         <rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n\
         <text x=\"4\" y=\"16\">{} samples, {:.2} s of processor time in {:.1} s</text>\n",
        root.samples,
        profile.processor_time().as_secs_f64(),
        profile.duration.as_secs_f64(),
    );
    let scale = WIDTH / root.samples.max(1) as f64;
    draw(&mut svg, &root, 0.0, height, scale);
    svg.push_str("</svg>\n");
    svg
}

/// Draws what is inside of a box, in the row above it.
fn draw(svg: &mut String, outer: &Frame, left: f64, bottom: f64, scale: f64) {
    let (mut left, top) = (left, bottom - ROW);
    for (name, inner) in &outer.inside {
        let width = inner.samples as f64 * scale;
        if width >= NARROWEST {
            let (share, full) = (100.0 * width / WIDTH, escape(name));
            let letters = ((width - 4.0) / LETTER) as usize;
            let short: String = name.chars().take(letters).collect();
            let label = if letters < 3 { String::new() } else { escape(&short) };
            let _ = writeln!(
                svg,
                "<g><title>{full}: {} samples, {share:.1} %</title><rect x=\"{left:.1}\" \
                 y=\"{top:.1}\" width=\"{width:.1}\" height=\"{}\" fill=\"{}\"/><text \
                 x=\"{:.1}\" y=\"{:.1}\">{label}</text></g>",
                inner.samples,
                ROW - 1.0,
                colour(name),
                left + 2.0,
                top + 11.0,
            );
            draw(svg, inner, left, top, scale);
        }
        left += width;
    }
}

/// Returns the colour of the function's subsystem.
fn colour(name: &str) -> &'static str {
    match Subsystem::of_function(name) {
        None | Some(Subsystem::Other) => "#d9d9d9",
        Some(Subsystem::Execution) => "#f4a582",
        Some(Subsystem::StateRoot) => "#92c5de",
        Some(Subsystem::Signatures) => "#fddbc7",
        Some(Subsystem::Hashing) => "#c2a5cf",
        Some(Subsystem::Database) => "#a6dba0",
        Some(Subsystem::Blobs) => "#e7d4e8",
        Some(Subsystem::Discovery) => "#dfc27d",
        Some(Subsystem::Sessions) => "#fdae61",
        Some(Subsystem::Pool) => "#b8e186",
        Some(Subsystem::Payloads) => "#f6e8c3",
        Some(Subsystem::Network) => "#80cdc1",
        Some(Subsystem::Allocation) => "#fb9a99",
        Some(Subsystem::Synchronization) => "#ffff99",
        Some(Subsystem::Telemetry) => "#cab2d6",
        Some(Subsystem::Runtime) => "#e0e0c0",
    }
}

fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for letter in text.chars() {
        match letter {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            letter if letter.is_control() => escaped.push(' '),
            letter => escaped.push(letter),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::profile::Builder;
    use std::time::Duration;

    #[test]
    fn boxes_are_as_wide_as_their_share_and_stand_on_their_callers() {
        let period = Duration::from_millis(10);
        let mut builder = Builder::new(Profile::new(Duration::from_secs(1), period));
        builder.add("", "t", ["revm::inner<\"x\">", "outer"].into_iter(), 3);
        builder.add("", "t", ["outer"].into_iter(), 1);
        let svg = flamegraph(&builder.finish());
        let rect = |name: &str| {
            let at = svg.find(&format!("<title>{name}: ")).unwrap();
            let number = |key: &str| -> f64 {
                let rest = &svg[at + svg[at..].find(key).unwrap() + key.len()..];
                rest[..rest.find('"').unwrap()].parse().unwrap()
            };
            (number(" y=\""), number("width=\""))
        };
        let (thread, outer) = (rect("t"), rect("outer"));
        let inner = rect("revm::inner&lt;&quot;x&quot;&gt;");
        assert_eq!((thread.1, outer.1, inner.1), (1200.0, 1200.0, 900.0));
        assert!(thread.0 > outer.0 && outer.0 > inner.0);
        assert!(svg.contains("4 samples, 0.04 s"));
    }

    #[test]
    fn nothing_is_a_picture_of_nothing() {
        assert!(flamegraph(&Profile::default()).ends_with("</svg>\n"));
    }
}
