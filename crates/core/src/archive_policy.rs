//! Which messages the archive keeps.

/// Which messages are archived.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ArchivePolicy {
    /// Acknowledged messages and purged dead letters.
    #[default]
    All,
    /// Purged dead letters only.
    Failed,
    /// None.
    None,
}
