//! Sends: writes messages to `tmp/`, then renames them into `incoming/` under the lock.

use std::time::Duration;

use postrider_core::coalescer::SendRow;
use postrider_core::service::check_sendable;
use postrider_core::{DeadLetterReason, Key, Message, MessageId, MessagingError, Timestamp};

use crate::dirs::Dirs;
use crate::disk::Name;
use crate::error::{DiskError, Failure};
use crate::index::Row;
use crate::message_file::{self, Head};
use crate::name::{Due, FileName, Kind, hash};
use crate::record::temporary;
use crate::session::{Session, Side};
use crate::store::Shared;
use crate::unsynced::in_parallel;

/// A message that is durable in `tmp/`, and not in the queue yet.
#[derive(Debug)]
pub(crate) struct Written {
    file: String,
}

impl Written {
    /// Removes it. Best effort: a later sweep removes it otherwise.
    pub(crate) fn discard(&self, dirs: &Dirs) {
        let _ = dirs.tmp.unlink(self.file.as_bytes());
    }
}

/// Writes messages to `tmp/`, several in parallel: their order does not matter yet.
pub(crate) fn write_all(shared: &Shared, dirs: &Dirs, rows: &[&SendRow]) -> Vec<Result<Written, MessagingError>> {
    let write = |row: &&SendRow| {
        check_sendable(&shared.capabilities, &row.queue, &row.message)?;
        write(dirs, &row.message).map_err(|error| error.into_error("send"))
    };
    in_parallel(rows, write)
}

fn write(dirs: &Dirs, message: &Message) -> Result<Written, DiskError> {
    let head = Head {
        content_type: message.content_type.clone(),
        headers: message.headers.clone(),
        ordering_key: message.ordering_key.clone(),
        dedup_key: message.dedup_key.clone(),
    };
    let file = temporary();
    let head = message_file::write_head(&head, message.body.len());
    let written = dirs.tmp.create(file.as_bytes(), &[&head, &message.body]);
    if let Err(error) = written {
        // Best effort: a later sweep removes it otherwise.
        let _ = dirs.tmp.unlink(file.as_bytes());
        return Err(error);
    }
    Ok(Written { file })
}

/// The result of adding a message to the queue.
enum Enqueued {
    Here,
    /// A live message has its dedup key.
    HeldBy(MessageId),
}

impl Session<'_> {
    /// Adds written messages to the queue, in order.
    pub(crate) fn enqueue(
        &mut self,
        written: Vec<(&SendRow, Result<Written, MessagingError>)>,
    ) -> Vec<Result<MessageId, MessagingError>> {
        let ready = written.iter().filter(|(_, written)| written.is_ok()).count();
        let mut position = match self.reserve(ready.max(1)) {
            Ok(first) => first,
            Err(failure) => {
                let error = failure.into_error("send");
                let refuse = |(_, written): (&SendRow, Result<Written, MessagingError>)| match written {
                    Ok(written) => {
                        written.discard(self.dirs());
                        Err(error.clone())
                    }
                    Err(own) => Err(own),
                };
                return written.into_iter().map(refuse).collect();
            }
        };
        let mut answers = Vec::with_capacity(written.len());
        for (row, written) in written {
            let answer = written.and_then(|written| {
                let enqueued = self.enqueue_one(&row.message, position, &written);
                position = position.saturating_add(Duration::from_micros(1));
                if !matches!(enqueued, Ok(Enqueued::Here)) {
                    written.discard(self.dirs());
                }
                match enqueued {
                    Ok(Enqueued::Here) => Ok(row.message.id),
                    Ok(Enqueued::HeldBy(holder)) => Ok(holder),
                    Err(failure) => Err(failure.into_error("send")),
                }
            });
            answers.push(answer);
        }
        answers
    }

    fn enqueue_one(&mut self, message: &Message, position: Timestamp, written: &Written) -> Result<Enqueued, Failure> {
        if let Some(key) = &message.dedup_key
            && let Some(holder) = self.living_holder(key)?
        {
            return Ok(Enqueued::HeldBy(holder));
        }
        let name = FileName {
            due: if message.delay.is_zero() { Due::Always } else { Due::From(self.now.saturating_add(message.delay)) },
            priority: message.priority,
            key: message.ordering_key.as_ref().map(|key| hash(key.as_str()).max(1)),
            dedup: message.dedup_key.as_ref().map(|key| hash(key.as_str()).max(1)),
            expires_at: message.expires.map(|expiry| expiry.resolve(self.now)),
            ..FileName::new(position, message.id, Kind::Message)
        };
        let file = Name::from(name.render());
        let dirs = self.dirs().clone();
        if !dirs.tmp.rename(written.file.as_bytes(), &dirs.incoming, &file)? {
            return Err(dirs.tmp.failed("rename", &written.file, nix::errno::Errno::ENOENT).into());
        }
        self.unsynced.add(Side::Live.waiting());
        self.add_row(Row::ours(Side::Live.waiting(), file, &name, self.now));
        self.wake(Side::Live, if message.delay.is_zero() { self.now } else { name.next_attempt_at() });
        Ok(Enqueued::Here)
    }

    /// Returns the message that holds a dedup key. An expired one without a lease is dead-lettered now: otherwise the new
    /// message would be dropped for a message that is never handled.
    pub(crate) fn living_holder(&mut self, key: &Key) -> Result<Option<MessageId>, Failure> {
        let Some((name, holder)) = self.dedup_holder(key)? else { return Ok(None) };
        if holder.expires_at.is_some_and(|expires_at| expires_at <= self.now) && !holder.is_leased(self.now) {
            self.will_change()?;
            let location = if holder.lease.is_some() { Side::Live.leased() } else { Side::Live.waiting() };
            self.dead_letter(location, &name, &holder, DeadLetterReason::EXPIRED, None)?;
            return Ok(None);
        }
        Ok(Some(holder.id))
    }

    /// Returns the file whose message has this dedup key. Hashes may collide, so the key itself is compared.
    pub(crate) fn dedup_holder(&mut self, key: &Key) -> Result<Option<(Name, FileName)>, Failure> {
        self.refresh(Side::Live)?;
        let hash = hash(key.as_str()).max(1);
        let holders: Vec<Row> = self.known.live.dedup_holders(hash).cloned().collect();
        for row in holders {
            let folder = self.known.dirs.folder(row.slot.location);
            let Some(name) = FileName::parse(row.name()) else { continue };
            let content = self.shared.reading.read(folder, row.name(), &name.kind, b"")?;
            let is_holder = match content {
                None => false,
                Some(Ok(content)) => content.head.dedup_key.as_ref() == Some(key),
                // Unknown; a duplicate is better than a lost message.
                Some(Err(_)) => false,
            };
            if is_holder {
                return Ok(Some((row.name().clone(), name)));
            }
        }
        Ok(None)
    }
}
