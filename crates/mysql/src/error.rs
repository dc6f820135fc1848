//! What the server says, in words that tell what to do.

use std::sync::Arc;

use postrider_core::MessagingError;
use postrider_provider::{Blame, Phase, Undone};
use postrider_sql::is_distrust;

use crate::PROVIDER;

/// Sorts a failure of the driver or the server.
pub(crate) fn undone(operation: &'static str, phase: Phase, error: mysql_async::Error) -> Undone {
    let meaning = meaning(&error);
    let is_answer = matches!(&error, mysql_async::Error::Server(answer) if !is_end_of_session(answer.code));
    let told = MessagingError::Provider {
        provider: PROVIDER,
        operation,
        source: Arc::new(SqlError { meaning: meaning.text, error }),
        retryable: meaning.blame.is_retryable(),
    };
    Undone::sort(phase, is_answer, meaning.blame, told)
}

/// A failure to be connected at all.
pub(crate) fn cannot_connect(place: &str, error: mysql_async::Error) -> MessagingError {
    let meaning = meaning(&error);
    // A server that says why it lets nobody in is running, and it was found.
    let is_told = meaning.blame == Blame::Server && matches!(error, mysql_async::Error::Server(_));
    if is_told || meaning.blame == Blame::Setup {
        return MessagingError::Provider {
            provider: PROVIDER,
            operation: "connect",
            source: Arc::new(SqlError { meaning: meaning.text, error }),
            retryable: meaning.blame.is_retryable(),
        };
    }
    let detail = format!("{place}: {}", text(&error));
    MessagingError::Connection { provider: PROVIDER, detail, source: Some(Arc::new(DriverError { error })) }
}

/// Whether the session can be used no more.
pub(crate) fn is_broken(error: &mysql_async::Error) -> bool {
    match error {
        mysql_async::Error::Server(answer) => is_end_of_session(answer.code),
        _ => true,
    }
}

/// Whether there is such a key already.
pub(crate) fn is_duplicate(error: &mysql_async::Error) -> bool {
    matches!(error, mysql_async::Error::Server(answer) if answer.code == 1062)
}

/// Whether a value was missing where there must be one.
pub(crate) fn is_null(error: &Undone) -> bool {
    refusal(error) == Some(1048)
}

/// Whether the server does not keep the statement prepared: it was not carried out.
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

/// Somebody's transaction has what was asked for, and may have it for long.
pub(crate) fn busy(operation: &'static str, what: &'static str) -> MessagingError {
    MessagingError::Provider { provider: PROVIDER, operation, source: Arc::new(Busy { what }), retryable: true }
}

#[derive(Debug, thiserror::Error)]
#[error("another transaction has changed {what} and is not over; try again")]
struct Busy {
    what: &'static str,
}

struct Meaning {
    text: &'static str,
    blame: Blame,
}

/// The server shuts down, was told to end the session, or gave up on it.
fn is_end_of_session(code: u16) -> bool {
    matches!(code, 1053 | 1077..=1080 | 1152 | 1153..=1161 | 1184 | 1927 | 4031)
}

const ASKS_FOR_TLS: &str = match cfg!(feature = "tls") {
    true => "the server takes encrypted connections only; write ssl-mode=REQUIRED in the URL",
    false => {
        "the server takes encrypted connections only, and this build lacks TLS; enable the feature 'tls' of the crate \
         postrider, and write ssl-mode=REQUIRED in the URL"
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
                "the server's certificate is not trusted; name the host that it was made for, and with ssl-ca= the file \
                 of the authority that signed it",
                Blame::Setup,
            );
        }
        _ => return of("the connection to the server failed; it is tried again by itself", Blame::Server),
    };
    match code {
        1045 | 1698 | 1251 => of("the server does not accept this user or password; check the URL", Blame::Setup),
        3159 => of(ASKS_FOR_TLS, Blame::Setup),
        1049 => of("the database does not exist; create it, or name another one in the URL", Blame::Setup),
        1044 | 1142 | 1143 | 1227 | 1370 => of(
            "the user lacks a right; let an owner run `postrider migrate` and grant the rest on the database",
            Blame::Setup,
        ),
        1054 | 1146 => of("the tables are not what this program knows; apply `postrider migrate`", Blame::Setup),
        // A dedup key that somebody else took between the look and the insert is one of these.
        // So is a number of a row that a statement did not want to wait for (1467).
        1062 | 1205 | 1213 | 1020 | 1467 | 3572 => of("another transaction was in the way; try again", Blame::Others),
        1317 | 1969 | 3024 => of("it took too long and was given up; try again", Blame::Others),
        1040 | 1203 | 1226 => of(
            "the server has no connection left; raise its max_connections or the user's share of them, or lower pool_size",
            Blame::Server,
        ),
        1021 | 1037 | 1038 | 1041 | 1114 | 1135 => {
            of("the server is out of memory or disk; relieve it and try again", Blame::Server)
        }
        1290 | 1792 | 1836 => {
            of("the server may only be read, as a replica is; name the primary in the URL", Blame::Server)
        }
        1153 => of("it is larger than the server's max_allowed_packet; raise that, or send less at once", Blame::Row),
        code if is_end_of_session(code) => {
            of("the server is shutting down or ended the session; try again", Blame::Server)
        }
        _ => of("the server refused it", Blame::Row),
    }
}

/// What the server said, with what it means.
#[derive(Debug, thiserror::Error)]
#[error("{meaning}: {}", text(error))]
struct SqlError {
    meaning: &'static str,
    error: mysql_async::Error,
}

/// What the driver said. The driver's own errors are not shown below it: each repeats those under it, and the kind of an
/// error stands there twice.
#[derive(Debug, thiserror::Error)]
#[error("{}", text(error))]
struct DriverError {
    error: mysql_async::Error,
}

/// The driver's own text names only the kind of error; what the server said stands below it.
pub(crate) fn text(error: &mysql_async::Error) -> String {
    match error {
        mysql_async::Error::Server(answer) => format!("{} ({})", answer.message, answer.code),
        error => {
            // Those above it repeat what it says.
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
    fn a_server_that_asks_for_encryption_is_told_from_one_that_is_away() {
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
