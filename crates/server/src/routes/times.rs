//! The next ticks of a schedule, and durations of a queue.

use std::sync::Arc;

use axum::extract::State;
use axum::response::Response;
use postrider::task::ScheduleTiming;
use postrider::tasks::next_times;
use postrider_wire::queue::Durations;
use postrider_wire::schedule::NextTimes;

use super::READ;
use crate::access::Caller;
use crate::api::schemas::{limit, named};
use crate::api::{ApiError, Content, NamePath, Params, QueuePath, Route, Verb, answer};
use crate::app::App;

/// Upper bound of the times of an answer.
const MAX_TIMES: usize = 100;

pub(super) fn routes() -> Vec<Route> {
    vec![
        Route::new(
            (Verb::Get, "/v1/schedules/{name}/times"),
            ("Schedules", "getScheduleTimes"),
            READ,
            "The next ticks of a schedule; of a paused one, those it would have if it were resumed now.",
            times,
        )
        .parameter("limit", limit(MAX_TIMES), "Number of ticks; default 5")
        .answers(200, "The times", Content::Json(named("ScheduleTimes"))),
        Route::new(
            (Verb::Get, "/v1/queues/{queue}/durations"),
            ("Queues", "getQueueDurations"),
            READ,
            "How long messages of a queue waited for their first delivery, and how long their handlers took: those that went \
             through this server in the last hour.",
            durations,
        )
        .answers(200, "Percentiles", Content::Json(named("QueueDurations"))),
    ]
}

async fn times(
    State(app): State<Arc<App>>,
    caller: Caller,
    NamePath(name): NamePath,
    params: Params,
) -> Result<Response, ApiError> {
    let schedule = app.schedule(&caller, &name).await?;
    let count = params.limit(5, MAX_TIMES)?;
    let first = schedule.next_run_at.filter(|_| schedule.paused_at.is_none());
    let timing = &schedule.definition.timing;
    let times = next_times(timing, first, count)?;
    let time_zone = match timing {
        ScheduleTiming::Cron { time_zone, .. } => Some(time_zone.clone()),
        ScheduleTiming::Every(_) => None,
    };
    answer(&NextTimes { times, time_zone, paused: schedule.paused_at.is_some() })
}

async fn durations(State(app): State<Arc<App>>, QueuePath(queue): QueuePath) -> Result<Response, ApiError> {
    let (waited, took) = app.durations.of(&queue);
    answer(&Durations { waited, took })
}
