//! The lines that a person types, and Ctrl-C between and after them.

use std::io::{BufRead, Split, StdinLock, Write};

use crate::protocol::Failure;
use crate::worker::signals::Interrupts;

/// The lines of stdin. On a terminal, a `> ` on stderr precedes each, because stdout has only generated text.
pub(super) struct TypedLines {
    pub interrupts: Interrupts,
    lines: Split<StdinLock<'static>>,
    is_terminal: bool,
}

impl TypedLines {
    pub fn new(is_terminal: bool) -> Result<Self, Failure> {
        let interrupts = Interrupts::listen()?;
        Ok(Self { interrupts, lines: std::io::stdin().lock().split(b'\n'), is_terminal })
    }

    pub fn next_line(&mut self) -> Result<Option<Vec<u8>>, Failure> {
        if self.is_terminal {
            let _ = write!(std::io::stderr(), "> ");
        }
        self.interrupts.end();
        let line = self.lines.next();
        if line.is_none() && self.is_terminal {
            // The shell's prompt begins a line.
            let _ = writeln!(std::io::stderr());
        }
        line.transpose().map_err(Failure::file("stdin"))
    }
}
