//! Waiting for a hint, where there are hints.

use postrider_core::WakeUps;

/// The next hint; `None` when there will be no more. Without a stream it never comes.
pub(crate) async fn next_hint(hints: &mut Option<WakeUps>) -> Option<()> {
    match hints {
        Some(hints) => hints.next().await,
        None => std::future::pending().await,
    }
}
