//! Errors of the file system, with the remedy.

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
                "permission denied; check the owner and the permissions of the file and its folder"
            }
            Errno::ENOENT => "it does not exist; it was moved or removed meanwhile",
            Errno::ENOTDIR | Errno::EEXIST => "it is not a folder; move it away, or use another path",
            Errno::EISDIR => "it is a folder instead of a file; move it away",
            Errno::ELOOP => "it is a link, and links are not followed; replace it by its target",
            Errno::EMFILE | Errno::ENFILE => "too many files are open; raise the limit (ulimit -n)",
            Errno::EXDEV => "the folders of a queue must be on one file system; undo the mount",
            Errno::ENAMETOOLONG => "the file system does not allow names of 255 bytes; use another one",
            _ => "the disk or its file system failed; read the system's log, then try again",
        };
        Self { action, path: path.to_owned(), meaning, errno }
    }

    /// Whether the failure concerns this file only.
    pub(crate) fn concerns_one_file(&self) -> bool {
        !matches!(self.errno, Errno::EROFS | Errno::EIO | Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM | Errno::ENOENT)
    }

    /// The error of a call without effect.
    pub(crate) fn into_error(self, operation: &'static str) -> MessagingError {
        if matches!(self.errno, Errno::ENOSPC | Errno::EDQUOT) {
            // The store works, and calls that need no space succeed.
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

/// Why a step failed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// Refused by the contract; the step changed nothing.
    Refused(MessagingError),
    /// The file system failed; the step may be incomplete.
    Disk(DiskError),
}

impl From<MessagingError> for Failure {
    fn from(error: MessagingError) -> Self {
        Self::Refused(error)
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
            Self::Refused(error) => error,
            Self::Disk(error) => error.into_error(operation),
        }
    }
}
