//! The result of a handler.

use crate::error::HandlerError;

/// The result of a handler: `()`, or a `Result` with any error. The handler of a message has no value to return, and
/// its result is `Result<(), E>`.
#[diagnostic::on_unimplemented(
    message = "a handler cannot return `{Self}`",
    note = "it returns `()` or a `Result` with any error"
)]
pub trait IntoOutcome {
    /// The value of a success.
    type Answer: Send + 'static;

    /// Converts it to a result.
    fn into_outcome(self) -> Result<Self::Answer, HandlerError>;
}

impl IntoOutcome for () {
    type Answer = ();

    fn into_outcome(self) -> Result<(), HandlerError> {
        Ok(())
    }
}

impl<T: Send + 'static, E: Into<HandlerError>> IntoOutcome for Result<T, E> {
    type Answer = T;

    fn into_outcome(self) -> Result<T, HandlerError> {
        self.map_err(Into::into)
    }
}
