//! Handlers on a durable queue.
//!
//! **The idea.** A handler is a [`tower_service::Service`] of [`Delivery`]s. [`handler()`] makes one of an `async fn`
//! whose arguments say what it wants to know of a message, in any order ([`extract`]); [`batch_handler`] makes one of a
//! function of several messages; [`layers`] are put around either. A [`Subscriber`] runs it: four loops stand around one
//! buffer of leased messages. *Fetch* leases what there is room for, *work* runs the handler, *flush* settles what was
//! decided, *release stuck* takes workers back from handlers that outlived their lease; a fifth task renews every lease
//! meanwhile. What is decided travels with the next fetch, in the same transaction where the provider can, so that a
//! message costs one round trip and not two.
//!
//! **The invariant.** A message that was leased here is in exactly one place (in line, with a handler, decided, on its
//! way to the store) until the store has said what became of it, and there are never more of them than
//! `max_workers × overfetch_factor` (times the size of a batch): that is all that a crash can charge. What a handler answers counts only while its
//! lease is held, and only for its own message: a panic, a time-out or a body that cannot be decoded is an outcome of
//! that message and of no other.
//!
//! **What was rejected.** A timer that gathers settlements: it would charge a lone message for company that does not
//! come. Workers that query by themselves: with a hundred of them an idle queue would be asked a hundred times. A
//! release-stuck loop that writes to the store: a lease that ran out needs no help there, and one that did not is
//! nobody's to take. A trait with a `handle` method: it would be a second kind of service that no layer fits around. One
//! argument that must come last because it uses the message up, as web frameworks have it: a body here is shared bytes.
//! An error type that must be implemented: `?` takes any error, and a failure that is not to be retried says so where it
//! happens ([`Classify`]).
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
mod cut_short;
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
/// Tells a handler that its result is not wanted any more; made into a [`Shutdown`], asks a subscriber to stop.
pub use tokio_util::sync::CancellationToken;
