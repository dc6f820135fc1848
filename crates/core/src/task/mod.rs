//! Tasks: work that a database knows of from its creation to its end.
//!
//! A message is delivered; a task is *known*. Its row says at any time in which [`TaskState`] it is, who works on it, how
//! often that was tried and what came of it; a queue, where there is one, only carries its id to whoever will claim it.
//! So nothing is decided by a message: a delivery that comes twice, late or for nobody changes nothing.
//!
//! **The invariant.** Every transition names the state that it leaves and, once a task is claimed, the token of the claim.
//! Of two that race, one changes the row and the other finds that it does nothing. Whatever must be told of a transition
//! (the message that delivers a retry, the event of a death) is written in the transition's own transaction.
//!
//! [`TaskStore`] is what a database does for that, [`ScheduleStore`] keeps the times at which tasks are made. What runs
//! tasks stands above, in `postrider-tasks`.

mod claim;
mod dead_event;
mod finish;
mod names;
mod new_task;
mod query;
mod record;
mod routes;
mod schedule;
mod state;
mod store;

pub use claim::{ClaimAnswer, ClaimTasks, ClaimedTask, LostLease, TaskLease, check_lease};
pub use dead_event::{DeadTaskEvent, PayloadRef};
pub use finish::{Finish, FinishedAndClaimed, Heartbeat, Progress, TaskOutcome, TaskStanding};
pub use names::{MAX_TASK_TYPE, TaskId, TaskType};
pub use new_task::{Created, NewTask, When};
pub use query::{TaskCursor, TaskFilter, TaskPage, TaskQuery, TypePattern};
pub use record::{AttemptOutcome, PayloadRevision, Task, TaskAttempt, TaskInfo};
pub use routes::{DEFAULT_TASK_QUEUE_PREFIX, Post, TaskMessage, TaskMode, TaskRoutes};
pub use schedule::{MissedFire, NewSchedule, Schedule, ScheduleStore, ScheduleTiming, TaskTemplate};
pub use state::{DeadReason, TaskState};
pub use store::{Enqueued, MOST_ENDED_COUNTED, OutboxBatch, OutboxRow, Stranded, TaskCount, TaskNotice, TaskStore};
