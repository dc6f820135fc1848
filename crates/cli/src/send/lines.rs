//! `postrider send --lines`: one batch after the other, as fast as lines arrive and the store takes them.

use std::io::{BufRead, BufReader, Read};

use postrider::{Deadline, Message, MessageId, MessagingError, MessagingService, QueueName};
use tokio::sync::mpsc;

use super::{Label, Sent};
use crate::failure::{Failure, explained};
use crate::input::too_long;
use crate::output::note;
use crate::progress;
use crate::session::Session;
use crate::text::counted;

/// A batch is one transaction: longer ones are hardly faster, and rows would become durable later.
const MOST_LINES: usize = 1000;
/// What a batch may hold before no further line is added.
const MOST_BYTES: usize = 1 << 20;

/// Lines that are sent together.
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
    sent: u64,
    refused: u64,
}

pub(super) async fn send(session: &Session, queue: &QueueName, label: &Label) -> Result<(), Failure> {
    let most = session.provider.capabilities().limits.max_body_bytes;
    // One chunk is read while another is sent; more would only be memory.
    let (chunks, mut read) = mpsc::channel(1);
    let reader = std::thread::spawn(move || {
        let mut lines = Lines { input: BufReader::with_capacity(MOST_BYTES, std::io::stdin()), most, number: 0 };
        while let Some(chunk) = lines.next_chunk().transpose() {
            // Whoever would send it may have given up.
            if chunks.blocking_send(chunk).is_err() {
                return;
            }
        }
    });
    let bar = progress::count("messages sent");
    let mut tally = Tally::default();
    let mut result = Ok(());
    while let Some(chunk) = read.recv().await {
        result = match chunk {
            Ok(chunk) => send_chunk(session, queue, label, chunk, &mut tally).await,
            Err(error) => {
                let before = counted(tally.sent, "line was sent", "lines were sent");
                Err(Failure::failed(format!("cannot read stdin: {error}; {before} before that")))
            }
        };
        bar.set_position(tally.sent);
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
        (Ok(()), Tally { sent, refused }) => {
            note(format!("{} not sent, {sent} sent", counted(refused, "line was", "lines were")));
            Err(Failure::Told)
        }
        (Err(failure), _) => Err(failure),
    }
}

async fn send_chunk(
    session: &Session,
    queue: &QueueName,
    label: &Label,
    chunk: Chunk,
    tally: &mut Tally,
) -> Result<(), Failure> {
    let most = session.provider.capabilities().limits.max_body_bytes;
    let mut sent_lines: Vec<(u64, MessageId)> = Vec::with_capacity(chunk.lines.len());
    let mut messages: Vec<Message> = Vec::with_capacity(chunk.lines.len());
    for (number, line) in chunk.lines {
        match line {
            Line::Body(body) => {
                let message = label.message(body)?;
                sent_lines.push((number, message.id));
                messages.push(message);
            }
            Line::TooLong => {
                note(too_long(&format!("line {number}"), most));
                tally.refused += 1;
            }
        }
    }
    if messages.is_empty() {
        return Ok(());
    }
    let rows = match session.provider.send_batch(queue, messages, Deadline::default()).await {
        Ok(rows) => rows,
        Err(error) => return Err(stopped(&error, &sent_lines, tally)),
    };
    let mut durable = Vec::with_capacity(rows.len());
    let mut failed = Vec::new();
    for (&(number, id), row) in sent_lines.iter().zip(rows) {
        match row {
            Ok(id) => durable.push((Sent { id, queue: queue.as_str() }, id)),
            Err(error) => failed.push((number, id, error)),
        }
    }
    tally.sent += durable.len() as u64;
    session.out.rows(durable)?;
    tally.refused += failed.len() as u64;
    // What is wrong with a message is that line's own; with a store that fails, the next lines would fail as well.
    let (own, of_store): (Vec<_>, Vec<_>) =
        failed.into_iter().partition(|(.., error)| matches!(error, MessagingError::InvalidInput { .. }));
    for (number, _, error) in own {
        note(format!("line {number} was not sent: {error}"));
    }
    let lines: Vec<_> = of_store.iter().map(|(number, id, _)| (*number, *id)).collect();
    match of_store.iter().map(|(.., error)| error).max_by_key(|error| is_unknown(error)) {
        None => Ok(()),
        Some(error) => Err(stopped(error, &lines, tally)),
    }
}

fn is_unknown(error: &MessagingError) -> bool {
    matches!(error, MessagingError::OutcomeUnknown { .. })
}

/// What is said when the store failed, and `lines` were not sent or may not have been.
fn stopped(error: &MessagingError, lines: &[(u64, MessageId)], tally: &Tally) -> Failure {
    let (first, last) = (lines.first().map_or(0, |line| line.0), lines.last().map_or(0, |line| line.0));
    if is_unknown(error) {
        for (number, id) in lines {
            note(format!("line {number} may or may not have been sent, as message {id}"));
        }
        let before = counted(tally.sent, "line was sent", "lines were sent");
        return Failure::failed(format!(
            "{}\nStopped at line {first}; {before} before it. Look which of lines {first} to {last} are there, and go on \
             when the cause is gone.",
            explained(error)
        ));
    }
    if matches!(error, MessagingError::InvalidInput { .. }) {
        return Failure::usage(error.to_string());
    }
    Failure::failed(format!(
        "{}\nStopped at line {first}; {} before it. Go on from there when the cause is gone.",
        explained(error),
        counted(tally.sent, "line was sent", "lines were sent")
    ))
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
        // The line's end is one byte more.
        self.input.by_ref().take(self.most as u64 + 1).read_until(b'\n', &mut body)?;
        if body.is_empty() {
            return Ok(None);
        }
        self.number += 1;
        if body.last() == Some(&b'\n') {
            body.pop();
        } else if body.len() > self.most {
            self.input.skip_until(b'\n')?;
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
            [(1, body(b"a")), (2, body(b"")), (3, body(b"\xff\0b\r")), (4, body(b"end")),]
        );
        assert_eq!(read(b"1234\n12345\n1\n123456", 4), [(1, body(b"1234")), (2, None), (3, body(b"1")), (4, None)]);
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
