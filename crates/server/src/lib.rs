//! The HTTP API of Postrider.
