//! Errors of PostgreSQL, with what to do about them.

use std::error::Error;
use std::io;
use std::sync::Arc;

use postrider_core::MessagingError;
use postrider_provider::{Blame, Phase, Undone};
use postrider_sql::is_distrust;
use tokio_postgres::error::{DbError, Severity, SqlState};

/// Classifies an error of the driver or the server.
pub fn undone(provider: &'static str, operation: &'static str, phase: Phase, error: tokio_postgres::Error) -> Undone {
    let meaning = meaning(&error);
    let is_answer = error.as_db_error().is_some_and(|answer| !is_end_of_session(answer));
    let error = MessagingError::Provider {
        provider,
        operation,
        source: Arc::new(SqlError { meaning: meaning.text, source: error }),
        retryable: meaning.blame.is_retryable(),
    };
    Undone::sort(phase, is_answer, meaning.blame, error)
}

/// Returns the error of a failed connection.
pub fn cannot_connect(provider: &'static str, address: &str, error: tokio_postgres::Error) -> MessagingError {
    let meaning = unfit(&error).unwrap_or_else(|| meaning(&error));
    // The server answered, so the address is right.
    let is_answer = meaning.blame == Blame::Server && error.as_db_error().is_some();
    if is_answer || meaning.blame == Blame::Setup {
        return MessagingError::Provider {
            provider,
            operation: "connect",
            source: Arc::new(SqlError { meaning: meaning.text, source: error }),
            retryable: meaning.blame.is_retryable(),
        };
    }
    let detail = format!("{address}: {}", text(&error));
    MessagingError::Connection { provider, detail, source: Some(Arc::new(error)) }
}

/// A server that requires TLS refuses a plain connection with the code of a wrong password.
const NOT_ACCEPTED: &str = match cfg!(feature = "tls") {
    true => "the server does not accept this user or password; check the URL",
    false => {
        "the server does not accept this user or password, or requires TLS, which this build lacks; check the URL, or \
         enable the feature 'tls' of the crate postrider"
    }
};

struct Meaning {
    text: &'static str,
    blame: Blame,
}

/// Returns the meaning of a connection error that no retry can resolve.
fn unfit(error: &tokio_postgres::Error) -> Option<Meaning> {
    let of = |text| Some(Meaning { text, blame: Blame::Setup });
    let cause = error.source()?;
    if is_distrust(cause) {
        return of(
            "the server's certificate is not trusted; use the host name that it was made for, and name with sslrootcert= the \
             file of the authority that signed it",
        );
    }
    // Neither the network nor the server reported it, so the driver cannot do what one of them requires.
    let is_drivers_own = !cause.is::<io::Error>() && !cause.is::<DbError>();
    is_drivers_own.then_some(())?;
    of("the URL and the server disagree about TLS or authentication; correct the URL (for a server without TLS: \
         sslmode=disable)")
}

/// Whether this answer ends the session. The localized severity text is not used.
pub(crate) fn is_end_of_session(answer: &DbError) -> bool {
    matches!(answer.parsed_severity(), Some(Severity::Fatal | Severity::Panic))
}

fn meaning(error: &tokio_postgres::Error) -> Meaning {
    let of = |text, blame| Meaning { text, blame };
    let Some(code) = error.code() else {
        return of("the connection to the server failed; it is retried automatically", Blame::Server);
    };
    if [SqlState::INVALID_PASSWORD, SqlState::INVALID_AUTHORIZATION_SPECIFICATION].contains(code) {
        return of(NOT_ACCEPTED, Blame::Setup);
    }
    if *code == SqlState::PROTOCOL_VIOLATION && error.as_db_error().is_some_and(|e| e.message().contains("startup")) {
        return of(
            "the connection goes through a pooler; set common.messaging.postgres.poll_only = true, or \
             common.messaging.pgmq.enable_pg_notify = false",
            Blame::Setup,
        );
    }
    if *code == SqlState::INVALID_CATALOG_NAME {
        return of("the database does not exist; create it, or use another one in the URL", Blame::Setup);
    }
    if *code == SqlState::INSUFFICIENT_PRIVILEGE {
        return of(
            "the user lacks a right; make it the owner of the schema, or let an owner run `postrider migrate` and grant the rest",
            Blame::Setup,
        );
    }
    if [SqlState::UNDEFINED_TABLE, SqlState::UNDEFINED_COLUMN, SqlState::UNDEFINED_FUNCTION].contains(code)
        || *code == SqlState::INVALID_SCHEMA_NAME
    {
        return of("the schema does not match this program; run `postrider migrate`", Blame::Setup);
    }
    match code.code().get(..2) {
        Some("40" | "55") => of("another transaction holds a lock; try again", Blame::Others),
        Some("57") if *code == SqlState::QUERY_CANCELED => {
            of("it exceeded statement_timeout; try again", Blame::Others)
        }
        Some("53") if *code == SqlState::TOO_MANY_CONNECTIONS => of(
            "the server has no connection left; raise its max_connections, lower pool_size, or put a pooler before it \
             (poll_only = true)",
            Blame::Server,
        ),
        Some("53") => of("the server is out of memory or disk; free some and try again", Blame::Server),
        Some("57") => of("the server is shutting down or starting; try again", Blame::Server),
        Some("25") => of("the server is read-only, as a standby is; use the primary in the URL", Blame::Server),
        Some("08") => of("the connection to the server failed; it is retried automatically", Blame::Server),
        _ => of("PostgreSQL refused it", Blame::Row),
    }
}

/// An error of PostgreSQL, with its meaning.
#[derive(Debug, thiserror::Error)]
#[error("{meaning}: {}", text(source))]
struct SqlError {
    meaning: &'static str,
    source: tokio_postgres::Error,
}

/// Whether the work was not done because a table is missing.
pub fn is_missing_table(undone: &Undone) -> bool {
    let (Undone::Rejected(error) | Undone::NotDone(error)) = undone else { return false };
    let MessagingError::Provider { source, .. } = error else { return false };
    let error = source.downcast_ref::<SqlError>().map(|error| &error.source);
    error.and_then(tokio_postgres::Error::code) == Some(&SqlState::UNDEFINED_TABLE)
}

/// Returns the text of an error. The driver's own text names only its kind; the server's is in the source.
pub fn text(error: &tokio_postgres::Error) -> String {
    match (error.as_db_error(), error.source()) {
        (Some(answer), _) => format!("{} ({})", answer.message(), answer.code().code()),
        (None, Some(source)) => format!("{error}: {source}"),
        (None, None) => error.to_string(),
    }
}
