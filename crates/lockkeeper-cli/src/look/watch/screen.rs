//! A screen that is always the state now.

use std::io::{IsTerminal as _, Stdin, stdin, stdout};
use std::os::fd::{AsFd as _, BorrowedFd};

use lockkeeper::Entry;
use nix::sys::signal::Signal;
use nix::sys::termios::{
    LocalFlags, SetArg, SpecialCharacterIndices, Termios, tcgetattr, tcsetattr,
};
use nix::unistd::read;

use super::{View, write};
use crate::failure::Failure;
use crate::look::table;
use crate::supervise::signals::stop_by;
use crate::supervise::terminal::{Terminal, size};
use crate::text::shown;
use crate::text::width::{self, fit};

/// How many waiters of one name are listed: the next name must have room, too.
const WAITERS: usize = 5;

/// The screen.
pub struct Screen {
    /// What was seen last; `None` before the engine has answered.
    state: Option<Vec<Entry>>,
    /// Why that is not all.
    missing: Option<String>,
    title: String,
    /// The line that shows all names.
    listing: String,
    terminal: Option<Terminal>,
    keys: Keys,
    /// Whether the terminal shows our screen.
    is_on: bool,
}

impl Screen {
    /// Whether there is a terminal to draw on, and nobody types there: in the background a screen
    /// would be drawn over what the user is doing.
    pub fn is_possible() -> bool {
        stdout().is_terminal() && Terminal::find().is_none_or(|terminal| terminal.is_ours())
    }

    /// A screen about the names that start with `prefix`; `engine` says where they are, and the
    /// line `listing` shows all of them.
    pub fn new(prefix: &str, engine: &str, listing: String) -> Self {
        let what =
            if prefix.is_empty() { "all names".to_owned() } else { format!("{}*", shown(prefix)) };
        let keys = Keys::new();
        let how = if keys.stdin.is_some() { "q: quit" } else { "Ctrl-C: quit" };
        let title = format!("lockkeeper watch ({how}): {what}, {engine}");
        Self {
            state: None,
            missing: None,
            title,
            listing,
            terminal: Terminal::find(),
            keys,
            is_on: false,
        }
    }

    fn is_in_front(&self) -> bool {
        self.terminal.as_ref().is_none_or(Terminal::is_ours)
    }

    fn on(&mut self) -> Result<(), Failure> {
        if !std::mem::replace(&mut self.is_on, true) {
            self.keys.take();
            // The other screen, so that what stood on the terminal comes back; no cursor.
            write("\x1b[?1049h\x1b[?25l")?;
        }
        Ok(())
    }

    fn off(&mut self) {
        if std::mem::take(&mut self.is_on) {
            _ = write("\x1b[?25h\x1b[?1049l");
            let before = self.keys.before.take();
            // In the background they are the shell's.
            if let Some(before) = before.filter(|_| self.is_in_front()) {
                self.keys.give_back(&before);
            }
        }
    }

    fn text(&self, columns: usize, lines: usize) -> String {
        let Some(state) = &self.state else { return "asking who holds and who waits\n".to_owned() };
        if state.is_empty() && self.missing.is_some() {
            return String::new();
        }
        if state.is_empty() {
            return "nobody holds or waits for anything\n".to_owned();
        }
        let all = table::table(&table::rows_with_waiters(state, WAITERS), Some(columns));
        let has_room = all.len() <= lines;
        let shown = if has_room { all.len() } else { lines.saturating_sub(1) };
        let mut text: String =
            all.iter().take(shown).flat_map(|line| [line.as_str(), "\n"]).collect();
        if !has_room {
            let more = all.len() - shown;
            let mut said = format!("… {more} more lines: {}", self.listing);
            // A part of a line shows something else.
            if width::columns(&said) > columns {
                said =
                    format!("… {more} more lines: lockkeeper ls, with the same --url and PREFIX");
            }
            text += &fit(&said, columns);
            text.push('\n');
        }
        text
    }
}

impl View for Screen {
    fn show(&mut self, state: Vec<Entry>, missing: Option<Failure>) -> Result<(), Failure> {
        self.state = Some(state);
        self.missing = missing.map(|why| shown(&why.message));
        Ok(())
    }

    fn tick(&mut self) -> Result<(), Failure> {
        if !self.is_in_front() {
            return Ok(());
        }
        self.on()?;
        let (columns, lines) = size(stdout()).unwrap_or((80, 24));
        let missing = self.missing.as_deref().unwrap_or_default();
        // The title, a line for what is missing, and the one where the cursor stands.
        let text = fit(&self.title, columns)
            + "\n"
            + &fit(missing, columns)
            + "\n"
            + &self.text(columns, lines.saturating_sub(3));
        // Each line is cleared to its end, and the screen below the last one: nothing flickers.
        write(&format!("\x1b[H{}\x1b[J", text.replace('\n', "\x1b[K\r\n")))
    }

    fn signal(&mut self, signal: Signal) {
        match signal {
            Signal::SIGTSTP => {
                self.off();
                stop_by(Signal::SIGTSTP);
            }
            // Somebody else had the terminal while we were stopped.
            Signal::SIGCONT => self.is_on = false,
            _ => {}
        }
    }

    fn keys(&self) -> Option<BorrowedFd<'_>> {
        // Who reads in the background is stopped.
        if self.is_on && self.is_in_front() {
            self.keys.stdin.as_ref().map(|stdin| stdin.as_fd())
        } else {
            None
        }
    }

    fn is_told_to_end(&mut self) -> bool {
        self.keys.has_q()
    }
}

impl Drop for Screen {
    fn drop(&mut self) {
        self.off();
    }
}

/// The keyboard, read key by key.
struct Keys {
    stdin: Option<Stdin>,
    /// How the terminal was.
    before: Option<Termios>,
}

impl Keys {
    fn new() -> Self {
        Self { stdin: Some(stdin()).filter(Stdin::is_terminal), before: None }
    }

    /// Keys come at once, and are not shown. Those that send signals still do.
    fn take(&mut self) {
        let Some(stdin) = &self.stdin else { return };
        let Ok(mut modes) = tcgetattr(stdin) else { return };
        self.before.get_or_insert_with(|| modes.clone());
        modes.local_flags.remove(LocalFlags::ICANON | LocalFlags::ECHO);
        for (at, value) in [(SpecialCharacterIndices::VMIN, 1), (SpecialCharacterIndices::VTIME, 0)]
        {
            if let Some(place) = modes.control_chars.get_mut(at as usize) {
                *place = value;
            }
        }
        _ = tcsetattr(stdin, SetArg::TCSANOW, &modes);
    }

    fn give_back(&self, before: &Termios) {
        if let Some(stdin) = &self.stdin {
            _ = tcsetattr(stdin, SetArg::TCSANOW, before);
        }
    }

    fn has_q(&mut self) -> bool {
        let Some(stdin) = &self.stdin else { return false };
        let mut buffer = [0; 64];
        match read(stdin, &mut buffer) {
            // Nobody types any more.
            Ok(0) => self.stdin = None,
            Ok(n) => {
                return buffer
                    .get(..n)
                    .is_some_and(|keys| keys.iter().any(|key| matches!(key, b'q' | b'Q')));
            }
            Err(_) => {}
        }
        false
    }
}
