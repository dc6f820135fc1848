//! Our stderr, which commands and the worker itself write to.
//!
//! Nobody may ever wait for whoever reads it: a pager that is left open overnight must not hold up commands or the
//! renewal of leases. So a thread of its own writes, behind a queue that ends somewhere. What does not fit is dropped
//! and counted.

use std::fmt::Display;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

/// Pieces that may wait to be written. With those of the commands, about a megabyte.
const ROOM: usize = 64;
/// How long a reader may take for a piece before it counts as gone. Until then commands are slowed down to its pace.
const PATIENCE: Duration = Duration::from_millis(500);

/// A way to our stderr that never takes long.
#[derive(Debug, Clone)]
pub(super) struct Echo {
    pieces: mpsc::Sender<Piece>,
    state: Arc<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Bytes that nobody will read.
    dropped: AtomicU64,
    /// Nothing is waited for until something has been written again.
    stalled: AtomicBool,
}

#[derive(Debug)]
enum Piece {
    /// What a command printed.
    Output(Vec<u8>),
    /// The command has ended: what comes next begins a line.
    EndOfLine,
    Note(String),
    Flush(oneshot::Sender<()>),
}

impl Echo {
    /// To stderr.
    pub(super) fn start() -> Self {
        Self::to(std::io::stderr())
    }

    fn to(target: impl Write + Send + 'static) -> Self {
        let (pieces, mut waiting) = mpsc::channel(ROOM);
        let state = Arc::new(State::default());
        let mut writer = Writer { target, at_start_of_line: true, state: state.clone() };
        std::thread::spawn(move || {
            while let Some(piece) = waiting.blocking_recv() {
                writer.write(piece);
            }
        });
        Self { pieces, state }
    }

    /// Passes on what a command printed.
    pub(super) async fn output(&self, bytes: &[u8]) {
        let Err(mpsc::error::TrySendError::Full(piece)) = self.pieces.try_send(Piece::Output(bytes.to_vec())) else {
            return;
        };
        if !self.state.stalled.load(Ordering::Relaxed) {
            if timeout(PATIENCE, self.pieces.send(piece)).await.is_ok() {
                return;
            }
            self.state.stalled.store(true, Ordering::Relaxed);
        }
        self.state.dropped.fetch_add(bytes.len() as u64, Ordering::Relaxed);
    }

    /// Says something.
    pub(super) fn note(&self, text: impl Display) {
        let text = text.to_string();
        let length = text.len() as u64;
        if self.pieces.try_send(Piece::Note(text)).is_err() {
            self.state.dropped.fetch_add(length, Ordering::Relaxed);
        }
    }

    /// A command has printed its last.
    pub(super) async fn end_of_output(&self) {
        let _ = self.pieces.try_send(Piece::EndOfLine);
        self.flush().await;
    }

    /// Waits, not for long, until everything is written.
    pub(super) async fn flush(&self) {
        let (done, is_done) = oneshot::channel();
        if self.pieces.try_send(Piece::Flush(done)).is_ok() && !self.state.stalled.load(Ordering::Relaxed) {
            let _ = timeout(PATIENCE, is_done).await;
        }
    }
}

struct Writer<W> {
    target: W,
    at_start_of_line: bool,
    state: Arc<State>,
}

impl<W: Write> Writer<W> {
    fn write(&mut self, piece: Piece) {
        match piece {
            Piece::Output(bytes) => self.bytes(&bytes),
            Piece::EndOfLine => self.start_line(),
            Piece::Note(text) => self.note(&text),
            Piece::Flush(done) => _ = done.send(()),
        }
        self.state.stalled.store(false, Ordering::Relaxed);
        let dropped = self.state.dropped.swap(0, Ordering::Relaxed);
        if dropped > 0 {
            self.note(&format!("{dropped} bytes of output were dropped: nobody read them in time"));
        }
    }

    fn note(&mut self, text: &str) {
        self.start_line();
        self.bytes(format!("postrider: {text}\n").as_bytes());
    }

    fn start_line(&mut self) {
        if !self.at_start_of_line {
            self.bytes(b"\n");
        }
    }

    fn bytes(&mut self, bytes: &[u8]) {
        // When nobody can read it, there is nobody to tell.
        let _ = self.target.write_all(bytes).and_then(|()| self.target.flush());
        self.at_start_of_line = bytes.last().map_or(self.at_start_of_line, |byte| *byte == b'\n');
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[tokio::test]
    async fn a_note_begins_a_line_of_its_own() {
        let (mut reader, writer) = std::io::pipe().unwrap();
        let echo = Echo::to(writer);
        echo.output(b"no end").await;
        echo.note("said");
        echo.output(b"an end\n").await;
        echo.end_of_output().await;
        drop(echo);
        let mut seen = String::new();
        reader.read_to_string(&mut seen).unwrap();
        assert_eq!(seen, "no end\npostrider: said\nan end\n");
    }

    #[tokio::test]
    async fn a_reader_that_stands_still_holds_nobody_up_and_learns_what_it_missed() {
        let (mut reader, writer) = std::io::pipe().unwrap();
        let echo = Echo::to(writer);
        // More than the pipe and the queue hold.
        for _ in 0..200 {
            echo.output(&[b'x'; 16 * 1024]).await;
        }
        assert!(echo.state.stalled.load(Ordering::Relaxed));
        drop(echo);
        let mut seen = String::new();
        reader.read_to_string(&mut seen).unwrap();
        let read = seen.bytes().filter(|byte| *byte == b'x').count();
        let told = seen.lines().filter_map(|line| line.strip_prefix("postrider: ")?.split(' ').next());
        let dropped: usize = told.map(|count| count.parse::<usize>().unwrap()).sum();
        assert!(dropped > 0);
        assert_eq!(read + dropped, 200 * 16 * 1024);
    }
}
