//! Where a message is sent: written to the disk under a name that nobody looks at, then renamed into `incoming/`.

use std::time::Duration;

use postrider_core::coalescer::SendRow;
use postrider_core::service::check_sendable;
use postrider_core::{DeadLetterReason, Key, Message, MessageId, MessagingError, Timestamp};

use crate::dirs::Dirs;
use crate::disk::Name;
use crate::error::{DiskError, Failure};
use crate::index::Row;
use crate::letter::{self, Head};
use crate::name::{Due, FileName, Kind, hash};
use crate::record::temporary;
use crate::session::{Session, Side};
use crate::store::Shared;
use crate::unsynced::together;

/// A message that is on the disk, and not in the queue yet.
#[derive(Debug)]
pub(crate) struct Written {
    file: String,
}

impl Written {
    /// Removes it. Best effort: what is left behind is swept later.
    pub(crate) fn discard(&self, dirs: &Dirs) {
        let _ = dirs.tmp.unlink(self.file.as_bytes());
    }
}

/// Writes messages to the disk, several at a time. Their order does not matter yet.
pub(crate) fn write_all(shared: &Shared, dirs: &Dirs, rows: &[&SendRow]) -> Vec<Result<Written, MessagingError>> {
    let write = |row: &&SendRow| {
        check_sendable(&shared.capabilities, &row.queue, &row.message)?;
        write(dirs, &row.message).map_err(|error| error.into_error("send"))
    };
    together(rows, write)
}

fn write(dirs: &Dirs, message: &Message) -> Result<Written, DiskError> {
    let head = Head {
        content_type: message.content_type.clone(),
        headers: message.headers.clone(),
        ordering_key: message.ordering_key.clone(),
        dedup_key: message.dedup_key.clone(),
    };
    let file = temporary();
    let head = letter::write_head(&head, message.body.len());
    let written = dirs.tmp.create(file.as_bytes(), &[&head, &message.body]);
    if let Err(error) = written {
        // Best effort: what is left behind is swept later.
        let _ = dirs.tmp.unlink(file.as_bytes());
        return Err(error);
    }
    Ok(Written { file })
}

/// What became of a message that was to enter the line.
enum Entered {
    Here,
    /// A message that lives has its dedup key.
    TakenBy(MessageId),
}

impl Session<'_> {
    /// Puts messages that were written into the line, in their order.
    pub(crate) fn enter(
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
                let entered = self.enter_one(&row.message, position, &written);
                position = position.saturating_add(Duration::from_micros(1));
                if !matches!(entered, Ok(Entered::Here)) {
                    written.discard(self.dirs());
                }
                match entered {
                    Ok(Entered::Here) => Ok(row.message.id),
                    Ok(Entered::TakenBy(holder)) => Ok(holder),
                    Err(failure) => Err(failure.into_error("send")),
                }
            });
            answers.push(answer);
        }
        answers
    }

    fn enter_one(&mut self, message: &Message, position: Timestamp, written: &Written) -> Result<Entered, Failure> {
        if let Some(key) = &message.dedup_key
            && let Some(holder) = self.living_holder(key)?
        {
            return Ok(Entered::TakenBy(holder));
        }
        let name = FileName {
            due: if message.delay.is_zero() { Due::Always } else { Due::From(self.now.saturating_add(message.delay)) },
            priority: message.priority,
            key: message.ordering_key.as_ref().map(|key| hash(key.as_str()).max(1)),
            dedup: message.dedup_key.as_ref().map(|key| hash(key.as_str()).max(1)),
            expires_at: message.expires.map(|expiry| expiry.resolve(self.now)),
            ..FileName::new(position, message.id, Kind::Letter)
        };
        let file = Name::from(name.render());
        let dirs = self.dirs().clone();
        if !dirs.tmp.rename(written.file.as_bytes(), &dirs.incoming, &file)? {
            return Err(dirs.tmp.failed("rename", &written.file, nix::errno::Errno::ENOENT).into());
        }
        self.unsynced.add(Side::Live.waiting());
        self.learn(Row::ours(Side::Live.waiting(), file, &name, self.now));
        self.tell(Side::Live, if message.delay.is_zero() { self.now } else { name.next_attempt_at() });
        Ok(Entered::Here)
    }

    /// The message that a dedup key is taken by. One that has expired and that nobody handles no longer lives: it goes
    /// to the dead letters now, or it would swallow the new message and die at the next read.
    pub(crate) fn living_holder(&mut self, key: &Key) -> Result<Option<MessageId>, Failure> {
        let Some((name, holder)) = self.dedup_holder(key)? else { return Ok(None) };
        if holder.expires_at.is_some_and(|expires_at| expires_at <= self.now) && !holder.is_leased(self.now) {
            self.will_change()?;
            let place = if holder.lease.is_some() { Side::Live.leased() } else { Side::Live.waiting() };
            self.bury(place, &name, &holder, DeadLetterReason::EXPIRED, None)?;
            return Ok(None);
        }
        Ok(Some(holder.id))
    }

    /// The file whose message has this dedup key. Hashes may meet, so the key itself is read and compared.
    pub(crate) fn dedup_holder(&mut self, key: &Key) -> Result<Option<(Name, FileName)>, Failure> {
        self.know(Side::Live)?;
        let hash = hash(key.as_str()).max(1);
        let holders: Vec<Row> = self.known.live.dedup_holders(hash).cloned().collect();
        for row in holders {
            let folder = self.known.dirs.folder(row.slot.place);
            let Some(name) = FileName::parse(row.name()) else { continue };
            let content = self.shared.reading.read(folder, row.name(), &name.kind, b"")?;
            let is_holder = match content {
                None => false,
                Some(Ok(content)) => content.head.dedup_key.as_ref() == Some(key),
                // It cannot be told; a message too few is worse than one too many.
                Some(Err(_)) => false,
            };
            if is_holder {
                return Ok(Some((row.name().clone(), name)));
            }
        }
        Ok(None)
    }
}
