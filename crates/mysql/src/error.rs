//! Errors of the server, with what to do about them.

use std::sync::Arc;

use postrider_core::MessagingError;
use postrider_provider::{Blame, Phase, Undone};
use postrider_sql::is_distrust;

use crate::PROVIDER;

/// Classifies an error of the driver or the server.
pub(crate) fn undone(operation: &'static str, phase: Phase, error: mysql_async::Error) -> Undone {
    let meaning = meaning(&error);
    let is_answer = matches!(&error, mysql_async::Error::Server(answer) if !is_end_of_session(answer.code));
    let error = MessagingError::Provider {
        provider: PROVIDER,
        operation,
        source: Arc::new(SqlError { meaning: meaning.text, error }),
        retryable: meaning.blame.is_retryable(),
    };
    Undone::sort(phase, is_answer, meaning.blame, error)
}

/// Returns the error of a failed connection.
pub(crate) fn cannot_connect(address: &str, error: mysql_async::Error) -> MessagingError {
    let meaning = meaning(&error);
    // The server answered, so the address is right.
    let is_answer = meaning.blame == Blame::Server && matches!(error, mysql_async::Error::Server(_));
    if is_answer || meaning.blame == Blame::Setup {
        return MessagingError::Provider {
            provider: PROVIDER,
            operation: "connect",
            source: Arc::new(SqlError { meaning: meaning.text, error }),
            retryable: meaning.blame.is_retryable(),
        };
    }
    let detail = format!("{address}: {}", text(&error));
    MessagingError::Connection { provider: PROVIDER, detail, source: Some(Arc::new(DriverError { error })) }
}

/// Whether the session is unusable.
pub(crate) fn is_broken(error: &mysql_async::Error) -> bool {
    match error {
        mysql_async::Error::Server(answer) => is_end_of_session(answer.code),
        _ => true,
    }
}

/// Whether the error is a duplicate key.
pub(crate) fn is_duplicate(error: &mysql_async::Error) -> bool {
    matches!(error, mysql_async::Error::Server(answer) if answer.code == 1062)
}

/// Whether the error is a null in a column that must not be null.
pub(crate) fn is_null(error: &Undone) -> bool {
    refusal(error) == Some(1048)
}

/// Whether the server no longer has the prepared statement: it was not run.
pub(crate) fn is_unprepared(error: &Undone) -> bool {
    matches!(refusal(error), Some(1243 | 1461 | 1615))
}

fn refusal(error: &Undone) -> Option<u16> {
    let Undone::Rejected(MessagingError::Provider { source, .. }) = error else { return None };
    match &source.downcast_ref::<SqlError>()?.error {
        mysql_async::Error::Server(answer) => Some(answer.code),
        _ => None,
    }
}

/// Returns the error for rows that another transaction has locked, possibly for long.
pub(crate) fn busy(operation: &'static str, what: &'static str) -> MessagingError {
    MessagingError::Provider { provider: PROVIDER, operation, source: Arc::new(Busy { what }), retryable: true }
}

#[derive(Debug, thiserror::Error)]
#[error("another transaction has changed {what} and has not ended; try again")]
struct Busy {
    what: &'static str,
}

struct Meaning {
    text: &'static str,
    blame: Blame,
}

/// Whether the server shuts down, or has ended the session.
fn is_end_of_session(code: u16) -> bool {
    matches!(code, 1053 | 1077..=1080 | 1152 | 1153..=1161 | 1184 | 1927 | 4031)
}

const ASKS_FOR_TLS: &str = match cfg!(feature = "tls") {
    true => "the server requires TLS; write ssl-mode=REQUIRED in the URL",
    false => {
        "the server requires TLS, which this build lacks; enable the feature 'tls' of the crate postrider, and write \
         ssl-mode=REQUIRED in the URL"
    }
};

fn meaning(error: &mysql_async::Error) -> Meaning {
    let of = |text, blame| Meaning { text, blame };
    let code = match error {
        mysql_async::Error::Server(answer) => answer.code,
        mysql_async::Error::Driver(mysql_async::DriverError::PacketTooLarge) => 1153,
        mysql_async::Error::Driver(mysql_async::DriverError::NoClientSslFlagFromServer) => {
            return of("the server has no TLS; turn it on there, or leave ssl-mode out of the URL", Blame::Setup);
        }
        error if is_distrust(error) => {
            return of(
                "the server's certificate is not trusted; use the host name that it was made for, and name with ssl-ca= the \
                 file of the authority that signed it",
                Blame::Setup,
            );
        }
        _ => return of("the connection to the server failed; it is retried automatically", Blame::Server),
    };
    match code {
        1045 | 1698 | 1251 => of("the server does not accept this user or password; check the URL", Blame::Setup),
        3159 => of(ASKS_FOR_TLS, Blame::Setup),
        1049 => of("the database does not exist; create it, or use another one in the URL", Blame::Setup),
        1044 | 1142 | 1143 | 1227 | 1370 => of(
            "the user lacks a right; let an owner run `postrider migrate` and grant the rest on the database",
            Blame::Setup,
        ),
        1054 | 1146 => of("the tables do not match this program; run `postrider migrate`", Blame::Setup),
        // Also a dedup key that another transaction took between the look and the insert (1062), and a row id that a
        // statement did not wait for (1467).
        1062 | 1205 | 1213 | 1020 | 1467 | 3572 => of("another transaction holds a lock; try again", Blame::Others),
        1317 | 1969 | 3024 => of("it took too long and was canceled; try again", Blame::Others),
        1040 | 1203 | 1226 => of(
            "the server has no connection left; raise its max_connections or the user's share of them, or lower pool_size",
            Blame::Server,
        ),
        1021 | 1037 | 1038 | 1041 | 1114 | 1135 => {
            of("the server is out of memory or disk; free some and try again", Blame::Server)
        }
        1290 | 1792 | 1836 => of("the server is read-only, as a replica is; use the primary in the URL", Blame::Server),
        1153 => of("it is larger than the server's max_allowed_packet; raise that, or send less at once", Blame::Row),
        code if is_end_of_session(code) => {
            of("the server is shutting down or ended the session; try again", Blame::Server)
        }
        _ => of("the server refused it", Blame::Row),
    }
}

/// An error of the server, with its meaning.
#[derive(Debug, thiserror::Error)]
#[error("{meaning}: {}", text(error))]
struct SqlError {
    meaning: &'static str,
    error: mysql_async::Error,
}

/// An error of the driver. Its sources are not shown: each repeats the texts below it.
#[derive(Debug, thiserror::Error)]
#[error("{}", text(error))]
struct DriverError {
    error: mysql_async::Error,
}

/// Returns the text of an error: the server's message, or the lowest source of the driver's error.
pub(crate) fn text(error: &mysql_async::Error) -> String {
    match error {
        mysql_async::Error::Server(answer) => format!("{} ({})", answer.message, answer.code),
        error => {
            // The errors above repeat its text.
            let mut lowest: &dyn std::error::Error = error;
            while let Some(source) = lowest.source() {
                lowest = source;
            }
            lowest.to_string()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_that_requires_tls_differs_from_one_that_is_away() {
        let answer = mysql_async::ServerError {
            code: 3159,
            message: "Connections using insecure transport are prohibited".into(),
            state: "HY000".into(),
        };
        let meaning = meaning(&mysql_async::Error::Server(answer));
        assert_eq!(meaning.blame, Blame::Setup);
        assert!(meaning.text.contains("ssl-mode=REQUIRED"), "{}", meaning.text);
        assert_eq!(meaning.text.contains("feature 'tls'"), !cfg!(feature = "tls"), "{}", meaning.text);
    }
}
