//! The result of a handler.

use crate::error::HandlerError;

/// The result of a handler: `()`, or `Result<(), E>` with any error.
#[diagnostic::on_unimplemented(
    message = "a handler cannot return `{Self}`",
    note = "it returns `()` or `Result<(), E>`, where `E` is any error"
)]
pub trait IntoOutcome {
    /// Converts it to a result.
    fn into_outcome(self) -> Result<(), HandlerError>;
}

impl IntoOutcome for () {
    fn into_outcome(self) -> Result<(), HandlerError> {
        Ok(())
    }
}

impl<E: Into<HandlerError>> IntoOutcome for Result<(), E> {
    fn into_outcome(self) -> Result<(), HandlerError> {
        self.map_err(Into::into)
    }
}
