//! Counts, peeks, and lists of queues: reads without changes.

use postrider_core::{
    LiveState, Measured, MessagingError, PeekedMessage, QueueHealthReport, QueueName, QueueStats, Timestamp,
};

use crate::dirs::Dirs;
use crate::error::Failure;
use crate::index::{Row, time};
use crate::name::{Due, FileName, Kind};
use crate::session::{Session, Side, paused_file};
use crate::store::Shared;

impl Session<'_> {
    pub(crate) fn stats(&mut self, name: &QueueName) -> Result<QueueStats, Failure> {
        let side = Side::of(name);
        self.refresh(side)?;
        let is_paused = self.is_paused(side)?;
        let now = self.now;
        let dead = match side {
            Side::Dead => 0,
            Side::Live => {
                self.refresh(Side::Dead)?;
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
                let since = time(row.slot.order.position);
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

    pub(crate) fn peek(&mut self, side: Side, limit: usize) -> Result<Vec<PeekedMessage>, Failure> {
        self.refresh(side)?;
        let mut rows: Vec<Row> = self.index(side).rows().cloned().collect();
        rows.sort_by(|a, b| a.slot.order.cmp(&b.slot.order));
        let mut peeked = Vec::new();
        for row in rows {
            if peeked.len() == limit {
                break;
            }
            peeked.extend(self.peek_at(&row)?);
        }
        Ok(peeked)
    }

    /// `None` for an invalid file, which is dead-lettered when it is claimed.
    fn peek_at(&self, row: &Row) -> Result<Option<PeekedMessage>, Failure> {
        let Some(name) = row.parsed(self.queue) else { return Ok(None) };
        let note = self.note_of(&name);
        let original = match (&name.kind, &note.file_name) {
            (Kind::Foreign(original), _) => original.to_vec(),
            (_, Some(original)) => original.as_bytes().to_vec(),
            (_, None) => row.name().to_vec(),
        };
        let folder = self.known.dirs.folder(row.slot.location);
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
}

/// Lists all queues.
pub(crate) fn list_queues(shared: &Shared) -> Result<Vec<QueueName>, MessagingError> {
    let list = || -> Result<Vec<QueueName>, Failure> {
        let root = shared.root()?;
        let mut queues = Vec::new();
        for (name, _) in root.names()? {
            let Some(name) = std::str::from_utf8(&name).ok().and_then(|name| QueueName::new(name).ok()) else {
                continue;
            };
            // A name with a leading dot is hidden, and a folder without `incoming/` is not a queue.
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

/// Checks which queues exist and are usable.
pub(crate) fn verify_queues(shared: &Shared, queues: &[QueueName]) -> Result<QueueHealthReport, MessagingError> {
    let root = shared.root().map_err(|failure| failure.into_error("verify queues"))?;
    let mut report = QueueHealthReport::default();
    for queue in queues {
        // Refuses an invalid name.
        let there = shared
            .queue(queue)
            .map_err(|error| error.to_string())
            .and_then(|_| Dirs::are_there(&root, &queue.origin()).map_err(|error| error.to_string()));
        match there {
            Ok(true) => report.healthy.push(queue.clone()),
            Ok(false) => report.missing.push(queue.clone()),
            Err(error) => report.errors.push((queue.clone(), error)),
        }
    }
    Ok(report)
}

/// The counts of a queue that does not exist. It can be paused all the same.
pub(crate) fn nothing(shared: &Shared, queue: &QueueName) -> Result<QueueStats, MessagingError> {
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
