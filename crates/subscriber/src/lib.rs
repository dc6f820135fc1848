//! Handlers on a durable queue.
//!
//! **The idea.** A handler is a [`tower_service::Service`] of [`Delivery`]s. [`handler()`] makes one of an `async fn`
//! whose arguments name the parts of a message that it needs, in any order ([`extract`]); [`batch_handler`] makes one
//! of a function of several messages; [`layers`] wrap either. A [`Subscriber`] runs it: four loops share one buffer of
//! leased messages. *Fetch* leases as many messages as the buffer can take, *work* runs the handler, *flush* settles
//! decided messages, *release stuck* takes workers back from handlers that outlived their lease; a fifth task renews
//! every lease. Decided messages are settled together with the next fetch, in the same transaction where the provider
//! supports it, so that a message costs one round trip and not two.
//!
//! **The invariant.** A leased message is in exactly one phase (waiting, running, decided, being settled) until the
//! store has answered its settlement, and at most `max_workers × overfetch_factor` messages (times the size of a batch)
//! are leased: a crash charges no more than these. A handler's result counts only while its lease is held, and only for
//! its own message: a panic, a time-out or an undecodable body is the outcome of that message and of no other.
//!
//! **What was rejected.** A timer that collects settlements: a single message would wait for others that do not come.
//! Workers that query by themselves: a hundred of them would query an idle queue a hundred times. A release-stuck loop
//! that writes to the store: an expired lease needs no help there, and a valid one may not be taken. A trait with a
//! `handle` method: it would be a second kind of service that no layer fits. One argument that must come last because
//! it consumes the message, as in web frameworks: a body here is shared bytes. An error type that must be implemented:
//! `?` takes any error, and [`Classify`] marks a failure as permanent where it happens.
//!
//! ```
//! use postrider_core::Json;
//! use postrider_core::memory::MemoryProvider;
//! use postrider_subscriber::{Classify, Context, HandlerError, Shutdown, Subscriber};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Serialize, Deserialize)]
//! struct Order { amount: String }
//!
//! async fn book(Json(order): Json<Order>, context: Context) -> Result<(), HandlerError> {
//!     let amount: u64 = order.amount.parse().permanent()?; // never retried
//!     println!("{amount} for message {}", context.id());
//!     Ok(())
//! }
//!
//! # async fn run(provider: MemoryProvider) -> Result<(), Box<dyn std::error::Error>> {
//! let subscriber = Subscriber::builder(provider, "orders").handler(book).build()?;
//! let report = subscriber.run(Shutdown::on_signals()?).await;
//! # Ok(())
//! # }
//! ```

pub mod batch;
mod buffer;
mod builder;
pub mod control;
mod counters;
mod decide;
pub mod delivery;
mod engine;
pub mod error;
pub mod extensions;
pub mod extract;
mod fetch;
mod flush;
pub mod handler;
mod health;
mod held;
pub mod layers;
mod leases;
mod lost;
mod observer;
mod options;
mod outbox;
mod queues;
mod release_stuck;
mod report;
mod router;
mod run;
mod shutdown;
mod stop;
mod subscriber;
#[cfg(test)]
mod testing;
mod work;

pub use batch::{BatchFn, BatchResults, IntoBatchHandler, IntoBatchResults, batch_handler};
pub use builder::{NoHandler, SubscriberBuilder, WorkLimit};
pub use control::Control;
pub use counters::{Counts, Metrics, Outcome};
pub use delivery::{Delivery, Letter};
pub use error::{BoxError, Classify, ErrorKind, HandlerError};
pub use extensions::Extensions;
pub use extract::{
    Attempt, Context, EnqueuedAt, Extension, FromDelivery, FromHeader, FromRef, Header, OrderingKey, ReceiveCount,
    State,
};
pub use handler::{Handler, HandlerFuture, IntoHandler, IntoOutcome, WithState, WithoutState, handler};
pub use health::{Health, HealthState};
pub use observer::{Ended, Observer};
pub use options::{AckPolicy, SubscriberOptions};
pub use queues::IntoQueues;
pub use report::{StopCause, StopReport};
pub use router::{RoutedReport, Router};
pub use run::{Batches, OneByOne, Run};
pub use shutdown::Shutdown;
pub use subscriber::{Monitor, Subscriber};
/// Signals to a handler that its result is no longer needed; converted into a [`Shutdown`], stops a subscriber.
pub use tokio_util::sync::CancellationToken;
