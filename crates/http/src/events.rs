//! Wake-up hints, as server-sent events.
//!
//! A hint means "claim now" and nothing else. So unread hints are merged into one, and each new connection sends a hint for
//! those that may have been lost with the previous one.

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream;
use http::Response;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use postrider_core::{Deadline, MessagingError, WakeUps, spawn};
use postrider_wire::event::WAKE;
use tokio::sync::{mpsc, watch};

use crate::failure::Failure;
use crate::transport::Transport;

/// First and longest reconnect delay; doubled each time.
const MIN_DELAY: Duration = Duration::from_millis(100);
const MAX_DELAY: Duration = Duration::from_millis(500);

/// Upper bound of a line; longer ones are ignored.
const MAX_LINE: usize = 4096;

/// Subscribes to the hints of a path. Fails if the server refuses or cannot be reached; later it reconnects by itself.
pub(crate) async fn wake_ups(
    transport: Arc<Transport>,
    path: String,
    closing: watch::Receiver<bool>,
    deadline: Deadline,
) -> Result<WakeUps, MessagingError> {
    let opened = deadline.limit(transport.stream(&path)).await;
    let first = opened.unwrap_or(Err(Failure::NotDone(MessagingError::DeadlineExceeded { operation: "subscribe" })));
    let first = first.map_err(Failure::into_connection_error)?;
    // One unread hint is enough.
    let (sender, hints) = mpsc::channel(1);
    // A task, because hints arrive also while the caller does not poll.
    spawn(listen(transport, path, first, sender, closing));
    Ok(WakeUps::new(stream::unfold(hints, |mut hints| async move { hints.recv().await.map(|()| ((), hints)) })))
}

/// Forwards hints until the receiver or the connection is closed.
async fn listen(
    transport: Arc<Transport>,
    path: String,
    first: Response<Incoming>,
    sender: mpsc::Sender<()>,
    mut closing: watch::Receiver<bool>,
) {
    let receiver = sender.clone();
    let forward = async {
        let mut connection = Some(first);
        let mut delay = MIN_DELAY;
        loop {
            if let Some(response) = connection.take()
                && forward(response, &sender).await
            {
                delay = MIN_DELAY;
            }
            // Jitter: all clients reconnect to a restarted server.
            tokio::time::sleep(delay.mul_f64(rand::random_range(0.5..1.0))).await;
            delay = (delay * 2).min(MAX_DELAY);
            match transport.stream(&path).await {
                Ok(response) => {
                    // Hints may have been lost meanwhile.
                    let _ = sender.try_send(());
                    connection = Some(response);
                }
                Err(failure) => {
                    tracing::debug!(error = %failure.into_connection_error(), "no connection for hints; trying again")
                }
            }
        }
    };
    tokio::select! {
        () = forward => {}
        () = receiver.closed() => {}
        _ = closing.wait_for(|closed| *closed) => {}
    }
}

/// Forwards the hints of one connection until it ends. Returns whether it received anything.
async fn forward(response: Response<Incoming>, sender: &mpsc::Sender<()>) -> bool {
    let (mut body, mut events, mut has_received) = (response.into_body(), Events::default(), false);
    while let Some(Ok(frame)) = body.frame().await {
        has_received = true;
        if frame.data_ref().is_some_and(|data| events.read(data)) {
            // If full, a hint is unread already.
            let _ = sender.try_send(());
        }
    }
    has_received
}

/// Parses hints from a stream of events in arbitrary chunks.
#[derive(Debug, Default)]
struct Events {
    line: Vec<u8>,
    is_wake: bool,
}

impl Events {
    /// Reads a chunk; returns whether it completes at least one hint.
    fn read(&mut self, bytes: &[u8]) -> bool {
        let mut has_hint = false;
        for byte in bytes {
            match byte {
                b'\n' => {
                    has_hint |= self.end_line();
                    self.line.clear();
                }
                b'\r' => {}
                // One byte more is kept, to tell a line that is too long from the longest one.
                byte if self.line.len() <= MAX_LINE => self.line.push(*byte),
                _ => {}
            }
        }
        has_hint
    }

    /// Handles the end of a line; an empty line ends an event.
    fn end_line(&mut self) -> bool {
        if self.line.is_empty() {
            return std::mem::take(&mut self.is_wake);
        }
        if let Some(name) = self.line.strip_prefix(b"event:") {
            self.is_wake = name.trim_ascii() == WAKE.as_bytes();
        }
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hints_are_found_in_any_chunks() {
        let stream = b": hello\n\nevent: ping\ndata: {}\n\nevent: wake\ndata: {}\n\nevent:wake\r\ndata: {}\r\n\r\ndata: wake\n\n";
        for size in 1..stream.len() {
            let mut events = Events::default();
            let mut ends = Vec::new();
            for (at, chunk) in stream.chunks(size).enumerate() {
                if events.read(chunk) {
                    ends.push(at);
                }
            }
            assert!(!ends.is_empty() && ends.len() <= 2, "in chunks of {size}: {ends:?}");
        }
        let mut events = Events::default();
        assert!(!events.read(b"event: ping\n\n"));
        assert!(!events.read(b"event: wake\n"), "not ended");
        assert!(events.read(b"\n"));
        assert!(!events.read(b"data: {}\n\n"), "each event has its own name");
    }

    #[test]
    fn an_endless_line_is_not_buffered() {
        let mut events = Events::default();
        for _ in 0..100 {
            assert!(!events.read(&[b'x'; 1000]));
        }
        assert!(events.line.len() <= MAX_LINE + 1);
        assert!(events.read(b"\nevent: wake\n\n"));
    }
}
