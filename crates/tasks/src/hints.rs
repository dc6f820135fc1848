//! Waits for hints.

use postrider_core::WakeUps;

/// Waits for the next hint; `None` when the stream has ended. Without a stream it waits for ever.
pub(crate) async fn next_hint(hints: &mut Option<WakeUps>) -> Option<()> {
    match hints {
        Some(hints) => hints.next().await,
        None => std::future::pending().await,
    }
}
