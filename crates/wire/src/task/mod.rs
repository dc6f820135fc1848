//! Tasks.
//!
//! The lease of a task is an opaque text made by the server; a worker sends back the text that it got. Each side maps the
//! text to its own kind of lease.

mod bulk;
mod claim;
mod filter;
mod finish;
mod info;
mod new_task;
mod replay;
mod routes;

pub use bulk::{BulkRequest, Chosen, Counts, Percentiles, TypeCount};
pub use claim::{ClaimByIdAnswers, ClaimByIdRequest, ClaimRequest, ClaimRow, Claimed, Claims, MOST_BY_ID};
pub use filter::{read_query, write_query};
pub use finish::{
    Finish, FinishOutcome, FinishRequest, Finished, Heartbeat, HeartbeatRequest, Standing, Standings, StandingsRequest,
};
pub use info::{Attempt, Canceled, Detail, Info, Page, Revision};
pub use new_task::{Created, CreatedBatch, CreatedRow, NewTask, NewTasksRequest};
pub use replay::{EditPayloadRequest, Edited, ReplayJobRequest, ReplayRequest, Replayed};
pub use routes::Routes;
