//! Something made of every line of stdin: one batch after the other, as fast as lines arrive and the store takes them.

use std::io::{BufRead, BufReader, Read};

use postrider::MessagingError;
use serde::Serialize;
use tokio::sync::mpsc;

use crate::failure::{Failure, explained};
use crate::output::{Output, note};
use crate::progress;
use crate::text::counted;

/// A batch is one transaction: longer ones are hardly faster, and rows would become durable later.
const MOST_LINES: usize = 1000;
/// What a batch may hold before no further line is added.
const MOST_BYTES: usize = 1 << 20;

/// How it is told of.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Words {
    /// What a line becomes: a message.
    pub(crate) thing: &'static str,
    /// What is done with a line: to send.
    pub(crate) verb: &'static str,
    /// What was done with a line: sent.
    pub(crate) done: &'static str,
}

impl Words {
    fn lines_done(&self, count: u64) -> String {
        let Self { done, .. } = self;
        counted(count, &format!("line was {done}"), &format!("lines were {done}"))
    }
}

/// What a line became: a row, and the text of it.
pub(crate) type Made<R> = Result<(R, String), Unmade>;

/// A line that became nothing, or may not have.
#[derive(Debug)]
pub(crate) struct Unmade {
    /// What it would be known as.
    pub(crate) id: String,
    /// It may have become something all the same.
    pub(crate) is_unknown: bool,
    pub(crate) error: MessagingError,
}

/// Makes something of lines.
pub(crate) trait Maker {
    type Row: Serialize;

    const WORDS: Words;

    /// How long a line may be.
    fn most(&self) -> usize;

    /// Why a longer one is refused.
    fn too_long(&self, what: &str) -> String;

    /// Makes something of each of these lines. An error is that of all of them: nothing was done.
    async fn make(&self, lines: Vec<Vec<u8>>) -> Result<Vec<Made<Self::Row>>, Failure>;
}

/// Lines that are taken together.
#[derive(Debug, Default)]
struct Chunk {
    lines: Vec<(u64, Line)>,
    bytes: usize,
}

#[derive(Debug)]
enum Line {
    Body(Vec<u8>),
    TooLong,
}

/// How far it came.
#[derive(Debug, Default)]
struct Tally {
    done: u64,
    refused: u64,
}

/// Makes something of every line of stdin, and prints a row for each.
pub(crate) async fn make_of_stdin<M: Maker>(maker: &M, out: Output) -> Result<(), Failure> {
    let most = maker.most();
    // One chunk is read while another is on its way; more would only be memory.
    let (chunks, mut read) = mpsc::channel(1);
    let reader = std::thread::spawn(move || {
        let mut lines = Lines { input: BufReader::with_capacity(MOST_BYTES, std::io::stdin()), most, number: 0 };
        while let Some(chunk) = lines.next_chunk().transpose() {
            // Whoever would take it may have given up.
            if chunks.blocking_send(chunk).is_err() {
                return;
            }
        }
    });
    let Words { thing, done, .. } = M::WORDS;
    let bar = progress::count(&format!("{thing}s {done}"));
    let mut tally = Tally::default();
    let mut result = Ok(());
    while let Some(chunk) = read.recv().await {
        result = match chunk {
            Ok(chunk) => make_chunk(maker, out, chunk, &mut tally).await,
            Err(error) => {
                let before = M::WORDS.lines_done(tally.done);
                Err(Failure::failed(format!("cannot read stdin: {error}; {before} before that")))
            }
        };
        bar.set_position(tally.done);
        if result.is_err() {
            break;
        }
    }
    bar.finish_and_clear();
    if result.is_ok() {
        // It has ended: the channel is closed. A reader that is given up may wait for stdin for ever.
        let _ = reader.join();
    }
    match (result, tally) {
        (Ok(()), Tally { refused: 0, .. }) => Ok(()),
        (Ok(()), Tally { done: count, refused }) => {
            note(format!("{} not {done}, {count} {done}", counted(refused, "line was", "lines were")));
            Err(Failure::Told)
        }
        (Err(failure), _) => Err(failure),
    }
}

async fn make_chunk<M: Maker>(maker: &M, out: Output, chunk: Chunk, tally: &mut Tally) -> Result<(), Failure> {
    let Words { thing, done, .. } = M::WORDS;
    let (mut numbers, mut bodies) = (Vec::with_capacity(chunk.lines.len()), Vec::with_capacity(chunk.lines.len()));
    for (number, line) in chunk.lines {
        match line {
            Line::Body(body) => {
                numbers.push(number);
                bodies.push(body);
            }
            Line::TooLong => {
                note(maker.too_long(&format!("line {number}")));
                tally.refused += 1;
            }
        }
    }
    let Some(last) = numbers.last().copied() else { return Ok(()) };
    let before = tally.done;
    let (mut durable, mut failed) = (Vec::with_capacity(numbers.len()), Vec::new());
    for (number, made) in numbers.into_iter().zip(maker.make(bodies).await?) {
        match made {
            Ok(row) => durable.push(row),
            Err(unmade) => failed.push((number, unmade)),
        }
    }
    tally.done += durable.len() as u64;
    tally.refused += failed.len() as u64;
    let is_nothing_done = durable.is_empty();
    let printed = out.rows(durable);
    // What is wrong with a line is its own; with a store that fails, the next lines would fail as well.
    let (own, of_store): (Vec<_>, Vec<_>) =
        failed.into_iter().partition(|(_, line)| matches!(line.error, MessagingError::InvalidInput { .. }));
    for (number, Unmade { error, .. }) in own {
        note(format!("line {number} was not {done}: {error}"));
    }
    let (unknown, unmade): (Vec<_>, Vec<_>) = of_store.into_iter().partition(|(_, line)| line.is_unknown);
    let Some((number, Unmade { error, .. })) = unknown.first().or(unmade.first()) else {
        let sum = M::WORDS.lines_done(tally.done);
        let sum = format!("{sum}. Stopped after line {last}; go on from there, with the output to where it is kept");
        return printed.map_err(|failure| failure.after(sum));
    };
    for (number, Unmade { id, .. }) in &unknown {
        note(format!("line {number} may or may not have been {done}, as {thing} {id}"));
    }
    if printed.is_err() {
        note(format!("the ids of lines that were {done} could not be printed"));
    }
    let text = if is_nothing_done && unknown.is_empty() {
        let before = M::WORDS.lines_done(before);
        format!("Stopped at line {number}; {before} before it. Go on from there when the cause is gone.")
    } else {
        let numbers = |lines: &[(u64, Unmade)]| lines.iter().map(|line| line.0).collect::<Vec<_>>();
        how_to_go_on(M::WORDS, &numbers(&unmade), &numbers(&unknown), last)
    };
    Err(Failure::failed(format!("{}\n{text}", explained(error))))
}

/// What is left to do when a store failed on some lines of a batch: the others, up to `last`, are durable, and taking
/// them again would make them two.
fn how_to_go_on(Words { verb, done, .. }: Words, unmade: &[u64], unknown: &[u64], last: u64) -> String {
    let mut steps = Vec::new();
    match unknown {
        [] => {}
        [one] => steps.push(format!("look whether line {one} is there")),
        several => steps.push(format!("look which of lines {} are there", ranges(several))),
    }
    match unmade {
        [] => {}
        [one] => steps.push(format!("{verb} line {one} again")),
        several => steps.push(format!("{verb} lines {} again", ranges(several))),
    }
    format!(
        "Stopped after line {last}; every other line up to it was {done}, or is told above. When the cause is gone, {}, \
         and go on after line {last}.",
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
    most: usize,
    number: u64,
}

impl<R: Read> Lines<R> {
    /// The lines that are there, up to a batch. Waits only for the first: what trickles in is sent as it comes.
    fn next_chunk(&mut self) -> std::io::Result<Option<Chunk>> {
        let mut chunk = Chunk::default();
        while chunk.lines.len() < MOST_LINES && chunk.bytes < MOST_BYTES {
            let waits = !self.input.buffer().contains(&b'\n');
            if waits && !chunk.lines.is_empty() {
                break;
            }
            let Some(line) = self.next_line()? else { break };
            if let Line::Body(body) = &line {
                chunk.bytes += body.len();
            }
            chunk.lines.push((self.number, line));
        }
        Ok((!chunk.lines.is_empty()).then_some(chunk))
    }

    /// The next line without its end. Of one that is too long, nothing is kept.
    fn next_line(&mut self) -> std::io::Result<Option<Line>> {
        let mut body = Vec::new();
        // The line's end is one byte more, or two.
        self.input.by_ref().take(self.most as u64 + 2).read_until(b'\n', &mut body)?;
        if body.is_empty() {
            return Ok(None);
        }
        self.number += 1;
        let is_whole = body.pop_if(|byte| *byte == b'\n').is_some();
        if is_whole {
            body.pop_if(|byte| *byte == b'\r');
        }
        if body.len() > self.most {
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

    fn read(input: &[u8], most: usize) -> Vec<(u64, Option<Vec<u8>>)> {
        let mut lines = Lines { input: BufReader::new(input), most, number: 0 };
        let mut all = Vec::new();
        while let Some(chunk) = lines.next_chunk().unwrap() {
            all.extend(chunk.lines.into_iter().map(|(number, line)| match line {
                Line::Body(body) => (number, Some(body)),
                Line::TooLong => (number, None),
            }));
        }
        all
    }

    #[test]
    fn lines_keep_their_numbers_whatever_is_between_them() {
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
    fn what_is_durable_is_never_told_to_be_sent_again() {
        let steps = |unsent: &[u64], unknown: &[u64]| {
            let words = Words { thing: "message", verb: "send", done: "sent" };
            let text = how_to_go_on(words, unsent, unknown, 9);
            text.split_once("the cause is gone, ").unwrap().1.to_owned()
        };
        assert_eq!(steps(&[3], &[]), "send line 3 again, and go on after line 9.");
        assert_eq!(
            steps(&[2, 3, 4, 9], &[6, 7]),
            "look which of lines 6 to 7 are there, send lines 2 to 4, 9 again, and go on after line 9."
        );
        assert_eq!(steps(&[], &[9]), "look whether line 9 is there, and go on after line 9.");
    }

    #[test]
    fn a_chunk_ends_where_reading_would_wait() {
        struct Trickle(Vec<&'static [u8]>);
        impl Read for Trickle {
            fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
                let Some(mut piece) = self.0.pop() else { return Ok(0) };
                piece.read(buffer)
            }
        }
        let mut lines =
            Lines { input: BufReader::new(Trickle(vec![b"lf\n", b"3\nha", b"1\n2\n"])), most: 9, number: 0 };
        let counts: Vec<_> =
            std::iter::from_fn(|| lines.next_chunk().unwrap()).map(|chunk| chunk.lines.len()).collect();
        assert_eq!(counts, [2, 1, 1]);
    }
}
