//! The stderr of this process, shared by commands and the worker itself.
//!
//! A slow reader must not block them: a pager left open overnight must not stop commands or the renewal of leases. So a
//! separate thread writes, behind a bounded queue. What does not fit is dropped and counted.

use std::fmt::Display;
use std::io::Write;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::time::timeout;

use crate::log;
use crate::text;

/// Capacity of the queue, in pieces: about a megabyte of command output.
const CAPACITY: usize = 64;
/// Write timeout of one piece. Until it passes, commands slow down to the reader's pace; then the reader is stalled.
const WRITE_TIMEOUT: Duration = Duration::from_millis(500);

/// A handle to the stderr writer. Its calls never block for long.
#[derive(Debug, Clone)]
pub(crate) struct Echo {
    pieces: mpsc::Sender<Piece>,
    state: Arc<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Dropped bytes that were not reported yet.
    dropped: AtomicU64,
    /// The reader is too slow: output that does not fit is dropped at once until a write succeeds.
    stalled: AtomicBool,
    /// A status is queued; a second one would only take capacity from the output of commands.
    status_waits: AtomicBool,
}

#[derive(Debug)]
enum Piece {
    /// Output of a command.
    Output(Vec<u8>),
    /// A command has ended: the next piece begins a new line.
    EndOfLine,
    Note(String),
    /// A log line.
    Log(String),
    /// A result row, for a terminal that stdout and stderr share.
    Row(String),
    /// The status line, drawn over the previous one; `None` removes it.
    Status(Option<String>),
    Flush(oneshot::Sender<()>),
}

impl Echo {
    /// Starts the thread that writes to stderr.
    pub(crate) fn start() -> Self {
        Self::to(std::io::stderr())
    }

    pub(super) fn to(target: impl Write + Send + 'static) -> Self {
        let (pieces, mut waiting) = mpsc::channel(CAPACITY);
        let state = Arc::new(State::default());
        let mut writer = Writer { target, at_start_of_line: true, status: None, is_drawn: false, state: state.clone() };
        std::thread::spawn(move || {
            while let Some(piece) = waiting.blocking_recv() {
                writer.write(piece);
            }
        });
        Self { pieces, state }
    }

    /// Writes output of a command.
    pub(crate) async fn output(&self, bytes: &[u8]) {
        let Err(mpsc::error::TrySendError::Full(piece)) = self.pieces.try_send(Piece::Output(bytes.to_vec())) else {
            return;
        };
        if !self.state.stalled.load(Ordering::Relaxed) {
            if timeout(WRITE_TIMEOUT, self.pieces.send(piece)).await.is_ok() {
                return;
            }
            self.state.stalled.store(true, Ordering::Relaxed);
        }
        self.state.dropped.fetch_add(bytes.len() as u64, Ordering::Relaxed);
    }

    /// Writes a notice: to the log if there is one, otherwise as a line of text.
    pub(crate) fn note(&self, text: impl Display) {
        match log::is_on() {
            true => tracing::info!(target: log::PROGRAM, "{text}"),
            false => self.note_line(text),
        }
    }

    /// Writes a warning, as [`note`](Self::note) writes a notice.
    pub(crate) fn warn(&self, text: impl Display) {
        match log::is_on() {
            true => tracing::warn!(target: log::PROGRAM, "{text}"),
            false => self.note_line(text),
        }
    }

    fn note_line(&self, text: impl Display) {
        self.send(text::lines(&text.to_string()), Piece::Note);
    }

    /// Writes a log line, which includes its newline.
    pub(crate) fn log(&self, line: String) {
        self.send(line, Piece::Log);
    }

    fn send(&self, text: String, piece: impl FnOnce(String) -> Piece) {
        let length = text.len() as u64;
        if self.pieces.try_send(piece(text)).is_err() {
            self.state.dropped.fetch_add(length, Ordering::Relaxed);
        }
    }

    /// Prints a result row on a terminal, in order with the other pieces. Blocks until it is queued.
    pub(crate) fn row(&self, text: String) {
        // Fails only if the writer thread is gone.
        let _ = self.pieces.blocking_send(Piece::Row(text::lines(&text)));
    }

    /// Draws the status line. Skipped while another status or much output is queued.
    pub(crate) fn status(&self, text: String) {
        let is_first = !self.state.status_waits.swap(true, Ordering::Relaxed);
        if is_first && self.pieces.try_send(Piece::Status(Some(text))).is_err() {
            self.state.status_waits.store(false, Ordering::Relaxed);
        }
    }

    /// Removes the status line.
    pub(crate) async fn end_of_status(&self) {
        let _ = timeout(WRITE_TIMEOUT, self.pieces.send(Piece::Status(None))).await;
    }

    /// Ends the output of a command: the next piece begins a new line.
    pub(crate) async fn end_of_output(&self) {
        let _ = self.pieces.try_send(Piece::EndOfLine);
        self.flush().await;
    }

    /// Waits until everything is written, at most for the write timeout.
    pub(crate) async fn flush(&self) {
        let (done, is_done) = oneshot::channel();
        if self.pieces.try_send(Piece::Flush(done)).is_ok() && !self.state.stalled.load(Ordering::Relaxed) {
            let _ = timeout(WRITE_TIMEOUT, is_done).await;
        }
    }
}

struct Writer<W> {
    target: W,
    at_start_of_line: bool,
    /// The line drawn below all other output.
    status: Option<String>,
    is_drawn: bool,
    state: Arc<State>,
}

/// Returns to the start of the line and erases it.
const ERASE: &str = "\r\x1b[2K";
/// Cuts a line at the terminal's width: the first row of a wrapped line could not be erased.
const NO_WRAP: &str = "\x1b[?7l";
const WRAP: &str = "\x1b[?7h";

impl<W: Write> Writer<W> {
    fn write(&mut self, piece: Piece) {
        match piece {
            Piece::Output(bytes) => self.bytes(&bytes),
            Piece::EndOfLine => self.start_line(),
            Piece::Note(text) => self.note(&text),
            Piece::Log(line) => {
                self.start_line();
                self.bytes(line.as_bytes());
            }
            Piece::Row(text) => self.row(&text),
            Piece::Status(text) => {
                self.state.status_waits.store(false, Ordering::Relaxed);
                self.erase();
                self.status = text;
            }
            Piece::Flush(done) => _ = done.send(()),
        }
        self.draw();
        self.state.stalled.store(false, Ordering::Relaxed);
        let dropped = self.state.dropped.swap(0, Ordering::Relaxed);
        if dropped > 0 {
            self.note(&format!("{dropped} bytes of output were dropped: the reader was too slow"));
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

    fn row(&mut self, text: &str) {
        self.start_line();
        self.erase();
        let mut out = std::io::stdout().lock();
        let _ = writeln!(out, "{text}").and_then(|()| out.flush());
    }

    /// Draws the status, but never behind an unfinished line of a command.
    fn draw(&mut self) {
        if let (Some(status), true, false) = (&self.status, self.at_start_of_line, self.is_drawn) {
            self.is_drawn = true;
            let drawn = format!("{ERASE}{NO_WRAP}{status}{WRAP}");
            let _ = self.target.write_all(drawn.as_bytes()).and_then(|()| self.target.flush());
        }
    }

    fn erase(&mut self) {
        if std::mem::take(&mut self.is_drawn) {
            let _ = self.target.write_all(ERASE.as_bytes()).and_then(|()| self.target.flush());
        }
    }

    fn bytes(&mut self, bytes: &[u8]) {
        self.erase();
        // A failed write to stderr cannot be reported anywhere.
        let _ = self.target.write_all(bytes).and_then(|()| self.target.flush());
        self.at_start_of_line = bytes.last().map_or(self.at_start_of_line, |byte| *byte == b'\n');
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;

    use super::*;

    #[tokio::test]
    async fn a_notice_begins_a_new_line() {
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
    async fn statuses_leave_capacity_for_command_output() {
        let (_unread, writer) = std::io::pipe().unwrap();
        let echo = Echo::to(writer);
        // The pipe holds less than one of these, so the writer blocks.
        for _ in 0..2 {
            echo.output(&[b'x'; 1024 * 1024]).await;
        }
        (0..CAPACITY + 1).for_each(|_| echo.status("1".into()));
        assert!(echo.pieces.capacity() >= CAPACITY - 3, "{}", echo.pieces.capacity());
    }

    #[tokio::test]
    async fn a_status_is_drawn_below_all_output_and_never_inside_a_line() {
        let (mut reader, writer) = std::io::pipe().unwrap();
        let echo = Echo::to(writer);
        let drawn = |text: &str| format!("{ERASE}{NO_WRAP}{text}{WRAP}");
        echo.status("1".into());
        echo.output(b"no ").await;
        echo.flush().await;
        echo.status("2".into());
        echo.output(b"end\n").await;
        echo.note("said");
        echo.end_of_status().await;
        echo.note("last");
        drop(echo);
        let mut seen = String::new();
        reader.read_to_string(&mut seen).unwrap();
        let (one, two) = (drawn("1"), drawn("2"));
        assert_eq!(seen, format!("{one}{ERASE}no end\n{two}{ERASE}postrider: said\n{two}{ERASE}postrider: last\n"));
    }

    #[tokio::test]
    async fn a_stalled_reader_blocks_no_writer_and_dropped_bytes_are_reported() {
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
        let counts = seen.lines().filter_map(|line| line.strip_prefix("postrider: ")?.split(' ').next());
        let dropped: usize = counts.map(|count| count.parse::<usize>().unwrap()).sum();
        assert!(dropped > 0);
        assert_eq!(read + dropped, 200 * 16 * 1024);
    }
}
