//! Tokenising a stream of documents on several threads, in order.

use std::num::NonZeroUsize;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::Scope;

use super::pieces::{PIECE, piece_end};
use super::{DataError, Tokenizer};

/// Batches a thread may have waiting, the one that it works on included. Two
/// would do to keep it busy; the third covers uneven batches.
const DEPTH: usize = 3;

/// Where a part of the text goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Side {
    Train,
    Val,
}

/// At most about [`PIECE`] bytes of text, the unit of work of a thread: part of one
/// long document or many short ones.
#[derive(Debug, Default)]
pub(super) struct Batch {
    text: String,
    segments: Vec<Segment>,
}

/// A stretch of a batch's text that is tokenised by itself.
#[derive(Debug)]
struct Segment {
    bytes: usize,
    side: Side,
    end_of_document: bool,
}

/// The tokens of a batch.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Encoded {
    pub(super) train: Vec<u32>,
    pub(super) val: Vec<u32>,
}

impl Batch {
    fn encode(&self, tokenizer: &Tokenizer) -> Result<Encoded, DataError> {
        let mut encoded = Encoded::default();
        let mut rest = self.text.as_str();
        for segment in &self.segments {
            let (text, after) = rest.split_at(segment.bytes);
            rest = after;
            let ids = match segment.side {
                Side::Train => &mut encoded.train,
                Side::Val => &mut encoded.val,
            };
            tokenizer.encode_into(text, ids)?;
            if segment.end_of_document {
                ids.extend(tokenizer.end_of_text());
            }
        }
        Ok(encoded)
    }
}

/// Collects text into batches. The segments of a document are its
/// [`pieces`](super::pieces), however the text arrives.
#[derive(Debug, Default)]
pub(super) struct Batcher {
    batch: Batch,
    /// The start of a piece that may still grow.
    open: String,
    /// Complete batches, to be taken by the caller after each call.
    pub(super) ready: Vec<Batch>,
}

impl Batcher {
    /// More text of the current document.
    pub(super) fn push(&mut self, text: &str, side: Side) {
        let mut rest = text;
        while !rest.is_empty() {
            let (part, after) = rest.split_at(rest.floor_char_boundary(PIECE));
            self.open.push_str(part);
            rest = after;
            while self.open.len() > PIECE {
                self.close(piece_end(&self.open), side, false);
            }
        }
    }

    /// Ends the current stretch of text. What follows is tokenised apart.
    pub(super) fn end(&mut self, side: Side, end_of_document: bool) {
        self.close(self.open.len(), side, end_of_document);
    }

    /// Hands out what is left, after the last document.
    pub(super) fn finish(&mut self) {
        self.ready.push(std::mem::take(&mut self.batch));
    }

    fn close(&mut self, bytes: usize, side: Side, end_of_document: bool) {
        let rest = self.open.split_off(bytes);
        let piece = std::mem::replace(&mut self.open, rest);
        self.batch.text.push_str(&piece);
        self.batch.segments.push(Segment { bytes, side, end_of_document });
        // A piece is a little shorter than PIECE, and should not wait for a second.
        if self.batch.text.len() > PIECE / 2 {
            self.finish();
        }
    }
}

/// Threads that tokenise batches.
///
/// Batch `i` goes to thread `i % threads`, and results are taken in the same
/// turn, so their order needs no sorting and does not depend on timing. The
/// threads live as long as the scope: tiktoken keeps one regular expression
/// with its caches for each thread it has seen.
///
/// Without threads, which a browser has none of, a batch is tokenised when it is submitted.
pub(super) struct Pool<'a> {
    tokenizer: &'a Tokenizer,
    lanes: Vec<Lane>,
    sent: usize,
    received: usize,
}

struct Lane {
    batches: Sender<Batch>,
    results: Receiver<Result<Encoded, DataError>>,
}

impl<'a> Pool<'a> {
    pub(super) fn start(
        scope: &'a Scope<'a, '_>,
        tokenizer: &'a Tokenizer,
        threads: NonZeroUsize,
    ) -> Self {
        let threads = if cfg!(target_arch = "wasm32") { 0 } else { threads.get() };
        let lanes = (0..threads)
            .map(|_| {
                let (batches, inbox) = channel::<Batch>();
                let (outbox, results) = channel();
                scope.spawn(move || {
                    for batch in inbox {
                        // Nobody listens any more after a failure elsewhere.
                        if outbox.send(batch.encode(tokenizer)).is_err() {
                            break;
                        }
                    }
                });
                Lane { batches, results }
            })
            .collect();
        Self { tokenizer, lanes, sent: 0, received: 0 }
    }

    /// Starts a batch, and waits for the oldest result when enough are under
    /// way: this is what bounds the memory.
    pub(super) fn submit(&mut self, batch: Batch) -> Result<Option<Encoded>, DataError> {
        if self.lanes.is_empty() {
            return batch.encode(self.tokenizer).map(Some);
        }
        let lane = &self.lanes[self.sent % self.lanes.len()];
        lane.batches.send(batch).map_err(|_| worker_stopped())?;
        self.sent += 1;
        if self.sent - self.received < self.lanes.len() * DEPTH {
            return Ok(None);
        }
        self.next()
    }

    /// The oldest result under way, until there is none.
    pub(super) fn next(&mut self) -> Result<Option<Encoded>, DataError> {
        if self.received == self.sent {
            return Ok(None);
        }
        let lane = &self.lanes[self.received % self.lanes.len()];
        self.received += 1;
        let encoded = lane.results.recv().map_err(|_| worker_stopped())??;
        Ok(Some(encoded))
    }
}

fn worker_stopped() -> DataError {
    DataError::Tokenize { reason: "a tokenizer thread stopped".to_owned() }
}

#[cfg(test)]
mod tests {
    use super::super::CharVocab;
    use super::*;
    use std::thread;

    fn encode(tokenizer: &Tokenizer, threads: usize, batches: Vec<Batch>) -> Encoded {
        let mut all = Encoded::default();
        let mut add = |encoded: Option<Encoded>| {
            let more = encoded.is_some();
            let encoded = encoded.unwrap_or_default();
            all.train.extend(encoded.train);
            all.val.extend(encoded.val);
            more
        };
        thread::scope(|scope| {
            let mut pool = Pool::start(scope, tokenizer, NonZeroUsize::new(threads).unwrap());
            for batch in batches {
                add(pool.submit(batch).unwrap());
            }
            while add(pool.next().unwrap()) {}
        });
        all
    }

    /// Short and long documents, pushed in parts of `part` bytes.
    fn batches(part: usize) -> (Vec<Batch>, Vec<String>) {
        let documents: Vec<String> = [1, 7, 60_000, 3, 20_000, 1]
            .iter()
            .map(|&n| format!("document of {n}; it's   fine\n\n").repeat(n))
            .collect();
        let mut batcher = Batcher::default();
        for (index, document) in documents.iter().enumerate() {
            let side = if index % 2 == 0 { Side::Train } else { Side::Val };
            for bytes in document.as_bytes().chunks(part) {
                batcher.push(str::from_utf8(bytes).unwrap(), side);
            }
            batcher.end(side, true);
        }
        batcher.finish();
        (batcher.ready, documents)
    }

    #[test]
    fn neither_threads_nor_parts_change_the_tokens() {
        for tokenizer in [Tokenizer::Gpt2, Tokenizer::Byte] {
            let mut expected = Encoded::default();
            for (index, document) in batches(100).1.iter().enumerate() {
                let ids = if index % 2 == 0 { &mut expected.train } else { &mut expected.val };
                ids.extend(tokenizer.encode(document).unwrap());
                ids.extend(tokenizer.end_of_text());
            }
            for (threads, part) in [(1, 1000), (3, 64), (4, usize::MAX)] {
                let (batches, _) = batches(part);
                assert!(batches.len() > 6, "enough work to get out of order");
                assert!(batches.iter().all(|b| b.text.len() < 3 * PIECE));
                assert_eq!(encode(&tokenizer, threads, batches), expected);
            }
        }
    }

    #[test]
    fn a_failure_on_a_thread_comes_back() {
        let tokenizer = Tokenizer::Char(CharVocab::new("ab".chars()).unwrap());
        let mut batcher = Batcher::default();
        batcher.push("abx", Side::Train);
        batcher.end(Side::Train, true);
        batcher.finish();
        thread::scope(|scope| {
            let mut pool = Pool::start(scope, &tokenizer, NonZeroUsize::MIN);
            for batch in batcher.ready {
                pool.submit(batch).unwrap();
            }
            let error = pool.next().unwrap_err();
            assert!(matches!(error, DataError::UnknownCharacter { character: 'x', .. }));
        });
    }
}
