//! What SQLite says, in words that tell what to do.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use postrider_core::{ErrorSource, MessagingError};
use rusqlite::ErrorCode;

use crate::PROVIDER;

/// Why a file cannot be used as it is.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FileError {
    #[error("'{}' is a folder; name a file in it, such as '{}'", .0.display(), .0.join("postrider.db").display())]
    IsFolder(PathBuf),
    #[error("'{}' is no regular file; name another one", .0.display())]
    NotAFile(PathBuf),
    #[error("the folder '{}' does not exist; create it, or name a file elsewhere", .0.display())]
    NoFolder(PathBuf),
    #[error("'{}' does not exist and auto_migrate is off; create it with `postrider migrate`", .0.display())]
    Missing(PathBuf),
    #[error(
        "'{}' is on a network file system ({kind}), where the locks of several hosts do not hold and messages would be \
         lost; put it on a local disk, or use a database server", path.display()
    )]
    Network { path: PathBuf, kind: String },
    #[error(
        "'{}' belongs to another program; name another file, or allow this one to be shared (share_file)", .0.display()
    )]
    Foreign(PathBuf),
    #[error("'{}' is no SQLite database; name another file, or restore it from a backup", .0.display())]
    NotADatabase(PathBuf),
    #[error("'{}' is damaged ({detail}); restore it from a backup", path.display())]
    Damaged { path: PathBuf, detail: String },
    #[error("'{}' may not be written; check the permissions of the file and of its folder", .0.display())]
    ReadOnly(PathBuf),
    #[error("'{}' cannot be opened ({detail}); check the permissions of the file and of its folder", path.display())]
    CannotOpen { path: PathBuf, detail: String },
    #[error(
        "'{}' cannot be used because the disk or its file system failed ({detail}); check its free space, its limits and the \
         system's log, then try again",
        path.display()
    )]
    Disk { path: PathBuf, detail: String },
    #[error(
        "'{}': the disk is full, and what is left of it is kept for receives and acks; free some space, and sends go \
         on by themselves",
        .0.display()
    )]
    Full(PathBuf),
    #[error("'{}' cannot be opened because the disk is full; free some space and try again", .0.display())]
    NoRoom(PathBuf),
    #[error("'{}' does not support the write-ahead log; put it on a local disk", .0.display())]
    NoWriteAheadLog(PathBuf),
    #[error(
        "'{}' has schema version {found} and this program knows version {known}; use a newer program", path.display()
    )]
    TooNew { path: PathBuf, found: i64, known: i64 },
    #[error(
        "'{}' lacks the migrations {missing} and auto_migrate is off; apply them with `postrider migrate`",
        path.display()
    )]
    NeedsMigration { path: PathBuf, missing: String },
    #[error("migration {name} could not be applied to '{}': {source}; nothing was changed", path.display())]
    Migration { path: PathBuf, name: &'static str, source: rusqlite::Error },
    #[error("'{}' was removed or replaced while it was open; put it back, or start again whatever has it open", .0.display())]
    Gone(PathBuf),
    #[error(
        "'{}' has been locked by another process for {waited:.1?}: one that writes very much, that is stopped in the \
         middle of a write, or that has a transaction open (a database shell, a backup); find it with `fuser -v '{}'`",
        path.display(),
        path.display()
    )]
    Locked { path: PathBuf, waited: Duration },
}

impl FileError {
    /// As the answer to a call in which nothing was done.
    pub(crate) fn into_error(self, operation: &'static str) -> MessagingError {
        Trouble::from(self).error(operation)
    }
}

/// Why nothing was done. Shared, so that one failure can be told to everybody who was in the same transaction.
#[derive(Debug, Clone)]
pub(crate) struct Trouble {
    source: ErrorSource,
    retryable: bool,
    /// Whether all that is wrong is that the disk is full: the file is well, and can be read.
    is_full: bool,
}

impl Trouble {
    /// As the answer to a call.
    pub(crate) fn error(&self, operation: &'static str) -> MessagingError {
        let (source, retryable) = (self.source.clone(), self.retryable);
        if self.is_full {
            return MessagingError::Busy { source };
        }
        MessagingError::Provider { provider: PROVIDER, operation, source, retryable }
    }
}

impl From<FileError> for Trouble {
    fn from(error: FileError) -> Self {
        let retryable = matches!(error, FileError::Locked { .. } | FileError::Gone(_) | FileError::Disk { .. });
        Self { is_full: matches!(error, FileError::Full(_) | FileError::NoRoom(_)), source: Arc::new(error), retryable }
    }
}

impl Trouble {
    /// What SQLite said of a file that was in use.
    pub(crate) fn new(path: &Path, error: rusqlite::Error) -> Self {
        let (meaning, retryable) = match error.sqlite_error_code() {
            Some(ErrorCode::DiskFull) => ("the disk is full; free some space and try again", true),
            Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
                ("another process has the file locked; try again", true)
            }
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => {
                ("the file is damaged; restore it from a backup", false)
            }
            Some(ErrorCode::ReadOnly) => ("the file may not be written; check its permissions", false),
            Some(ErrorCode::SystemIoFailure | ErrorCode::CannotOpen) => (
                "the disk or its file system failed; check its free space, its limits and the system's log, then try \
                 again",
                true,
            ),
            Some(ErrorCode::TooBig) => ("it is larger than SQLite can hold", false),
            _ => ("SQLite refused it", false),
        };
        let is_full = is_full(&error);
        Self { source: Arc::new(SqlError { path: path.to_owned(), meaning, source: error }), retryable, is_full }
    }
}

/// What SQLite said, with what it means.
#[derive(Debug, thiserror::Error)]
#[error("'{}': {meaning}: {source}", path.display())]
struct SqlError {
    path: PathBuf,
    meaning: &'static str,
    source: rusqlite::Error,
}

/// An answer that says that nothing was done, because of what SQLite said.
pub(crate) fn not_done(path: &Path, operation: &'static str, error: rusqlite::Error) -> MessagingError {
    Trouble::new(path, error).error(operation)
}

/// Whether the fault lies with the file and not with a row: everybody's work fails, not only that row's.
pub(crate) fn concerns_everybody(error: &rusqlite::Error) -> bool {
    matches!(
        error.sqlite_error_code(),
        Some(
            ErrorCode::DiskFull
                | ErrorCode::SystemIoFailure
                | ErrorCode::DatabaseCorrupt
                | ErrorCode::NotADatabase
                | ErrorCode::CannotOpen
                | ErrorCode::ReadOnly
                | ErrorCode::OutOfMemory
                | ErrorCode::FileLockingProtocolFailed
                | ErrorCode::DatabaseBusy
                | ErrorCode::DatabaseLocked
                | ErrorCode::InternalMalfunction
                | ErrorCode::OperationInterrupted
        )
    )
}

/// Whether SQLite has found no room for what it was to write.
pub(crate) fn is_full(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::DiskFull)
}

pub(crate) fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}

/// Why a step inside a transaction did not come to its end.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The law forbids it; nothing was written by this step.
    Law(MessagingError),
    /// SQLite failed.
    Sql(rusqlite::Error),
}

impl Failure {
    /// As a failure of SQLite, after which everything is taken back that the piece of work has written: for what is
    /// refused when a part of it was done already.
    pub(crate) fn take_back(self) -> rusqlite::Error {
        match self {
            Self::Sql(error) => error,
            Self::Law(error) => rusqlite::Error::ToSqlConversionFailure(Box::new(error)),
        }
    }
}

impl From<MessagingError> for Failure {
    fn from(error: MessagingError) -> Self {
        Self::Law(error)
    }
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sql(error)
    }
}

/// Takes a row's own failure apart from SQLite's.
pub(crate) fn by_law<T>(result: Result<T, Failure>) -> rusqlite::Result<Result<T, MessagingError>> {
    match result {
        Ok(value) => Ok(Ok(value)),
        Err(Failure::Law(error)) => Ok(Err(error)),
        Err(Failure::Sql(error)) => Err(error),
    }
}
