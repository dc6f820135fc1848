//! What people and tools ask of queues and dead letters.

use std::collections::HashSet;
use std::sync::Arc;

use postrider_core::{
    DeadLetter, DeadLetterEdit, DeadLetterPage, DeadLetterQuery, DeadLetterSelection, DeadLetters, Deadline, Key,
    LiveState, Measured, MessageId, MessagingError, PeekedMessage, QueueAdmin, QueueHealthReport, QueueName,
    QueueStats, Redrive, RedriveReport, RedriveSkip, Timestamp,
};

use crate::dead_letters::Dead;
use crate::dirs::Dirs;
use crate::error::Failure;
use crate::index::{Row, time};
use crate::name::{Due, FileName, Kind};
use crate::provider::SpoolProvider;
use crate::session::{Session, Side, paused_file};
use crate::store::Shared;

/// So many files are removed under one lock.
const CHUNK: usize = 1000;

/// Does something with a queue; what `missing` says when there is none.
fn with<T>(
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
    fn stats(&mut self, name: &QueueName) -> Result<QueueStats, Failure> {
        let side = Side::of(name);
        self.know(side)?;
        let is_paused = self.is_paused(side)?;
        let now = self.now;
        let dead = match side {
            Side::Dead => 0,
            Side::Live => {
                self.know(Side::Dead)?;
                self.known.dead.len() as u64
            }
        };
        let (mut ready, mut in_flight, mut delayed) = (0, 0, 0);
        let mut oldest: Option<Timestamp> = None;
        let queue = self.queue.clone();
        for row in self.index(side).rows() {
            let is_leased = row.parsed(&queue).is_some_and(|name| name.is_leased(now));
            if is_leased {
                in_flight += 1;
            } else if time(row.slot.due) > now {
                delayed += 1;
            } else {
                ready += 1;
                let since = time(row.slot.turn.position);
                oldest = Some(oldest.map_or(since, |oldest| oldest.min(since)));
            }
        }
        Ok(QueueStats {
            queue: name.clone(),
            ready: Measured::Exact(ready),
            in_flight: Measured::Exact(in_flight),
            delayed: Measured::Exact(delayed),
            dead: Measured::Exact(dead),
            oldest_age: Measured::Exact(oldest.map(|oldest| now.since(oldest))),
            paused: is_paused,
        })
    }

    fn peek(&mut self, side: Side, limit: usize) -> Result<Vec<PeekedMessage>, Failure> {
        self.know(side)?;
        let mut rows: Vec<Row> = self.index(side).rows().cloned().collect();
        rows.sort_by(|a, b| a.slot.turn.cmp(&b.slot.turn));
        let mut peeked = Vec::new();
        for row in rows {
            if peeked.len() == limit {
                break;
            }
            peeked.extend(self.peek_at(&row)?);
        }
        Ok(peeked)
    }

    /// `None` for what cannot be read: it dies when it is claimed.
    fn peek_at(&self, row: &Row) -> Result<Option<PeekedMessage>, Failure> {
        let Some(name) = row.parsed(self.queue) else { return Ok(None) };
        let note = self.note_of(&name);
        let original = match (&name.kind, &note.file_name) {
            (Kind::Foreign(original), _) => original.to_vec(),
            (_, Some(original)) => original.as_bytes().to_vec(),
            (_, None) => row.name().to_vec(),
        };
        let folder = self.known.dirs.folder(row.slot.place);
        let Some(Ok(content)) = self.shared.reading.read(folder, row.name(), &name.kind, &original)? else {
            return Ok(None);
        };
        let state = match name.due {
            _ if name.is_leased(self.now) => LiveState::Processing,
            Due::Retry(_) if name.lease.is_none() => LiveState::Retryable,
            Due::Retry(_) | Due::Always | Due::From(_) => LiveState::Pending,
        };
        let FileName { id, priority, deliveries, attempts, position, .. } = name;
        Ok(Some(PeekedMessage {
            id,
            body: content.body,
            content_type: content.head.content_type,
            headers: content.head.headers,
            ordering_key: content.head.ordering_key,
            priority,
            state,
            deliveries_count: deliveries,
            attempts_count: attempts,
            enqueued_at: position,
            next_attempt_at: name.next_attempt_at(),
            last_error: note.error,
        }))
    }

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
        return with(shared, "purge", queue, || Ok(0), |session| session.purge_dead(&DeadLetterSelection::All));
    }
    let rows = with(shared, "purge", queue, || Ok(Vec::new()), |session| session.unleased())?;
    let mut removed = 0;
    for chunk in rows.chunks(CHUNK) {
        removed += with(shared, "purge", queue, || Ok(0), |session| session.remove_some(chunk))?;
    }
    Ok(removed)
}

fn list_queues(shared: &Shared) -> Result<Vec<QueueName>, MessagingError> {
    let list = || -> Result<Vec<QueueName>, Failure> {
        let root = shared.root()?;
        let mut queues = Vec::new();
        for (name, _) in root.names()? {
            let Some(name) = std::str::from_utf8(&name).ok().and_then(|name| QueueName::new(name).ok()) else {
                continue;
            };
            // One that begins with a dot is hidden, one that is no folder with an `incoming/` is somebody else's.
            let is_queue = || root.open(name.as_str()).is_ok_and(|home| home.open("incoming").is_ok());
            if !name.as_str().starts_with('.') && is_queue() {
                queues.push(name);
            }
        }
        queues.sort();
        Ok(queues)
    };
    list().map_err(|failure| failure.into_error("list queues"))
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

fn verify_queues(shared: &Shared, queues: &[QueueName]) -> Result<QueueHealthReport, MessagingError> {
    let root = shared.root().map_err(|failure| failure.into_error("verify queues"))?;
    let mut report = QueueHealthReport::default();
    for queue in queues {
        match Dirs::open(&root, &queue.origin()) {
            Ok(Some(_)) => report.healthy.push(queue.clone()),
            Ok(None) => report.missing.push(queue.clone()),
            Err(error) => report.errors.push((queue.clone(), error.to_string())),
        }
    }
    Ok(report)
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
        if !paused && home.names()?.is_empty() {
            root.remove_tree(origin.as_str().as_bytes())?;
        }
        Ok(root.sync()?)
    };
    set().map_err(|failure| failure.into_error(if paused { "pause" } else { "resume" }))?;
    shared.wakes.tell(&[(queue.clone(), Timestamp::EPOCH)], Timestamp::EPOCH);
    Ok(())
}

fn redrive(shared: &Shared, queue: &QueueName, redrive: &Redrive) -> Result<RedriveReport, MessagingError> {
    let target = redrive.target(queue)?;
    let origin = queue.origin();
    let into_error = |failure: Failure| failure.into_error("redrive");
    if target == origin {
        let mut report = with(
            shared,
            "redrive",
            queue,
            || Ok(RedriveReport::default()),
            |session| {
                let (dead, mut report) = session.redrivable(redrive)?;
                let mut revived = HashSet::new();
                for dead in dead {
                    let taken = is_taken(session, &dead, &revived, redrive.dry_run)?;
                    if redriven(&mut report, &mut revived, &dead, taken) && !redrive.dry_run {
                        session.revive(&dead, None)?;
                    }
                }
                Ok(report)
            },
        )?;
        report.add_missing(&redrive.selection);
        return Ok(report);
    }
    let to = shared.queue(&target)?;
    if !redrive.dry_run {
        // Makes it, or says that it is not there.
        to.dirs(shared).map_err(into_error)?;
    }
    // Both locks are held at once, always taken in the order of the names.
    let from = shared.queue(&origin)?;
    let mut report = None;
    let mut both = |session: &mut Session<'_>, target: Option<&mut Session<'_>>| -> Result<(), Failure> {
        report = Some(redrive_across(session, target, redrive)?);
        Ok(())
    };
    let done = if origin < target {
        from.locked(shared, |session| {
            let inner = to.locked(shared, |target| both(session, Some(target)))?;
            match inner {
                Some(inner) => Ok(inner.complete(shared)?),
                None => both(session, None),
            }
        })
    } else {
        let outer = to.locked(shared, |target| match from.locked(shared, |session| both(session, Some(target)))? {
            Some(inner) => Ok(inner.complete(shared)?),
            None => Ok(()),
        });
        match outer {
            // A dry run to a queue that is not there.
            Ok(None) => from.locked(shared, |session| both(session, None)),
            other => other,
        }
    };
    if let Some(done) = done.map_err(into_error)? {
        done.complete(shared).map_err(|error| error.into_error("redrive"))?;
    }
    let mut report = report.unwrap_or_default();
    report.add_missing(&redrive.selection);
    Ok(report)
}

fn redrive_across(
    session: &mut Session<'_>,
    mut target: Option<&mut Session<'_>>,
    redrive: &Redrive,
) -> Result<RedriveReport, Failure> {
    let (dead, mut report) = session.redrivable(redrive)?;
    let mut revived = HashSet::new();
    for dead in dead {
        let taken = match &mut target {
            Some(target) => is_taken(target, &dead, &revived, redrive.dry_run)?,
            None => dead.dedup_key.as_ref().is_some_and(|key| revived.contains(key)),
        };
        if redriven(&mut report, &mut revived, &dead, taken)
            && !redrive.dry_run
            && let Some(target) = &mut target
        {
            session.revive(&dead, Some(target))?;
        }
    }
    Ok(report)
}

/// Whether a message with its dedup key lives where it would go. `revived` are the keys that this redrive itself has
/// brought back, so that a dry run tells what a real one does.
fn is_taken(target: &mut Session<'_>, dead: &Dead, revived: &HashSet<Key>, dry_run: bool) -> Result<bool, Failure> {
    match &dead.dedup_key {
        None => Ok(false),
        Some(key) => Ok(revived.contains(key) || target.is_taken(key, dry_run)?),
    }
}

/// Notes what becomes of a dead letter, and answers whether it goes back to life.
fn redriven(report: &mut RedriveReport, revived: &mut HashSet<Key>, dead: &Dead, taken: bool) -> bool {
    if taken {
        report.skipped.push((dead.id(), RedriveSkip::DedupKeyTaken));
        return false;
    }
    revived.extend(dead.dedup_key.clone());
    report.redriven.push(dead.id());
    true
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

/// What a queue holds that is not there. It can be paused all the same.
fn nothing(shared: &Shared, queue: &QueueName) -> Result<QueueStats, MessagingError> {
    let root = shared.root().map_err(|failure| failure.into_error("stats"))?;
    let home = root.open(queue.origin().as_str());
    let paused = home.is_ok_and(|home| home.identity_of(paused_file(Side::of(queue))).is_some());
    Ok(QueueStats {
        queue: queue.clone(),
        ready: Measured::Exact(0),
        in_flight: Measured::Exact(0),
        delayed: Measured::Exact(0),
        dead: Measured::Exact(0),
        oldest_age: Measured::Exact(None),
        paused,
    })
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
        self.on_disk("redrive", deadline, move |shared| self::redrive(shared, &queue, &wanted)).await
    }

    async fn purge_dead_letters(
        &self,
        queue: &QueueName,
        selection: &DeadLetterSelection,
        deadline: Deadline,
    ) -> Result<u64, MessagingError> {
        let (queue, selection) = (queue.clone(), selection.clone());
        self.on_disk("purge dead letters", deadline, move |shared| {
            with(shared, "purge dead letters", &queue, || Ok(0), |session| session.purge_dead(&selection))
        })
        .await
    }
}

fn missing(queue: &QueueName, id: MessageId) -> MessagingError {
    MessagingError::MessageNotFound { queue: queue.dead_letters(), id }
}
