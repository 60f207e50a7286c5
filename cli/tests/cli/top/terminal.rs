//! Tests `tandem top` on a terminal, which `script` of util-linux makes.

use crate::binary;
use std::{
    io::{Read, Write},
    process::{Command, Stdio},
    sync::{Arc, Mutex},
    thread::{self, sleep},
    time::{Duration, Instant},
};

/// Longest wait for something to be seen.
const PATIENCE: Duration = Duration::from_secs(20);
const OPENED: &str = "\x1b[?1049h";
const CLOSED: &str = "\x1b[?1049l";

/// Returns the lines of a screen to which this was written, with each text at the cursor's
/// position.
fn screen(written: &str) -> Vec<String> {
    let mut lines: Vec<Vec<char>> = Vec::new();
    let (mut row, mut column) = (0, 0);
    let mut rest = written.chars();
    while let Some(c) = rest.next() {
        if c == '\x1b' {
            let (mut numbers, mut kind) = (String::new(), '\0');
            for c in rest.by_ref().skip(1) {
                kind = c;
                if c.is_ascii_alphabetic() {
                    break;
                }
                numbers.push(c);
            }
            let numbers: Vec<usize> = numbers.split(';').flat_map(str::parse).collect();
            match (kind, &numbers[..]) {
                ('H', [to_row, to_column]) => (row, column) = (to_row - 1, to_column - 1),
                ('J', _) => lines.clear(),
                _ => {}
            }
        } else {
            lines.resize(lines.len().max(row + 1), Vec::new());
            let line = &mut lines[row];
            line.resize(line.len().max(column + 1), ' ');
            line[column] = c;
            column += 1;
        }
    }
    lines.into_iter().map(String::from_iter).collect()
}

/// Output that was sent to a terminal so far.
#[derive(Clone, Default)]
struct Sent(Arc<Mutex<Vec<u8>>>);

impl Sent {
    fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap()).into_owned()
    }

    /// Returns the contents of the open screen.
    fn screen(&self) -> Vec<String> {
        self.text().rsplit_once(OPENED).map_or_else(Vec::new, |(_, drawn)| screen(drawn))
    }

    fn wait_for(&self, what: &str, is_seen: impl Fn(&Self) -> bool) {
        let until = Instant::now() + PATIENCE;
        while !is_seen(self) {
            let sent = self.text();
            assert!(Instant::now() < until, "{what}: {:#?}\n{sent:?}", self.screen());
            sleep(Duration::from_millis(50));
        }
    }
}

#[test]
fn a_terminal_is_drawn_on_follows_its_size_and_is_given_back() {
    let shell = format!(
        "stty rows 30 cols 100; {{ read -r _ < wide; stty -F /dev/tty rows 12 cols 60; }} & \
         '{}' top --interval 0.2 --metrics http://127.0.0.1:1; echo \"ended with $?\"; stty -a",
        binary().display()
    );
    let folder = tempfile::tempdir().unwrap();
    let pipe = folder.path().join("wide");
    assert!(Command::new("mkfifo").arg(&pipe).status().unwrap().success());
    let mut terminal = Command::new("script")
        .args(["--quiet", "--command", &shell, "/dev/null"])
        .current_dir(folder.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let sent = Sent::default();
    let (mut out, copy) = (terminal.stdout.take().unwrap(), sent.clone());
    let reader = thread::spawn(move || {
        let mut bytes = [0; 4096];
        while let Ok(read @ 1..) = out.read(&mut bytes) {
            copy.0.lock().unwrap().extend_from_slice(&bytes[..read]);
        }
    });
    let is_as_wide = |lines: &[String], columns| {
        let title = lines.first().cloned().unwrap_or_default();
        title.starts_with("tandem top   0 of 1 process")
            && title.trim_end().ends_with("q quits")
            && title.trim_end().chars().count() == columns
    };
    sent.wait_for("the screen", |sent| is_as_wide(&sent.screen(), 100));
    std::fs::write(&pipe, "now\n").unwrap();
    sent.wait_for("the smaller screen", |sent| {
        let lines = sent.screen();
        is_as_wide(&lines, 60) && lines.len() <= 12
    });
    let mut keys = terminal.stdin.take().unwrap();
    keys.write_all(b"xq").unwrap();
    sent.wait_for("the end", |sent| sent.text().contains("ended with"));
    drop(keys);
    terminal.wait().unwrap();
    reader.join().unwrap();
    let text = sent.text();
    let (drawn, after) = text.rsplit_once(CLOSED).unwrap();
    assert_eq!(drawn.matches(OPENED).count(), 1);
    let shown = text.rfind("\x1b[?25h").unwrap();
    assert!(shown > text.rfind("\x1b[?25l").unwrap(), "the cursor is there again");
    assert!(after.contains("ended with 0"), "{after}");
    for mode in ["icanon", "echo", "isig"] {
        assert!(after.split_whitespace().any(|word| word == mode), "{mode}: {after}");
    }
}
