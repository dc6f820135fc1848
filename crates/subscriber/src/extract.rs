//! What a handler's arguments can be, and how each is made from a message.
//!
//! An argument is made by [`FromDelivery`]. The body is shared bytes and nothing is streamed, so no argument uses the
//! message up: they can stand in any order, and a body can be asked for twice, as a value and as bytes.
//!
//! Three kinds of types are arguments, told apart by the trait's second parameter, which the compiler finds by itself
//! and nobody writes:
//!
//! - [`Part`]: what is known about the message ([`MessageId`](postrider_core::MessageId), [`Attempt`], [`Context`], …)
//!   and every extractor of your own;
//! - [`Body`]: every type that is [`FromBytes`]: `Json<T>`, `MsgPack<T>`, `Bytes`, and your own message types without a
//!   wrapper;
//! - [`Given`]: [`State`], and [`Context`] with it.
//!
//! Without that parameter, "every type that is `FromBytes`" would forbid every other kind. Extraction is not async: what a
//! message needs is at hand, and a look-up in a database belongs into the handler, where time-outs and traces see it.

mod context;
mod header;
mod known;
mod state;

use postrider_core::FromBytes;

use crate::delivery::Delivery;
use crate::error::HandlerError;

pub use context::{Context, Stateless};
pub use header::{FromHeader, Header};
pub use known::{Attempt, EnqueuedAt, Extension, OrderingKey, ReceiveCount};
pub use state::{FromRef, State};

/// A type that can be an argument of a handler.
///
/// ```
/// use postrider_subscriber::{Delivery, FromDelivery, HandlerError};
///
/// struct IsRetry(bool);
///
/// impl<S> FromDelivery<S> for IsRetry {
///     fn from_delivery(delivery: &mut Delivery, _: &S) -> Result<Self, HandlerError> {
///         Ok(Self(delivery.attempt() > 1))
///     }
/// }
/// ```
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot be an argument of a handler whose state is `{S}`",
    label = "neither a part of a message nor a message",
    note = "a message's body is `Json<T>`, `MsgPack<T>`, `String`, `Bytes` or a type that implements `FromBytes`",
    note = "an argument of your own implements `FromDelivery<S>`",
    note = "what `State<T>` or `Context<T>` asks for is given by `handler(..).with_state(..)`"
)]
pub trait FromDelivery<S, Kind = Part>: Sized {
    /// Makes it from the message and the application's state.
    fn from_delivery(delivery: &mut Delivery, state: &S) -> Result<Self, HandlerError>;
}

/// The kind of arguments that are made from what is known about a message. Never a value.
#[derive(Debug)]
pub enum Part {}

/// The kind of arguments that are a message's body. Never a value.
#[derive(Debug)]
pub enum Body {}

/// The kind of arguments that the application's state is part of. Never a value.
#[derive(Debug)]
pub enum Given {}

/// A body that cannot be decoded, or says that another codec wrote it, sends its message to the dead letters.
impl<S, T: FromBytes> FromDelivery<S, Body> for T {
    fn from_delivery(delivery: &mut Delivery, _: &S) -> Result<Self, HandlerError> {
        delivery.decode()
    }
}

#[cfg(test)]
mod tests;
