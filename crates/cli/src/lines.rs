//! Creates a message or task from every line of stdin, in batches, as fast as lines arrive and the store takes them.

use std::io::{BufRead, BufReader, Read};

use postrider::MessagingError;
use serde::Serialize;
use tokio::sync::mpsc;

use crate::failure::{Failure, explained};
use crate::output::{Output, note};
use crate::progress;
use crate::text::counted;

/// Upper bound of a batch, in lines. A batch is one transaction: longer ones are hardly faster and become durable later.
const MAX_LINES: usize = 1000;
/// Size in bytes at which a batch takes no further line.
const MAX_BYTES: usize = 1 << 20;

/// The words of the output.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Words {
    /// What a line becomes: "message".
    pub(crate) thing: &'static str,
    /// The operation: "send".
    pub(crate) verb: &'static str,
    /// Its participle: "sent".
    pub(crate) done: &'static str,
}

impl Words {
    fn lines_done(&self, count: u64) -> String {
        let Self { done, .. } = self;
        counted(count, &format!("line was {done}"), &format!("lines were {done}"))
    }
}

/// The outcome of a line: its row for JSON and as text.
pub(crate) type Created<R> = Result<(R, String), NotCreated>;

/// A line that failed.
#[derive(Debug)]
pub(crate) struct NotCreated {
    /// The id that was tried.
    pub(crate) id: String,
    /// The outcome is unknown: the message or task may exist.
    pub(crate) is_unknown: bool,
    pub(crate) error: MessagingError,
}

/// Creates messages or tasks from lines.
pub(crate) trait Creator {
    type Row: Serialize;

    const WORDS: Words;

    /// Upper bound of a line, in bytes.
    fn max_line(&self) -> usize;

    /// The error of a longer line.
    fn too_long(&self, what: &str) -> String;

    /// Creates one message or task per line. An error means that none was created.
    async fn create(&self, lines: Vec<Vec<u8>>) -> Result<Vec<Created<Self::Row>>, Failure>;
}

/// The lines of one batch.
#[derive(Debug, Default)]
struct Batch {
    lines: Vec<(u64, Line)>,
    bytes: usize,
}

#[derive(Debug)]
enum Line {
    Body(Vec<u8>),
    TooLong,
}

#[derive(Debug, Default)]
struct Counts {
    done: u64,
    refused: u64,
}

/// Creates a message or task from every line of stdin and prints a row for each.
pub(crate) async fn create_from_stdin<C: Creator>(creator: &C, out: Output) -> Result<(), Failure> {
    let max_line = creator.max_line();
    // One batch is read while the previous one is created; a longer queue would only take memory.
    let (batches, mut read) = mpsc::channel(1);
    let reader = std::thread::spawn(move || {
        let mut lines = Lines { input: BufReader::with_capacity(MAX_BYTES, std::io::stdin()), max_line, number: 0 };
        while let Some(batch) = lines.next_batch().transpose() {
            // The receiver may have stopped after a failure.
            if batches.blocking_send(batch).is_err() {
                return;
            }
        }
    });
    let Words { thing, done, .. } = C::WORDS;
    let bar = progress::count(&format!("{thing}s {done}"));
    let mut counts = Counts::default();
    let mut result = Ok(());
    while let Some(batch) = read.recv().await {
        result = match batch {
            Ok(batch) => create_batch(creator, out, batch, &mut counts).await,
            Err(error) => {
                let before = C::WORDS.lines_done(counts.done);
                Err(Failure::failed(format!("cannot read stdin: {error}; {before} before that")))
            }
        };
        bar.set_position(counts.done);
        if result.is_err() {
            break;
        }
    }
    bar.finish_and_clear();
    if result.is_ok() {
        // The reader has ended. After a failure it is not joined: it may block on stdin for ever.
        let _ = reader.join();
    }
    match (result, counts) {
        (Ok(()), Counts { refused: 0, .. }) => Ok(()),
        (Ok(()), Counts { done: count, refused }) => {
            note(format!("{} not {done}, {count} {done}", counted(refused, "line was", "lines were")));
            Err(Failure::Reported)
        }
        (Err(failure), _) => Err(failure),
    }
}

async fn create_batch<C: Creator>(creator: &C, out: Output, batch: Batch, counts: &mut Counts) -> Result<(), Failure> {
    let Words { thing, done, .. } = C::WORDS;
    let (mut numbers, mut bodies) = (Vec::with_capacity(batch.lines.len()), Vec::with_capacity(batch.lines.len()));
    for (number, line) in batch.lines {
        match line {
            Line::Body(body) => {
                numbers.push(number);
                bodies.push(body);
            }
            Line::TooLong => {
                note(creator.too_long(&format!("line {number}")));
                counts.refused += 1;
            }
        }
    }
    let Some(last) = numbers.last().copied() else { return Ok(()) };
    let before = counts.done;
    let (mut durable, mut failed) = (Vec::with_capacity(numbers.len()), Vec::new());
    for (number, outcome) in numbers.into_iter().zip(creator.create(bodies).await?) {
        match outcome {
            Ok(row) => durable.push(row),
            Err(error) => failed.push((number, error)),
        }
    }
    counts.done += durable.len() as u64;
    counts.refused += failed.len() as u64;
    let is_none_durable = durable.is_empty();
    let printed = out.rows(durable);
    // An invalid line is skipped. A failure of the store stops the command: the next lines would fail as well.
    let (invalid, of_store): (Vec<_>, Vec<_>) =
        failed.into_iter().partition(|(_, line)| matches!(line.error, MessagingError::InvalidInput { .. }));
    for (number, NotCreated { error, .. }) in invalid {
        note(format!("line {number} was not {done}: {error}"));
    }
    let (unknown, not_created): (Vec<_>, Vec<_>) = of_store.into_iter().partition(|(_, line)| line.is_unknown);
    let Some((number, NotCreated { error, .. })) = unknown.first().or(not_created.first()) else {
        let sum = C::WORDS.lines_done(counts.done);
        let sum = format!("{sum}. Stopped after line {last}; continue after it, with an output that can be written");
        return printed.map_err(|failure| failure.after(sum));
    };
    for (number, NotCreated { id, .. }) in &unknown {
        note(format!("line {number} may or may not have been {done}, as {thing} {id}"));
    }
    if printed.is_err() {
        note(format!("the ids of lines that were {done} could not be printed"));
    }
    let text = if is_none_durable && unknown.is_empty() {
        let before = C::WORDS.lines_done(before);
        format!("Stopped at line {number}; {before} before it. Continue from there once the cause is fixed.")
    } else {
        let numbers = |lines: &[(u64, NotCreated)]| lines.iter().map(|line| line.0).collect::<Vec<_>>();
        next_steps(C::WORDS, &numbers(&not_created), &numbers(&unknown), last)
    };
    Err(Failure::failed(format!("{}\n{text}", explained(error))))
}

/// The user's next steps after a store failed on some lines of a batch. The other lines, up to `last`, are durable, and
/// repeating them would duplicate them.
fn next_steps(Words { verb, done, .. }: Words, not_created: &[u64], unknown: &[u64], last: u64) -> String {
    let mut steps = Vec::new();
    match unknown {
        [] => {}
        [one] => steps.push(format!("check whether line {one} was {done}")),
        several => steps.push(format!("check which of lines {} were {done}", ranges(several))),
    }
    match not_created {
        [] => {}
        [one] => steps.push(format!("{verb} line {one} again")),
        several => steps.push(format!("{verb} lines {} again", ranges(several))),
    }
    format!(
        "Stopped after line {last}; every other line up to it was {done}, or is reported above. Once the cause is fixed, \
         {}, and continue after line {last}.",
        steps.join(", ")
    )
}

/// `3, 5 to 7`
fn ranges(numbers: &[u64]) -> String {
    let runs = numbers.chunk_by(|a, b| a + 1 == *b);
    let shown = runs.filter_map(|run| match run {
        [] => None,
        [one] => Some(one.to_string()),
        [first, .., last] => Some(format!("{first} to {last}")),
    });
    shown.collect::<Vec<_>>().join(", ")
}

struct Lines<R> {
    input: BufReader<R>,
    max_line: usize,
    number: u64,
}

impl<R: Read> Lines<R> {
    /// Reads the available lines, up to a batch. Blocks only for the first line, so that a slow input is not delayed.
    fn next_batch(&mut self) -> std::io::Result<Option<Batch>> {
        let mut batch = Batch::default();
        while batch.lines.len() < MAX_LINES && batch.bytes < MAX_BYTES {
            let would_block = !self.input.buffer().contains(&b'\n');
            if would_block && !batch.lines.is_empty() {
                break;
            }
            let Some(line) = self.next_line()? else { break };
            if let Line::Body(body) = &line {
                batch.bytes += body.len();
            }
            batch.lines.push((self.number, line));
        }
        Ok((!batch.lines.is_empty()).then_some(batch))
    }

    /// Reads the next line without its newline. A line that is too long is skipped.
    fn next_line(&mut self) -> std::io::Result<Option<Line>> {
        let mut body = Vec::new();
        // The newline has one or two bytes.
        self.input.by_ref().take(self.max_line as u64 + 2).read_until(b'\n', &mut body)?;
        if body.is_empty() {
            return Ok(None);
        }
        self.number += 1;
        let is_whole = body.pop_if(|byte| *byte == b'\n').is_some();
        if is_whole {
            body.pop_if(|byte| *byte == b'\r');
        }
        if body.len() > self.max_line {
            if !is_whole {
                self.input.skip_until(b'\n')?;
            }
            return Ok(Some(Line::TooLong));
        }
        Ok(Some(Line::Body(body)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(input: &[u8], max_line: usize) -> Vec<(u64, Option<Vec<u8>>)> {
        let mut lines = Lines { input: BufReader::new(input), max_line, number: 0 };
        let mut all = Vec::new();
        while let Some(batch) = lines.next_batch().unwrap() {
            all.extend(batch.lines.into_iter().map(|(number, line)| match line {
                Line::Body(body) => (number, Some(body)),
                Line::TooLong => (number, None),
            }));
        }
        all
    }

    #[test]
    fn line_numbers_count_empty_and_skipped_lines() {
        let body = |text: &[u8]| Some(text.to_vec());
        assert_eq!(read(b"", 4), []);
        assert_eq!(
            read(b"a\n\n\xff\0b\r\nend", 4),
            [(1, body(b"a")), (2, body(b"")), (3, body(b"\xff\0b")), (4, body(b"end")),]
        );
        assert_eq!(read(b"a\r\r\n\r\nb\r", 4), [(1, body(b"a\r")), (2, body(b"")), (3, body(b"b\r"))]);
        assert_eq!(read(b"1234\n12345\n1\n123456", 4), [(1, body(b"1234")), (2, None), (3, body(b"1")), (4, None)]);
        assert_eq!(
            read(b"1234\r\n12345\r\n123456\n1234567\n1", 4),
            [(1, body(b"1234")), (2, None), (3, None), (4, None), (5, body(b"1"))]
        );
    }

    #[test]
    fn durable_lines_are_never_to_be_sent_again() {
        let steps = |unsent: &[u64], unknown: &[u64]| {
            let words = Words { thing: "message", verb: "send", done: "sent" };
            let text = next_steps(words, unsent, unknown, 9);
            text.split_once("the cause is fixed, ").unwrap().1.to_owned()
        };
        assert_eq!(steps(&[3], &[]), "send line 3 again, and continue after line 9.");
        assert_eq!(
            steps(&[2, 3, 4, 9], &[6, 7]),
            "check which of lines 6 to 7 were sent, send lines 2 to 4, 9 again, and continue after line 9."
        );
        assert_eq!(steps(&[], &[9]), "check whether line 9 was sent, and continue after line 9.");
    }

    #[test]
    fn a_batch_ends_where_reading_would_block() {
        struct Trickle(Vec<&'static [u8]>);
        impl Read for Trickle {
            fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
                let Some(mut piece) = self.0.pop() else { return Ok(0) };
                piece.read(buffer)
            }
        }
        let mut lines =
            Lines { input: BufReader::new(Trickle(vec![b"lf\n", b"3\nha", b"1\n2\n"])), max_line: 9, number: 0 };
        let counts: Vec<_> =
            std::iter::from_fn(|| lines.next_batch().unwrap()).map(|batch| batch.lines.len()).collect();
        assert_eq!(counts, [2, 1, 1]);
    }
}
