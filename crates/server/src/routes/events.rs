//! What happens, told as it happens.

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
use crate::history::{REMEMBERED, Shown};
use crate::in_flight::InFlight;
use crate::live::Change;

/// How often a silent stream says that it is still there.
const PING: Duration = Duration::from_secs(15);

/// How often it is looked whether a listener would still be let in.
const LOOK: Duration = Duration::from_secs(1);

pub(super) fn routes() -> Vec<Route> {
    const GROUP: &str = "Watching";
    vec![
        Route::new(
            (Verb::Get, "/v1/events"),
            (GROUP, "watch"),
            READ,
            "Changes as they happen: 'queues', 'gone', 'job', 'tasks', 'schedules', and 'ping' now and then. After \
             'resync' ask for everything again: there were more changes than this client read in time.",
            events,
        )
        .answers(200, "A stream of events", Content::Events),
        Route::new(
            (Verb::Get, "/v1/history"),
            (GROUP, "getHistory"),
            READ,
            "How queues have been, as far as this server remembers. Throughput is what went through this server.",
            history,
        )
        .parameter("queue", queue_name(), "Only this queue")
        .parameter("points", limit(REMEMBERED), "At most so many numbers each; the interval grows to match")
        .answers(200, "Numbers, oldest first", Content::Json(named("History"))),
        Route::new(
            (Verb::Get, "/v1/queues/{queue}/wake-ups"),
            (GROUP, "watchQueue"),
            CONSUME,
            "Hints that a queue may have something to receive. A hint promises nothing.",
            wake_ups,
        )
        .answers(200, "An event 'wake' for each hint", Content::Events),
    ]
}

/// A stream that ends with the server, and with the token of whoever listens.
fn stream(app: &Arc<App>, caller: Caller, events: BoxStream<'static, Event>) -> Response {
    let own = app.clone();
    let end = async move {
        loop {
            tokio::select! {
                () = own.stop.cancelled() => return,
                () = tokio::time::sleep(LOOK) => {}
            }
            // A state that cannot be asked has taken no token back.
            if matches!(own.access.would_let_in(&caller).await, Ok(false)) {
                return;
            }
        }
    };
    let events = events.take_until(end).map(Ok::<_, Infallible>);
    let ping = Event::default().event(event::PING).data("{}");
    Sse::new(events).keep_alive(KeepAlive::new().interval(PING).event(ping)).into_response()
}

/// A stream of hints.
pub(super) fn wakes(app: &Arc<App>, caller: Caller, hints: BoxStream<'static, ()>) -> Response {
    stream(app, caller, hints.map(|()| Event::default().event(event::WAKE).data("{}")).boxed())
}

fn named_event<T: serde::Serialize>(name: &str, data: &T) -> Option<Event> {
    serde_json::to_string(data).ok().map(|data| Event::default().event(name).data(data))
}

/// A change as a caller may see it. `told` is what they were told of tasks and schedules so far.
fn shown(app: &App, caller: &Caller, change: Change, told: &mut (u64, u64)) -> Option<Event> {
    if caller.queues.is_some() && matches!(change, Change::Tasks | Change::Schedules) {
        let now = app.live.counts(|task_type| app.may_use_type(caller, task_type));
        let (own, now) = match change {
            Change::Tasks => (&mut told.0, now.0),
            _ => (&mut told.1, now.1),
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
            let may = app.jobs.find(job.id).is_some_and(|job| job.is_for(caller));
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
    // What was told before is no news.
    let mut told = app.live.counts(|task_type| app.may_use_type(&caller, task_type));
    let changes = unfold(app.live.listen(), |mut listener| async move { Some((listener.next().await?, listener)) });
    let events = changes.filter_map(move |change| std::future::ready(shown(&own, &listener, change, &mut told)));
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
    let points = params.number("points")?.unwrap_or(REMEMBERED);
    if !(1..=REMEMBERED).contains(&points) {
        return Err(ApiError::malformed(format!("parameter 'points': use 1 to {REMEMBERED}")));
    }
    let wanted = |queue: &QueueName| only.as_ref().map_or_else(|| caller.may_use(queue), |only| queue == only);
    in_flight.grow(app.history.bytes(wanted, points)).await?;
    let Shown { queues, looks_per_point } = app.history.show(wanted, points);
    let interval_seconds = app.options.sample_interval.as_secs_f64() * looks_per_point as f64;
    let since_seconds = queues.first().map_or(0, |queue| queue.ready.len()) as f64 * interval_seconds;
    answer(&History { interval_seconds, now: Timestamp::now(), queues, since_seconds })
}

async fn wake_ups(
    State(app): State<Arc<App>>,
    caller: Caller,
    QueuePath(queue): QueuePath,
) -> Result<Response, ApiError> {
    let hints = app.provider.subscribe(&queue, Deadline::default()).await?;
    Ok(wakes(&app, caller, hints.boxed()))
}
