//! One connection: its peer, and a stream with write time-outs.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::time::{Instant, Sleep};

use crate::leases::Unflushed;

/// Time-out of a whole answer, in write time-outs.
const ANSWER_TIMEOUT_FACTOR: u32 = 10;

/// The peer of a request's connection.
#[derive(Clone, Default)]
pub(crate) struct Peer {
    /// The address, without its port.
    pub(crate) address: Arc<str>,
    /// Answers that the connection has not flushed yet.
    pub(crate) unflushed: Arc<Unflushed>,
}

impl std::fmt::Debug for Peer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.address)
    }
}

/// A stream with a write time-out that reports every completed flush.
pub(crate) struct TimedStream<S> {
    stream: S,
    /// Fires when a pending write has timed out.
    stalled: Pin<Box<Sleep>>,
    is_waiting: bool,
    timeout: Duration,
    unflushed: Arc<Unflushed>,
}

impl<S> TimedStream<S> {
    pub(crate) fn new(stream: S, timeout: Duration, unflushed: Arc<Unflushed>) -> Self {
        Self { stream, stalled: Box::pin(tokio::time::sleep(timeout)), is_waiting: false, timeout, unflushed }
    }

    /// Fails a write that is pending for too long, and an answer that takes too long as a whole.
    fn check<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if self.unflushed.since().is_some_and(|since| since > self.timeout * ANSWER_TIMEOUT_FACTOR) {
            return Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client reads too slowly")));
        }
        if written.is_ready() {
            self.is_waiting = false;
            return written;
        }
        if !self.is_waiting {
            self.is_waiting = true;
            let end = Instant::now() + self.timeout;
            self.stalled.as_mut().reset(end);
        }
        match self.stalled.as_mut().poll(cx) {
            Poll::Ready(()) => Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the client does not read"))),
            Poll::Pending => Poll::Pending,
        }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for TimedStream<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buffer: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buffer)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for TimedStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, bytes);
        self.check(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, parts);
        self.check(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let flushed = Pin::new(&mut self.stream).poll_flush(cx);
        // Hyper flushes only when its write buffer is empty.
        if matches!(flushed, Poll::Ready(Ok(()))) {
            self.unflushed.flushed();
        }
        self.check(cx, flushed)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let ended = Pin::new(&mut self.stream).poll_shutdown(cx);
        self.check(cx, ended)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_client_that_does_not_read_is_disconnected() {
        let (ours, theirs) = tokio::io::duplex(16);
        let mut watched = TimedStream::new(ours, Duration::from_secs(30), Arc::default());
        let began = Instant::now();
        let error = watched.write_all(&[0; 1000]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert_eq!(began.elapsed().as_secs(), 30);
        drop(theirs);
    }

    #[tokio::test(start_paused = true)]
    async fn an_answer_that_is_read_byte_by_byte_times_out() {
        use std::sync::Arc;

        use tokio::io::AsyncReadExt;

        use crate::in_flight::{Budget, InFlight};
        let budget = Arc::new(Budget::new(1 << 20, 1 << 20));
        let unflushed = Arc::new(Unflushed::default());
        unflushed.hold(InFlight::new(&budget, &"anna".into()));
        let (ours, mut theirs) = tokio::io::duplex(16);
        tokio::spawn(async move {
            while theirs.read(&mut [0]).await.is_ok_and(|read| read > 0) {
                tokio::time::sleep(Duration::from_secs(20)).await;
            }
        });
        let (began, mut watched) = (Instant::now(), TimedStream::new(ours, Duration::from_secs(30), unflushed));
        let error = watched.write_all(&[0; 1000]).await.unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::TimedOut);
        assert!((300..=330).contains(&began.elapsed().as_secs()), "{:?}", began.elapsed());
    }

    #[tokio::test(start_paused = true)]
    async fn a_slow_reader_is_not_disconnected() {
        use tokio::io::AsyncReadExt;
        let (ours, mut theirs) = tokio::io::duplex(16);
        let reader = tokio::spawn(async move {
            let mut read = 0;
            while read < 100 {
                tokio::time::sleep(Duration::from_secs(20)).await;
                read += theirs.read(&mut [0; 10]).await.unwrap();
            }
        });
        let mut watched = TimedStream::new(ours, Duration::from_secs(30), Arc::default());
        watched.write_all(&[0; 100]).await.unwrap();
        reader.await.unwrap();
    }
}
