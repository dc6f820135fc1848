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

use crate::log;
use crate::text;

/// Pieces that may wait to be written. With those of the commands, about a megabyte.
const ROOM: usize = 64;
/// How long a reader may take for a piece before it counts as gone. Until then commands are slowed down to its pace.
const PATIENCE: Duration = Duration::from_millis(500);

/// A way to our stderr that never takes long.
#[derive(Debug, Clone)]
pub(crate) struct Echo {
    pieces: mpsc::Sender<Piece>,
    state: Arc<State>,
}

#[derive(Debug, Default)]
struct State {
    /// Bytes that nobody will read.
    dropped: AtomicU64,
    /// Nothing is waited for until something has been written again.
    stalled: AtomicBool,
    /// A status that has not been drawn yet; another would only take room from what commands print.
    status_waits: AtomicBool,
}

#[derive(Debug)]
enum Piece {
    /// What a command printed.
    Output(Vec<u8>),
    /// The command has ended: what comes next begins a line.
    EndOfLine,
    Note(String),
    /// A line of the log.
    Log(String),
    /// A result, for a terminal that stdout and stderr share.
    Row(String),
    /// How it goes, drawn over what was last drawn so; `None` takes it away.
    Status(Option<String>),
    Flush(oneshot::Sender<()>),
}

impl Echo {
    /// To stderr.
    pub(crate) fn start() -> Self {
        Self::to(std::io::stderr())
    }

    pub(super) fn to(target: impl Write + Send + 'static) -> Self {
        let (pieces, mut waiting) = mpsc::channel(ROOM);
        let state = Arc::new(State::default());
        let mut writer = Writer { target, at_start_of_line: true, status: None, is_drawn: false, state: state.clone() };
        std::thread::spawn(move || {
            while let Some(piece) = waiting.blocking_recv() {
                writer.write(piece);
            }
        });
        Self { pieces, state }
    }

    /// Passes on what a command printed.
    pub(crate) async fn output(&self, bytes: &[u8]) {
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
    pub(crate) fn note(&self, text: impl Display) {
        match log::is_on() {
            true => tracing::info!(target: log::PROGRAM, "{text}"),
            false => self.say(text),
        }
    }

    /// Says that something is not as it should be.
    pub(crate) fn warn(&self, text: impl Display) {
        match log::is_on() {
            true => tracing::warn!(target: log::PROGRAM, "{text}"),
            false => self.say(text),
        }
    }

    fn say(&self, text: impl Display) {
        self.send(text::lines(&text.to_string()), Piece::Note);
    }

    /// Writes a line of the log, with its end.
    pub(crate) fn log(&self, line: String) {
        self.send(line, Piece::Log);
    }

    fn send(&self, text: String, piece: impl FnOnce(String) -> Piece) {
        let length = text.len() as u64;
        if self.pieces.try_send(piece(text)).is_err() {
            self.state.dropped.fetch_add(length, Ordering::Relaxed);
        }
    }

    /// Prints a result to a terminal, between what else is drawn there. Waits for the terminal.
    pub(crate) fn row(&self, text: String) {
        // It fails only when the writer is gone, and everything with it.
        let _ = self.pieces.blocking_send(Piece::Row(text::lines(&text)));
    }

    /// Shows how it goes. What comes while much else is printed may not be shown.
    pub(crate) fn status(&self, text: String) {
        let is_first = !self.state.status_waits.swap(true, Ordering::Relaxed);
        if is_first && self.pieces.try_send(Piece::Status(Some(text))).is_err() {
            self.state.status_waits.store(false, Ordering::Relaxed);
        }
    }

    /// Takes the status away.
    pub(crate) async fn end_of_status(&self) {
        let _ = timeout(PATIENCE, self.pieces.send(Piece::Status(None))).await;
    }

    /// A command has printed its last.
    pub(crate) async fn end_of_output(&self) {
        let _ = self.pieces.try_send(Piece::EndOfLine);
        self.flush().await;
    }

    /// Waits, not for long, until everything is written.
    pub(crate) async fn flush(&self) {
        let (done, is_done) = oneshot::channel();
        if self.pieces.try_send(Piece::Flush(done)).is_ok() && !self.state.stalled.load(Ordering::Relaxed) {
            let _ = timeout(PATIENCE, is_done).await;
        }
    }
}

struct Writer<W> {
    target: W,
    at_start_of_line: bool,
    /// What is to be seen below everything else.
    status: Option<String>,
    is_drawn: bool,
    state: Arc<State>,
}

/// To the start of the line, and all of it gone.
const ERASE: &str = "\r\x1b[2K";
/// A line that is longer than the terminal is wide is cut, or its beginning could not be erased.
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

    fn row(&mut self, text: &str) {
        self.start_line();
        self.erase();
        let mut out = std::io::stdout().lock();
        let _ = writeln!(out, "{text}").and_then(|()| out.flush());
    }

    /// Not behind what a command has printed of a line that it has not ended.
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
    async fn statuses_leave_room_for_what_commands_print() {
        let (_nobody_reads, writer) = std::io::pipe().unwrap();
        let echo = Echo::to(writer);
        // The pipe holds less than one of these, so the writer stands still.
        for _ in 0..2 {
            echo.output(&[b'x'; 1024 * 1024]).await;
        }
        (0..ROOM + 1).for_each(|_| echo.status("1".into()));
        assert!(echo.pieces.capacity() >= ROOM - 3, "{}", echo.pieces.capacity());
    }

    #[tokio::test]
    async fn a_status_is_drawn_below_everything_and_never_into_a_line() {
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
