//! A server as its clients see it: over a socket, on a real store.

mod access;
mod leases;
mod messages;
mod place;
mod slow;
