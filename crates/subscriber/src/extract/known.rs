//! Arguments that are a part of the message's envelope.

use std::any::type_name;

use postrider_core::{Envelope, Headers, Key, MessageId, QueueName, Timestamp};
use tokio_util::sync::CancellationToken;

use super::FromDelivery;
use crate::control::Control;
use crate::delivery::Delivery;
use crate::error::HandlerError;

/// Which attempt this is: 1 until a handler has failed on the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Attempt(pub u32);

/// Which delivery this is: 1 the first time. It also counts deliveries whose worker died.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReceiveCount(pub u32);

/// The key that the message is ordered by, if it has one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OrderingKey(pub Option<Key>);

/// When the store accepted the message.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct EnqueuedAt(pub Timestamp);

/// A copy of the value of this type that a layer has attached to the message. `Option<Extension<T>>` when it may be
/// missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Extension<T>(pub T);

macro_rules! known {
    ($($argument:ty: $delivery:ident => $value:expr;)*) => {
        $(impl<S> FromDelivery<S> for $argument {
            fn from_delivery($delivery: &mut Delivery, _: &S) -> Result<Self, HandlerError> {
                Ok($value)
            }
        })*
    };
}

known! {
    Attempt: delivery => Self(delivery.attempt());
    ReceiveCount: delivery => Self(delivery.envelope.receive_count);
    OrderingKey: delivery => Self(delivery.envelope.ordering_key.clone());
    EnqueuedAt: delivery => Self(delivery.envelope.enqueued_at);
    MessageId: delivery => delivery.envelope.id;
    QueueName: delivery => delivery.envelope.queue.clone();
    Headers: delivery => delivery.envelope.headers.clone();
    Envelope: delivery => delivery.envelope.clone();
    Control: delivery => delivery.control().clone();
    CancellationToken: delivery => delivery.cancellation().clone();
}

/// The body as text. A body that is not UTF-8 dead-letters its message.
impl<S> FromDelivery<S> for String {
    fn from_delivery(delivery: &mut Delivery, _: &S) -> Result<Self, HandlerError> {
        std::str::from_utf8(&delivery.body).map(str::to_owned).map_err(HandlerError::undecodable)
    }
}

impl<S, T: Clone + Send + Sync + 'static> FromDelivery<S> for Extension<T> {
    /// A missing value is a mistake of the program: it is retryable, so that no message is dead-lettered because of a
    /// forgotten layer.
    fn from_delivery(delivery: &mut Delivery, _: &S) -> Result<Self, HandlerError> {
        delivery.extensions().get().cloned().map(Self).ok_or_else(|| {
            let name = type_name::<T>();
            HandlerError::retryable(format!("no layer has attached a {name} to the message; add the layer that does"))
        })
    }
}

impl<S, T: Clone + Send + Sync + 'static> FromDelivery<S> for Option<Extension<T>> {
    fn from_delivery(delivery: &mut Delivery, _: &S) -> Result<Self, HandlerError> {
        Ok(delivery.extensions().get().cloned().map(Extension))
    }
}
