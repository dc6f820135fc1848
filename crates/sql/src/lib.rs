//! What the providers on database servers share.
//!
//! **The idea.** [`postrider_provider`] implements the contract. A database adds three things: a claim is a transaction
//! that leaves chores (dead messages to move, keys to put in order), other transactions hold locks for a moment, and
//! the waiting receivers of a process share one look.
//!
//! **The invariant.** Two leases of one message never share a statement. A row that another transaction has locked
//! delays the other rows of its batch only for a moment.

mod batches;
mod dead_letters;
mod distrust;
mod lease;
mod rounds;
mod store;
pub mod stripes;
mod wait;
mod wakes;

pub use batches::{batches, release, returns};
pub use dead_letters::{find_dead, findable, get_dead, health};
pub use distrust::is_distrust;
pub use lease::Lease;
pub use store::{Due, Present, SqlStore, Taken};
pub use wait::{hints, listen, look, news, wake_ups};
pub use wakes::{Listener, Wakes};

/// The items of [`Store`](postrider_provider::Store) that are the same for every database: a part of its `impl`.
#[macro_export]
macro_rules! database {
    () => {
        /// Upper bound of the settlements that share a transaction with a claim.
        const MOST_TOGETHER: usize = 1000;

        const DEAD_CHUNK: usize = 500;

        type Listener = $crate::Listener;

        type Chunk = Vec<$crate::Present>;

        fn batches(&self) -> Result<Vec<::postrider_core::coalescer::Coalescer>, ::postrider_core::MessagingError> {
            $crate::batches(self)
        }

        fn returns(&self) -> ::std::sync::Arc<dyn ::postrider_core::ReturnLease> {
            $crate::returns(self)
        }

        async fn release(&self, receipts: Vec<::postrider_core::ReceiptHandle>) {
            $crate::release(self, receipts).await;
        }

        fn listen(&self, queues: &[::postrider_core::QueueName]) -> Option<$crate::Listener> {
            Some($crate::listen(self, queues))
        }

        async fn look(
            &self,
            look: ::postrider_provider::Look,
        ) -> Result<::postrider_provider::Looked, ::postrider_provider::Undone> {
            $crate::look(self, look).await
        }

        async fn news(
            &self,
            listener: &$crate::Listener,
            queues: &[::postrider_core::QueueName],
            _: ::postrider_core::Timestamp,
        ) {
            $crate::news(self, listener, queues).await;
        }

        async fn wake_ups(
            &self,
            queue: &::postrider_core::QueueName,
            closing: ::tokio::sync::watch::Receiver<bool>,
            _: ::postrider_core::Deadline,
        ) -> Result<::postrider_core::WakeUps, ::postrider_core::MessagingError> {
            Ok($crate::wake_ups(self, queue, closing))
        }

        fn findable(selection: &::postrider_core::DeadLetterSelection) -> ::postrider_core::DeadLetterSelection {
            $crate::findable(selection)
        }
    };
}
