//! The line to the worker, from all who talk to it.

use std::cell::{Cell, RefCell};
use std::collections::VecDeque;
use std::rc::Rc;
use std::time::Duration;

use eframe::egui;

use crate::web::link::Link;
use crate::web::messages::{Ask, Reply};

/// The line to the worker, shared by all who talk to it.
#[derive(Clone)]
pub(super) struct Line(Rc<RefCell<Ends>>);

struct Ends {
    link: Link,
    /// What was said of the run that is going on, and everything else.
    of_the_run: VecDeque<Reply>,
    answers: VecDeque<(Reply, Option<Vec<u8>>)>,
}

impl Line {
    /// Starts a worker; the window is woken for what it says.
    pub fn new(ctx: &egui::Context, pace: Rc<Cell<Duration>>) -> Self {
        let ctx = ctx.clone();
        let link = Link::new(move || ctx.request_repaint_after(pace.get()));
        Self(Rc::new(RefCell::new(Ends {
            link,
            of_the_run: VecDeque::new(),
            answers: VecDeque::new(),
        })))
    }

    /// Asks the worker.
    pub fn ask(&self, ask: &Ask) {
        self.0.borrow_mut().link.ask(ask);
    }

    /// Asks the worker, and gives it bytes.
    pub fn ask_with(&self, ask: &Ask, bytes: &[u8]) {
        self.0.borrow_mut().link.ask_with(ask, Some(bytes));
    }

    /// What was said of the run that is going on, since the last call.
    pub fn of_the_run(&self) -> VecDeque<Reply> {
        self.hear();
        std::mem::take(&mut self.0.borrow_mut().of_the_run)
    }

    /// What was said beside that, since the last call, and the bytes that go with it.
    pub fn answers(&self) -> VecDeque<(Reply, Option<Vec<u8>>)> {
        self.hear();
        std::mem::take(&mut self.0.borrow_mut().answers)
    }

    fn hear(&self) {
        let mut ends = self.0.borrow_mut();
        for (reply, bytes) in ends.link.take() {
            match reply {
                Reply::Event { .. } | Reply::Ended { .. } => ends.of_the_run.push_back(reply),
                _ => ends.answers.push_back((reply, bytes)),
            }
        }
    }
}
