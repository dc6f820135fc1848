//! Pauses, purges and deletes queues.

use std::sync::Arc;

use postrider_core::{DeadLetterSelection, MessagingError, QueueName, Timestamp};

use crate::error::Failure;
use crate::index::Row;
use crate::name::FileName;
use crate::session::{Session, Side, paused_file};
use crate::store::Shared;

/// Number of files removed under one lock.
const CHUNK: usize = 1000;

/// Runs a step under a queue's lock; returns `missing()` if the queue does not exist.
pub(crate) fn with<T>(
    shared: &Shared,
    operation: &'static str,
    queue: &QueueName,
    missing: impl FnOnce() -> Result<T, MessagingError>,
    step: impl FnOnce(&mut Session<'_>) -> Result<T, Failure>,
) -> Result<T, MessagingError> {
    let done = shared.queue(queue)?.locked(shared, step);
    match done.map_err(|failure| failure.into_error(operation))? {
        Some(done) => done.complete(shared).map_err(|error| MessagingError::OutcomeUnknown {
            operation,
            ids: Vec::new(),
            source: Some(Arc::new(error)),
        }),
        None => missing(),
    }
}

impl Session<'_> {
    /// Returns the files that a purge removes, unless they are leased meanwhile.
    fn unleased(&mut self) -> Result<Vec<Row>, Failure> {
        self.refresh(Side::Live)?;
        let (queue, now) = (self.queue.clone(), self.now);
        let is_leased = |row: &&Row| row.parsed(&queue).is_some_and(|name| name.is_leased(now));
        Ok(self.known.live.rows().filter(|row| !is_leased(row)).cloned().collect())
    }

    fn remove_some(&mut self, rows: &[Row]) -> Result<u64, Failure> {
        self.refresh(Side::Live)?;
        let mut removed = 0;
        for row in rows {
            // A file that was claimed meanwhile has another name.
            if self.known.live.get(row.slot.location, row.name()).is_some() && self.remove_row(Side::Live, row)? {
                if let Some(name) = FileName::parse(row.name()) {
                    self.remove_note(&name);
                }
                removed += 1;
            }
        }
        self.wake(Side::Live, self.now);
        Ok(removed)
    }
}

/// Returns the messages that a purge removes, in chunks.
pub(crate) fn present(shared: &Shared, queue: &QueueName) -> Result<Vec<Vec<Row>>, MessagingError> {
    let rows = with(shared, "purge", queue, || Ok(Vec::new()), |session| session.unleased())?;
    Ok(rows.chunks(CHUNK).map(<[Row]>::to_vec).collect())
}

pub(crate) fn remove_some(shared: &Shared, queue: &QueueName, chunk: &[Row]) -> Result<u64, MessagingError> {
    with(shared, "purge", queue, || Ok(0), |session| session.remove_some(chunk))
}

pub(crate) fn purge_dead(
    shared: &Shared,
    queue: &QueueName,
    selection: &DeadLetterSelection,
) -> Result<u64, MessagingError> {
    let mut purged = 0;
    loop {
        let part =
            with(shared, "purge dead letters", queue, || Ok(0), |session| session.purge_dead(selection, CHUNK as u64))?;
        purged += part;
        if part < CHUNK as u64 {
            return Ok(purged);
        }
    }
}

/// Deletes a queue: its folder is renamed away under the lock, and then removed.
pub(crate) fn delete_queue(shared: &Shared, queue: &QueueName) -> Result<(), MessagingError> {
    let removed = format!(".deleted-{}", crate::record::temporary());
    let away = |session: &mut Session<'_>| {
        let answers = session.dirs().home.open("outgoing")?.names()?.len();
        if answers > 0 {
            let why = format!(
                "'{}/outgoing' has {answers} files; move or remove them, then delete the queue",
                session.dirs().home.path().display()
            );
            return Err(MessagingError::invalid("queue to delete", why).into());
        }
        let root = session.shared.root()?;
        root.rename(session.queue.as_str().as_bytes(), &root, removed.as_bytes())?;
        session.wake(Side::Live, session.now);
        Ok(())
    };
    with(shared, "delete queue", queue, || Ok(()), away)?;
    let remove = || -> Result<(), Failure> {
        let root = shared.root()?;
        root.remove_tree(removed.as_bytes())?;
        Ok(root.sync()?)
    };
    shared.forget(queue);
    remove().map_err(|failure| failure.into_error("delete queue"))
}

/// Pauses or resumes a queue. A queue can be paused before it exists: then its folder contains nothing else.
pub(crate) fn set_paused(shared: &Shared, queue: &QueueName, paused: bool) -> Result<(), MessagingError> {
    shared.queue(queue)?;
    let (origin, file) = (queue.origin(), paused_file(Side::of(queue)));
    let set = || -> Result<(), Failure> {
        let root = shared.root()?;
        if paused {
            root.make(origin.as_str())?;
        } else if root.stat(origin.as_str().as_bytes())?.is_none() {
            return Ok(());
        }
        let home = root.open(origin.as_str())?;
        match home.stat(file.as_bytes())?.is_some() {
            false if paused => home.create(file.as_bytes(), &[])?,
            true if !paused => drop(home.unlink(file.as_bytes())?),
            _ => {}
        }
        home.sync()?;
        if !paused {
            // Empty if the queue was paused before it existed.
            root.remove_empty(origin.as_str());
        }
        Ok(root.sync()?)
    };
    // Under the lock if the queue exists, so that no claim is in progress when the pause returns.
    let operation = if paused { "pause" } else { "resume" };
    let mut is_set = false;
    let under_lock = |_: &mut Session<'_>| {
        is_set = true;
        set()
    };
    with(shared, operation, queue, || Ok(()), under_lock)?;
    if !is_set {
        set().map_err(|failure| failure.into_error(operation))?;
    }
    shared.wakes.tell(&[(queue.clone(), Timestamp::EPOCH)], Timestamp::EPOCH);
    Ok(())
}
