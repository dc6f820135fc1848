//! Tasks.

mod claim;
mod filter;
mod finish;
mod info;
mod lease;
mod new_task;
mod replay;
mod routes;

pub use claim::{ClaimByIdAnswers, ClaimByIdRequest, ClaimRequest, ClaimRow, Claimed, Claims};
pub use filter::{read_query, write_query};
pub use finish::{
    Finish, FinishOutcome, FinishRequest, Finished, Heartbeat, HeartbeatRequest, Standing, Standings, StandingsRequest,
};
pub use info::{Attempt, Canceled, Detail, Info, Page, Revision};
pub use lease::Lease;
pub use new_task::{Created, CreatedBatch, CreatedRow, NewTask, NewTasksRequest};
pub use replay::{EditPayloadRequest, Edited, ReplayJobRequest, ReplayRequest, Replayed};
pub use routes::Routes;
