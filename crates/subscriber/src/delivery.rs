//! The message that a handler gets.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use bytes::Bytes;
use postrider_core::{Envelope, FromBytes, MessageId, typed};
use tokio_util::sync::CancellationToken;

use crate::control::Control;
use crate::error::HandlerError;
use crate::extensions::Extensions;

/// The message of a handler: the request type of every handler service.
///
/// Its body and its envelope are the fields of a [`Letter`]: `delivery.body`, `delivery.envelope`.
///
/// It holds no lease. The subscriber keeps and renews the lease, and ends it by the decision of
/// [`control`](Self::control) or, without one, by the handler's result.
#[derive(Debug)]
pub struct Delivery {
    // Boxed, because a delivery is moved through every layer and future around its handler.
    letter: Box<Letter>,
    control: Control,
    stopping: Option<Arc<CancellationToken>>,
    extensions: Extensions,
}

/// The body and the envelope of a message.
#[derive(Debug)]
#[non_exhaustive]
pub struct Letter {
    /// The body of the message.
    pub body: Bytes,
    /// Its id, headers, counts and times.
    pub envelope: Envelope,
}

impl Delivery {
    /// A message for a handler. `control` is a [`Control`], or a token that signals that the result is no longer
    /// needed.
    pub fn new(body: Bytes, envelope: Envelope, control: impl Into<Control>) -> Self {
        Self::leased(Box::new(Letter { body, envelope }), control.into())
    }

    pub(crate) fn leased(letter: Box<Letter>, control: Control) -> Self {
        Self { letter, control, stopping: None, extensions: Extensions::new() }
    }

    /// The message's identity.
    pub fn id(&self) -> MessageId {
        self.envelope.id
    }

    /// Which attempt this is: 1 until a handler has failed on the message.
    pub fn attempt(&self) -> u32 {
        self.envelope.attempts_count.saturating_add(1)
    }

    /// The body as a value. The error for an undecodable body dead-letters the message.
    pub fn decode<T: FromBytes>(&self) -> Result<T, HandlerError> {
        typed::decode(&self.body, &self.envelope.content_type).map_err(HandlerError::undecodable)
    }

    /// Settles the message by hand.
    pub fn control(&self) -> &Control {
        &self.control
    }

    /// Whether the message is certainly still leased, by the clock of this process. Check it before a step that two
    /// workers must not run at the same time: in a process that was suspended the lease may have ended before
    /// [`cancellation`](Self::cancellation) signals it.
    pub fn is_leased(&self) -> bool {
        self.control.is_leased()
    }

    /// Cancelled when the lease is lost, when a time-out ends, and when the time limit of a stop ends.
    pub fn cancellation(&self) -> &CancellationToken {
        self.control.cancellation()
    }

    /// Sets the token of [`stopping`](Self::stopping). For what runs handlers.
    #[must_use]
    pub fn with_stopping(mut self, stopping: &Arc<CancellationToken>) -> Self {
        self.stopping = Some(stopping.clone());
        self
    }

    /// Waits until the subscriber stops starting handlers. A handler that still waits for a permit can then
    /// [release](Control::release) its message, which costs no attempt.
    pub fn stopping(&self) -> impl Future<Output = ()> + Send + 'static {
        let stopping = self.stopping.clone();
        async move {
            match stopping {
                Some(stopping) => stopping.cancelled().await,
                None => std::future::pending().await,
            }
        }
    }

    /// Values that layers and the subscriber have attached to the message.
    pub fn extensions(&self) -> &Extensions {
        &self.extensions
    }

    /// The attached values, to change them.
    pub fn extensions_mut(&mut self) -> &mut Extensions {
        &mut self.extensions
    }
}

impl Deref for Delivery {
    type Target = Letter;

    fn deref(&self) -> &Letter {
        &self.letter
    }
}

impl DerefMut for Delivery {
    fn deref_mut(&mut self) -> &mut Letter {
        &mut self.letter
    }
}
