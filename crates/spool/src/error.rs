//! What the file system says, in words that tell what to do.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use nix::errno::Errno;
use postrider_core::MessagingError;

use crate::PROVIDER;

/// A system call that failed.
#[derive(Debug, Clone, thiserror::Error)]
#[error("cannot {action} '{}': {meaning} ({errno})", path.display())]
pub(crate) struct DiskError {
    action: &'static str,
    path: PathBuf,
    meaning: &'static str,
    pub(crate) errno: Errno,
}

impl DiskError {
    pub(crate) fn new(action: &'static str, path: &Path, errno: Errno) -> Self {
        let meaning = match errno {
            Errno::ENOSPC | Errno::EDQUOT => "the disk is full; free some space and try again",
            Errno::EROFS => "the file system is read-only; mount it for writing and try again",
            Errno::EACCES | Errno::EPERM => {
                "this user may not do that; check the owner and the permissions of the file and its folder"
            }
            Errno::ENOENT => "it is not there; it was moved or removed meanwhile",
            Errno::ENOTDIR | Errno::EEXIST => "it is no folder; move it away, or name another path",
            Errno::EISDIR => "it is a folder, where a file should be; move it away",
            Errno::ELOOP => "it is a link, and links are not followed; put what it leads to in its place",
            Errno::EMFILE | Errno::ENFILE => "too many files are open; raise the limit (ulimit -n)",
            Errno::EXDEV => "the folders of a queue must be on one file system; undo the mount",
            Errno::ENAMETOOLONG => "the file system does not take names of 255 bytes; use another one",
            _ => "the disk or its file system failed; look at the system's log, then try again",
        };
        Self { action, path: path.to_owned(), meaning, errno }
    }

    /// Whether other files can be moved although this one cannot.
    pub(crate) fn concerns_one_file(&self) -> bool {
        !matches!(self.errno, Errno::EROFS | Errno::EIO | Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM | Errno::ENOENT)
    }

    /// As the answer to a call in which nothing was done.
    pub(crate) fn into_error(self, operation: &'static str) -> MessagingError {
        if matches!(self.errno, Errno::ENOSPC | Errno::EDQUOT) {
            // The store is well, and what needs no room goes on.
            return MessagingError::Busy { source: Arc::new(self) };
        }
        let retryable = !matches!(
            self.errno,
            Errno::EACCES
                | Errno::EPERM
                | Errno::ENOTDIR
                | Errno::EEXIST
                | Errno::EISDIR
                | Errno::ELOOP
                | Errno::EXDEV
                | Errno::ENAMETOOLONG
        );
        MessagingError::Provider { provider: PROVIDER, operation, source: Arc::new(self), retryable }
    }
}

/// Why a step did not come to its end.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The law forbids it; nothing was changed by this step.
    Law(MessagingError),
    /// The file system failed; nothing was changed by this step, unless what it says is unknown.
    Disk(DiskError),
}

impl From<MessagingError> for Failure {
    fn from(error: MessagingError) -> Self {
        Self::Law(error)
    }
}

impl From<DiskError> for Failure {
    fn from(error: DiskError) -> Self {
        Self::Disk(error)
    }
}

impl Failure {
    pub(crate) fn into_error(self, operation: &'static str) -> MessagingError {
        match self {
            Self::Law(error) => error,
            Self::Disk(error) => error.into_error(operation),
        }
    }
}
