//! Ranks as threads of one process, for tests.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use super::ring::{Link, MESSAGE_BYTES, Message};
use super::{Group, RanksError};

/// A thread's channels to and from all others.
pub(super) struct ThreadLink {
    senders: Vec<Sender<Vec<u8>>>,
    receivers: Vec<Receiver<Vec<u8>>>,
    outgoing: Vec<u8>,
    incoming: Vec<u8>,
}

/// Connects `size` threads, each pair by a channel in either direction.
pub(super) fn links(size: usize) -> Vec<ThreadLink> {
    let mut receivers: Vec<Vec<Receiver<Vec<u8>>>> = (0..size).map(|_| Vec::new()).collect();
    let mut senders: Vec<Vec<Sender<Vec<u8>>>> = (0..size).map(|_| Vec::new()).collect();
    for from in &mut senders {
        for to in &mut receivers {
            let (sender, receiver) = channel();
            from.push(sender);
            to.push(receiver);
        }
    }
    let link = |(senders, receivers)| {
        let (outgoing, incoming) = (vec![0; MESSAGE_BYTES], Vec::new());
        ThreadLink { senders, receivers, outgoing, incoming }
    };
    senders.into_iter().zip(receivers).map(link).collect()
}

impl Link for ThreadLink {
    fn outgoing(&mut self) -> &mut [u8] {
        &mut self.outgoing
    }

    fn exchange(
        &mut self,
        send: Option<Message>,
        receive: Option<Message>,
        limit: Duration,
    ) -> Result<&[u8], RanksError> {
        let silent = |rank| RanksError::Silent { rank, seconds: limit.as_secs() };
        if let Some(Message { rank, bytes }) = send {
            let sent = self.senders[rank].send(self.outgoing[..bytes].to_vec());
            sent.map_err(|_| silent(rank))?;
        }
        self.incoming.clear();
        if let Some(Message { rank, bytes }) = receive {
            self.incoming = match self.receivers[rank].recv_timeout(limit) {
                Ok(message) => message,
                Err(RecvTimeoutError::Timeout | RecvTimeoutError::Disconnected) => {
                    return Err(silent(rank));
                }
            };
            assert_eq!(self.incoming.len(), bytes, "ranks make the same calls");
        }
        Ok(&self.incoming)
    }
}

/// Runs `work` on `size` ranks, each on its own thread. Returns the results in the order of ranks.
pub(crate) fn on_threads<T: Send>(size: usize, work: impl Fn(Group) -> T + Sync) -> Vec<T> {
    let work = &work;
    std::thread::scope(|scope| {
        let start = |(rank, link): (usize, ThreadLink)| {
            scope.spawn(move || work(Group::of(link, rank, size, Duration::from_secs(60))))
        };
        let threads: Vec<_> = links(size).into_iter().enumerate().map(start).collect();
        threads.into_iter().map(|thread| thread.join().expect("no rank panics")).collect()
    })
}
