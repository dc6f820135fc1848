//! The queue of processes for the write lock.
//!
//! SQLite's lock has no queue: the first to try when it is free gets it. A busy process that tries again right after
//! its commit nearly always wins, because the others sleep between two attempts: of four processes one did all the work
//! while the others waited for more than ten seconds. So processes queue. A process that finds the lock taken, or
//! others queued, takes a ticket with the current time, and only the holder of the oldest ticket tries the lock.
//!
//! A ticket is a lock on one byte of the folder, at an offset derived from the time: nothing is written, no file is
//! left behind, and the system removes the ticket of a process that dies. The queue only decides who tries first; if
//! two processes both believe that they are first, SQLite's lock still separates them. Without such locks everything
//! works, but less fairly.
//!
//! **What was rejected.** Short sleeps of random length alone: with sixty writers on a busy machine some waited for
//! more than ten seconds. Blocking lock calls of the system: they have no time-out, so a process that is stopped while
//! it waits would block every process behind it.

use std::cell::RefCell;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::error::is_busy;

/// Time without progress after which all queued processes try the lock: the first may have been stopped, or the lock
/// may be held by a process that does not queue.
const STUCK: Duration = Duration::from_millis(100);

/// The sleep before the next attempt, after a wait of this length.
fn pause_after(waited: Duration) -> Duration {
    let micros = match waited.as_millis() {
        0..2 => 100,
        2..1000 => 200,
        // Another process has a transaction open, which will take a while.
        _ => 2000,
    };
    Duration::from_micros(micros).mul_f64(rand::random_range(0.5..1.0))
}

/// Upper bound of remembered stopped tickets.
const MAX_STUCK: usize = 16;

#[derive(Debug)]
pub(crate) struct LockQueue {
    tickets: Option<tickets::Tickets>,
    /// Tickets whose owners did not take a free lock, mostly of stopped processes. They are ignored until they are
    /// gone; otherwise each would delay every transaction of all other processes by [`STUCK`].
    stuck: RefCell<Vec<i64>>,
}

impl LockQueue {
    /// The queue of this file.
    pub(crate) fn new(file: &Path) -> Self {
        let folder = file.parent().and_then(|folder| File::open(folder).ok());
        let name = file.file_name().map_or(0, |name| fnv1a(name.as_bytes()));
        Self { tickets: folder.map(|folder| tickets::Tickets::new(folder, name)), stuck: RefCell::default() }
    }

    /// The remembered stopped tickets that still exist, in order.
    fn stuck(&self, tickets: &tickets::Tickets) -> Vec<i64> {
        let mut stuck = self.stuck.borrow_mut();
        stuck.retain(|offset| tickets.has(*offset));
        stuck.clone()
    }

    fn ignore(&self, offset: i64) {
        let mut stuck = self.stuck.borrow_mut();
        if stuck.len() < MAX_STUCK && !stuck.contains(&offset) {
            stuck.push(offset);
            stuck.sort_unstable();
        }
    }

    /// Tries the lock whenever this process is first, until it succeeds or `timeout` is over.
    pub(crate) fn wait<T>(
        &self,
        timeout: Duration,
        mut attempt: impl FnMut() -> rusqlite::Result<T>,
    ) -> rusqlite::Result<T> {
        let Some(tickets) = &self.tickets else { return retry(timeout, attempt) };
        if !tickets.any(&self.stuck(tickets)) {
            match attempt() {
                Err(error) if is_busy(&error) => {}
                result => return result,
            }
        }
        let ticket = tickets.take();
        let began = Instant::now();
        let mut blocked_by = None;
        loop {
            let waited = began.elapsed();
            let before = ticket.as_ref().and_then(|ticket| tickets.before(ticket, &self.stuck(tickets)));
            // A process that has been first for too long without progress does not count.
            let since = match blocked_by {
                Some((same, since)) if Some(same) == before => since,
                _ => waited,
            };
            blocked_by = before.map(|before| (before, since));
            if before.is_none() || waited.saturating_sub(since) >= STUCK || waited >= timeout {
                match attempt() {
                    Err(error) if is_busy(&error) && waited < timeout => {}
                    result => {
                        // The lock was free, and the first process did not take it.
                        if let Some(before) = before.filter(|_| result.is_ok()) {
                            self.ignore(before);
                        }
                        return result;
                    }
                }
            }
            std::thread::sleep(pause_after(waited));
        }
    }
}

/// The same hash in every build of this program, so that two versions of it share one queue.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

fn retry<T>(timeout: Duration, mut attempt: impl FnMut() -> rusqlite::Result<T>) -> rusqlite::Result<T> {
    let began = Instant::now();
    loop {
        let waited = began.elapsed();
        match attempt() {
            Err(error) if is_busy(&error) && waited < timeout => std::thread::sleep(pause_after(waited)),
            result => return result,
        }
    }
}

#[cfg(target_os = "linux")]
mod tickets {
    use std::fs::File;
    use std::os::fd::AsFd;

    use nix::fcntl::{FcntlArg, fcntl};
    use nix::libc;
    use nix::time::{ClockId, clock_gettime};

    /// Bits of an offset that are the time in microseconds: nine years since the host was started.
    const TIME_BITS: u32 = 48;

    /// The byte range of the folder that belongs to one file name.
    #[derive(Debug)]
    pub(super) struct Tickets {
        folder: File,
        start: i64,
    }

    /// A ticket; dropped, it is given up.
    pub(super) struct Ticket<'a> {
        tickets: &'a Tickets,
        offset: i64,
    }

    impl Tickets {
        pub(super) fn new(folder: File, name: u64) -> Self {
            // Names with the same hash share a range: their processes are slower, but still correct.
            Self { folder, start: (name >> (TIME_BITS + 1)).cast_signed() << TIME_BITS }
        }

        /// Whether there is a ticket, except those at the `ignored` offsets.
        pub(super) fn any(&self, ignored: &[i64]) -> bool {
            self.first(self.start + (1 << TIME_BITS), ignored).is_some()
        }

        /// Whether there is a ticket at this offset.
        pub(super) fn has(&self, offset: i64) -> bool {
            self.within(offset, offset + 1).is_some()
        }

        pub(super) fn take(&self) -> Option<Ticket<'_>> {
            // The boot-time clock is the same in every process of the host.
            let time = clock_gettime(ClockId::CLOCK_BOOTTIME).ok()?;
            let micros = time.tv_sec().checked_mul(1_000_000)?.checked_add(time.tv_nsec() / 1000)?;
            let offset = self.start + micros.clamp(0, (1 << TIME_BITS) - 1);
            // A read lock, because a folder allows no other; `within` probes with a write lock, which conflicts with
            // it.
            let byte = lock(libc::F_RDLCK, offset, 1);
            fcntl(self.folder.as_fd(), FcntlArg::F_OFD_SETLK(&byte)).ok()?;
            Some(Ticket { tickets: self, offset })
        }

        /// An older ticket, except those at the `ignored` offsets; the same one as long as it exists.
        pub(super) fn before(&self, ticket: &Ticket<'_>, ignored: &[i64]) -> Option<i64> {
            self.first(ticket.offset, ignored)
        }

        /// A ticket before `end`: probes the ranges between the ignored offsets.
        fn first(&self, end: i64, ignored: &[i64]) -> Option<i64> {
            let mut start = self.start;
            for offset in ignored.iter().copied().filter(|offset| *offset < end) {
                let found = self.within(start, offset);
                if found.is_some() {
                    return found;
                }
                start = offset + 1;
            }
            self.within(start, end)
        }

        fn within(&self, start: i64, end: i64) -> Option<i64> {
            if start >= end {
                // Length 0 would mean the whole file.
                return None;
            }
            let mut answer = lock(libc::F_WRLCK, start, end - start);
            fcntl(self.folder.as_fd(), FcntlArg::F_OFD_GETLK(&mut answer)).ok()?;
            (i32::from(answer.l_type) != libc::F_UNLCK).then_some(answer.l_start)
        }
    }

    impl Drop for Ticket<'_> {
        fn drop(&mut self) {
            // It can only fail for an invalid descriptor.
            let _ = fcntl(self.tickets.folder.as_fd(), FcntlArg::F_OFD_SETLK(&lock(libc::F_UNLCK, self.offset, 1)));
        }
    }

    fn lock(kind: i32, start: i64, length: i64) -> libc::flock {
        libc::flock {
            l_type: kind as libc::c_short,
            l_whence: libc::SEEK_SET as libc::c_short,
            l_start: start,
            l_len: length,
            l_pid: 0,
        }
    }
}

/// Other systems have no locks that belong to an open file and not to the process.
#[cfg(not(target_os = "linux"))]
mod tickets {
    use std::fs::File;

    #[derive(Debug)]
    pub(super) struct Tickets;

    pub(super) struct Ticket;

    impl Tickets {
        pub(super) fn new(_: File, _: u64) -> Self {
            Self
        }

        pub(super) fn any(&self, _: &[i64]) -> bool {
            false
        }

        pub(super) fn has(&self, _: i64) -> bool {
            false
        }

        pub(super) fn take(&self) -> Option<Ticket> {
            None
        }

        pub(super) fn before(&self, _: &Ticket, _: &[i64]) -> Option<i64> {
            None
        }
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use rusqlite::ffi;

    use super::*;

    fn busy() -> rusqlite::Error {
        rusqlite::Error::SqliteFailure(ffi::Error::new(ffi::SQLITE_BUSY), None)
    }

    #[test]
    fn the_oldest_ticket_is_first_until_it_is_dropped() {
        let folder = tempfile::tempdir().unwrap();
        let open = || LockQueue::new(&folder.path().join("queues.db")).tickets.unwrap();
        let processes = [open(), open(), open()];
        assert!(!processes[0].any(&[]));
        let mut taken = Vec::new();
        for process in &processes {
            taken.push(process.take().unwrap());
            // Longer than the clock's grain, so that no two tickets have the same time.
            let now = Instant::now();
            while now.elapsed() < Duration::from_micros(5) {}
        }
        assert_eq!(processes[0].before(&taken[0], &[]), None);
        assert!(processes[1].before(&taken[1], &[]).is_some());
        assert!(processes[2].before(&taken[2], &[]).is_some());
        drop(taken.remove(0));
        assert_eq!(processes[1].before(&taken[0], &[]), None);
        assert!(processes[2].before(&taken[1], &[]).is_some());
        let other = LockQueue::new(&folder.path().join("other.db")).tickets.unwrap();
        assert!(!other.any(&[]), "another file of the folder has its own queue");
    }

    #[test]
    fn a_queue_without_progress_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let open = || LockQueue::new(&folder.path().join("queues.db"));
        let (stopped, ours) = (open(), open());
        let _ticket = stopped.tickets.as_ref().unwrap().take().unwrap();
        let began = Instant::now();
        ours.wait(Duration::from_secs(30), || Ok(())).unwrap();
        assert!(began.elapsed() >= STUCK);
        assert!(began.elapsed() < Duration::from_secs(20));
        // The ticket is ignored by now: otherwise the next hundred attempts would take a hundred times as long.
        let began = Instant::now();
        for _ in 0..100 {
            ours.wait(Duration::from_secs(30), || Ok(())).unwrap();
        }
        assert!(began.elapsed() < STUCK * 50, "{:?}", began.elapsed());
        // A new ticket is still waited for.
        let _ticket = stopped.tickets.as_ref().unwrap().take().unwrap();
        let began = Instant::now();
        ours.wait(Duration::from_secs(30), || Ok(())).unwrap();
        assert!(began.elapsed() >= STUCK);
    }

    #[test]
    fn the_wait_ends_with_the_error_of_the_last_attempt() {
        let folder = tempfile::tempdir().unwrap();
        let ours = LockQueue::new(&folder.path().join("queues.db"));
        let error = ours.wait(Duration::from_millis(20), || Err::<(), _>(busy())).unwrap_err();
        assert!(is_busy(&error));
        assert!(!ours.tickets.unwrap().any(&[]), "the ticket is given back");
    }
}
