//! Wake-up hints, as server-sent events.
//!
//! A hint says that a look may be worth while, and nothing else. So hints that nobody took are one, those that a lost
//! connection swallowed are made up for by one when there is a connection again, and nothing is asked meanwhile.

use std::sync::Arc;
use std::time::Duration;

use futures_util::stream;
use http::Response;
use http_body_util::BodyExt;
use hyper::body::Incoming;
use postrider_core::{Deadline, MessagingError, WakeUps, spawn};
use postrider_wire::event::WAKE;
use tokio::sync::{mpsc, watch};

use crate::failure::Undone;
use crate::transport::Transport;

/// How long it waits before it connects again, doubled each time up to the longest.
const SHORTEST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// A line that is longer is no line of ours, and is passed over.
const LONGEST_LINE: usize = 4096;

/// Hints from a path. Fails when the server refuses them or cannot be reached; what happens later it looks after itself.
pub(crate) async fn wake_ups(
    transport: Arc<Transport>,
    path: String,
    closing: watch::Receiver<bool>,
    deadline: Deadline,
) -> Result<WakeUps, MessagingError> {
    let opened = deadline.limit(transport.stream(&path)).await;
    let first = opened.unwrap_or(Err(Undone::NotDone(MessagingError::DeadlineExceeded { operation: "subscribe" })));
    let first = first.map_err(Undone::into_harmless)?;
    // Room for one: a second hint would say nothing that the first does not.
    let (told, hints) = mpsc::channel(1);
    // A task, because hints come also while nobody asks for the next.
    spawn(listen(transport, path, first, told, closing));
    Ok(WakeUps::new(stream::unfold(hints, |mut hints| async move { hints.recv().await.map(|()| ((), hints)) })))
}

/// Passes hints on until nobody wants them.
async fn listen(
    transport: Arc<Transport>,
    path: String,
    first: Response<Incoming>,
    told: mpsc::Sender<()>,
    mut closing: watch::Receiver<bool>,
) {
    let receiver_left = told.clone();
    let pass_on = async {
        let mut connection = Some(first);
        let mut pause = SHORTEST_PAUSE;
        loop {
            if let Some(response) = connection.take()
                && pass_on(response, &told).await
            {
                pause = SHORTEST_PAUSE;
            }
            // Not all at once: a server that comes back has many to greet.
            tokio::time::sleep(pause.mul_f64(rand::random_range(0.5..1.0))).await;
            pause = (pause * 2).min(LONGEST_PAUSE);
            match transport.stream(&path).await {
                Ok(response) => {
                    // Whatever happened meanwhile was not heard of.
                    let _ = told.try_send(());
                    connection = Some(response);
                }
                Err(undone) => tracing::debug!(error = %undone.into_harmless(), "no hints for now"),
            }
        }
    };
    tokio::select! {
        () = pass_on => {}
        () = receiver_left.closed() => {}
        _ = closing.wait_for(|closed| *closed) => {}
    }
}

/// Passes the hints of one connection on, to its end. Answers whether anything came.
async fn pass_on(response: Response<Incoming>, told: &mpsc::Sender<()>) -> bool {
    let (mut body, mut events, mut has_come) = (response.into_body(), Events::default(), false);
    while let Some(Ok(frame)) = body.frame().await {
        has_come = true;
        if frame.data_ref().is_some_and(|data| events.read(data)) {
            // Full: a hint is waiting already.
            let _ = told.try_send(());
        }
    }
    has_come
}

/// Finds hints in a stream of events, however it is cut.
#[derive(Debug, Default)]
struct Events {
    line: Vec<u8>,
    is_wake: bool,
}

impl Events {
    /// Whether these bytes end at least one hint.
    fn read(&mut self, bytes: &[u8]) -> bool {
        let mut has_hint = false;
        for byte in bytes {
            match byte {
                b'\n' => {
                    has_hint |= self.end_line();
                    self.line.clear();
                }
                b'\r' => {}
                // One more than the longest is kept, so that it can be told from the longest.
                byte if self.line.len() <= LONGEST_LINE => self.line.push(*byte),
                _ => {}
            }
        }
        has_hint
    }

    /// An empty line ends an event.
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
    fn hints_are_found_however_the_stream_is_cut() {
        let stream = b": hello\n\nevent: ping\ndata: {}\n\nevent: wake\ndata: {}\n\nevent:wake\r\ndata: {}\r\n\r\ndata: wake\n\n";
        for size in 1..stream.len() {
            let mut events = Events::default();
            let mut ends = Vec::new();
            for (at, chunk) in stream.chunks(size).enumerate() {
                if events.read(chunk) {
                    ends.push(at);
                }
            }
            assert!(!ends.is_empty() && ends.len() <= 2, "in pieces of {size}: {ends:?}");
        }
        let mut events = Events::default();
        assert!(!events.read(b"event: ping\n\n"));
        assert!(!events.read(b"event: wake\n"), "not ended");
        assert!(events.read(b"\n"));
        assert!(!events.read(b"data: {}\n\n"), "the name is the event's own");
    }

    #[test]
    fn a_line_without_end_fills_no_memory() {
        let mut events = Events::default();
        for _ in 0..100 {
            assert!(!events.read(&[b'x'; 1000]));
        }
        assert!(events.line.len() <= LONGEST_LINE + 1);
        assert!(events.read(b"\nevent: wake\n\n"));
    }
}
