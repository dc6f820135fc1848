//! What PostgreSQL says, in words that tell what to do.

use std::error::Error;
use std::io;
use std::sync::Arc;

use postrider_core::MessagingError;
use postrider_provider::{Blame, Phase, Undone};
use postrider_sql::is_distrust;
use tokio_postgres::error::{DbError, Severity, SqlState};

/// Sorts a failure of the driver or the server.
pub fn undone(provider: &'static str, operation: &'static str, phase: Phase, error: tokio_postgres::Error) -> Undone {
    let meaning = meaning(&error);
    let is_answer = error.as_db_error().is_some_and(|answer| !is_end_of_session(answer));
    let told = MessagingError::Provider {
        provider,
        operation,
        source: Arc::new(SqlError { meaning: meaning.text, source: error }),
        retryable: meaning.blame.is_retryable(),
    };
    Undone::sort(phase, is_answer, meaning.blame, told)
}

/// A failure to be connected at all.
pub fn cannot_connect(provider: &'static str, place: &str, error: tokio_postgres::Error) -> MessagingError {
    let meaning = unfit(&error).unwrap_or_else(|| meaning(&error));
    // A server that says why it lets nobody in is running, and it was found.
    let is_told = meaning.blame == Blame::Server && error.as_db_error().is_some();
    if is_told || meaning.blame == Blame::Setup {
        return MessagingError::Provider {
            provider,
            operation: "connect",
            source: Arc::new(SqlError { meaning: meaning.text, source: error }),
            retryable: meaning.blame.is_retryable(),
        };
    }
    let detail = format!("{place}: {}", text(&error));
    MessagingError::Connection { provider, detail, source: Some(Arc::new(error)) }
}

/// A server that wants every connection encrypted refuses a plain one with the code of a wrong password.
const NOT_ACCEPTED: &str = match cfg!(feature = "tls") {
    true => "the server does not accept this user or password; check the URL",
    false => {
        "the server does not accept this user or password, or asks for TLS, which this build lacks; check the URL, or \
         enable the feature 'tls' of the crate postrider"
    }
};

struct Meaning {
    text: &'static str,
    blame: Blame,
}

/// What keeps this program and a server that was reached apart, whatever is tried again.
fn unfit(error: &tokio_postgres::Error) -> Option<Meaning> {
    let of = |text| Some(Meaning { text, blame: Blame::Setup });
    let cause = error.source()?;
    if is_distrust(cause) {
        return of(
            "the server's certificate is not trusted; name the host that it was made for, and with sslrootcert= the file \
             of the authority that signed it",
        );
    }
    // Neither the network nor the server has said this, so the driver has: it cannot do what the two want of it.
    let is_drivers_own = !cause.is::<io::Error>() && !cause.is::<DbError>();
    is_drivers_own.then_some(())?;
    of(
        "the server lacks what the URL asks for, or asks for what the URL lacks; correct the URL (for a server without TLS: \
        sslmode=disable)",
    )
}

/// Whether the session ended with this answer. The word for it may be in any language.
pub(crate) fn is_end_of_session(answer: &DbError) -> bool {
    matches!(answer.parsed_severity(), Some(Severity::Fatal | Severity::Panic))
}

fn meaning(error: &tokio_postgres::Error) -> Meaning {
    let of = |text, blame| Meaning { text, blame };
    let Some(code) = error.code() else {
        return of("the connection to the server failed; it is tried again by itself", Blame::Server);
    };
    if [SqlState::INVALID_PASSWORD, SqlState::INVALID_AUTHORIZATION_SPECIFICATION].contains(code) {
        return of(NOT_ACCEPTED, Blame::Setup);
    }
    if *code == SqlState::PROTOCOL_VIOLATION && error.as_db_error().is_some_and(|e| e.message().contains("startup")) {
        return of(
            "a pooler stands before the server; say so with common.messaging.postgres.poll_only = true, or with \
             common.messaging.pgmq.enable_pg_notify = false",
            Blame::Setup,
        );
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
        Some("53") if *code == SqlState::TOO_MANY_CONNECTIONS => of(
            "the server has no connection left; raise its max_connections, lower pool_size, or put a pooler before it \
             (poll_only = true)",
            Blame::Server,
        ),
        Some("53") => of("the server is out of memory or disk; relieve it and try again", Blame::Server),
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

/// Whether it was not done because a table is not there.
pub fn is_missing_table(undone: &Undone) -> bool {
    let (Undone::Rejected(error) | Undone::NotDone(error)) = undone else { return false };
    let MessagingError::Provider { source, .. } = error else { return false };
    let error = source.downcast_ref::<SqlError>().map(|error| &error.source);
    error.and_then(tokio_postgres::Error::code) == Some(&SqlState::UNDEFINED_TABLE)
}

/// The driver's own text names only the kind of error; what the server said stands below it.
pub fn text(error: &tokio_postgres::Error) -> String {
    match (error.as_db_error(), error.source()) {
        (Some(answer), _) => format!("{} ({})", answer.message(), answer.code().code()),
        (None, Some(source)) => format!("{error}: {source}"),
        (None, None) => error.to_string(),
    }
}
