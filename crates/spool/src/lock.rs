//! The lock of a queue, and the record that its holders write into it.
//!
//! A process holds the lock while it changes a queue's folders, for a few renames, and syncs the disk after releasing it; an
//! edit, a pause and a note of a long name are the exceptions. Every change is a rename from an exact name, so that even
//! without the lock no message could be leased twice; the lock serves the order: positions are assigned one after the
//! other, and no process looks for the head of a key while another one moves it.

use std::fs::{File, TryLockError};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::sync::LazyLock;
use std::time::{Duration, Instant};

use postrider_core::{MessagingError, Timestamp, failpoint};

use crate::disk::{Folder, Identity, errno_of};
use crate::error::{DiskError, Failure};
use crate::time_text;

pub(crate) const FILE: &str = ".lock";

/// The record in the lock's file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct LockRecord {
    /// The last position that was assigned.
    pub(crate) position: Timestamp,
    /// Rises with every change of the folders.
    pub(crate) generation: u64,
}

/// Id of this boot of the system. A record of an earlier boot is ignored, because unsynced writes may be lost since.
static BOOT: LazyLock<String> = LazyLock::new(|| {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let id: String = id.chars().filter(char::is_ascii_hexdigit).take(32).collect();
    if id.is_empty() { "unknown".into() } else { id }
});

/// The open lock file.
#[derive(Debug)]
pub(crate) struct LockFile {
    file: File,
    /// Why it cannot be written, if so: it still serves for reading calls.
    refused: Option<DiskError>,
}

/// The held lock.
#[derive(Debug)]
pub(crate) struct Held<'l> {
    lock: &'l LockFile,
    /// `None` when no holder has written one since the system started: then the folders are read.
    pub(crate) record: Option<LockRecord>,
}

impl LockFile {
    pub(crate) fn open(home: &Folder) -> Result<Self, DiskError> {
        match home.open_state(FILE) {
            Ok(file) => Ok(Self { file, refused: None }),
            Err(error) => match home.open_file(FILE.as_bytes()) {
                Ok(Some(file)) => Ok(Self { file, refused: Some(error) }),
                Ok(None) | Err(_) => Err(error),
            },
        }
    }

    /// Waits for the lock up to `patience`.
    pub(crate) fn take(&self, home: &Folder, patience: Duration) -> Result<Held<'_>, Failure> {
        let began = Instant::now();
        let mut pause = Duration::from_micros(20);
        failpoint::reach("spool.lock");
        loop {
            match self.file.try_lock() {
                Ok(()) => break,
                Err(TryLockError::WouldBlock) if began.elapsed() >= patience => return Err(self.busy(home, patience)),
                Err(TryLockError::WouldBlock) => {
                    std::thread::sleep(pause.mul_f64(rand::random_range(0.5..1.0)));
                    pause = (pause * 2).min(Duration::from_millis(2));
                }
                Err(TryLockError::Error(error)) => return Err(home.failed("lock", FILE, errno_of(&error)).into()),
            }
        }
        failpoint::reach("spool.locked");
        Ok(Held { lock: self, record: self.read() })
    }

    /// Whether the path still leads to this file.
    pub(crate) fn is_current(&self, home: &Folder) -> bool {
        Identity::of(&self.file).is_some_and(|identity| home.identity_of(FILE) == Some(identity))
    }

    fn text(&self) -> String {
        let mut bytes = [0; 200];
        let length = self.file.read_at(&mut bytes, 0).unwrap_or(0);
        String::from_utf8_lossy(&bytes[..length]).into_owned()
    }

    fn read(&self) -> Option<LockRecord> {
        parse(&self.text())
    }

    fn busy(&self, home: &Folder, waited: Duration) -> Failure {
        let text = self.text();
        let holder = text.split_whitespace().nth(3).map_or("unknown", |number| number.trim_start_matches('0'));
        MessagingError::busy(format!(
            "the lock of '{}' was not free within {waited:.1?}; process {holder} held it last. If that process is stopped, \
             continue it (kill -CONT) or end it, then try again",
            home.path().display()
        ))
        .into()
    }
}

impl Held<'_> {
    /// Writes the record for the next holder.
    pub(crate) fn write(&mut self, record: LockRecord, home: &Folder) -> Result<(), DiskError> {
        let text = format!(
            "{} {:020} {} {:010}\n",
            time_text::write(record.position),
            record.generation,
            *BOOT,
            std::process::id()
        );
        if let Some(error) = &self.lock.refused {
            return Err(error.clone());
        }
        failpoint::reach("spool.step");
        let written = self.lock.file.write_all_at(text.as_bytes(), 0);
        written.map_err(|error| home.failed("write", FILE, errno_of(&error)))?;
        self.record = Some(record);
        Ok(())
    }
}

impl Drop for Held<'_> {
    fn drop(&mut self) {
        // Closing the file releases it in any case.
        let _ = self.lock.file.unlock();
    }
}

fn parse(text: &str) -> Option<LockRecord> {
    let mut words = text.split_whitespace();
    let position = time_text::read(words.next()?)?;
    let generation = words.next()?.parse().ok()?;
    (words.next()? == *BOOT).then_some(LockRecord { position, generation })
}

/// Returns the process that held the lock last.
pub(crate) fn last_holder(home: &Folder) -> Option<u32> {
    let mut text = String::new();
    home.open_file(FILE.as_bytes()).ok()??.read_to_string(&mut text).ok()?;
    text.split_whitespace().nth(3)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_valid_only_within_the_boot_that_it_was_written_in() {
        let folder = tempfile::tempdir().unwrap();
        let home = Folder::open_path(folder.path()).unwrap();
        let lock = LockFile::open(&home).unwrap();
        let record = LockRecord { position: Timestamp::from_micros(1_763_330_523_123_456), generation: 7 };
        let mut held = lock.take(&home, Duration::ZERO).unwrap();
        assert_eq!(held.record, None);
        held.write(record, &home).unwrap();
        drop(held);
        let text = lock.text();
        assert_eq!(parse(&text), Some(record));
        assert_eq!(parse(&text.replace(BOOT.as_str(), "another")), None);
        assert_eq!(parse(&text[..30]), None);
        assert_eq!(last_holder(&home), Some(std::process::id()));
    }

    #[test]
    fn a_lock_timeout_names_the_holder() {
        let folder = tempfile::tempdir().unwrap();
        let home = Folder::open_path(folder.path()).unwrap();
        let (ours, theirs) = (LockFile::open(&home).unwrap(), LockFile::open(&home).unwrap());
        let mut held = ours.take(&home, Duration::ZERO).unwrap();
        held.write(LockRecord { position: Timestamp::EPOCH, generation: 1 }, &home).unwrap();
        let Err(Failure::Refused(error)) = theirs.take(&home, Duration::from_millis(1)) else {
            panic!("it was not held")
        };
        assert!(error.is_retryable());
        assert!(error.to_string().contains(&std::process::id().to_string()), "{error}");
        drop(held);
        assert!(theirs.take(&home, Duration::ZERO).is_ok());
    }
}
