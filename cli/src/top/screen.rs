//! The terminal, which is restored when this is dropped.

use super::{figures::Figures, view};
use ratatui_core::terminal::Terminal;
use ratatui_termion::{
    TermionBackend,
    termion::{
        cursor,
        raw::{IntoRawMode, RawTerminal},
        screen::{AlternateScreen, IntoAlternateScreen, ToMainScreen},
    },
};
use std::{
    io::{self, Stdout, Write},
    panic,
};

/// A terminal that shows only the figures.
pub struct Screen(Terminal<TermionBackend<AlternateScreen<RawTerminal<Stdout>>>>);

impl Screen {
    /// Takes the terminal of standard output.
    pub fn open() -> io::Result<Self> {
        // The message of a panic would be lost with the alternate screen.
        let said = panic::take_hook();
        panic::set_hook(Box::new(move |panicked| {
            let mut out = io::stdout();
            let _ = write!(out, "{ToMainScreen}{}", cursor::Show).and_then(|()| out.flush());
            said(panicked);
        }));
        let screen = io::stdout().into_raw_mode()?.into_alternate_screen()?;
        Terminal::new(TermionBackend::new(screen)).map(Self)
    }

    /// Shows these figures.
    pub fn draw(&mut self, figures: &Figures) -> io::Result<()> {
        self.0.draw(|frame| {
            let area = frame.area();
            view::render(figures, area, frame.buffer_mut());
            view::hint(area, frame.buffer_mut());
        })?;
        Ok(())
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        // The inner value restores the modes; a terminal that is gone needs nothing.
        let _ = self.0.show_cursor();
    }
}
