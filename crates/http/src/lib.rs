//! A Postrider server as a provider, and the words that both sides of its HTTP API use.

pub mod wire;

/// The provider's name, in receipts, errors and metrics.
pub const PROVIDER: &str = "http";
