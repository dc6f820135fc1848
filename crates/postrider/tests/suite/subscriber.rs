//! Subscribers on every store: behaviour that depends on the store.

mod storm;
mod through;
