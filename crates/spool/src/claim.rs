//! Claims: leases a message by a rename, or dead-letters one that is expired, over its delivery limit, or unreadable.

use std::sync::Arc;
use std::time::Duration;

use postrider_core::{
    DeadLetterReason, Envelope, LeaseToken, MessageId, NativeRef, QueueName, ReceiptHandle, ReceiveOptions, Timestamp,
    failpoint,
};

use postrider_provider::Claimed;

use crate::PROVIDER;
use crate::content::{Content, Reading, Unusable};
use crate::dirs::Dirs;
use crate::disk::Name;
use crate::error::{DiskError, Failure};
use crate::index::{Foreign, Row};
use crate::name::{Due, FileName, Kind, Lease, hash};
use crate::record::{FileNameText, Note};
use crate::scan::mtime;
use crate::session::{Session, Side, UnusableFile};

/// Maximum number of messages dead-lettered, and of keys read, under the lock of one claim.
const MAX_EXTRA: usize = 500;
/// Maximum number of files read before they are leased, under the lock of one claim. A long file counts as several.
const MAX_READS: usize = 2000;
/// Bytes that count as one read file.
const READ_SIZE: usize = 16 * 1024;
/// Number of foreign files to read before leasing them, after one that was not a message: invalid files come in groups.
const READS_BEFORE_LEASE: usize = 100;
/// Number of invalid files dead-lettered with every claim.
const INVALID_PER_CLAIM: usize = 100;
/// Time for which a file that waits to be dead-lettered is skipped.
const INVALID_SKIP: Duration = Duration::from_secs(3600);
/// Time for which a file that cannot be moved is skipped.
const SKIP_TIME: Duration = Duration::from_secs(5);

/// A message that was leased and not read yet.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) name: Name,
    pub(crate) leased: FileName,
    /// Its name before the lease.
    pub(crate) before: FileName,
    /// The original name of a foreign file.
    original: Vec<u8>,
}

/// The result for the row that was next.
enum Next {
    Taken(Box<Taken>),
    /// The index has changed; choose again.
    Again,
    /// Not a message.
    Unusable,
}

impl Session<'_> {
    /// Leases up to `max` messages that are due.
    pub(crate) fn claim(&mut self, side: Side, options: &ReceiveOptions, max: usize) -> Result<Vec<Taken>, Failure> {
        let mut taken = Vec::new();
        if self.is_paused(side)? {
            return Ok(taken);
        }
        self.refresh(side)?;
        let so_far = self.claims_so_far();
        self.index(side).count_from(so_far);
        // Bounded, because other processes wait for the lock.
        let (mut patience, mut reads) = (MAX_EXTRA, MAX_READS);
        while taken.len() < max {
            let now = self.now;
            let Some(row) = self.index(side).next_due(now).cloned() else { break };
            if patience == 0 || reads == 0 {
                self.is_cut_short = true;
                break;
            }
            match self.claim_next(side, &row, options, &mut reads) {
                Ok(Next::Taken(claimed)) => taken.push(*claimed),
                Ok(Next::Unusable) => {}
                Ok(Next::Again) => patience -= 1,
                // The messages leased before are returned in spite of the failure.
                Err(_) if !taken.is_empty() => break,
                Err(Failure::Disk(error)) if error.concerns_one_file() => {
                    tracing::warn!(queue = %self.queue, %error, "a message cannot be claimed and is skipped");
                    self.index(side).set_aside(&row, now.saturating_add(SKIP_TIME));
                    patience -= 1;
                }
                Err(failure) => return Err(failure),
            }
        }
        if side == Side::Dead {
            return Ok(taken);
        }
        // Few with messages, more when there is nothing else to do.
        let most = if taken.is_empty() && !self.is_cut_short { MAX_EXTRA } else { INVALID_PER_CLAIM };
        match self.dead_letter_unusable_files(most) {
            Err(_) if !taken.is_empty() => {}
            dead_lettered => dead_lettered?,
        }
        self.is_cut_short |= !self.known.unusable.is_empty();
        Ok(taken)
    }

    /// Leases a row that is due, unless the index must be updated first.
    fn claim_next(
        &mut self,
        side: Side,
        row: &Row,
        options: &ReceiveOptions,
        reads: &mut usize,
    ) -> Result<Next, Failure> {
        if !self.is_ready(side, row)? {
            return Ok(Next::Again);
        }
        let is_read_first = row.foreign.is_some() && side == Side::Live && self.known.reads_before_lease > 0;
        if is_read_first && !self.is_usable(row, reads)? {
            return Ok(Next::Unusable);
        }
        Ok(self.claim_row(side, row, options)?.map_or(Next::Again, |taken| Next::Taken(Box::new(taken))))
    }

    /// Whether a foreign file is a message. Queues an invalid one for dead-lettering.
    fn is_usable(&mut self, row: &Row, reads: &mut usize) -> Result<bool, Failure> {
        let (location, name) = (row.slot.location, row.name());
        let Some(parsed) = row.parsed(self.queue) else { return Ok(true) };
        let read = self.shared.reading.read(self.known.dirs.folder(location), name, &parsed.kind, name)?;
        let length = match &read {
            None => 0,
            Some(Ok(content)) => content.body.len(),
            Some(Err(unusable)) => unusable.bytes.len(),
        };
        *reads = reads.saturating_sub(1 + length / READ_SIZE);
        let Some(Err(Unusable { reason, error, .. })) = read else {
            self.known.reads_before_lease -= 1;
            return Ok(true);
        };
        self.known.reads_before_lease = READS_BEFORE_LEASE;
        let until = self.now.saturating_add(INVALID_SKIP);
        self.known.live.set_aside(row, until);
        self.known.unusable.push_back(UnusableFile { row: row.clone(), reason, error });
        Ok(false)
    }

    /// Dead-letters up to `most` of the invalid files. They were never delivered.
    fn dead_letter_unusable_files(&mut self, most: usize) -> Result<(), Failure> {
        for _ in 0..most {
            let Some(UnusableFile { row, reason, error }) = self.known.unusable.pop_front() else { break };
            let (location, name) = (row.slot.location, row.name());
            let found = self.known.dirs.folder(location).stat(name)?;
            let is_the_same = row.foreign.is_some_and(|foreign| {
                found.as_ref().is_some_and(|found| mtime(found) == foreign.mtime)
                    && self.known.live.get(location, name).and_then(|row| row.foreign).is_some_and(|now| now == foreign)
            });
            let Some(parsed) = row.parsed(self.queue).filter(|_| is_the_same) else {
                // Modified or removed meanwhile.
                self.known.live.remove(location, name);
                if found.is_some() {
                    self.add_file(location, name.clone(), false, None)?;
                    // It may be a valid message now.
                    self.is_cut_short = true;
                }
                continue;
            };
            self.will_change()?;
            match self.dead_letter(location, name, &parsed, reason, Some(error)) {
                Err(Failure::Disk(error)) if error.concerns_one_file() => {
                    tracing::warn!(queue = %self.queue, %error, "an invalid file cannot be moved to the dead letters");
                    let until = self.now.saturating_add(SKIP_TIME);
                    self.known.live.set_aside(&row, until);
                }
                dead_lettered => dead_lettered?,
            }
            self.dead_lettered += 1;
        }
        Ok(())
    }

    /// Leases one message by its id, if it is due.
    pub(crate) fn claim_by_id(
        &mut self,
        side: Side,
        id: MessageId,
        options: &ReceiveOptions,
    ) -> Result<Option<Taken>, Failure> {
        if self.is_paused(side)? {
            return Ok(None);
        }
        self.refresh(side)?;
        loop {
            let (queue, now) = (self.queue.clone(), self.now);
            let index = self.index(side);
            let mut rows: Vec<_> = index.rows().filter(|row| index.is_due(row, now)).collect();
            rows.retain(|row| row.parsed(&queue).is_some_and(|parsed| parsed.id == id));
            let Some(row) = rows.into_iter().min_by(|a, b| a.slot.order.cmp(&b.slot.order)).cloned() else {
                return Ok(None);
            };
            if self.is_ready(side, &row)? {
                return self.claim_row(side, &row, options);
            }
        }
    }

    /// Checks what a file's name does not say: that it is complete, and that no earlier file has its key. Returns `false` when
    /// the index has changed and the choice must be repeated.
    fn is_ready(&mut self, side: Side, row: &Row) -> Result<bool, Failure> {
        let location = row.slot.location;
        if let Some(foreign) = row.foreign.filter(|foreign| !foreign.is_settled) {
            let found = self.known.dirs.folder(location).stat(row.name())?;
            let (grace, now) = (self.shared.options.grace_period, self.now);
            let is_read = self.shared.reading.ordering_key.is_empty();
            let index = self.index(side);
            index.remove(location, row.name());
            match found.map(|found| mtime(&found)) {
                None => {}
                Some(mtime) if mtime == foreign.mtime => index.insert(row.settled()),
                Some(mtime) => {
                    let renewed = Foreign { mtime, is_settled: false, is_read };
                    index.insert(Row::foreign(location, row.name().clone(), renewed, grace, now));
                }
            }
            return Ok(false);
        }
        let is_unread = row.foreign.is_some_and(|foreign| !foreign.is_read);
        if !is_unread && (row.key == 0 || side == Side::Dead) {
            return Ok(true);
        }
        let Some(unread) = self.index(side).next_unread(&row.slot.order).cloned() else { return Ok(true) };
        self.read_key(&unread)?;
        Ok(false)
    }

    /// Reads the ordering key of a foreign file. An unreadable file has none; it is dead-lettered when it is claimed.
    fn read_key(&mut self, row: &Row) -> Result<(), Failure> {
        failpoint::reach("spool.read_key");
        let (location, name) = (row.slot.location, row.name());
        let content = self.shared.reading.read(self.known.dirs.folder(location), name, &Kind::LongNamed, name)?;
        let mut read = row.clone();
        read.foreign = row.foreign.map(|foreign| Foreign { is_read: true, ..foreign });
        self.known.live.remove(location, name);
        if let Some(content) = content {
            let key = content.ok().and_then(|content| content.head.ordering_key);
            read.key = key.map_or(0, |key| hash(key.as_str()).max(1));
            self.known.live.insert(read);
        }
        Ok(())
    }

    /// Leases one row that is due; `None` when it was dead-lettered instead, or its file was removed.
    fn claim_row(&mut self, side: Side, row: &Row, options: &ReceiveOptions) -> Result<Option<Taken>, Failure> {
        let (location, name, now) = (row.slot.location, row.name(), self.now);
        let Some(before) = row.parsed(self.queue) else {
            self.index(side).remove(location, name);
            return Ok(None);
        };
        self.will_change()?;
        if let Some(reason) = dead_letter_reason(side, &before, options, now) {
            self.dead_letter(location, name, &before, reason, None)?;
            return Ok(None);
        }
        let token = LeaseToken::generate();
        let mut leased = FileName {
            lease: Some(Lease { until: now.saturating_add(options.visibility), token }),
            due: Due::Always,
            deliveries: before.deliveries.saturating_add(1),
            first: before.first.or(Some(now)),
            last: Some(now),
            ..before.clone()
        };
        let original = match &before.kind {
            Kind::Message => Vec::new(),
            Kind::Foreign(original) => original.to_vec(),
            Kind::LongNamed if row.foreign.is_some() => {
                let note = Note { error: None, file_name: Some(FileNameText::new(name)) };
                self.write_note(&leased, &note)?;
                leased.is_noted = true;
                name.to_vec()
            }
            Kind::LongNamed => self.original_of(side, &before),
        };
        let Some(name) = self.move_row(side, location, name, side.leased(), &leased)? else { return Ok(None) };
        self.index(side).count_claim();
        Ok(Some(Taken { name, leased, before, original }))
    }

    /// Returns the original name of a file from its record.
    fn original_of(&self, side: Side, name: &FileName) -> Vec<u8> {
        let noted = match side {
            Side::Live => self.note_of(name).file_name,
            Side::Dead => {
                self.death_of(name).and_then(|death| death.file_name).or_else(|| self.note_of(name).file_name)
            }
        };
        noted.map(|name| name.as_bytes().to_vec()).unwrap_or_default()
    }

    /// Dead-letters a leased file that is not a message. It was never delivered.
    pub(crate) fn dead_letter_unusable(&mut self, taken: &Taken, unusable: &Unusable) -> Result<(), Failure> {
        self.refresh_leases(Side::Live)?;
        if self.known.live.get(Side::Live.leased(), &taken.name).is_none() {
            return Ok(());
        }
        self.will_change()?;
        self.known.reads_before_lease = READS_BEFORE_LEASE;
        let before = FileName { is_noted: taken.leased.is_noted, ..taken.before.clone() };
        let (reason, error) = (unusable.reason.clone(), Some(unusable.error.clone()));
        self.dead_letter(Side::Live.leased(), &taken.name, &before, reason, error)
    }
}

/// The row number of a message in its receipt: its position.
pub(crate) fn row_number(name: &FileName) -> u64 {
    u64::try_from(name.position.as_micros()).unwrap_or(0)
}

/// Why a message must be dead-lettered unread, if it must. Dead letters have no delivery limit.
fn dead_letter_reason(
    side: Side,
    name: &FileName,
    options: &ReceiveOptions,
    now: Timestamp,
) -> Option<DeadLetterReason> {
    if side == Side::Dead {
        None
    } else if name.expires_at.is_some_and(|expires_at| expires_at <= now) {
        Some(DeadLetterReason::EXPIRED)
    } else if name.deliveries >= options.max_receive_count {
        Some(DeadLetterReason::MAX_RECEIVE_COUNT)
    } else {
        None
    }
}

/// The result of reading a leased file.
#[derive(Debug)]
pub(crate) enum Read {
    Message(Box<Claimed>),
    Unusable(Unusable),
    /// Its lease has ended already.
    Gone,
}

impl Taken {
    /// Reads the file. Without the lock: the lease protects the file.
    pub(crate) fn read(&self, queue: &QueueName, dirs: &Arc<Dirs>, reading: &Reading) -> Result<Read, DiskError> {
        let side = Side::of(queue);
        let folder = dirs.folder(side.leased());
        let content = match reading.read(folder, &self.name, &self.leased.kind, &self.original)? {
            None => return Ok(Read::Gone),
            Some(Ok(content)) => content,
            // An invalid dead letter is returned as it is, so that its content can be inspected.
            Some(Err(unusable)) if side == Side::Dead => unusable.into_content(),
            Some(Err(unusable)) => return Ok(Read::Unusable(unusable)),
        };
        Ok(Read::Message(Box::new(self.claimed(queue, content))))
    }

    fn claimed(&self, queue: &QueueName, content: Content) -> Claimed {
        let name = &self.leased;
        let Content { head, body } = content;
        let lease_expires_at = name.lease.map_or(name.position, |lease| lease.until);
        let envelope = Envelope {
            id: name.id,
            queue: queue.clone(),
            content_type: head.content_type,
            headers: head.headers,
            ordering_key: head.ordering_key,
            dedup_key: head.dedup_key,
            priority: name.priority,
            expires_at: name.expires_at,
            receive_count: name.deliveries,
            attempts_count: name.attempts,
            enqueued_at: name.position,
            first_attempt_at: name.first.unwrap_or(name.position),
            lease_expires_at,
        };
        Claimed { body, envelope, receipt: self.receipt(queue) }
    }

    pub(crate) fn receipt(&self, queue: &QueueName) -> ReceiptHandle {
        let name = &self.leased;
        // The claim has set a lease.
        let token = name.lease.map_or(LeaseToken(0), |lease| lease.token);
        ReceiptHandle::new(PROVIDER, queue.clone(), name.id, token, NativeRef::Row(row_number(name)))
    }
}
