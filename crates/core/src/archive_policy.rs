//! What is kept of messages that are over.

/// Which messages are kept after their end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ArchivePolicy {
    /// Those that were acknowledged, and dead letters that were purged.
    #[default]
    All,
    /// Dead letters that were purged.
    Failed,
    /// None.
    None,
}
