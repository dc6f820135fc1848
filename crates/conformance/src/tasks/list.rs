//! What can be found, and how it is paged.

use std::time::Duration;

use postrider_core::Measured;
use postrider_core::task::{
    DeadReason, ScheduleStore, TaskCursor, TaskFilter, TaskId, TaskOutcome, TaskQuery, TaskStanding, TaskState,
    TaskStore, TaskType, TypePattern,
};

use super::TaskHarness;
use super::fixture::{Fixture, HOUR, INSTANT, LEASE, MANY, MINUTE};
use super::steps::{
    cancel, claim_id, dead, end, ensure_refused, info, list_all, make, make_all, make_plain, plain, reap, replay,
    retry, succeeded,
};
use crate::probe::{Check, Stop, ensure, ensure_invalid_cursor, ensure_same, soon, violation};

pub(super) async fn pages_cover_everything_once_newest_first<H: TaskHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (store, task_type) = (fixture.open().await?, fixture.task_type("pages")?);
    let mut ids = make_all(&store, (0..13).map(|_| plain(&task_type)).collect()).await?;
    for _ in 0..12 {
        ids.push(make_plain(&store, &task_type).await?);
    }
    ids.reverse();
    for id in ids.iter().step_by(3) {
        cancel(&store, *id).await??;
    }
    for limit in [1, 5, 10, 25, 1000] {
        let filter = TaskFilter { types: vec![task_type.clone()], ..TaskFilter::default() };
        let mut query = TaskQuery { filter, limit, after: None };
        let (mut listed, mut pages) = (Vec::new(), 0);
        loop {
            let page = store.list(&query, soon()).await?;
            pages += 1;
            ensure(page.tasks.len() <= limit, || format!("a page of {limit} has {} tasks", page.tasks.len()))?;
            ensure(pages <= 1000, || "a listing does not come to its end".into())?;
            listed.extend(page.tasks);
            match page.next {
                None => break,
                next => query.after = next,
            }
            if pages == 1 {
                // A task that is made meanwhile is newer than all that is still to come.
                let newer = make_plain(&store, &task_type).await?;
                cancel(&store, newer).await??;
                ids.insert(0, newer);
            }
        }
        let newest = ids.iter().position(|id| listed.first().is_some_and(|first| first.id == *id));
        let expected = newest.map(|at| ids[at..].to_vec());
        let seen: Vec<TaskId> = listed.iter().map(|task| task.id).collect();
        ensure_same(&format!("what pages of {limit} cover"), Some(seen), expected)?;
        ensure(newest.is_some_and(|at| at <= 1), || "the newest task is not the first of a listing".into())?;
        for task in listed {
            ensure_same("a listed task", &task, &info(&store, task.id).await?)?;
        }
    }
    for limit in [0, 1001] {
        let refused = store.list(&TaskQuery { limit, ..TaskQuery::default() }, soon()).await;
        ensure_refused(&format!("a page of {limit}"), &refused)?;
    }
    let query = TaskQuery { after: Some(TaskCursor("nonsense".into())), ..TaskQuery::default() };
    ensure_invalid_cursor(store.list(&query, soon()).await.map(drop))
}

pub(super) async fn a_listing_continues_after_many_tasks_that_do_not_match<H: TaskHarness>(
    fixture: &Fixture<'_, H>,
) -> Check {
    let (store, task_type, many) = (fixture.open().await?, fixture.task_type("few")?, fixture.task_type("many")?);
    let oldest = make_plain(&store, &task_type).await?;
    // More than a call should read for one page.
    for _ in 0..21 {
        let ids = make_all(&store, (0..500).map(|_| plain(&many)).collect()).await?;
        for row in store.cancel(&ids, soon()).await? {
            row?;
        }
    }
    let newest = make_plain(&store, &task_type).await?;
    let of = |states: &[TaskState]| TaskFilter {
        states: states.to_vec(),
        types: vec![task_type.clone()],
        ..TaskFilter::default()
    };
    ensure_same("the tasks of a type", found(&store, of(&[])).await?, vec![oldest, newest])?;
    cancel(&store, oldest).await??;
    let canceled = found(&store, of(&[TaskState::Canceled])).await?;
    ensure_same("the canceled tasks of a type", canceled, vec![oldest])
}

pub(super) async fn tasks_are_found_by_patterns_of_their_types<H: TaskHarness>(fixture: &Fixture<'_, H>) -> Check {
    // An underscore must not stand for any letter, nor a beginning for what only has it in the middle.
    let (store, a_b, axb) = (fixture.open().await?, fixture.task_type("a_b")?, fixture.task_type("axb")?);
    let longer = fixture.task_type("a_b2")?;
    let mut ids = Vec::new();
    for task_type in [&a_b, &axb, &longer] {
        ids.push(make_plain(&store, task_type).await?);
    }
    cancel(&store, ids[2]).await??;
    let pattern = |text: String| {
        text.parse::<TypePattern>().or_else(|error| violation(format!("'{text}' is a pattern, and refused: {error}")))
    };
    let within = |patterns: Vec<TypePattern>| TaskFilter { within: Some(patterns), ..TaskFilter::default() };
    let beginning = pattern(format!("{a_b}*"))?;
    ensure_same("one type", found(&store, within(vec![pattern(axb.to_string())?])).await?, vec![ids[1]])?;
    ensure_same("types of a beginning", found(&store, within(vec![beginning.clone()])).await?, vec![ids[0], ids[2]])?;
    let both = within(vec![beginning.clone(), pattern(axb.to_string())?]);
    ensure_same("types of two patterns", found(&store, both).await?, ids.clone())?;
    let canceled = TaskFilter { states: vec![TaskState::Canceled], ..within(vec![beginning.clone()]) };
    ensure_same("canceled tasks of a beginning", found(&store, canceled).await?, vec![ids[2]])?;
    let narrower = TaskFilter { types: vec![axb, longer], ..within(vec![beginning]) };
    ensure_same("types within a pattern", found(&store, narrower).await?, vec![ids[2]])?;
    ensure_same("no type at all", found(&store, within(Vec::new())).await?, Vec::new())
}

/// One task in each state, oldest first: PENDING, ENQUEUED, PROCESSING, SUCCEEDED, DEAD, CANCELED.
async fn one_of_each<S: TaskStore>(store: &S, task_type: &TaskType) -> Result<[TaskId; 6], Stop> {
    let ids = make_all(store, (0..6).map(|_| plain(task_type)).collect()).await?;
    let [pending, failed, running, done, died, canceled] = ids[..] else {
        return violation("six tasks were made, and others answered");
    };
    end(store, claim_id(store, failed).await?.lease, retry(Duration::ZERO)).await?;
    drop(claim_id(store, running).await?);
    end(store, claim_id(store, done).await?.lease, succeeded()).await?;
    end(store, claim_id(store, died).await?.lease, dead(DeadReason::Permanent)).await?;
    cancel(store, canceled).await??;
    Ok([pending, failed, running, done, died, canceled])
}

/// What a filter finds, oldest first.
async fn found<S: TaskStore>(store: &S, filter: TaskFilter) -> Result<Vec<TaskId>, Stop> {
    let mut found: Vec<TaskId> = list_all(store, &filter).await?.iter().map(|task| task.id).collect();
    found.reverse();
    Ok(found)
}

pub(super) async fn tasks_are_found_by_their_state<H: TaskHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (store, task_type) = (fixture.open().await?, fixture.task_type("state")?);
    let ids = one_of_each(&store, &task_type).await?;
    let of = |states: &[TaskState]| TaskFilter {
        states: states.to_vec(),
        types: vec![task_type.clone()],
        ..TaskFilter::default()
    };
    for (state, id) in TaskState::ALL.into_iter().zip(ids) {
        ensure_same(&format!("the tasks that are {state}"), found(&store, of(&[state])).await?, vec![id])?;
    }
    let ended = [TaskState::Dead, TaskState::Canceled];
    ensure_same("the tasks that are DEAD or CANCELED", found(&store, of(&ended)).await?, ids[4..].to_vec())?;
    let mixed = [TaskState::Dead, TaskState::Pending];
    ensure_same("the tasks that are DEAD or PENDING", found(&store, of(&mixed)).await?, vec![ids[0], ids[4]])?;
    ensure_same("the tasks in any state", found(&store, of(&[])).await?, ids.to_vec())
}

pub(super) async fn tasks_are_found_by_their_attributes<H: TaskHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (store, a, b) = (fixture.open().await?, fixture.task_type("a")?, fixture.task_type("b")?);
    let both = make(&store, plain(&a).tag("red").tag("it's \"big\"")).await?;
    let red = make(&store, plain(&a).tag("red")).await?;
    let reddish = make(&store, plain(&b).tag("reddish")).await?;
    let mut scheduled = plain(&b);
    scheduled.schedule = Some(fixture.schedule_name("nightly"));
    let schedule = scheduled.schedule.clone();
    let scheduled = make(&store, scheduled).await?;
    let all = TaskFilter { types: vec![a.clone(), b.clone()], ..TaskFilter::default() };
    let tagged = |tags: &[&str]| TaskFilter { tags: tags.iter().map(|tag| (*tag).to_owned()).collect(), ..all.clone() };
    ensure_same("tasks of two types", found(&store, all.clone()).await?, vec![both, red, reddish, scheduled])?;
    let only_b = TaskFilter { types: vec![b], ..TaskFilter::default() };
    ensure_same("tasks of one type", found(&store, only_b).await?, vec![reddish, scheduled])?;
    ensure_same("tasks with a tag", found(&store, tagged(&["red"])).await?, vec![both, red])?;
    ensure_same("tasks with two tags", found(&store, tagged(&["it's \"big\"", "red"])).await?, vec![both])?;
    ensure_same("tasks with part of a tag", found(&store, tagged(&["big"])).await?, Vec::new())?;
    let by_schedule = TaskFilter { schedule, ..all };
    ensure_same("tasks of a schedule", found(&store, by_schedule).await?, vec![scheduled])
}

pub(super) async fn tasks_are_found_by_how_they_died<H: TaskHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (store, task_type) = (fixture.open().await?, fixture.task_type("dead")?);
    let mut ids = Vec::new();
    for (reason, error) in [
        (DeadReason::Permanent, "no such address: 100% sure"),
        (DeadReason::MaxAttempts, "time-out of smtp_host"),
        (DeadReason::MaxAttempts, "time-out of smtpxhost"),
    ] {
        let id = make_plain(&store, &task_type).await?;
        end(&store, claim_id(&store, id).await?.lease, TaskOutcome::Dead { reason, error: error.to_owned() }).await?;
        ids.push(id);
    }
    let failed = make_plain(&store, &task_type).await?;
    let error = "time-out of smtp_host".to_owned();
    end(&store, claim_id(&store, failed).await?.lease, TaskOutcome::Retry { after: HOUR, error }).await?;
    let all = TaskFilter { types: vec![task_type], ..TaskFilter::default() };
    let because = |reason| TaskFilter { dead_reason: Some(reason), ..all.clone() };
    let saying = |part: &str| TaskFilter { error_contains: Some(part.to_owned()), ..all.clone() };
    ensure_same("deaths by permanent errors", found(&store, because(DeadReason::Permanent)).await?, vec![ids[0]])?;
    ensure_same("deaths of last attempts", found(&store, because(DeadReason::MaxAttempts)).await?, ids[1..].to_vec())?;
    ensure_same("deaths by deadline", found(&store, because(DeadReason::Deadline)).await?, Vec::new())?;
    ensure_same("errors with a part", found(&store, saying("time-out")).await?, vec![ids[1], ids[2], failed])?;
    ensure_same("errors with an underscore", found(&store, saying("smtp_host")).await?, vec![ids[1], failed])?;
    ensure_same("errors with a percent sign", found(&store, saying("100%")).await?, vec![ids[0]])?;
    let both = TaskFilter { states: vec![TaskState::Dead], ..saying("smtp_host") };
    ensure_same("dead tasks whose error has a part", found(&store, both).await?, vec![ids[1]])
}

pub(super) async fn tasks_are_found_by_when_they_were_made<H: TaskHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (store, task_type) = (fixture.open().await?, fixture.task_type("when")?);
    let mut ids = Vec::new();
    let mut times = Vec::new();
    for _ in 0..4 {
        let id = make_plain(&store, &task_type).await?;
        times.push(info(&store, id).await?.created_at);
        ids.push(id);
        fixture.elapse(MINUTE).await;
    }
    let all = TaskFilter { types: vec![task_type], ..TaskFilter::default() };
    let since = TaskFilter { created_since: Some(times[2]), ..all.clone() };
    ensure_same("tasks made at a time or later", found(&store, since).await?, ids[2..].to_vec())?;
    let before = TaskFilter { created_before: Some(times[2]), ..all.clone() };
    ensure_same("tasks made before a time", found(&store, before).await?, ids[..2].to_vec())?;
    let between = TaskFilter { created_since: Some(times[1]), created_before: Some(times[3]), ..all.clone() };
    ensure_same("tasks made between two times", found(&store, between).await?, ids[1..3].to_vec())?;
    let future = TaskFilter { created_since: Some(store.store_time(soon()).await?.saturating_add(HOUR)), ..all };
    ensure_same("tasks made in the future", found(&store, future).await?, Vec::new())
}

/// The counts of a type in the order of [`TaskState::ALL`].
async fn counted<S: TaskStore>(store: &S, task_type: &TaskType) -> Result<[u64; 6], Stop> {
    let counts = store.counts(soon()).await?;
    let mut by_state = [0; 6];
    for (state, sum) in TaskState::ALL.into_iter().zip(&mut by_state) {
        let mut own = counts.iter().filter(|count| count.task_type == *task_type && count.state == state);
        if let Some(count) = own.next() {
            let is_exact = matches!(count.count, Measured::Exact(_));
            ensure(is_exact || state.is_terminal(), || format!("the count is not exact: {count:?}"))?;
            *sum = count.count.value().unwrap_or_default();
        }
        ensure(own.next().is_none(), || format!("tasks of type {task_type} that are {state} are counted twice"))?;
    }
    Ok(by_state)
}

pub(super) async fn tasks_are_counted_by_type_and_state<H: TaskHarness>(fixture: &Fixture<'_, H>) -> Check {
    let (store, each, keyed) = (fixture.open().await?, fixture.task_type("each")?, fixture.task_type("keyed")?);
    ensure_same("the counts of a type without tasks", counted(&store, &each).await?, [0; 6])?;
    let ids = one_of_each(&store, &each).await?;
    let of_keys = ["a", "a", "a", "b"].into_iter().map(|key| plain(&keyed).ordering_key(key));
    let of_keys = make_all(&store, of_keys.collect::<Result<_, _>>()?).await?;
    ensure_same("the counts of one task in each state", counted(&store, &each).await?, [1; 6])?;
    let counts = counted(&store, &keyed).await?;
    ensure_same("the counts of tasks that wait for their keys", counts, [4, 0, 0, 0, 0, 0])?;
    // A task that died at its deadline, a canceled one, and a replayed one.
    fixture.elapse(LEASE + INSTANT).await;
    for lost in store.lost_leases(MANY, soon()).await?.iter().filter(|lost| lost.lease.id == ids[2]) {
        ensure_same(
            "a reaped attempt",
            reap(&store, lost.lease, dead(DeadReason::LeaseLost)).await?,
            TaskStanding::Held,
        )?;
    }
    cancel(&store, ids[0]).await??;
    replay(&store, ids[4]).await??;
    ensure_same("the counts after that", counted(&store, &each).await?, [1, 1, 0, 1, 1, 2])?;
    end(&store, claim_id(&store, of_keys[0]).await?.lease, succeeded()).await?;
    drop(claim_id(&store, of_keys[1]).await?);
    let counts = counted(&store, &keyed).await?;
    ensure_same("the counts after a key has gone on", counts, [2, 0, 1, 1, 0, 0])
}
