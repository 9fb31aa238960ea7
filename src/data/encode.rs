//! Tokenizes a stream of documents on several threads, in order.

use std::num::NonZeroUsize;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread::Scope;

use super::pieces::{PIECE, grow};
use super::{DataError, Tokenizer};

/// Batches queued per thread, including the current one. Two keep a thread busy; the third covers
/// uneven batches.
const QUEUE: usize = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SplitKind {
    Train,
    Val,
}

/// A unit of work for a thread, about [`PIECE`] bytes of text: a part of a long document, or many
/// short ones.
#[derive(Debug, Default)]
pub(super) struct TextBatch {
    bytes: usize,
    segments: Vec<TextSegment>,
}

#[derive(Debug)]
struct TextSegment {
    text: String,
    split: SplitKind,
    after: Option<u32>,
}

#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Encoded {
    pub(super) train: Vec<u32>,
    pub(super) val: Vec<u32>,
}

impl TextBatch {
    fn encode(&self, tokenizer: &Tokenizer) -> Result<Encoded, DataError> {
        let mut encoded = Encoded::default();
        for TextSegment { text, split, after } in &self.segments {
            let ids = match split {
                SplitKind::Train => &mut encoded.train,
                SplitKind::Val => &mut encoded.val,
            };
            tokenizer.base().encode_into(text, ids)?;
            ids.extend(after);
        }
        Ok(encoded)
    }
}

/// Collects text into batches. The segments of a document are its [`pieces`](super::pieces),
/// whatever parts the text arrives in.
#[derive(Debug, Default)]
pub(super) struct Batcher {
    batch: TextBatch,
    open: String,
    /// Complete batches, which the caller drains after each call.
    pub(super) ready: Vec<TextBatch>,
}

impl Batcher {
    pub(super) fn push(&mut self, text: &str, split: SplitKind) {
        for piece in grow(&mut self.open, text) {
            self.add(piece, split, None);
        }
    }

    /// Ends the current segment with the token `after`, if any. Later text is tokenized independently.
    pub(super) fn end(&mut self, split: SplitKind, after: Option<u32>) {
        let text = std::mem::take(&mut self.open);
        self.add(text, split, after);
    }

    /// Adds a segment. A batch that is long enough is ready.
    fn add(&mut self, text: String, split: SplitKind, after: Option<u32>) {
        self.batch.bytes += text.len();
        self.batch.segments.push(TextSegment { text, split, after });
        // A full piece is slightly shorter than PIECE and makes a batch by itself.
        if self.batch.bytes > PIECE / 2 {
            self.ready.push(std::mem::take(&mut self.batch));
        }
    }

    pub(super) fn finish(&mut self) -> TextBatch {
        std::mem::take(&mut self.batch)
    }
}

/// A pool of threads that tokenize batches.
///
/// Batch `i` goes to thread `i % threads`, and results are received in the same order, so the
/// output does not depend on timing. The threads live as long as the scope, because tiktoken keeps
/// a regular expression with its caches for each thread it has seen.
///
/// In a browser, which has no threads, a batch is tokenized when it is submitted.
pub(super) struct EncoderPool<'a> {
    tokenizer: &'a Tokenizer,
    workers: Vec<Worker>,
    sent: usize,
    received: usize,
}

struct Worker {
    batches: Sender<TextBatch>,
    results: Receiver<Result<Encoded, DataError>>,
}

impl<'a> EncoderPool<'a> {
    pub fn new(scope: &'a Scope<'a, '_>, tokenizer: &'a Tokenizer, threads: NonZeroUsize) -> Self {
        let threads = if cfg!(target_arch = "wasm32") { 0 } else { threads.get() };
        let workers = (0..threads)
            .map(|_| {
                let (batches, inbox) = channel::<TextBatch>();
                let (outbox, results) = channel();
                scope.spawn(move || {
                    for batch in inbox {
                        // The receiver is gone after an error elsewhere.
                        if outbox.send(batch.encode(tokenizer)).is_err() {
                            break;
                        }
                    }
                });
                Worker { batches, results }
            })
            .collect();
        Self { tokenizer, workers, sent: 0, received: 0 }
    }

    /// Queues a batch. If the queues are full, which bounds the memory, waits for the oldest result
    /// and returns it.
    pub(super) fn submit(&mut self, batch: TextBatch) -> Result<Option<Encoded>, DataError> {
        if self.workers.is_empty() {
            return batch.encode(self.tokenizer).map(Some);
        }
        let worker = &self.workers[self.sent % self.workers.len()];
        worker.batches.send(batch).map_err(|_| worker_stopped())?;
        self.sent += 1;
        if self.sent - self.received < self.workers.len() * QUEUE {
            return Ok(None);
        }
        self.next()
    }

    /// Waits for the oldest result; `None` if no batch is queued.
    pub(super) fn next(&mut self) -> Result<Option<Encoded>, DataError> {
        if self.received == self.sent {
            return Ok(None);
        }
        let worker = &self.workers[self.received % self.workers.len()];
        self.received += 1;
        worker.results.recv().map_err(|_| worker_stopped())?.map(Some)
    }
}

fn worker_stopped() -> DataError {
    DataError::tokenize("a tokenizer thread stopped unexpectedly")
}

#[cfg(test)]
mod tests {
    use super::super::testing::characters;
    use super::*;
    use std::thread;

    fn encode(tokenizer: &Tokenizer, threads: usize, batches: Vec<TextBatch>) -> Encoded {
        let mut all = Encoded::default();
        let mut add = |encoded: Encoded| {
            all.train.extend(encoded.train);
            all.val.extend(encoded.val);
        };
        thread::scope(|scope| {
            let threads = NonZeroUsize::new(threads).unwrap();
            let mut pool = EncoderPool::new(scope, tokenizer, threads);
            for batch in batches {
                pool.submit(batch).unwrap().into_iter().for_each(&mut add);
            }
            while let Some(encoded) = pool.next().unwrap() {
                add(encoded);
            }
        });
        all
    }

    /// Batches short and long documents, pushed in parts of `part` bytes.
    fn batches(part: usize, after: Option<u32>) -> (Vec<TextBatch>, Vec<String>) {
        let documents: Vec<String> = [1, 7, 60_000, 3, 20_000, 1]
            .iter()
            .map(|&n| format!("document of {n}; it's   fine\n\n").repeat(n))
            .collect();
        let mut batcher = Batcher::default();
        for (index, document) in documents.iter().enumerate() {
            let split = if index % 2 == 0 { SplitKind::Train } else { SplitKind::Val };
            for bytes in document.as_bytes().chunks(part) {
                batcher.push(str::from_utf8(bytes).unwrap(), split);
            }
            batcher.end(split, after);
        }
        let last = batcher.finish();
        batcher.ready.push(last);
        (batcher.ready, documents)
    }

    #[test]
    fn tokens_do_not_depend_on_threads_or_parts() {
        for tokenizer in [Tokenizer::GPT2, Tokenizer::BYTE] {
            let end = tokenizer.end_of_text();
            let mut expected = Encoded::default();
            for (index, document) in batches(100, end).1.iter().enumerate() {
                let ids = if index % 2 == 0 { &mut expected.train } else { &mut expected.val };
                ids.extend(tokenizer.encode(document).unwrap());
                ids.extend(end);
            }
            for (threads, part) in [(1, 1000), (3, 64), (4, usize::MAX)] {
                let (batches, _) = batches(part, end);
                assert!(batches.len() > 6, "enough work to get out of order");
                assert!(batches.iter().all(|b| b.bytes < 3 * PIECE));
                assert_eq!(encode(&tokenizer, threads, batches), expected);
            }
        }
    }

    #[test]
    fn an_error_on_a_thread_is_returned() {
        let tokenizer = characters("ab");
        let mut batcher = Batcher::default();
        batcher.push("abx", SplitKind::Train);
        batcher.end(SplitKind::Train, None);
        thread::scope(|scope| {
            let mut pool = EncoderPool::new(scope, &tokenizer, NonZeroUsize::MIN);
            pool.submit(batcher.finish()).unwrap();
            let error = pool.next().unwrap_err();
            assert!(error.to_string().starts_with("character 'x' at byte 2"), "{error}");
        });
    }
}
