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
    let last = sent_lines.last().map_or(0, |line| line.0);
    let before = tally.sent;
    let mut durable = Vec::with_capacity(sent_lines.len());
    let mut failed = Vec::new();
    match session.provider.send_batch(queue, messages, Deadline::default()).await {
        Ok(rows) => {
            for ((number, id), row) in sent_lines.into_iter().zip(rows) {
                match row {
                    Ok(id) => durable.push((Sent { id, queue: queue.as_str() }, id)),
                    Err(error) => failed.push(Unsent::of(number, id, error)),
                }
            }
        }
        Err(error @ MessagingError::InvalidInput { .. }) => return Err(error.into()),
        Err(error) => failed.extend(sent_lines.into_iter().map(|(number, id)| Unsent::of(number, id, error.clone()))),
    }
    tally.sent += durable.len() as u64;
    tally.refused += failed.len() as u64;
    let nothing_sent = durable.is_empty();
    let printed = session.out.rows(durable);
    // What is wrong with a message is that line's own; with a store that fails, the next lines would fail as well.
    let (own, of_store): (Vec<_>, Vec<_>) =
        failed.into_iter().partition(|line| matches!(line.error, MessagingError::InvalidInput { .. }));
    for Unsent { number, error, .. } in own {
        note(format!("line {number} was not sent: {error}"));
    }
    let (unknown, unsent): (Vec<_>, Vec<_>) = of_store.into_iter().partition(|line| line.unknown);
    let Some(Unsent { number, error, .. }) = unknown.first().or(unsent.first()) else {
        let sent = counted(tally.sent, "line was sent", "lines were sent");
        let done = format!("{sent}. Stopped after line {last}; go on from there, with the output to where it is kept");
        return printed.map_err(|failure| failure.after(done));
    };
    for Unsent { number, id, .. } in &unknown {
        note(format!("line {number} may or may not have been sent, as message {id}"));
    }
    if printed.is_err() {
        note("the ids of lines that were sent could not be printed");
    }
    let text = if nothing_sent && unknown.is_empty() {
        let before = counted(before, "line was sent", "lines were sent");
        format!("Stopped at line {number}; {before} before it. Go on from there when the cause is gone.")
    } else {
        let numbers = |lines: &[Unsent]| lines.iter().map(|line| line.number).collect::<Vec<_>>();
        how_to_go_on(&numbers(&unsent), &numbers(&unknown), last)
    };
    Err(Failure::failed(format!("{}\n{text}", explained(error))))
}

/// A line that was not sent, or may not have been.
#[derive(Debug)]
struct Unsent {
    number: u64,
    id: MessageId,
    unknown: bool,
    error: MessagingError,
}

impl Unsent {
    fn of(number: u64, id: MessageId, error: MessagingError) -> Self {
        // A batch whose answer was lost names the rows that may have been carried out.
        let unknown = match &error {
            MessagingError::OutcomeUnknown { ids, .. } => ids.is_empty() || ids.contains(&id),
            _ => false,
        };
        Self { number, id, unknown, error }
    }
}

/// What is left to do when a store failed on some lines of a batch: the others, up to `last`, are durable, and sending
/// them again would make them two.
fn how_to_go_on(unsent: &[u64], unknown: &[u64], last: u64) -> String {
    let mut steps = Vec::new();
    match unknown {
        [] => {}
        [one] => steps.push(format!("look whether line {one} is there")),
        several => steps.push(format!("look which of lines {} are there", ranges(several))),
    }
    match unsent {
        [] => {}
        [one] => steps.push(format!("send line {one} again")),
        several => steps.push(format!("send lines {} again", ranges(several))),
    }
    format!(
        "Stopped after line {last}; every other line up to it was sent, or is told above. When the cause is gone, {}, and \
         go on after line {last}.",
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
            let text = how_to_go_on(unsent, unknown, 9);
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
    fn a_lost_answer_is_about_the_rows_that_it_names() {
        let [one, two] = [MessageId::generate(), MessageId::generate()];
        let lost = |ids| MessagingError::OutcomeUnknown { operation: "send", ids, source: None };
        assert!(Unsent::of(1, one, lost(vec![one])).unknown && !Unsent::of(2, two, lost(vec![one])).unknown);
        assert!(Unsent::of(1, one, lost(Vec::new())).unknown);
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
