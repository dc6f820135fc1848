//! The user's command, run once for each message by `work` or for each task by `task worker`. Both share this module,
//! from the process group to the status line on a terminal.

mod echo;
mod ending;
mod environment;
mod guard;
mod process;
mod program;
mod repeated_warning;
mod rows;
mod runner;
mod sieve;
mod status;
mod stop;
mod tail;

pub(crate) use echo::Echo;
pub(crate) use ending::Ending;
pub(crate) use environment::{OMITTED, Store, Variables};
pub(crate) use guard::{GUARD, run as guard};
pub(crate) use process::{Kept, Process, Taps};
pub(crate) use program::check;
pub(crate) use repeated_warning::RepeatedWarning;
pub(crate) use rows::{RowPermit, Rows, Written};
pub(crate) use runner::{CANCELLATION_GRACE, NotStarted, Runner};
pub(crate) use sieve::Sieve;
pub(crate) use status::{Status, can_redraw, rate, show};
pub(crate) use stop::Stop;
