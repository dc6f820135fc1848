//! Subscribers on every store: what depends on the store, and what only a server can show.

mod storm;
mod through;
