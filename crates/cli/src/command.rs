//! A command of the user's that is run for one piece of work after the other: for messages by `work`, for tasks by
//! `task worker`. What is the same for both is here, from the process group to the line on a terminal.

mod echo;
mod ending;
mod environment;
mod guard;
mod process;
mod program;
mod rows;
mod runner;
mod sieve;
mod status;
mod stop;
mod tail;
mod trouble;

pub(crate) use echo::Echo;
pub(crate) use ending::Ending;
pub(crate) use environment::{OMITTED, Store, Variables};
pub(crate) use guard::{GUARD, run as guard};
pub(crate) use process::{Kept, Process, Taps};
pub(crate) use program::check;
pub(crate) use rows::{Place, Rows, Written};
pub(crate) use runner::{NotStarted, Runner, TO_OBEY};
pub(crate) use sieve::Sieve;
pub(crate) use status::{Look, has_spectator, rate, show};
pub(crate) use stop::Stop;
pub(crate) use trouble::Trouble;
