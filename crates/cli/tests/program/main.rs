//! The program as a user meets it: what it prints where, and how it ends.

mod bad_files;
mod bad_input;
mod configuration;
mod dead_letters;
mod help;
mod place;
mod queues;
mod receiving;
mod sending;
mod settling;
mod verifying;
