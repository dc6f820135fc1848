//! Bare file system calls of one thread, one file a message.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use crate::Failure;

/// When a drain calls fsync.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Durable {
    Never,
    /// On both folders once a batch of this size, like a provider that claims and acknowledges batches.
    Every(usize),
}

/// Folders on the same disk as the provider's.
pub(crate) struct Raw {
    temporary: PathBuf,
    waiting: Folder,
    claimed: Folder,
}

/// A folder with a handle for fsync.
struct Folder {
    path: PathBuf,
    open: File,
}

impl Folder {
    fn create(path: PathBuf) -> Result<Self, Failure> {
        fs::create_dir_all(&path)?;
        Ok(Self { open: File::open(&path)?, path })
    }

    fn file(&self, number: usize) -> PathBuf {
        self.path.join(format!("{number:08}"))
    }
}

impl Raw {
    pub(crate) fn open(path: &Path) -> Result<Self, Failure> {
        let (waiting, claimed) = (Folder::create(path.join("waiting"))?, Folder::create(path.join("claimed"))?);
        Ok(Self { temporary: path.join("temporary"), waiting, claimed })
    }

    /// Creates files one after the other, like a careful script: write, fsync, rename into the folder, fsync of the folder.
    pub(crate) fn send(&self, messages: usize, size: usize) -> Result<Duration, Failure> {
        let body = vec![b'x'; size];
        let start = Instant::now();
        for number in 0..messages {
            let mut file = File::create(&self.temporary)?;
            file.write_all(&body)?;
            file.sync_all()?;
            fs::rename(&self.temporary, self.waiting.file(number))?;
            self.waiting.open.sync_all()?;
        }
        Ok(start.elapsed())
    }

    /// Creates a backlog and syncs it: removing a file that was never written to the disk would cost nothing.
    pub(crate) fn fill(&self, messages: usize, size: usize) -> Result<(), Failure> {
        let body = vec![b'x'; size];
        for number in 0..messages {
            fs::write(self.waiting.file(number), &body)?;
        }
        Ok(nix::unistd::syncfs(&self.waiting.open)?)
    }

    /// Renames each file into the other folder and removes it there.
    pub(crate) fn drain(&self, messages: usize, durable: Durable) -> Result<Duration, Failure> {
        let start = Instant::now();
        for number in 0..messages {
            let claimed = self.claimed.file(number);
            fs::rename(self.waiting.file(number), &claimed)?;
            fs::remove_file(claimed)?;
            if matches!(durable, Durable::Every(batch) if (number + 1).is_multiple_of(batch)) {
                self.waiting.open.sync_all()?;
                self.claimed.open.sync_all()?;
            }
        }
        Ok(start.elapsed())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn created_files_are_drained() {
        let folder = tempfile::tempdir().unwrap();
        let raw = Raw::open(folder.path()).unwrap();
        raw.send(3, 10).unwrap();
        assert_eq!(fs::read(raw.waiting.file(2)).unwrap(), b"xxxxxxxxxx");
        raw.drain(3, Durable::Never).unwrap();
        raw.fill(25, 10).unwrap();
        raw.drain(25, Durable::Every(10)).unwrap();
        assert!(raw.drain(1, Durable::Never).is_err(), "nothing is left");
        assert_eq!(fs::read_dir(&raw.claimed.path).unwrap().count(), 0);
    }
}
