//! What the broker's errors mean.

use std::borrow::Cow;
use std::fmt;
use std::io;
use std::sync::Arc;

use lapin::ErrorKind;
use lapin::uri::{AMQPScheme, AMQPUri};
use postrider_core::{MessagingError, QueueName};
#[cfg(feature = "tls")]
use tokio_rustls::rustls;

use crate::PROVIDER;

/// The broker's words for what is not there.
pub(crate) const NOT_FOUND: u16 = 404;
/// The broker's words for a queue that is there and is another one.
pub(crate) const PRECONDITION_FAILED: u16 = 406;
/// The broker's words for a right that is missing.
pub(crate) const ACCESS_REFUSED: u16 = 403;
/// The broker's words for a virtual host that is not there, or not for this user.
const NOT_ALLOWED: u16 = 530;

/// The broker's number for an error, if the broker told of it.
pub(crate) fn code(error: &lapin::Error) -> Option<u16> {
    match error.kind() {
        ErrorKind::ProtocolError(error) => Some(error.get_id()),
        _ => None,
    }
}

/// The broker's words, if the broker told of it.
pub(crate) fn words(error: &lapin::Error) -> String {
    match error.kind() {
        ErrorKind::ProtocolError(error) => error.get_message().to_string(),
        _ => error.to_string(),
    }
}

/// Why an operation failed. Nothing was done, or what was done does no harm.
pub(crate) fn failed(operation: &'static str, error: lapin::Error) -> MessagingError {
    match code(&error) {
        Some(ACCESS_REFUSED) => {
            let source = Arc::new(Advised {
                error,
                advice: "let the user configure, write and read its queues, postrider:.* and amq.default; `postrider doctor` \
                         names what is missing"
                    .into(),
            });
            MessagingError::Provider { provider: PROVIDER, operation, source, retryable: false }
        }
        Some(code) => MessagingError::Provider {
            provider: PROVIDER,
            operation,
            // Rights and arguments stay what they are; a queue without a leader or a busy node does not.
            retryable: !matches!(code, NOT_FOUND | PRECONDITION_FAILED),
            source: Arc::new(error),
        },
        None => MessagingError::Connection {
            provider: PROVIDER,
            detail: format!("the connection was lost during {operation}: {error}"),
            source: Some(Arc::new(error)),
        },
    }
}

/// What was refused, whatever is tried again, and what to do.
#[derive(Debug)]
struct Advised {
    error: lapin::Error,
    advice: Cow<'static, str>,
}

impl fmt::Display for Advised {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", words(&self.error), self.advice)
    }
}

impl std::error::Error for Advised {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

/// Why a connection was not opened.
pub(crate) fn unreached(place: &str, uri: &AMQPUri, error: lapin::Error) -> MessagingError {
    let (user, vhost) = (uri.authority.userinfo.username.escape_debug(), uri.vhost.escape_debug());
    let refused = |error, advice: Cow<'static, str>| MessagingError::Provider {
        provider: PROVIDER,
        operation: "connect",
        source: Arc::new(Advised { error, advice }),
        retryable: false,
    };
    let encryption = Encryption::of(&error);
    if encryption == Encryption::Distrusted {
        let advice = "the broker's certificate is not trusted. Name the host that it was made for, and in \
                      common.messaging.rabbitmq.ca_file the file of the authority that signed it";
        return refused(error, advice.into());
    }
    match code(&error) {
        Some(ACCESS_REFUSED) => {
            let advice = format!(
                "{place} does not accept user '{user}' with this password; correct the URL, or set the password there with \
                 `rabbitmqctl change_password '{user}'`"
            );
            return refused(error, advice.into());
        }
        Some(NOT_ALLOWED) => {
            let advice = format!(
                "{place} does not let user '{user}' into virtual host '{vhost}'; correct the URL, or make it there with \
                 `rabbitmqctl add_vhost '{vhost}'` and `rabbitmqctl set_permissions -p '{vhost}' '{user}' '.*' '.*' '.*'`"
            );
            return refused(error, advice.into());
        }
        _ => {}
    }
    let told = words(&error);
    let meaning = match (&uri.scheme, error.kind()) {
        (AMQPScheme::AMQPS, _) if encryption == Encryption::Failed => {
            "; if that port is not for TLS, write amqp:// or the port that is, often 5671"
        }
        (AMQPScheme::AMQP, kind) if is_no_answer(kind) => {
            "; if that port is for TLS, write amqps:// or the port that is not, often 5672"
        }
        _ => "",
    };
    MessagingError::Connection {
        provider: PROVIDER,
        detail: format!("{place}: {told}{meaning}"),
        source: Some(Arc::new(error)),
    }
}

/// What a connection's encryption has to do with its failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Encryption {
    /// Nothing.
    Uninvolved,
    /// It was not agreed on.
    Failed,
    /// The broker's certificate is not trusted.
    Distrusted,
}

impl Encryption {
    #[cfg(feature = "tls")]
    fn of(error: &lapin::Error) -> Self {
        let inner = match error.kind() {
            ErrorKind::IOError(error) => error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>()),
            _ => None,
        };
        match inner {
            None => Self::Uninvolved,
            Some(rustls::Error::InvalidCertificate(_)) => Self::Distrusted,
            Some(_) => Self::Failed,
        }
    }

    #[cfg(not(feature = "tls"))]
    fn of(_: &lapin::Error) -> Self {
        Self::Uninvolved
    }
}

/// Whether somebody was there and did not speak AMQP.
fn is_no_answer(kind: &ErrorKind) -> bool {
    use io::ErrorKind as Io;
    match kind {
        ErrorKind::ParsingError(_) => true,
        ErrorKind::IOError(error) => {
            matches!(error.kind(), Io::ConnectionReset | Io::ConnectionAborted | Io::UnexpectedEof | Io::BrokenPipe)
        }
        _ => false,
    }
}

/// A queue that exists and is not the one that was to be made.
pub(crate) fn other_arguments(queue: &str, what_differs: &str) -> MessagingError {
    MessagingError::invalid(
        "queue",
        format!(
            "'{queue}' exists with other arguments: {what_differs}. Use it as it is by sending to it without making it, choose its \
             kind with queue_type, or delete it once it is empty"
        ),
    )
}

/// A queue that is not there.
pub(crate) fn missing(queue: &QueueName) -> MessagingError {
    MessagingError::QueueNotFound { queue: queue.clone() }
}

/// The broker did not answer in time.
pub(crate) fn silent(operation: &'static str) -> MessagingError {
    MessagingError::Connection {
        provider: PROVIDER,
        detail: format!("the broker did not answer {operation} in time"),
        source: None,
    }
}
