//! What PostgreSQL says, in words that tell what to do.

use std::sync::Arc;

use postrider_core::coalescer::BatchFailure;
use postrider_core::{MessageId, MessagingError};
use tokio_postgres::error::{DbError, SqlState};

use crate::PROVIDER;

/// Why a call was not carried out, or may not have been.
#[derive(Debug, Clone)]
pub(crate) enum Undone {
    /// Nothing was done, because of some row.
    Rejected(MessagingError),
    /// Nothing was done, and no row is at fault.
    NotDone(MessagingError),
    /// Nothing was done, and the same again may succeed at once: others were in the way.
    InTheWay(MessagingError),
    /// The answer was lost.
    Unknown(MessagingError),
}

impl From<MessagingError> for Undone {
    fn from(error: MessagingError) -> Self {
        Self::NotDone(error)
    }
}

impl Undone {
    /// As the answer to a call about these messages.
    pub(crate) fn into_error(self, operation: &'static str, ids: Vec<MessageId>) -> MessagingError {
        match self {
            Self::Rejected(error) | Self::NotDone(error) | Self::InTheWay(error) => error,
            Self::Unknown(error) => MessagingError::OutcomeUnknown { operation, ids, source: Some(Arc::new(error)) },
        }
    }

    /// As the answer to a call that looks at things and changes none, or whose changes undo themselves.
    pub(crate) fn into_harmless(self) -> MessagingError {
        match self {
            Self::Rejected(error) | Self::NotDone(error) | Self::InTheWay(error) | Self::Unknown(error) => error,
        }
    }

    /// As the failure of a batch.
    pub(crate) fn into_batch_failure(self) -> BatchFailure {
        match self {
            // Somebody may hold a lock that only one of the rows needs: alone it waits without the others.
            Self::Rejected(error) | Self::InTheWay(error) => BatchFailure::Rejected(error),
            Self::NotDone(error) => BatchFailure::NotDone(error),
            Self::Unknown(error) => BatchFailure::Unknown(error),
        }
    }
}

/// What an error says about the work that it ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Phase {
    /// The commit had not been asked for, or the server said no before it came to it.
    BeforeCommit,
    /// The commit was under way, if only because it was sent along.
    Committing,
}

/// Sorts a failure of the driver or the server.
pub(crate) fn undone(operation: &'static str, phase: Phase, error: tokio_postgres::Error) -> Undone {
    let meaning = meaning(&error);
    let is_answer = error.as_db_error().is_some_and(|answer| !is_end_of_session(answer));
    let told = MessagingError::Provider {
        provider: PROVIDER,
        operation,
        source: Arc::new(SqlError { meaning: meaning.text, source: error }),
        retryable: meaning.blame != Blame::Row && meaning.blame != Blame::Setup,
    };
    match (phase, is_answer, meaning.blame) {
        (Phase::Committing, false, _) => Undone::Unknown(told),
        (_, _, Blame::Row) => Undone::Rejected(told),
        (_, _, Blame::Others) => Undone::InTheWay(told),
        (_, _, Blame::Server | Blame::Setup) => Undone::NotDone(told),
    }
}

/// A failure to be connected at all.
pub(crate) fn cannot_connect(place: &str, error: tokio_postgres::Error) -> MessagingError {
    let meaning = meaning(&error);
    if meaning.blame == Blame::Setup {
        return MessagingError::Provider {
            provider: PROVIDER,
            operation: "connect",
            source: Arc::new(SqlError { meaning: meaning.text, source: error }),
            retryable: false,
        };
    }
    let detail = format!("{place}: {}", text(&error));
    MessagingError::Connection { provider: PROVIDER, detail, source: Some(Arc::new(error)) }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Blame {
    /// A row cannot be stored.
    Row,
    /// Somebody else was in the way.
    Others,
    /// The server or the way to it.
    Server,
    /// Credentials, rights, schema: the same call will never succeed.
    Setup,
}

struct Meaning {
    text: &'static str,
    blame: Blame,
}

fn is_end_of_session(answer: &DbError) -> bool {
    matches!(answer.severity(), "FATAL" | "PANIC")
}

fn meaning(error: &tokio_postgres::Error) -> Meaning {
    let of = |text, blame| Meaning { text, blame };
    let Some(code) = error.code() else {
        return of("the connection to the server failed; it is tried again by itself", Blame::Server);
    };
    if [SqlState::INVALID_PASSWORD, SqlState::INVALID_AUTHORIZATION_SPECIFICATION].contains(code) {
        return of("the server does not accept this user or password; check the URL", Blame::Setup);
    }
    if *code == SqlState::INVALID_CATALOG_NAME {
        return of("the database does not exist; create it, or name another one in the URL", Blame::Setup);
    }
    if *code == SqlState::INSUFFICIENT_PRIVILEGE {
        return of(
            "the user lacks a right; let it own the schema, or let an owner run `postrider migrate` and grant the rest",
            Blame::Setup,
        );
    }
    if [SqlState::UNDEFINED_TABLE, SqlState::UNDEFINED_COLUMN, SqlState::UNDEFINED_FUNCTION].contains(code)
        || *code == SqlState::INVALID_SCHEMA_NAME
    {
        return of("the schema is not what this program knows; apply `postrider migrate`", Blame::Setup);
    }
    match code.code().get(..2) {
        Some("40" | "55") => of("another transaction was in the way; try again", Blame::Others),
        Some("57") if *code == SqlState::QUERY_CANCELED => {
            of("it took longer than statement_timeout and was given up; try again", Blame::Others)
        }
        Some("53") => of("the server is out of connections, memory or disk; relieve it and try again", Blame::Server),
        Some("57") => of("the server is shutting down or starting; try again", Blame::Server),
        Some("25") => of("the server may only be read, as a standby is; name the primary in the URL", Blame::Server),
        Some("08") => of("the connection to the server failed; it is tried again by itself", Blame::Server),
        _ => of("PostgreSQL refused it", Blame::Row),
    }
}

/// What PostgreSQL said, with what it means.
#[derive(Debug, thiserror::Error)]
#[error("{meaning}: {}", text(source))]
struct SqlError {
    meaning: &'static str,
    source: tokio_postgres::Error,
}

/// The driver's own text names only the kind of error; what the server said stands below it.
pub(crate) fn text(error: &tokio_postgres::Error) -> String {
    match (error.as_db_error(), std::error::Error::source(error)) {
        (Some(answer), _) => format!("{} ({})", answer.message(), answer.code().code()),
        (None, Some(source)) => format!("{error}: {source}"),
        (None, None) => error.to_string(),
    }
}
