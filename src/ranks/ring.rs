//! Collective operations over messages between pairs of ranks.
//!
//! The sum over all ranks goes around a ring (Patarasuk and Yuan 2009, "Bandwidth optimal all-reduce
//! algorithms for clusters of workstations"): the values are cut into as many segments as there are
//! ranks. In the first turn each segment passes every rank once and is added up, in the second turn
//! the sums pass every rank. Each rank sends `2 (n - 1) / n` of the values, whatever the number of
//! ranks.
//!
//! A segment is added up in one order, by one rank after the other, and then copied: every rank has
//! the same bits, and has them again the next time.

use std::ops::Range;
use std::time::Duration;

use super::{Abort, Group, RanksError};

/// The most bytes of a message: few enough that adding up one message hides behind the next on its way,
/// and enough that the time of a network's answer does not count.
pub(super) const MESSAGE_BYTES: usize = 1 << 20;

/// The size of the first message with bytes, which begins with their number. Most need no other.
const HEAD_BYTES: usize = 256;
const LENGTH_BYTES: usize = 8;

const VALUE_BYTES: usize = size_of::<f32>();

#[derive(Clone, Copy, Debug)]
pub(super) struct Envelope {
    pub rank: usize,
    /// At most [`MESSAGE_BYTES`].
    pub bytes: usize,
}

impl Envelope {
    fn of_values(rank: usize, count: usize) -> Self {
        Self { rank, bytes: VALUE_BYTES * count }
    }
}

/// Messages between pairs of ranks, which arrive in the order in which they were sent.
pub(super) trait PeerTransport {
    /// Returns the memory for the next message to be sent, [`MESSAGE_BYTES`].
    fn outgoing(&mut self) -> &mut [u8];

    /// Sends the first bytes of [`outgoing`](Self::outgoing) and receives a message, both at once, each
    /// if there is one. Returns the bytes received.
    fn exchange(
        &mut self,
        send: Option<Envelope>,
        receive: Option<Envelope>,
        limit: Duration,
    ) -> Result<&[u8], RanksError>;

    fn finish(&mut self) {}

    /// Returns a function that ends all ranks at once.
    fn abort(&self) -> Abort {
        Box::new(|_| ())
    }
}

/// The transport of a run in one process, which sends no messages.
pub(super) struct NoPeers;

impl PeerTransport for NoPeers {
    fn outgoing(&mut self) -> &mut [u8] {
        &mut []
    }

    fn exchange(
        &mut self,
        _: Option<Envelope>,
        _: Option<Envelope>,
        _: Duration,
    ) -> Result<&[u8], RanksError> {
        Ok(&[])
    }
}

impl Group {
    /// Exchanges messages. The watchdog of the device waits meanwhile.
    fn exchange(
        &mut self,
        send: Option<Envelope>,
        receive: Option<Envelope>,
    ) -> Result<&[u8], RanksError> {
        let _silence = self.watchdog.allow_silence(Duration::MAX);
        self.transport.exchange(send, receive, self.limit)
    }

    /// Sends the values of one segment to the next rank, and adds the values that arrive from the rank before
    /// to another segment.
    fn pass(
        &mut self,
        values: &mut [f32],
        sent: Range<usize>,
        received: Range<usize>,
    ) -> Result<(), RanksError> {
        let (next, before) = self.neighbours();
        let mut sent = pieces(sent);
        let mut received = pieces(received);
        loop {
            let to_send = sent.next();
            let range = received.next();
            if to_send.is_none() && range.is_none() {
                return Ok(());
            }
            let send = to_send.map(|range| self.write(next, &values[range]));
            let receive = range.as_ref().map(|range| Envelope::of_values(before, range.len()));
            let message = self.exchange(send, receive)?;
            let add = |value: &mut f32, arrived| *value += arrived;
            read(message, &mut values[range.unwrap_or_default()], add);
        }
    }

    /// Returns the next rank around the ring, and the one before.
    fn neighbours(&self) -> (usize, usize) {
        ((self.rank + 1) % self.size, (self.rank + self.size - 1) % self.size)
    }

    /// Writes values into the memory for the next message, which is to `rank`.
    fn write(&mut self, rank: usize, values: &[f32]) -> Envelope {
        let outgoing = self.transport.outgoing().as_chunks_mut::<VALUE_BYTES>().0;
        for (bytes, value) in outgoing.iter_mut().zip(values) {
            *bytes = value.to_le_bytes();
        }
        Envelope::of_values(rank, values.len())
    }

    fn send(&mut self, to: usize, bytes: &[u8]) -> Result<(), RanksError> {
        let (head, rest) = bytes.split_at(bytes.len().min(HEAD_BYTES - LENGTH_BYTES));
        let outgoing = self.transport.outgoing();
        outgoing[..LENGTH_BYTES].copy_from_slice(&(bytes.len() as u64).to_le_bytes());
        outgoing[LENGTH_BYTES..LENGTH_BYTES + head.len()].copy_from_slice(head);
        self.exchange(Some(Envelope { rank: to, bytes: HEAD_BYTES }), None)?;
        for piece in rest.chunks(MESSAGE_BYTES) {
            self.transport.outgoing()[..piece.len()].copy_from_slice(piece);
            let message = Envelope { rank: to, bytes: piece.len() };
            self.exchange(Some(message), None)?;
        }
        Ok(())
    }

    fn receive(&mut self, from: usize) -> Result<Vec<u8>, RanksError> {
        let head = Envelope { rank: from, bytes: HEAD_BYTES };
        let head = self.exchange(None, Some(head))?;
        let Some((length, head)) = head.split_first_chunk::<LENGTH_BYTES>() else {
            return Err(RanksError::Message { reason: "it is cut short".into() });
        };
        let length = u64::from_le_bytes(*length) as usize;
        let mut bytes = head[..head.len().min(length)].to_vec();
        while bytes.len() < length {
            let wanted = (length - bytes.len()).min(MESSAGE_BYTES);
            let message = Envelope { rank: from, bytes: wanted };
            bytes.extend_from_slice(self.exchange(None, Some(message))?);
        }
        Ok(bytes)
    }
}

/// Cuts a segment into parts of one message each.
fn pieces(segment: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let step = MESSAGE_BYTES / VALUE_BYTES;
    let end = segment.end;
    segment.step_by(step).map(move |start| start..(start + step).min(end))
}

/// Calls `take` with each of `values` and its counterpart in a message.
fn read(message: &[u8], values: &mut [f32], take: impl Fn(&mut f32, f32)) {
    for (value, bytes) in values.iter_mut().zip(message.as_chunks::<VALUE_BYTES>().0) {
        take(value, f32::from_le_bytes(*bytes));
    }
}

impl Group {
    /// Replaces values by their sums over all ranks, with the same bits on every rank and each time.
    pub fn sum(&mut self, values: &mut [f32]) -> Result<(), RanksError> {
        let Self { rank, size, .. } = *self;
        let len = values.len();
        let segment = |number: usize| {
            let index = number % size;
            len * index / size..len * (index + 1) / size
        };
        for turn in 0..size - 1 {
            let sent = rank + size - turn;
            self.pass(values, segment(sent), segment(sent - 1))?;
        }
        // Each rank now has the sums of the segment after its own.
        let parts: Vec<Range<usize>> = (1..=size).map(segment).collect();
        self.all_gather(values, &parts)
    }

    /// Replaces `bytes` by the bytes of rank 0, in a binary tree: rank `r` sends to `2 r + 1` and `2 r + 2`.
    pub(super) fn broadcast(&mut self, bytes: &mut Vec<u8>) -> Result<(), RanksError> {
        let Self { rank, size, .. } = *self;
        if rank > 0 {
            *bytes = self.receive((rank - 1) / 2)?;
        }
        for to in [2 * rank + 1, 2 * rank + 2] {
            if to < size {
                self.send(to, bytes)?;
            }
        }
        Ok(())
    }

    /// Returns the bytes of each rank on rank 0. Each rank sends directly to rank 0, so rank 0 knows which one does not
    /// answer.
    pub fn gather(&mut self, bytes: &[u8]) -> Result<Vec<Vec<u8>>, RanksError> {
        if self.rank > 0 {
            self.send(0, bytes)?;
            return Ok(Vec::new());
        }
        let mut gathered = vec![bytes.to_vec()];
        for rank in 1..self.size {
            gathered.push(self.receive(rank)?);
        }
        Ok(gathered)
    }

    /// Replaces each part of `values` by the values of its rank. There is one part for each rank, the same on
    /// all ranks.
    ///
    /// Each part goes around the ring, and a rank passes on each message as soon as it has arrived. So parts
    /// of different sizes take about as long as the bytes of all but the smallest.
    pub fn all_gather(
        &mut self,
        values: &mut [f32],
        parts: &[Range<usize>],
    ) -> Result<(), RanksError> {
        let Self { rank, size, .. } = *self;
        let (next, before) = self.neighbours();
        let of = |back: usize| pieces(parts[(rank + size - back) % size].clone());
        // The values that arrive are passed on, behind the own part.
        let sent: Vec<Range<usize>> = (0..size - 1).flat_map(of).collect();
        let received: Vec<Range<usize>> = (1..size).flat_map(of).collect();
        let own = of(0).count();
        let mut out = 0;
        let mut arrived = 0;
        while out < sent.len() || arrived < received.len() {
            let ready = sent.get(out).filter(|_| out < own + arrived);
            let send = ready.map(|range| self.write(next, &values[range.clone()]));
            let range = received.get(arrived);
            let receive = range.map(|range| Envelope::of_values(before, range.len()));
            let message = self.exchange(send, receive)?;
            if let Some(range) = range {
                let take = |value: &mut f32, read: f32| *value = read;
                read(message, &mut values[range.clone()], take);
                arrived += 1;
            }
            out += usize::from(send.is_some());
        }
        Ok(())
    }
}
