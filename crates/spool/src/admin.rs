//! What people and tools ask of queues and dead letters.

use std::sync::Arc;

use postrider_core::{
    DeadLetter, DeadLetterEdit, DeadLetterPage, DeadLetterQuery, DeadLetterSelection, DeadLetters, Deadline, Feature,
    MessageAttempt, MessageId, MessagingError, MessagingService, PeekedMessage, QueueAdmin, QueueHealthReport,
    QueueName, QueueStats, Redrive, RedriveReport, Timestamp,
};

use crate::error::Failure;
use crate::index::Row;
use crate::look::{list_queues, nothing, verify_queues};
use crate::name::FileName;
use crate::provider::SpoolProvider;
use crate::redrive;
use crate::session::{Session, Side, paused_file};
use crate::store::Shared;

/// So many files are removed under one lock.
const CHUNK: usize = 1000;

/// Does something with a queue; what `missing` says when there is none.
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
    /// The files that a purge removes, unless somebody leases them meanwhile.
    fn unleased(&mut self) -> Result<Vec<Row>, Failure> {
        self.know(Side::Live)?;
        let (queue, now) = (self.queue.clone(), self.now);
        let is_leased = |row: &&Row| row.parsed(&queue).is_some_and(|name| name.is_leased(now));
        Ok(self.known.live.rows().filter(|row| !is_leased(row)).cloned().collect())
    }

    fn remove_some(&mut self, rows: &[Row]) -> Result<u64, Failure> {
        self.know(Side::Live)?;
        let mut removed = 0;
        for row in rows {
            // A file that was claimed meanwhile has another name.
            if self.known.live.get(row.slot.place, row.name()).is_some() && self.remove_row(Side::Live, row)? {
                if let Some(name) = FileName::parse(row.name()) {
                    self.remove_note(&name);
                }
                removed += 1;
            }
        }
        self.tell(Side::Live, self.now);
        Ok(removed)
    }
}

fn purge(shared: &Shared, queue: &QueueName) -> Result<u64, MessagingError> {
    if queue.holds_dead_letters() {
        return purge_dead(shared, queue, &DeadLetterSelection::All);
    }
    let rows = with(shared, "purge", queue, || Ok(Vec::new()), |session| session.unleased())?;
    let mut removed = 0;
    for chunk in rows.chunks(CHUNK) {
        removed += with(shared, "purge", queue, || Ok(0), |session| session.remove_some(chunk))?;
    }
    Ok(removed)
}

fn purge_dead(shared: &Shared, queue: &QueueName, selection: &DeadLetterSelection) -> Result<u64, MessagingError> {
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
fn delete_queue(shared: &Shared, queue: &QueueName) -> Result<(), MessagingError> {
    let removed = format!(".deleted-{}", crate::record::temporary());
    let away = |session: &mut Session<'_>| {
        let answers = session.dirs().home.open("outgoing")?.names()?.len();
        if answers > 0 {
            let why = format!(
                "'{}/outgoing' has {answers} files that nobody has fetched; take or remove them, then delete it",
                session.dirs().home.path().display()
            );
            return Err(MessagingError::invalid("queue to delete", why).into());
        }
        let root = session.shared.root()?;
        root.rename(session.queue.as_str().as_bytes(), &root, removed.as_bytes())?;
        session.tell(Side::Live, session.now);
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

/// A queue can be paused before it is made: then its folder has nothing else in it.
fn set_paused(shared: &Shared, queue: &QueueName, paused: bool) -> Result<(), MessagingError> {
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
            // Nothing else was in it when it was paused before it was made.
            root.remove_empty(origin.as_str());
        }
        Ok(root.sync()?)
    };
    // Under the lock, where there is one, so that no claim is under way when a pause is answered.
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

impl QueueAdmin for SpoolProvider {
    async fn list_queues(&self, deadline: Deadline) -> Result<Vec<QueueName>, MessagingError> {
        self.on_disk("list queues", deadline, list_queues).await
    }

    async fn queue_stats(&self, queue: &QueueName, deadline: Deadline) -> Result<QueueStats, MessagingError> {
        let queue = queue.clone();
        self.on_disk("stats", deadline, move |shared| {
            with(shared, "stats", &queue, || nothing(shared, &queue), |session| session.stats(&queue))
        })
        .await
    }

    async fn verify_queues(
        &self,
        queues: &[QueueName],
        deadline: Deadline,
    ) -> Result<QueueHealthReport, MessagingError> {
        let queues = queues.to_vec();
        self.on_disk("verify queues", deadline, move |shared| verify_queues(shared, &queues)).await
    }

    async fn peek(
        &self,
        queue: &QueueName,
        limit: usize,
        deadline: Deadline,
    ) -> Result<Vec<PeekedMessage>, MessagingError> {
        let queue = queue.clone();
        self.on_disk("peek", deadline, move |shared| {
            with(shared, "peek", &queue, || Ok(Vec::new()), |session| session.peek(Side::of(&queue), limit))
        })
        .await
    }

    async fn message_attempts(
        &self,
        _: &QueueName,
        _: MessageId,
        deadline: Deadline,
    ) -> Result<Vec<MessageAttempt>, MessagingError> {
        self.begin("read attempts", deadline)?;
        self.capabilities().require(Feature::AttemptHistory)?;
        Ok(Vec::new())
    }

    async fn purge(&self, queue: &QueueName, deadline: Deadline) -> Result<u64, MessagingError> {
        let queue = queue.clone();
        self.on_disk("purge", deadline, move |shared| purge(shared, &queue)).await
    }

    async fn pause(&self, queue: &QueueName, deadline: Deadline) -> Result<(), MessagingError> {
        let queue = queue.clone();
        self.on_disk("pause", deadline, move |shared| set_paused(shared, &queue, true)).await
    }

    async fn resume(&self, queue: &QueueName, deadline: Deadline) -> Result<(), MessagingError> {
        let queue = queue.clone();
        self.on_disk("resume", deadline, move |shared| set_paused(shared, &queue, false)).await
    }

    async fn delete_queue(&self, queue: &QueueName, deadline: Deadline) -> Result<(), MessagingError> {
        if queue.holds_dead_letters() {
            return Err(MessagingError::invalid(
                "queue name",
                format!("'{queue}' belongs to '{}' and goes with it; purge the dead letters instead", queue.origin()),
            ));
        }
        let queue = queue.clone();
        self.on_disk("delete queue", deadline, move |shared| delete_queue(shared, &queue)).await
    }
}

impl DeadLetters for SpoolProvider {
    async fn list_dead_letters(
        &self,
        queue: &QueueName,
        query: &DeadLetterQuery,
        deadline: Deadline,
    ) -> Result<DeadLetterPage, MessagingError> {
        let (queue, query) = (queue.clone(), query.clone());
        self.on_disk("list dead letters", deadline, move |shared| {
            query.check()?;
            let none = || Ok(DeadLetterPage { letters: Vec::new(), next: None });
            with(shared, "list dead letters", &queue, none, |session| session.list_dead(&query))
        })
        .await
    }

    async fn get_dead_letter(
        &self,
        queue: &QueueName,
        id: MessageId,
        deadline: Deadline,
    ) -> Result<DeadLetter, MessagingError> {
        let queue = queue.clone();
        self.on_disk("get dead letter", deadline, move |shared| {
            with(shared, "get dead letter", &queue, || Err(missing(&queue, id)), |session| session.get_dead(id))
        })
        .await
    }

    async fn edit_dead_letter(
        &self,
        queue: &QueueName,
        id: MessageId,
        edit: DeadLetterEdit,
        deadline: Deadline,
    ) -> Result<DeadLetter, MessagingError> {
        let queue = queue.clone();
        self.on_disk("edit dead letter", deadline, move |shared| {
            let none = || Err(missing(&queue, id));
            with(shared, "edit dead letter", &queue, none, |session| session.edit_dead(id, edit))
        })
        .await
    }

    async fn redrive_dead_letters(
        &self,
        queue: &QueueName,
        redrive: &Redrive,
        deadline: Deadline,
    ) -> Result<RedriveReport, MessagingError> {
        let (queue, wanted) = (queue.clone(), redrive.clone());
        self.on_disk("redrive", deadline, move |shared| redrive::redrive(shared, &queue, &wanted)).await
    }

    async fn purge_dead_letters(
        &self,
        queue: &QueueName,
        selection: &DeadLetterSelection,
        deadline: Deadline,
    ) -> Result<u64, MessagingError> {
        let (queue, selection) = (queue.clone(), selection.clone());
        self.on_disk("purge dead letters", deadline, move |shared| purge_dead(shared, &queue, &selection)).await
    }
}

fn missing(queue: &QueueName, id: MessageId) -> MessagingError {
    MessagingError::MessageNotFound { queue: queue.dead_letters(), id }
}
