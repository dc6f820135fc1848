//! How processes take turns at the write lock.
//!
//! SQLite's lock has no queue: whoever asks at the right moment gets it. A busy process that asks again right after its
//! commit would nearly always win, since the others are asleep between two tries; of four processes one did all the work
//! and the others waited for more than ten seconds. So there is a line to stand in. Whoever finds the lock taken, or
//! others in line, gets a ticket with the time on it, and only the one with the oldest ticket asks SQLite.
//!
//! A ticket is a lock on one byte of the folder, at the place that its time says: nothing has to be written, no file is
//! left behind, and the system takes the ticket of a process that dies. The line only decides who goes first; two who
//! both believe that it is their turn are kept apart by SQLite. Where such locks cannot be had, everything still works,
//! less fairly.
//!
//! Rejected: short sleeps of chance length alone (with sixty writers on a busy machine some waited for more than ten
//! seconds), and waiting inside the system's own lock calls (they have no time-out, so one process that is stopped
//! while it waits would stop everybody behind it).

use std::cell::RefCell;
use std::fs::File;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::error::is_busy;

/// When the line has not moved for so long, its head may be a process that was stopped, or the lock is held by somebody
/// who does not stand in line. Then those behind ask SQLite too.
const STUCK: Duration = Duration::from_millis(100);

/// How long somebody who has waited this long sleeps before the next look.
fn nap(waited: Duration) -> Duration {
    let micros = match waited.as_millis() {
        0..2 => 100,
        2..1000 => 200,
        // Somebody has a transaction open; it will last.
        _ => 2000,
    };
    Duration::from_micros(micros).mul_f64(rand::random_range(0.5..1.0))
}

/// So many places are remembered of those who do not move.
const MOST_STUCK: usize = 16;

#[derive(Debug)]
pub(crate) struct Turns {
    line: Option<line::Line>,
    /// Places whose owners let somebody behind them go first: stopped processes. They are passed over until they are
    /// gone, or each of them would cost every transaction of everybody else the time that it takes to find out.
    stuck: RefCell<Vec<i64>>,
}

impl Turns {
    /// The line of this file.
    pub(crate) fn new(file: &Path) -> Self {
        let folder = file.parent().and_then(|folder| File::open(folder).ok());
        let name = file.file_name().map_or(0, |name| fnv1a(name.as_bytes()));
        Self { line: folder.map(|folder| line::Line::new(folder, name)), stuck: RefCell::default() }
    }

    /// Those who do not move and are still there, in order.
    fn stuck(&self, line: &line::Line) -> Vec<i64> {
        let mut stuck = self.stuck.borrow_mut();
        stuck.retain(|place| line.has(*place));
        stuck.clone()
    }

    fn pass_over(&self, place: i64) {
        let mut stuck = self.stuck.borrow_mut();
        if stuck.len() < MOST_STUCK && !stuck.contains(&place) {
            stuck.push(place);
            stuck.sort_unstable();
        }
    }

    /// Tries, when it is our turn, until it succeeds or `patience` is at its end.
    pub(crate) fn wait<T>(
        &self,
        patience: Duration,
        mut attempt: impl FnMut() -> rusqlite::Result<T>,
    ) -> rusqlite::Result<T> {
        let Some(line) = &self.line else { return retry(patience, attempt) };
        if !line.has_somebody(&self.stuck(line)) {
            match attempt() {
                Err(error) if is_busy(&error) => {}
                result => return result,
            }
        }
        let ticket = line.join();
        let began = Instant::now();
        let mut blocked_by = None;
        loop {
            let waited = began.elapsed();
            let before = ticket.as_ref().and_then(|ticket| line.before(ticket, &self.stuck(line)));
            // One who has been first in line for long without getting on does not count.
            let since = match blocked_by {
                Some((same, since)) if Some(same) == before => since,
                _ => waited,
            };
            blocked_by = before.map(|before| (before, since));
            if before.is_none() || waited.saturating_sub(since) >= STUCK || waited >= patience {
                match attempt() {
                    Err(error) if is_busy(&error) && waited < patience => {}
                    result => {
                        // The lock was free, and whoever is first did not take it.
                        if let Some(before) = before.filter(|_| result.is_ok()) {
                            self.pass_over(before);
                        }
                        return result;
                    }
                }
            }
            std::thread::sleep(nap(waited));
        }
    }
}

/// The same in every build of this program, so that two versions of it stand in one line.
fn fnv1a(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3))
}

fn retry<T>(patience: Duration, mut attempt: impl FnMut() -> rusqlite::Result<T>) -> rusqlite::Result<T> {
    let began = Instant::now();
    loop {
        let waited = began.elapsed();
        match attempt() {
            Err(error) if is_busy(&error) && waited < patience => std::thread::sleep(nap(waited)),
            result => return result,
        }
    }
}

#[cfg(target_os = "linux")]
mod line {
    use std::fs::File;
    use std::os::fd::AsFd;

    use nix::fcntl::{FcntlArg, fcntl};
    use nix::libc;
    use nix::time::{ClockId, clock_gettime};

    /// Bits of a place that are the time in microseconds: nine years since the host was started.
    const TIME_BITS: u32 = 48;

    /// A range of the folder's bytes, one range for each name of a file.
    #[derive(Debug)]
    pub(super) struct Line {
        folder: File,
        start: i64,
    }

    /// A place in the line, until it is dropped.
    pub(super) struct Ticket<'a> {
        line: &'a Line,
        place: i64,
    }

    impl Line {
        pub(super) fn new(folder: File, name: u64) -> Self {
            // Two names that come out the same share a line: they are slower, and nothing else.
            Self { folder, start: (name >> (TIME_BITS + 1)).cast_signed() << TIME_BITS }
        }

        /// Whether anybody stands in line, apart from those at these places.
        pub(super) fn has_somebody(&self, apart: &[i64]) -> bool {
            self.first(self.start + (1 << TIME_BITS), apart).is_some()
        }

        /// Whether somebody has this place.
        pub(super) fn has(&self, place: i64) -> bool {
            self.within(place, place + 1).is_some()
        }

        pub(super) fn join(&self) -> Option<Ticket<'_>> {
            // Every process of the host has the same.
            let time = clock_gettime(ClockId::CLOCK_BOOTTIME).ok()?;
            let micros = time.tv_sec().checked_mul(1_000_000)?.checked_add(time.tv_nsec() / 1000)?;
            let place = self.start + micros.clamp(0, (1 << TIME_BITS) - 1);
            // Shared, because that is what a folder allows; whoever asks asks for more.
            let byte = lock(libc::F_RDLCK, place, 1);
            fcntl(self.folder.as_fd(), FcntlArg::F_OFD_SETLK(&byte)).ok()?;
            Some(Ticket { line: self, place })
        }

        /// Somebody who came before, apart from those at these places; the same one as long as they wait.
        pub(super) fn before(&self, ticket: &Ticket<'_>, apart: &[i64]) -> Option<i64> {
            self.first(ticket.place, apart)
        }

        /// Looks between the places that do not count.
        fn first(&self, end: i64, apart: &[i64]) -> Option<i64> {
            let mut start = self.start;
            for place in apart.iter().copied().filter(|place| *place < end) {
                let found = self.within(start, place);
                if found.is_some() {
                    return found;
                }
                start = place + 1;
            }
            self.within(start, end)
        }

        fn within(&self, start: i64, end: i64) -> Option<i64> {
            if start >= end {
                // To the system no length would be the whole file.
                return None;
            }
            let mut answer = lock(libc::F_WRLCK, start, end - start);
            fcntl(self.folder.as_fd(), FcntlArg::F_OFD_GETLK(&mut answer)).ok()?;
            (i32::from(answer.l_type) != libc::F_UNLCK).then_some(answer.l_start)
        }
    }

    impl Drop for Ticket<'_> {
        fn drop(&mut self) {
            // It can only fail for a descriptor that is not one.
            let _ = fcntl(self.line.folder.as_fd(), FcntlArg::F_OFD_SETLK(&lock(libc::F_UNLCK, self.place, 1)));
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

/// Other systems have no lock that belongs to an open file and not to the process.
#[cfg(not(target_os = "linux"))]
mod line {
    use std::fs::File;

    #[derive(Debug)]
    pub(super) struct Line;

    pub(super) struct Ticket;

    impl Line {
        pub(super) fn new(_: File, _: u64) -> Self {
            Self
        }

        pub(super) fn has_somebody(&self, _: &[i64]) -> bool {
            false
        }

        pub(super) fn has(&self, _: i64) -> bool {
            false
        }

        pub(super) fn join(&self) -> Option<Ticket> {
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
    fn whoever_came_first_is_first_until_they_leave() {
        let folder = tempfile::tempdir().unwrap();
        let open = || Turns::new(&folder.path().join("queues.db")).line.unwrap();
        let lines = [open(), open(), open()];
        assert!(!lines[0].has_somebody(&[]));
        let mut tickets = Vec::new();
        for line in &lines {
            tickets.push(line.join().unwrap());
            // Longer than the clock's grain, so that no two have the same time.
            let shown = Instant::now();
            while shown.elapsed() < Duration::from_micros(5) {}
        }
        assert_eq!(lines[0].before(&tickets[0], &[]), None);
        assert!(lines[1].before(&tickets[1], &[]).is_some());
        assert!(lines[2].before(&tickets[2], &[]).is_some());
        drop(tickets.remove(0));
        assert_eq!(lines[1].before(&tickets[0], &[]), None);
        assert!(lines[2].before(&tickets[1], &[]).is_some());
        let other = Turns::new(&folder.path().join("other.db")).line.unwrap();
        assert!(!other.has_somebody(&[]), "another file of the folder has a line of its own");
    }

    #[test]
    fn a_line_that_does_not_move_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let open = || Turns::new(&folder.path().join("queues.db"));
        let (stopped, ours) = (open(), open());
        let _ticket = stopped.line.as_ref().unwrap().join().unwrap();
        let began = Instant::now();
        ours.wait(Duration::from_secs(30), || Ok(())).unwrap();
        assert!(began.elapsed() >= STUCK);
        assert!(began.elapsed() < Duration::from_secs(20));
        // Known by now: the next hundred would wait a hundred times as long if each of them did.
        let began = Instant::now();
        for _ in 0..100 {
            ours.wait(Duration::from_secs(30), || Ok(())).unwrap();
        }
        assert!(began.elapsed() < STUCK * 50, "{:?}", began.elapsed());
        // Others are still waited for.
        let _moves = stopped.line.as_ref().unwrap().join().unwrap();
        let began = Instant::now();
        ours.wait(Duration::from_secs(30), || Ok(())).unwrap();
        assert!(began.elapsed() >= STUCK);
    }

    #[test]
    fn patience_ends_with_the_error_of_the_last_try() {
        let folder = tempfile::tempdir().unwrap();
        let ours = Turns::new(&folder.path().join("queues.db"));
        let error = ours.wait(Duration::from_millis(20), || Err::<(), _>(busy())).unwrap_err();
        assert!(is_busy(&error));
        assert!(!ours.line.unwrap().has_somebody(&[]), "the ticket is given back");
    }
}
