//! Event streams and history.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::sse::{Event, KeepAlive, Sse};
use axum::response::{IntoResponse, Response};
use futures_util::stream::{BoxStream, StreamExt, unfold};
use postrider::{Deadline, MessagingService, QueueName, Timestamp};
use postrider_wire::event::{self, QueuesChanged, QueuesGone};
use postrider_wire::history::History;
use postrider_wire::queue::Stats;

use super::{CONSUME, READ};
use crate::access::Caller;
use crate::api::schemas::{limit, named, queue_name};
use crate::api::{ApiError, Content, Params, QueuePath, Route, Verb, answer};
use crate::app::App;
use crate::history::{HistoryView, MAX_POINTS};
use crate::in_flight::InFlight;
use crate::live::Change;

/// Interval of keep-alive events.
const PING: Duration = Duration::from_secs(15);

/// Interval at which the caller's token is checked again.
const TOKEN_CHECK_INTERVAL: Duration = Duration::from_secs(1);

pub(super) fn routes() -> Vec<Route> {
    const GROUP: &str = "Watching";
    vec![
        Route::new(
            (Verb::Get, "/v1/events"),
            (GROUP, "watch"),
            READ,
            "Changes as they happen: 'queues', 'gone', 'job', 'tasks', 'schedules', and 'ping' to keep the stream alive. \
             After 'resync' read everything again: this client was too slow and has missed changes.",
            events,
        )
        .answers(200, "A stream of events", Content::Events),
        Route::new(
            (Verb::Get, "/v1/history"),
            (GROUP, "getHistory"),
            READ,
            "The recent history of queues, since the server started. Throughput is what went through this server.",
            history,
        )
        .parameter("queue", queue_name(), "Only this queue")
        .parameter("points", limit(MAX_POINTS), "Upper bound of the points of each series; the interval grows to match")
        .answers(200, "Series of numbers, oldest first", Content::Json(named("History"))),
        Route::new(
            (Verb::Get, "/v1/queues/{queue}/wake-ups"),
            (GROUP, "watchQueue"),
            CONSUME,
            "Hints that a queue may have messages to receive. A hint promises nothing.",
            wake_ups,
        )
        .answers(200, "An event 'wake' for each hint", Content::Events),
    ]
}

/// Returns a stream that ends with the server and with the caller's token.
fn stream(app: &Arc<App>, caller: Caller, events: BoxStream<'static, Event>) -> Response {
    let own = app.clone();
    let end = async move {
        loop {
            tokio::select! {
                () = own.stop.cancelled() => return,
                () = tokio::time::sleep(TOKEN_CHECK_INTERVAL) => {}
            }
            // An unreachable state is no reason to end the stream.
            if matches!(own.access.is_still_valid(&caller).await, Ok(false)) {
                return;
            }
        }
    };
    let events = events.take_until(end).map(Ok::<_, Infallible>);
    let ping = Event::default().event(event::PING).data("{}");
    Sse::new(events).keep_alive(KeepAlive::new().interval(PING).event(ping)).into_response()
}

/// Returns a stream of hints.
pub(super) fn wake_stream(app: &Arc<App>, caller: Caller, hints: BoxStream<'static, ()>) -> Response {
    stream(app, caller, hints.map(|()| Event::default().event(event::WAKE).data("{}")).boxed())
}

fn named_event<T: serde::Serialize>(name: &str, data: &T) -> Option<Event> {
    serde_json::to_string(data).ok().map(|data| Event::default().event(name).data(data))
}

/// Returns the event for a change, reduced to what the caller may see. `last_counts` are the change counts of tasks and
/// schedules at the last event.
fn shown(app: &App, caller: &Caller, change: Change, last_counts: &mut (u64, u64)) -> Option<Event> {
    if caller.queues.is_some() && matches!(change, Change::Tasks | Change::Schedules) {
        let now = app.live.counts(|task_type| app.may_use_type(caller, task_type));
        let (own, now) = match change {
            Change::Tasks => (&mut last_counts.0, now.0),
            _ => (&mut last_counts.1, now.1),
        };
        if std::mem::replace(own, now) == now {
            return None;
        }
    }
    match change {
        Change::Queues(all) => {
            let queues: Vec<Stats> = all.iter().filter(|stats| caller.may_use(&stats.queue)).map(Stats::from).collect();
            (!queues.is_empty()).then(|| named_event(event::QUEUES, &QueuesChanged { queues }))?
        }
        Change::Gone(names) => {
            let queues: Vec<QueueName> = names.iter().filter(|queue| caller.may_use(queue)).cloned().collect();
            (!queues.is_empty()).then(|| named_event(event::GONE, &QueuesGone { queues }))?
        }
        Change::Job(job) => {
            let may = app.jobs.find(job.id).is_some_and(|job| job.is_visible_to(caller));
            may.then(|| named_event(event::JOB, &job))?
        }
        Change::Tasks => Some(Event::default().event(event::TASKS).data("{}")),
        Change::Schedules => Some(Event::default().event(event::SCHEDULES).data("{}")),
        Change::Missed => Some(Event::default().event(event::RESYNC).data("{}")),
    }
    .filter(|_| !app.stop.is_cancelled())
}

async fn events(State(app): State<Arc<App>>, caller: Caller) -> Result<Response, ApiError> {
    let (own, listener) = (app.clone(), caller.clone());
    // Earlier changes are not sent.
    let mut last_counts = app.live.counts(|task_type| app.may_use_type(&caller, task_type));
    let changes = unfold(app.live.listen(), |mut listener| async move { Some((listener.next().await?, listener)) });
    let events = changes.filter_map(move |change| std::future::ready(shown(&own, &listener, change, &mut last_counts)));
    Ok(stream(&app, caller, events.boxed()))
}

async fn history(
    State(app): State<Arc<App>>,
    caller: Caller,
    in_flight: InFlight,
    params: Params,
) -> Result<Response, ApiError> {
    let only = params.text("queue")?.map(QueueName::for_reading).transpose()?;
    if let Some(queue) = &only {
        caller.check_queue(queue)?;
    }
    let points = params.number("points")?.unwrap_or(MAX_POINTS);
    if !(1..=MAX_POINTS).contains(&points) {
        return Err(ApiError::malformed(format!("invalid parameter 'points'; use 1 to {MAX_POINTS}")));
    }
    let wanted = |queue: &QueueName| only.as_ref().map_or_else(|| caller.may_use(queue), |only| queue == only);
    in_flight.grow(app.history.bytes(wanted, points)).await?;
    let HistoryView { queues, samples_per_point } = app.history.view(wanted, points);
    let interval_seconds = app.options.sample_interval.as_secs_f64() * samples_per_point as f64;
    let since_seconds = queues.first().map_or(0, |queue| queue.ready.len()) as f64 * interval_seconds;
    answer(&History { interval_seconds, now: Timestamp::now(), queues, since_seconds })
}

async fn wake_ups(
    State(app): State<Arc<App>>,
    caller: Caller,
    QueuePath(queue): QueuePath,
) -> Result<Response, ApiError> {
    let hints = app.provider.subscribe(&queue, Deadline::default()).await?;
    Ok(wake_stream(&app, caller, hints.boxed()))
}
