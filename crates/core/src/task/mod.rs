//! Tasks: durable work whose source of truth is a database.
//!
//! The row of a task shows at any time its [`TaskState`], its worker, its attempts and their outcomes. A queue, if
//! there is one, only delivers its id to a worker that then claims it. So messages decide nothing: a delivery that is
//! repeated, late or obsolete changes nothing.
//!
//! **The invariant.** Every transition names the state that it leaves and, once a task is claimed, the token of the
//! claim. Of two concurrent transitions, one changes the row and the other has no effect. Messages of a transition (the
//! delivery of a retry, the event of a death) are written in its transaction.
//!
//! [`TaskStore`] is implemented by databases, and [`ScheduleStore`] keeps the schedules that create tasks. The crate
//! `postrider-tasks` runs tasks.

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
