//! The broker's errors as [`MessagingError`]s.

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

/// AMQP code: the queue or exchange does not exist.
pub(crate) const NOT_FOUND: u16 = 404;
/// AMQP code: the queue exists with other arguments.
pub(crate) const PRECONDITION_FAILED: u16 = 406;
/// AMQP code: the user lacks a permission, or the password is wrong.
pub(crate) const ACCESS_REFUSED: u16 = 403;
/// AMQP code: the virtual host does not exist, or the user has no access to it.
const NOT_ALLOWED: u16 = 530;

/// The AMQP code of an error that the broker reported.
pub(crate) fn code(error: &lapin::Error) -> Option<u16> {
    match error.kind() {
        ErrorKind::ProtocolError(error) => Some(error.get_id()),
        _ => None,
    }
}

/// The broker's text of an error, or lapin's for an error that the broker did not report.
pub(crate) fn words(error: &lapin::Error) -> String {
    match error.kind() {
        ErrorKind::ProtocolError(error) => error.get_message().to_string(),
        _ => error.to_string(),
    }
}

/// The error of an operation that had no effect, or only a harmless one.
pub(crate) fn failed(operation: &'static str, error: lapin::Error) -> MessagingError {
    match code(&error) {
        Some(ACCESS_REFUSED) => {
            let source = Arc::new(WithAdvice {
                error,
                advice: "let the user configure, write and read its queues, postrider:.* and amq.default; `postrider doctor` \
                         names the missing permission"
                    .into(),
            });
            MessagingError::Provider { provider: PROVIDER, operation, source, retryable: false }
        }
        Some(code) => MessagingError::Provider {
            provider: PROVIDER,
            operation,
            // A retry does not change permissions or arguments; it may help when a queue has no leader or a node is busy.
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

/// An error that a retry does not help, with its remedy.
#[derive(Debug)]
struct WithAdvice {
    error: lapin::Error,
    advice: Cow<'static, str>,
}

impl fmt::Display for WithAdvice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}; {}", words(&self.error), self.advice)
    }
}

impl std::error::Error for WithAdvice {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&self.error)
    }
}

/// The error of a failed connect.
pub(crate) fn connect_failed(address: &str, uri: &AMQPUri, error: lapin::Error) -> MessagingError {
    let (user, vhost) = (uri.authority.userinfo.username.escape_debug(), uri.vhost.escape_debug());
    let refused = |error, advice: Cow<'static, str>| MessagingError::Provider {
        provider: PROVIDER,
        operation: "connect",
        source: Arc::new(WithAdvice { error, advice }),
        retryable: false,
    };
    let encryption = Encryption::of(&error);
    if encryption == Encryption::Distrusted {
        let advice = "the broker's certificate is not trusted. Use the host name that it was issued for, and set \
                      common.messaging.rabbitmq.ca_file to the file of the authority that signed it";
        return refused(error, advice.into());
    }
    match code(&error) {
        Some(ACCESS_REFUSED) => {
            let advice = format!(
                "{address} does not accept user '{user}' with this password; correct the URL, or set the password there with \
                 `rabbitmqctl change_password '{user}'`"
            );
            return refused(error, advice.into());
        }
        Some(NOT_ALLOWED) => {
            let advice = format!(
                "{address} does not let user '{user}' into virtual host '{vhost}'; correct the URL, or create it there with \
                 `rabbitmqctl add_vhost '{vhost}'` and `rabbitmqctl set_permissions -p '{vhost}' '{user}' '.*' '.*' '.*'`"
            );
            return refused(error, advice.into());
        }
        _ => {}
    }
    let text = words(&error);
    let hint = match (&uri.scheme, error.kind()) {
        (AMQPScheme::AMQPS, _) if encryption == Encryption::Failed => {
            "; if that port does not use TLS, write amqp://, or the port that does, often 5671"
        }
        (AMQPScheme::AMQP, kind) if is_no_answer(kind) => {
            "; if that port uses TLS, write amqps://, or the port that does not, often 5672"
        }
        _ => "",
    };
    MessagingError::Connection {
        provider: PROVIDER,
        detail: format!("{address}: {text}{hint}"),
        source: Some(Arc::new(error)),
    }
}

/// How TLS was involved in a failed connect.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Encryption {
    Uninvolved,
    /// The handshake failed.
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

/// Whether the server accepted the connection and did not speak AMQP.
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

/// The error for a queue that exists with other arguments.
pub(crate) fn other_arguments(queue: &str, what_differs: &str) -> MessagingError {
    MessagingError::invalid(
        "queue",
        format!(
            "'{queue}' exists with other arguments: {what_differs}. Send to it without creating it, set queue_type to its \
             type, or delete it once it is empty"
        ),
    )
}

/// The error for a queue that does not exist.
pub(crate) fn missing(queue: &QueueName) -> MessagingError {
    MessagingError::QueueNotFound { queue: queue.clone() }
}

/// The error for a request that the broker did not answer in time.
pub(crate) fn no_answer(operation: &'static str) -> MessagingError {
    MessagingError::Connection {
        provider: PROVIDER,
        detail: format!("the broker did not answer {operation} in time"),
        source: None,
    }
}
