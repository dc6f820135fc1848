//! Errors of SQLite and of the file, each with what to do next.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use postrider_core::{ErrorSource, MessagingError};
use rusqlite::ErrorCode;

use crate::PROVIDER;

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub(crate) enum FileError {
    #[error("'{}' is a folder; name a file in it, such as '{}'", .0.display(), .0.join("postrider.db").display())]
    IsFolder(PathBuf),
    #[error("'{}' is not a regular file; name another one", .0.display())]
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
        "'{}': the disk is full, but for a reserve for receives and acks; free some space, and sends succeed again",
        .0.display()
    )]
    Full(PathBuf),
    #[error("'{}' cannot be opened because the disk is full; free some space and try again", .0.display())]
    NoRoom(PathBuf),
    #[error("'{}' does not support the write-ahead log; put it on a local disk", .0.display())]
    NoWriteAheadLog(PathBuf),
    #[error(
        "'{}' has schema version {found} and this program supports version {known}; use a newer program", path.display()
    )]
    TooNew { path: PathBuf, found: i64, known: i64 },
    #[error(
        "'{}' lacks the migrations {missing} and auto_migrate is off; apply them with `postrider migrate`",
        path.display()
    )]
    NeedsMigration { path: PathBuf, missing: String },
    #[error("migration {name} could not be applied to '{}': {source}; nothing was changed", path.display())]
    Migration { path: PathBuf, name: &'static str, source: rusqlite::Error },
    #[error("'{}' was removed or replaced while it was open; put it back, or restart the program that has it open", .0.display())]
    Gone(PathBuf),
    #[error(
        "'{}' has been locked by another process for {waited:.1?}: by one that writes without pause, that was stopped during a \
         write, or that has a transaction open (a database shell, a backup); find it with `fuser -v '{}'`",
        path.display(),
        path.display()
    )]
    Locked { path: PathBuf, waited: Duration },
}

impl FileError {
    /// The error of a call that changed nothing.
    pub(crate) fn into_error(self, operation: &'static str) -> MessagingError {
        SharedError::from(self).error(operation)
    }
}

/// Why nothing was done. Clones share the source: every call of a failed transaction gets the same error.
#[derive(Debug, Clone)]
pub(crate) struct SharedError {
    source: ErrorSource,
    retryable: bool,
    /// Whether the only problem is a full disk: the file is intact and can be read.
    is_full: bool,
}

impl SharedError {
    /// The error for one call.
    pub(crate) fn error(&self, operation: &'static str) -> MessagingError {
        let (source, retryable) = (self.source.clone(), self.retryable);
        if self.is_full {
            return MessagingError::Busy { source };
        }
        MessagingError::Provider { provider: PROVIDER, operation, source, retryable }
    }
}

impl From<FileError> for SharedError {
    fn from(error: FileError) -> Self {
        let retryable = matches!(error, FileError::Locked { .. } | FileError::Gone(_) | FileError::Disk { .. });
        Self { is_full: matches!(error, FileError::Full(_) | FileError::NoRoom(_)), source: Arc::new(error), retryable }
    }
}

impl SharedError {
    /// An error of SQLite on an open file.
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
            Some(ErrorCode::TooBig) => ("a value is larger than SQLite can store; send a smaller message", false),
            _ => ("SQLite refused the statement", false),
        };
        let is_full = is_full(&error);
        Self { source: Arc::new(SqlError { path: path.to_owned(), meaning, source: error }), retryable, is_full }
    }
}

/// An error of SQLite, with its meaning.
#[derive(Debug, thiserror::Error)]
#[error("'{}': {meaning}: {source}", path.display())]
struct SqlError {
    path: PathBuf,
    meaning: &'static str,
    source: rusqlite::Error,
}

/// The error of a call that changed nothing because SQLite failed.
pub(crate) fn not_done(path: &Path, operation: &'static str, error: rusqlite::Error) -> MessagingError {
    SharedError::new(path, error).error(operation)
}

/// Whether the error concerns the file and not one row, so that every call of the transaction fails.
pub(crate) fn concerns_file(error: &rusqlite::Error) -> bool {
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

/// Whether SQLite found no free space for a write.
pub(crate) fn is_full(error: &rusqlite::Error) -> bool {
    error.sqlite_error_code() == Some(ErrorCode::DiskFull)
}

pub(crate) fn is_busy(error: &rusqlite::Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}

/// Why a step inside a transaction did not complete.
#[derive(Debug)]
pub(crate) enum Failure {
    /// The request was refused; this step wrote nothing.
    Refused(MessagingError),
    /// SQLite failed.
    Sql(rusqlite::Error),
}

impl Failure {
    /// The refusal as an error of SQLite, which rolls back the whole call: for a refusal after the call has written
    /// rows.
    pub(crate) fn take_back(self) -> rusqlite::Error {
        match self {
            Self::Sql(error) => error,
            Self::Refused(error) => rusqlite::Error::ToSqlConversionFailure(Box::new(error)),
        }
    }
}

impl From<MessagingError> for Failure {
    fn from(error: MessagingError) -> Self {
        Self::Refused(error)
    }
}

impl From<rusqlite::Error> for Failure {
    fn from(error: rusqlite::Error) -> Self {
        Self::Sql(error)
    }
}

/// Separates the refusal of one row from an error of SQLite.
pub(crate) fn refusal_as_value<T>(result: Result<T, Failure>) -> rusqlite::Result<Result<T, MessagingError>> {
    match result {
        Ok(value) => Ok(Ok(value)),
        Err(Failure::Refused(error)) => Ok(Err(error)),
        Err(Failure::Sql(error)) => Err(error),
    }
}
