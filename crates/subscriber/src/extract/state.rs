//! The application's state, shared by its handlers.

use super::{FromDelivery, Given};
use crate::delivery::Delivery;
use crate::error::HandlerError;

/// The application's state, or a part of it, as set by [`with_state`](crate::WithoutState::with_state).
///
/// A handler that needs a state and has none does not compile.
///
/// ```
/// use postrider_core::Json;
/// use postrider_subscriber::{HandlerError, State, handler};
///
/// #[derive(Clone)]
/// struct Mailer;
///
/// async fn mail(State(mailer): State<Mailer>, Json(address): Json<String>) -> Result<(), HandlerError> {
///     # let _ = (mailer, address);
///     Ok(())
/// }
/// let service = handler(mail).with_state(Mailer);
/// # fn is_service<S: tower_service::Service<postrider_subscriber::Delivery>>(_: S) {}
/// # is_service(service);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct State<T>(pub T);

/// A part of the application's state. Every state that can be cloned is a part of itself.
///
/// Implement it for the parts of a larger state, so that a handler names only the part that it uses.
#[diagnostic::on_unimplemented(
    message = "a handler needs `{Self}`, and its state is `{S}`",
    label = "not a part of `{S}`",
    note = "set the state by `handler(..).with_state(..)`; a state is `Clone`",
    note = "a part of a larger state implements `FromRef<{S}>`"
)]
pub trait FromRef<S> {
    /// The part.
    fn from_ref(state: &S) -> Self;
}

impl<S: Clone> FromRef<S> for S {
    fn from_ref(state: &S) -> Self {
        state.clone()
    }
}

impl<S, T: FromRef<S>> FromDelivery<S, Given> for State<T> {
    fn from_delivery(_: &mut Delivery, state: &S) -> Result<Self, HandlerError> {
        Ok(Self(T::from_ref(state)))
    }
}
