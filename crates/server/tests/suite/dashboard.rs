//! Tests of the dashboard in a browser, against a server in this process with its own store: every page, every action,
//! and the effect on the store.

mod access;
mod archive;
mod bodies;
mod browser;
mod dead_letters;
mod driver;
mod fixtures;
mod keyboard;
mod live;
mod messages;
mod pages;
mod picture;
mod queues;
mod tasks;
mod triage;
