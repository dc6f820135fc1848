//! The dashboard in a browser, against a server in this process with a store of its own: every page, every action, and what
//! each of them did to the store.

mod access;
mod archive;
mod bodies;
mod browser;
mod dead_letters;
mod driver;
mod keyboard;
mod live;
mod messages;
mod pages;
mod picture;
mod queues;
mod scene;
mod tasks;
mod triage;
