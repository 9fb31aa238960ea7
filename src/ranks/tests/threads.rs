//! Ranks as threads of one process, for tests.

use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::Duration;

use crate::ranks::ring::{Envelope, MESSAGE_BYTES, PeerTransport};
use crate::ranks::{Group, RanksError};

/// A thread's channels to and from all others.
pub(super) struct ChannelTransport {
    senders: Vec<Sender<Vec<u8>>>,
    receivers: Vec<Receiver<Vec<u8>>>,
    outgoing: Vec<u8>,
    incoming: Vec<u8>,
}

/// Connects `size` threads, each pair by a channel in either direction.
pub(super) fn transports(size: usize) -> Vec<ChannelTransport> {
    let mut receivers: Vec<Vec<Receiver<Vec<u8>>>> = (0..size).map(|_| Vec::new()).collect();
    let mut senders: Vec<Vec<Sender<Vec<u8>>>> = (0..size).map(|_| Vec::new()).collect();
    for from in &mut senders {
        for to in &mut receivers {
            let (sender, receiver) = channel();
            from.push(sender);
            to.push(receiver);
        }
    }
    let transport = |(senders, receivers)| {
        let outgoing = vec![0; MESSAGE_BYTES];
        ChannelTransport { senders, receivers, outgoing, incoming: Vec::new() }
    };
    senders.into_iter().zip(receivers).map(transport).collect()
}

impl PeerTransport for ChannelTransport {
    fn outgoing(&mut self) -> &mut [u8] {
        &mut self.outgoing
    }

    fn exchange(
        &mut self,
        send: Option<Envelope>,
        receive: Option<Envelope>,
        limit: Duration,
    ) -> Result<&[u8], RanksError> {
        let silent = |rank| RanksError::Silent { rank, seconds: limit.as_secs() };
        if let Some(Envelope { rank, bytes }) = send {
            let sent = self.senders[rank].send(self.outgoing[..bytes].to_vec());
            sent.map_err(|_| silent(rank))?;
        }
        self.incoming.clear();
        if let Some(Envelope { rank, bytes }) = receive {
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
        let start = |(rank, transport): (usize, ChannelTransport)| {
            scope.spawn(move || work(Group::of(transport, rank, size, Duration::from_secs(60))))
        };
        let threads: Vec<_> = transports(size).into_iter().enumerate().map(start).collect();
        threads.into_iter().map(|thread| thread.join().expect("no rank panics")).collect()
    })
}
