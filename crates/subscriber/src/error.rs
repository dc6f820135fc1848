//! Errors of handlers, and their effect on the message.

use std::any::Any;
use std::error::Error;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use postrider_core::{DeadLetterReason, RetryStrategy};

/// Any error.
pub type BoxError = Box<dyn Error + Send + Sync + 'static>;

/// Upper bound of an error text, in bytes. It is stored with every failed attempt.
const MAX_TEXT: usize = 4 * 1024;

/// The error of a handler.
///
/// `?` turns any error into a retryable one. [`Classify`] marks it otherwise in the same line:
///
/// ```
/// use postrider_subscriber::{Classify, HandlerError};
///
/// fn amount(text: &str) -> Result<u64, HandlerError> {
///     Ok(text.parse::<u64>().permanent()?)
/// }
/// assert_eq!(amount("ten").unwrap_err().to_string(), "invalid digit found in string");
/// ```
///
/// It is not itself a [`std::error::Error`], because `?` could then not convert every error. Its text, which the store
/// keeps, is the error and its sources, joined by `": "`, at most 4 KiB.
#[derive(Clone)]
// Boxed, so that the results of successful handlers stay small.
pub struct HandlerError(Box<Failure>);

#[derive(Clone)]
struct Failure {
    kind: ErrorKind,
    // Shared, because a failed batch fails each of its messages with the same error.
    source: Arc<dyn Error + Send + Sync>,
    strategy: Option<RetryStrategy>,
    reason: Option<DeadLetterReason>,
}

/// The kind of a failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Retried when, and as long as, the retry strategy allows it.
    Retryable,
    /// Never retried: the message is dead-lettered at once.
    Permanent,
    /// A failure to retry after this time.
    RetryAfter(Duration),
    /// The body cannot be decoded: the message is dead-lettered at once.
    Undecodable,
    /// The handler took too long. Retried as [`ErrorKind::Retryable`] is.
    TimedOut,
    /// The handler panicked. Retried as [`ErrorKind::Retryable`] is.
    Panicked,
}

impl HandlerError {
    fn new(kind: ErrorKind, error: impl Into<BoxError>) -> Self {
        Self(Box::new(Failure { kind, source: Arc::from(error.into()), strategy: None, reason: None }))
    }

    /// A failure to retry by the strategy.
    pub fn retryable(error: impl Into<BoxError>) -> Self {
        Self::new(ErrorKind::Retryable, error)
    }

    /// A failure that is never retried.
    pub fn permanent(error: impl Into<BoxError>) -> Self {
        Self::new(ErrorKind::Permanent, error)
    }

    /// A failure to retry after this time. The delay replaces the strategy's; the strategy's limits still hold.
    pub fn retry_after(delay: Duration, error: impl Into<BoxError>) -> Self {
        Self::new(ErrorKind::RetryAfter(delay), error)
    }

    /// A body that cannot be decoded.
    pub fn undecodable(error: impl Into<BoxError>) -> Self {
        Self::new(ErrorKind::Undecodable, error).with_reason(DeadLetterReason::UNDECODABLE)
    }

    /// A handler that did not end within this time.
    pub fn timed_out(after: Duration) -> Self {
        Self::new(ErrorKind::TimedOut, format!("the handler took longer than {after:?}"))
    }

    /// A handler that panicked.
    pub fn panicked(panic: &(dyn Any + Send)) -> Self {
        Self::new(ErrorKind::Panicked, format!("the handler panicked: {}", panic_text(panic)))
    }

    /// Sets a strategy that replaces the subscriber's.
    #[must_use]
    pub fn with_strategy(mut self, strategy: RetryStrategy) -> Self {
        self.0.strategy = Some(strategy);
        self
    }

    /// Sets the reason of the dead letter, should the message be dead-lettered.
    #[must_use]
    pub fn with_reason(mut self, reason: impl Into<DeadLetterReason>) -> Self {
        self.0.reason = Some(reason.into());
        self
    }

    /// The kind of the failure.
    pub fn kind(&self) -> &ErrorKind {
        &self.0.kind
    }

    /// The strategy that replaces the subscriber's.
    pub fn strategy(&self) -> Option<&RetryStrategy> {
        self.0.strategy.as_ref()
    }

    /// The reason of the dead letter.
    pub fn reason(&self) -> Option<&DeadLetterReason> {
        self.0.reason.as_ref()
    }

    /// The error that the handler returned.
    pub fn source(&self) -> &(dyn Error + Send + Sync + 'static) {
        &*self.0.source
    }
}

/// The message of a panic.
pub(crate) fn panic_text(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("it did not say why")
}

impl<E: Into<BoxError>> From<E> for HandlerError {
    fn from(error: E) -> Self {
        Self::retryable(error)
    }
}

impl fmt::Display for HandlerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut text = self.0.source.to_string();
        let mut below = self.0.source.source();
        while let Some(error) = below
            && text.len() < MAX_TEXT
        {
            let more = error.to_string();
            // Many errors end with the text of their source, which is not repeated.
            if !text.ends_with(&more) {
                text.push_str(": ");
                text.push_str(&more);
            }
            below = error.source();
        }
        f.write_str(&text[..text.floor_char_boundary(MAX_TEXT)])
    }
}

impl fmt::Debug for HandlerError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut shown = f.debug_struct("HandlerError");
        shown.field("kind", &self.0.kind).field("source", &self.0.source);
        if let Some(strategy) = &self.0.strategy {
            shown.field("strategy", strategy);
        }
        if let Some(reason) = &self.0.reason {
            shown.field("reason", reason);
        }
        shown.finish()
    }
}

/// Classifies a failure where it happens.
pub trait Classify<T> {
    /// A failure to retry by the strategy.
    fn retryable(self) -> Result<T, HandlerError>;

    /// A failure that is never retried.
    fn permanent(self) -> Result<T, HandlerError>;

    /// A failure to retry after this time.
    fn retry_after(self, delay: Duration) -> Result<T, HandlerError>;
}

impl<T, E: Into<BoxError>> Classify<T> for Result<T, E> {
    fn retryable(self) -> Result<T, HandlerError> {
        self.map_err(HandlerError::retryable)
    }

    fn permanent(self) -> Result<T, HandlerError> {
        self.map_err(HandlerError::permanent)
    }

    fn retry_after(self, delay: Duration) -> Result<T, HandlerError> {
        self.map_err(|error| HandlerError::retry_after(delay, error))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("{text}")]
    struct Layered {
        text: String,
        source: Option<Box<Layered>>,
    }

    fn chain(texts: &[&str]) -> Layered {
        let below = texts.get(1..).filter(|rest| !rest.is_empty()).map(|rest| Box::new(chain(rest)));
        Layered { text: texts[0].into(), source: below }
    }

    #[test]
    fn the_question_mark_takes_any_error_as_retryable() {
        fn io() -> Result<(), HandlerError> {
            Err(std::io::Error::other("disk"))?;
            Ok(())
        }
        fn text() -> Result<(), HandlerError> {
            Err("no such customer")?;
            Ok(())
        }
        fn own() -> Result<(), HandlerError> {
            Err(HandlerError::permanent("never"))?;
            Ok(())
        }
        assert_eq!(*io().unwrap_err().kind(), ErrorKind::Retryable);
        assert_eq!(text().unwrap_err().to_string(), "no such customer");
        assert_eq!(*own().unwrap_err().kind(), ErrorKind::Permanent, "a handler error is not converted");
    }

    #[test]
    fn a_failure_is_classified_where_it_happens() {
        let failed = || "x".parse::<u8>();
        let second = Duration::from_secs(1);
        assert_eq!(*failed().permanent().unwrap_err().kind(), ErrorKind::Permanent);
        assert_eq!(*failed().retryable().unwrap_err().kind(), ErrorKind::Retryable);
        assert_eq!(*failed().retry_after(second).unwrap_err().kind(), ErrorKind::RetryAfter(second));
        assert_eq!("7".parse::<u8>().permanent().unwrap(), 7);
    }

    #[test]
    fn the_text_is_the_chain_of_errors_without_repetition() {
        let error = HandlerError::retryable(chain(&["cannot book", "cannot reach the bank", "refused"]));
        assert_eq!(error.to_string(), "cannot book: cannot reach the bank: refused");
        let error = HandlerError::retryable(chain(&["cannot book: refused", "refused"]));
        assert_eq!(error.to_string(), "cannot book: refused");
    }

    #[test]
    fn the_text_is_bounded_and_stays_text() {
        let long = "ä".repeat(3000);
        let error = HandlerError::retryable(chain(&[&format!("x{long}"), &long, "never reached"]));
        let text = error.to_string();
        assert!(text.len() <= MAX_TEXT && text.len() > MAX_TEXT - 2 && text.ends_with('ä'), "{}", text.len());
    }

    #[test]
    fn overrides_are_kept() {
        let error = HandlerError::retryable("x").with_strategy(RetryStrategy::NoRetry).with_reason("no_stock");
        assert_eq!(error.strategy(), Some(&RetryStrategy::NoRetry));
        assert_eq!(error.reason(), Some(&"no_stock".into()));
        assert_eq!(HandlerError::undecodable("x").reason(), Some(&DeadLetterReason::UNDECODABLE));
    }

    #[test]
    fn a_panic_keeps_its_message() {
        let caught = |panic: Box<dyn Any + Send>| HandlerError::panicked(&*panic).to_string();
        assert_eq!(caught(Box::new("text")), "the handler panicked: text");
        assert_eq!(caught(Box::new("owned".to_owned())), "the handler panicked: owned");
        assert_eq!(caught(Box::new(7)), "the handler panicked: it did not say why");
    }
}
