//! Where a message is claimed: leased by a rename, or dead-lettered because it was read too often, too late, or cannot be
//! read at all.

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

/// So many messages are buried, and so many keys of files read, while the lock is held for one claim.
const MOST_BESIDES: usize = 500;
/// So many files are read before they are leased, while the lock is held for one claim. A long one counts as several.
const MOST_READ: usize = 2000;
/// What counts as one file that is read.
const A_READ: usize = 16 * 1024;
/// So many files of others are read before they are leased after one that was no message: it is seldom alone.
const READS_BEFORE_LEASE: usize = 100;
/// So many files that are no messages are buried beside every claim.
const BURIED_BESIDES: usize = 100;
/// A file that is about to be buried is not looked at again that soon.
const UNTIL_BURIED: Duration = Duration::from_secs(3600);
/// So long a file is left alone that cannot be moved.
const SET_ASIDE: Duration = Duration::from_secs(5);

/// A message that was leased, and has not been read yet.
#[derive(Debug)]
pub(crate) struct Taken {
    pub(crate) name: Name,
    pub(crate) leased: FileName,
    /// What it was before.
    pub(crate) before: FileName,
    /// The name that somebody's file came with.
    original: Vec<u8>,
}

/// What came of the row that was next in turn.
enum Next {
    Taken(Box<Taken>),
    /// Something was found out, and the choice is made anew.
    Again,
    /// It is no message.
    Unusable,
}

impl Session<'_> {
    /// Leases up to `max` messages that are due.
    pub(crate) fn claim(&mut self, side: Side, options: &ReceiveOptions, max: usize) -> Result<Vec<Taken>, Failure> {
        let mut taken = Vec::new();
        if self.is_paused(side)? {
            return Ok(taken);
        }
        self.know(side)?;
        let so_far = self.claims_so_far();
        self.index(side).count_from(so_far);
        // What is done besides is bounded, because others wait for the lock.
        let (mut patience, mut reads) = (MOST_BESIDES, MOST_READ);
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
                // What was leased before is handed out, whatever is wrong with the next one.
                Err(_) if !taken.is_empty() => break,
                Err(Failure::Disk(error)) if error.concerns_one_file() => {
                    tracing::warn!(queue = %self.queue, %error, "a message cannot be claimed; others are");
                    self.index(side).set_aside(&row, now.saturating_add(SET_ASIDE));
                    patience -= 1;
                }
                Err(failure) => return Err(failure),
            }
        }
        if side == Side::Dead {
            return Ok(taken);
        }
        // Beside messages few are buried, and more when there is nothing else to do.
        let most = if taken.is_empty() && !self.is_cut_short { MOST_BESIDES } else { BURIED_BESIDES };
        match self.bury_unusable_files(most) {
            Err(_) if !taken.is_empty() => {}
            buried => buried?,
        }
        self.is_cut_short |= !self.known.unusable.is_empty();
        Ok(taken)
    }

    /// Leases a row that is due, if nothing is found out about it that makes the choice anew.
    fn claim_next(
        &mut self,
        side: Side,
        row: &Row,
        options: &ReceiveOptions,
        reads: &mut usize,
    ) -> Result<Next, Failure> {
        if !self.look_closer(side, row)? {
            return Ok(Next::Again);
        }
        let is_read_first = row.foreign.is_some() && side == Side::Live && self.known.reads_before_lease > 0;
        if is_read_first && !self.is_usable(row, reads)? {
            return Ok(Next::Unusable);
        }
        Ok(self.claim_row(side, row, options)?.map_or(Next::Again, |taken| Next::Taken(Box::new(taken))))
    }

    /// Whether somebody's file is a message. One that is none waits to be buried.
    fn is_usable(&mut self, row: &Row, reads: &mut usize) -> Result<bool, Failure> {
        let (place, name) = (row.slot.place, row.name());
        let Some(parsed) = row.parsed(self.queue) else { return Ok(true) };
        let read = self.shared.reading.read(self.known.dirs.folder(place), name, &parsed.kind, name)?;
        let length = match &read {
            None => 0,
            Some(Ok(content)) => content.body.len(),
            Some(Err(unusable)) => unusable.bytes.len(),
        };
        *reads = reads.saturating_sub(1 + length / A_READ);
        let Some(Err(Unusable { reason, error, .. })) = read else {
            self.known.reads_before_lease -= 1;
            return Ok(true);
        };
        self.known.reads_before_lease = READS_BEFORE_LEASE;
        let until = self.now.saturating_add(UNTIL_BURIED);
        self.known.live.set_aside(row, until);
        self.known.unusable.push_back(UnusableFile { row: row.clone(), reason, error });
        Ok(false)
    }

    /// Dead-letters up to `most` of the files that turned out to be no messages. They were never delivered.
    fn bury_unusable_files(&mut self, most: usize) -> Result<(), Failure> {
        for _ in 0..most {
            let Some(UnusableFile { row, reason, error }) = self.known.unusable.pop_front() else { break };
            let (place, name) = (row.slot.place, row.name());
            let found = self.known.dirs.folder(place).stat(name)?;
            let is_the_same = row.foreign.is_some_and(|foreign| {
                found.as_ref().is_some_and(|found| mtime(found) == foreign.mtime)
                    && self.known.live.get(place, name).and_then(|row| row.foreign).is_some_and(|now| now == foreign)
            });
            let Some(parsed) = row.parsed(self.queue).filter(|_| is_the_same) else {
                // Written to meanwhile, or taken away.
                self.known.live.remove(place, name);
                if found.is_some() {
                    self.take_in(place, name.clone(), false, None)?;
                    // It may be a message now.
                    self.is_cut_short = true;
                }
                continue;
            };
            self.will_change()?;
            match self.bury(place, name, &parsed, reason, Some(error)) {
                Err(Failure::Disk(error)) if error.concerns_one_file() => {
                    tracing::warn!(queue = %self.queue, %error, "a file that is no message cannot be moved");
                    let until = self.now.saturating_add(SET_ASIDE);
                    self.known.live.set_aside(&row, until);
                }
                buried => buried?,
            }
            self.buried += 1;
        }
        Ok(())
    }

    /// Leases one message by its id, if it may be received now.
    pub(crate) fn claim_by_id(
        &mut self,
        side: Side,
        id: MessageId,
        options: &ReceiveOptions,
    ) -> Result<Option<Taken>, Failure> {
        if self.is_paused(side)? {
            return Ok(None);
        }
        self.know(side)?;
        loop {
            let (queue, now) = (self.queue.clone(), self.now);
            let index = self.index(side);
            let mut rows: Vec<_> = index.rows().filter(|row| index.is_due(row, now)).collect();
            rows.retain(|row| row.parsed(&queue).is_some_and(|parsed| parsed.id == id));
            let Some(row) = rows.into_iter().min_by(|a, b| a.slot.turn.cmp(&b.slot.turn)).cloned() else {
                return Ok(None);
            };
            if self.look_closer(side, &row)? {
                return self.claim_row(side, &row, options);
            }
        }
    }

    /// Makes sure of what a file's name does not say: that nobody writes to it any more, and that no other file of its
    /// key comes before it. `false` when something was found out and the choice must be made anew.
    fn look_closer(&mut self, side: Side, row: &Row) -> Result<bool, Failure> {
        let place = row.slot.place;
        if let Some(foreign) = row.foreign.filter(|foreign| !foreign.is_settled) {
            let found = self.known.dirs.folder(place).stat(row.name())?;
            let (grace, now) = (self.shared.options.grace_period, self.now);
            let is_read = self.shared.reading.ordering_key.is_empty();
            let index = self.index(side);
            index.remove(place, row.name());
            match found.map(|found| mtime(&found)) {
                None => {}
                Some(mtime) if mtime == foreign.mtime => index.insert(row.settled()),
                Some(mtime) => {
                    let renewed = Foreign { mtime, is_settled: false, is_read };
                    index.insert(Row::foreign(place, row.name().clone(), renewed, grace, now));
                }
            }
            return Ok(false);
        }
        let is_unread = row.foreign.is_some_and(|foreign| !foreign.is_read);
        if !is_unread && (row.key == 0 || side == Side::Dead) {
            return Ok(true);
        }
        let Some(unread) = self.index(side).next_unread(&row.slot.turn).cloned() else { return Ok(true) };
        self.read_key(&unread)?;
        Ok(false)
    }

    /// Finds out which ordering key somebody's file has. One that cannot be read has none; it dies when it is claimed.
    fn read_key(&mut self, row: &Row) -> Result<(), Failure> {
        failpoint::reach("spool.read_key");
        let (place, name) = (row.slot.place, row.name());
        let content = self.shared.reading.read(self.known.dirs.folder(place), name, &Kind::LongNamed, name)?;
        let mut read = row.clone();
        read.foreign = row.foreign.map(|foreign| Foreign { is_read: true, ..foreign });
        self.known.live.remove(place, name);
        if let Some(content) = content {
            let key = content.ok().and_then(|content| content.head.ordering_key);
            read.key = key.map_or(0, |key| hash(key.as_str()).max(1));
            self.known.live.insert(read);
        }
        Ok(())
    }

    /// Leases one row that is due; `None` when that sent it to the dead letters, or when somebody took it away by hand.
    fn claim_row(&mut self, side: Side, row: &Row, options: &ReceiveOptions) -> Result<Option<Taken>, Failure> {
        let (place, name, now) = (row.slot.place, row.name(), self.now);
        let Some(before) = row.parsed(self.queue) else {
            self.index(side).remove(place, name);
            return Ok(None);
        };
        self.will_change()?;
        if let Some(reason) = cause_of_death(side, &before, options, now) {
            self.bury(place, name, &before, reason, None)?;
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
            Kind::Letter => Vec::new(),
            Kind::Foreign(original) => original.to_vec(),
            Kind::LongNamed if row.foreign.is_some() => {
                let note = Note { error: None, file_name: Some(FileNameText::new(name)) };
                self.write_note(&leased, &note)?;
                leased.is_noted = true;
                name.to_vec()
            }
            Kind::LongNamed => self.original_of(side, &before),
        };
        let Some(name) = self.move_row(side, place, name, side.leased(), &leased)? else { return Ok(None) };
        self.index(side).count_claim();
        Ok(Some(Taken { name, leased, before, original }))
    }

    /// The name that a file came with, from beside it.
    fn original_of(&self, side: Side, name: &FileName) -> Vec<u8> {
        let noted = match side {
            Side::Live => self.note_of(name).file_name,
            Side::Dead => {
                self.death_of(name).and_then(|death| death.file_name).or_else(|| self.note_of(name).file_name)
            }
        };
        noted.map(|name| name.as_bytes().to_vec()).unwrap_or_default()
    }

    /// Dead-letters what was leased and turned out to be no message. It was never delivered.
    pub(crate) fn bury_unusable(&mut self, taken: &Taken, unusable: &Unusable) -> Result<(), Failure> {
        self.know_leases(Side::Live)?;
        if self.known.live.get(Side::Live.leased(), &taken.name).is_none() {
            return Ok(());
        }
        self.will_change()?;
        self.known.reads_before_lease = READS_BEFORE_LEASE;
        let before = FileName { is_noted: taken.leased.is_noted, ..taken.before.clone() };
        let (reason, error) = (unusable.reason.clone(), Some(unusable.error.clone()));
        self.bury(Side::Live.leased(), &taken.name, &before, reason, error)
    }
}

/// What a receipt names its message by, besides the id: its place in the line.
pub(crate) fn row_number(name: &FileName) -> u64 {
    u64::try_from(name.position.as_micros()).unwrap_or(0)
}

/// Why a message that is about to be read must not be handled. Dead letters can be read for ever.
fn cause_of_death(side: Side, name: &FileName, options: &ReceiveOptions, now: Timestamp) -> Option<DeadLetterReason> {
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

/// What reading a leased file came to.
#[derive(Debug)]
pub(crate) enum Read {
    Message(Box<Claimed>),
    Unusable(Unusable),
    /// Its lease is over already.
    Gone,
}

impl Taken {
    /// Reads the file. Not under the lock: whoever has the lease has the file.
    pub(crate) fn read(&self, queue: &QueueName, dirs: &Arc<Dirs>, reading: &Reading) -> Result<Read, DiskError> {
        let side = Side::of(queue);
        let folder = dirs.folder(side.leased());
        let content = match reading.read(folder, &self.name, &self.leased.kind, &self.original)? {
            None => return Ok(Read::Gone),
            Some(Ok(content)) => content,
            // A dead letter is handed out as it is: that is how somebody finds out what is wrong with it.
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
        // The claim has put a lease there.
        let token = name.lease.map_or(LeaseToken(0), |lease| lease.token);
        ReceiptHandle::new(PROVIDER, queue.clone(), name.id, token, NativeRef::Row(row_number(name)))
    }
}
