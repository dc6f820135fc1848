//! What a handler may answer.

use crate::error::HandlerError;

/// The answer of a handler: nothing, or nothing and any error.
#[diagnostic::on_unimplemented(
    message = "a handler cannot answer `{Self}`",
    note = "it answers `()` or `Result<(), E>`, where `E` is any error"
)]
pub trait IntoOutcome {
    /// Whether the message was handled.
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
