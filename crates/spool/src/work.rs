//! The calls on a blocking thread: each locks a queue, runs its step, and syncs the disk before the caller is answered.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use postrider_core::coalescer::{ExtendRow, SendRow};
use postrider_core::{
    MessageId, MessagingError, QueueName, ReceiptHandle, ReceiveOptions, RowResults, Settlement, Timestamp,
};

use postrider_provider::Claimed;

use crate::claim::{Read, Taken};
use crate::dirs::Dirs;
use crate::error::{DiskError, Failure};
use crate::queue::Done;
use crate::send;
use crate::session::{Session, Side};
use crate::store::Shared;

/// Claim interval of a watched folder, in case an event was missed, for example because the folder was renamed.
const SAFETY_INTERVAL: Duration = Duration::from_secs(5);

/// Maximum number of invalid files dead-lettered by one call that finds no message; then the receive calls again. Between
/// the calls it checks its deadline and whether the connection is closed.
const MAX_INVALID: usize = if cfg!(test) { 1 } else { 10_000 };

/// The error of a change that may not be durable.
fn unknown(operation: &'static str, ids: Vec<MessageId>, error: DiskError) -> MessagingError {
    MessagingError::OutcomeUnknown { operation, ids, source: Some(Arc::new(error)) }
}

pub(crate) fn ensure_queue(shared: &Shared, queue: &QueueName) -> Result<(), MessagingError> {
    let name = queue.origin();
    shared.check_name(&name)?;
    let make = || -> Result<(), Failure> {
        let root = shared.root()?;
        if Dirs::open(&root, &name)?.is_none() {
            Dirs::make(&root, &name)?;
        }
        Ok(())
    };
    make().map_err(|failure| failure.into_error("make the queue"))
}

pub(crate) fn health_check(shared: &Shared) -> Result<(), MessagingError> {
    let check = || -> Result<(), Failure> {
        let root = shared.root()?;
        // A file can be created and removed, so the folder is usable.
        let name = format!(".health-{}", crate::record::temporary());
        root.create(name.as_bytes(), &[])?;
        root.unlink(name.as_bytes())?;
        Ok(())
    };
    check().map_err(|failure| failure.into_error("health check"))
}

/// Groups rows by queue: their indexes, in order.
fn by_queue<T>(rows: &[T], queue: impl Fn(&T) -> QueueName) -> BTreeMap<QueueName, Vec<usize>> {
    let mut queues: BTreeMap<QueueName, Vec<usize>> = BTreeMap::new();
    for (number, row) in rows.iter().enumerate() {
        queues.entry(queue(row)).or_default().push(number);
    }
    queues
}

/// Sorts the results of rows.
fn in_order<T>(mut answers: Vec<(usize, Result<T, MessagingError>)>) -> RowResults<T> {
    answers.sort_by_key(|(number, _)| *number);
    answers.into_iter().map(|(_, answer)| answer).collect()
}

pub(crate) fn send(shared: &Shared, rows: &[SendRow]) -> RowResults<MessageId> {
    let mut answers = Vec::with_capacity(rows.len());
    for (queue, numbers) in by_queue(rows, |row| row.queue.clone()) {
        let rows: Vec<&SendRow> = numbers.iter().map(|number| &rows[*number]).collect();
        let sent = send_to(shared, &queue, &rows);
        answers.extend(numbers.into_iter().zip(sent));
    }
    in_order(answers)
}

fn send_to(shared: &Shared, name: &QueueName, rows: &[&SendRow]) -> RowResults<MessageId> {
    if name.holds_dead_letters() {
        // Every row is refused, with the reason.
        let refused = |row: &&SendRow| {
            postrider_core::service::check_sendable(&shared.capabilities, name, &row.message).map(|()| row.message.id)
        };
        return rows.iter().map(refused).collect();
    }
    let all = |error: MessagingError| vec![Err(error); rows.len()];
    let queue = match shared.queue(name) {
        Ok(queue) => queue,
        Err(error) => return all(error),
    };
    let dirs = match queue.dirs(shared) {
        Ok(dirs) => dirs,
        Err(failure) => return all(failure.into_error("send")),
    };
    let written = send::write_all(shared, &dirs, rows);
    let mut written = rows.iter().copied().zip(written).collect::<Vec<_>>();
    let enqueued = queue.locked(shared, |session: &mut Session<'_>| Ok(session.enqueue(std::mem::take(&mut written))));
    // Messages that were not added to the queue are removed.
    written.iter().filter_map(|(_, written)| written.as_ref().ok()).for_each(|written| written.discard(&dirs));
    match enqueued {
        Ok(Some(done)) => done.complete(shared).unwrap_or_else(|error| {
            let lost = |row: &&SendRow| Err(unknown("send", vec![row.message.id], error.clone()));
            rows.iter().map(lost).collect()
        }),
        Ok(None) => all(MessagingError::busy(format!("queue '{name}' was deleted meanwhile; send again"))),
        Err(failure) => all(failure.into_error("send")),
    }
}

pub(crate) fn settle(shared: &Shared, rows: &[Settlement]) -> RowResults<()> {
    each(shared, rows, "settle", |row| &row.receipt, |session, row| session.settle(row))
}

pub(crate) fn extend(shared: &Shared, rows: &[ExtendRow]) -> RowResults<()> {
    each(shared, rows, "extend", |row| &row.receipt, |session, row| session.extend(&row.receipt, row.extension))
}

pub(crate) fn give_up(shared: &Shared, receipts: &[ReceiptHandle]) -> Result<(), MessagingError> {
    let results = each(shared, receipts, "return", |receipt| receipt, |session, receipt| session.give_up(receipt));
    // A lease that has ended needs no return.
    results.into_iter().find_map(|row| row.err().filter(MessagingError::is_retryable)).map_or(Ok(()), Err)
}

/// Runs a step for each lease; those of one queue share one lock and one sync.
fn each<T>(
    shared: &Shared,
    rows: &[T],
    operation: &'static str,
    receipt: impl Fn(&T) -> &ReceiptHandle,
    step: impl Fn(&mut Session<'_>, &T) -> Result<(), Failure>,
) -> RowResults<()> {
    let mut answers = Vec::with_capacity(rows.len());
    for (name, numbers) in by_queue(rows, |row| receipt(row).queue().origin()) {
        let settled = match shared.queue(&name) {
            Err(error) => Err(error),
            Ok(queue) => {
                let all = |session: &mut Session<'_>| {
                    let one =
                        |number: &usize| step(session, &rows[*number]).map_err(|failure| failure.into_error(operation));
                    Ok(numbers.iter().map(one).collect::<Vec<_>>())
                };
                match queue.locked(shared, all) {
                    Ok(Some(done)) => {
                        let answers = done.value.clone();
                        let id = |number: &usize| receipt(&rows[*number]).message_id();
                        done.complete(shared).or_else(|error| {
                            let lost = |(number, answer): (&usize, Result<(), MessagingError>)| {
                                answer.and(Err(unknown(operation, vec![id(number)], error.clone())))
                            };
                            Ok(numbers.iter().zip(answers).map(lost).collect())
                        })
                    }
                    // The queue was deleted with its leases.
                    Ok(None) => Ok(numbers.iter().map(|number| Err(receipt(&rows[*number]).expired())).collect()),
                    Err(failure) => Err(failure.into_error(operation)),
                }
            }
        };
        match settled {
            Ok(settled) => answers.extend(numbers.into_iter().zip(settled)),
            Err(error) => answers.extend(numbers.into_iter().map(|number| (number, Err(error.clone())))),
        }
    }
    in_order(answers)
}

/// The result of a claim: messages, and when to claim again.
#[derive(Debug)]
pub(crate) struct Claim {
    pub(crate) messages: Vec<Claimed>,
    pub(crate) next: Timestamp,
    /// Whether there are files in their grace period.
    pub(crate) is_settling: bool,
    /// Whether due files were not read.
    pub(crate) is_cut_short: bool,
}

/// Leases up to `max` due messages of a queue.
pub(crate) fn claim(
    shared: &Shared,
    name: &QueueName,
    options: &ReceiveOptions,
    max: usize,
) -> Result<Claim, MessagingError> {
    let queue = shared.queue(name)?;
    let side = Side::of(name);
    let mut dead_lettered = 0;
    loop {
        let take = |session: &mut Session<'_>| {
            let taken = session.claim(side, options, max)?;
            let is_paused = session.is_paused(side)?;
            let next = match is_paused {
                // A resume is not reported.
                true => look_again(shared, Timestamp::MAX),
                false => session.next_look(side, session.now),
            };
            let is_settling = !is_paused && session.index(side).is_settling();
            Ok((taken, next, is_settling, session.is_cut_short, session.dead_lettered))
        };
        let done = queue.locked(shared, take).map_err(|failure| failure.into_error("receive"))?;
        let Some(done) = done else {
            // The creation of the queue is not reported.
            let next = look_again(shared, Timestamp::MAX);
            return Ok(Claim { messages: Vec::new(), next, is_settling: false, is_cut_short: false });
        };
        let (next, is_settling) = (done.value.1, done.value.2);
        let is_all = done.value.0.is_empty() && !done.value.3;
        dead_lettered += done.value.4;
        let messages = deliverable(shared, name, done.map(|(taken, ..)| taken))?;
        let is_cut_short = !is_all && messages.is_empty() && dead_lettered >= MAX_INVALID;
        // Only invalid files were found: claim again.
        if is_all || is_cut_short || !messages.is_empty() {
            return Ok(Claim { messages, next, is_settling, is_cut_short });
        }
    }
}

fn look_again(shared: &Shared, next: Timestamp) -> Timestamp {
    next.min(shared.options.clock.now().saturating_add(shared.options.poll_interval))
}

pub(crate) fn claim_by_id(
    shared: &Shared,
    name: &QueueName,
    id: MessageId,
    options: &ReceiveOptions,
) -> Result<Option<Claimed>, MessagingError> {
    let queue = shared.queue(name)?;
    let take = |session: &mut Session<'_>| Ok(session.claim_by_id(Side::of(name), id, options)?.into_iter().collect());
    match queue.locked(shared, take).map_err(|failure| failure.into_error("receive"))? {
        Some(done) => Ok(deliverable(shared, name, done)?.pop()),
        None => Ok(None),
    }
}

impl Session<'_> {
    /// Returns when to claim again: when a message becomes due, or at the next poll if the folders are not watched.
    fn next_look(&mut self, side: Side, after: Timestamp) -> Timestamp {
        let next = self.next_wake_up(side, after);
        match self.is_watched(side) {
            true => next.min(self.now.saturating_add(SAFETY_INTERVAL)),
            false => look_again(self.shared, next),
        }
    }
}

/// Reads the leased files, and dead-letters invalid ones. On failure all leases are released.
fn deliverable(shared: &Shared, name: &QueueName, done: Done<Vec<Taken>>) -> Result<Vec<Claimed>, MessagingError> {
    let dirs = done.dirs.clone();
    let mut messages = Vec::with_capacity(done.value.len());
    let mut unusable = Vec::new();
    let mut failed = None;
    for taken in &done.value {
        match taken.read(name, &dirs, &shared.reading) {
            Ok(Read::Message(claimed)) => messages.push(*claimed),
            Ok(Read::Unusable(why)) => unusable.push((taken, why)),
            Ok(Read::Gone) => {}
            Err(error) => failed = Some(error),
        }
    }
    let leases: Vec<_> = done.value.iter().map(|taken| taken.receipt(name)).collect();
    let mut dead_lettered = Ok(());
    if !unusable.is_empty() {
        let dead_letter = |session: &mut Session<'_>| {
            unusable.iter().try_for_each(|(taken, why)| session.dead_letter_unusable(taken, why))
        };
        let done = shared.queue(name)?.locked(shared, dead_letter);
        dead_lettered = match done {
            Ok(Some(done)) => done.complete(shared).map_err(Failure::from),
            Ok(None) => Ok(()),
            Err(failure) => Err(failure),
        };
    }
    let completed = done.complete(shared).map(drop).map_err(Failure::from);
    let trouble = failed.map(Failure::from).or(dead_lettered.err()).or(completed.err());
    match trouble {
        None => Ok(messages),
        Some(failure) => {
            let releases: Vec<_> = leases.iter().map(release).collect();
            // Best effort: their leases expire.
            let _ = settle(shared, &releases);
            Err(failure.into_error("receive"))
        }
    }
}

/// The settlement that releases a lease without a caller.
pub(crate) fn release(receipt: &ReceiptHandle) -> Settlement {
    Settlement::nack(receipt.clone(), postrider_core::Nack::Release)
}

/// Returns the next time after `after` at which a queue should be claimed from.
pub(crate) fn next_due(shared: &Shared, name: &QueueName, after: Timestamp) -> Result<Timestamp, MessagingError> {
    let side = Side::of(name);
    let look = |session: &mut Session<'_>| {
        session.refresh(side)?;
        Ok(session.next_look(side, after))
    };
    let done = shared.queue(name)?.locked(shared, look);
    let done = done.map_err(|failure| failure.into_error("subscribe"))?;
    let Some(done) = done else { return Ok(look_again(shared, Timestamp::MAX)) };
    done.complete(shared).map_err(|error| error.into_error("subscribe"))
}
