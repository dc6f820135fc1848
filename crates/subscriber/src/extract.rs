//! The arguments of a handler, and how each is made from a message.
//!
//! [`FromDelivery`] makes an argument. The body is shared bytes and nothing is streamed, so no argument consumes the
//! message: arguments can be in any order, and a body can be taken twice, as a value and as bytes.
//!
//! There are three kinds of arguments, distinguished by the trait's second parameter, which the compiler infers:
//!
//! - [`Part`]: a part of the message's envelope ([`MessageId`](postrider_core::MessageId), [`Attempt`], [`Context`], …)
//!   and every extractor of your own;
//! - [`Body`]: every type that is [`FromBytes`]: `Json<T>`, `MsgPack<T>`, `Bytes`, and your own message types without a
//!   wrapper;
//! - [`Given`]: [`State`], and [`Context`] with it.
//!
//! Without this parameter, "every type that is `FromBytes`" would exclude every other kind. Extraction is not async: the message
//! is in memory, and a look-up in a database belongs into the handler, where time-outs and traces include it.

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
    note = "`State<T>` and `Context<T>` need the state that `handler(..).with_state(..)` sets"
)]
pub trait FromDelivery<S, Kind = Part>: Sized {
    /// Makes the argument from the message and the application's state.
    fn from_delivery(delivery: &mut Delivery, state: &S) -> Result<Self, HandlerError>;
}

/// The kind of arguments that are made from the message's envelope. Never a value.
#[derive(Debug)]
pub enum Part {}

/// The kind of arguments that are a message's body. Never a value.
#[derive(Debug)]
pub enum Body {}

/// The kind of arguments that the application's state is part of. Never a value.
#[derive(Debug)]
pub enum Given {}

/// A body that cannot be decoded, or was written by another codec, dead-letters its message.
impl<S, T: FromBytes> FromDelivery<S, Body> for T {
    fn from_delivery(delivery: &mut Delivery, _: &S) -> Result<Self, HandlerError> {
        delivery.decode()
    }
}

#[cfg(test)]
mod tests;
