//! Redrives dead letters into their own queue or another one.

use std::collections::HashSet;

use postrider_core::{DeadLetterSelection, Key, MessagingError, QueueName, Redrive, RedriveReport, RedriveSkip};

use crate::dead_letters::Dead;
use crate::error::Failure;
use crate::queues::with;
use crate::session::Session;
use crate::store::Shared;

/// Number of dead letters redriven under one lock.
const CHUNK: usize = 500;

/// Returns what a redrive would do.
pub(crate) fn rehearse(
    shared: &Shared,
    queue: &QueueName,
    selection: &DeadLetterSelection,
    target: &QueueName,
) -> Result<RedriveReport, MessagingError> {
    shared.check_name(target)?;
    let redrive = Redrive { selection: selection.clone(), to: Some(target.clone()), dry_run: true };
    redrive_some(shared, queue, target, &redrive)
}

/// Redrives dead letters of a queue.
pub(crate) fn redrive(
    shared: &Shared,
    queue: &QueueName,
    selection: &DeadLetterSelection,
    target: &QueueName,
) -> Result<RedriveReport, MessagingError> {
    shared.check_name(target)?;
    if *target != queue.origin() {
        // Creates the target, or fails if it does not exist.
        shared.queue(target)?.dirs(shared).map_err(|failure| failure.into_error("redrive"))?;
    }
    let mut report = RedriveReport::default();
    let ids =
        with(shared, "redrive", queue, || Ok(Vec::new()), |session: &mut Session<'_>| session.selected(selection))?;
    for chunk in ids.chunks(CHUNK) {
        let selection = DeadLetterSelection::Ids(chunk.to_vec());
        let redrive = Redrive { selection, to: Some(target.clone()), dry_run: false };
        let part = redrive_some(shared, queue, target, &redrive)?;
        report.redriven.extend(part.redriven);
        report.skipped.extend(part.skipped);
    }
    Ok(report)
}

fn redrive_some(
    shared: &Shared,
    queue: &QueueName,
    target: &QueueName,
    redrive: &Redrive,
) -> Result<RedriveReport, MessagingError> {
    let origin = queue.origin();
    if *target == origin {
        let within = |session: &mut Session<'_>| redrive_within(session, redrive);
        return with(shared, "redrive", queue, || Ok(RedriveReport::default()), within);
    }
    // Both locks are held, always taken in the order of the names.
    let (from, to) = (shared.queue(&origin)?, shared.queue(target)?);
    let (mut report, mut inner) = (None, None);
    let mut both = |session: &mut Session<'_>, target: Option<&mut Session<'_>>| -> Result<(), Failure> {
        report = Some(redrive_across(session, target, redrive)?);
        Ok(())
    };
    let outer = if origin < *target {
        from.locked(shared, |session| {
            inner = to.locked(shared, |target| both(session, Some(target)))?;
            if inner.is_none() { both(session, None) } else { Ok(()) }
        })
    } else {
        let outer = to.locked(shared, |target| {
            inner = from.locked(shared, |session| both(session, Some(target)))?;
            Ok(())
        });
        match outer {
            // A dry run to a queue that does not exist.
            Ok(None) => from.locked(shared, |session| both(session, None)),
            other => other,
        }
    };
    let outer = outer.map_err(|failure| failure.into_error("redrive"))?;
    // The disk is synced without the locks, the target first.
    let (first, second) = if origin < *target { (inner, outer) } else { (outer, inner) };
    for done in [first, second].into_iter().flatten() {
        done.complete(shared).map_err(|error| error.into_error("redrive"))?;
    }
    Ok(report.unwrap_or_default())
}

fn redrive_within(session: &mut Session<'_>, redrive: &Redrive) -> Result<RedriveReport, Failure> {
    let (dead, mut report) = session.redrivable(redrive)?;
    let mut revived = HashSet::new();
    for dead in dead {
        let taken = is_taken(session, &dead, &revived, redrive.dry_run)?;
        let is_redrivable = is_redrivable(&mut report, &mut revived, &dead, taken);
        if is_redrivable && (redrive.dry_run || session.revive(&dead, None)?) {
            report.redriven.push(dead.id());
        }
    }
    Ok(report)
}

fn redrive_across(
    session: &mut Session<'_>,
    mut target: Option<&mut Session<'_>>,
    redrive: &Redrive,
) -> Result<RedriveReport, Failure> {
    let (dead, mut report) = session.redrivable(redrive)?;
    let mut revived = HashSet::new();
    for dead in dead {
        let taken = match &mut target {
            Some(target) => is_taken(target, &dead, &revived, redrive.dry_run)?,
            None => dead.dedup_key.as_ref().is_some_and(|key| revived.contains(key)),
        };
        if !is_redrivable(&mut report, &mut revived, &dead, taken) {
            continue;
        }
        let comes = match &mut target {
            Some(target) if !redrive.dry_run => session.revive(&dead, Some(target))?,
            Some(_) | None => true,
        };
        if comes {
            report.redriven.push(dead.id());
        }
    }
    Ok(report)
}

/// Whether its dedup key is taken in the target. `revived` has the keys of this redrive itself, so that a dry run reports
/// the same as a real one.
fn is_taken(target: &mut Session<'_>, dead: &Dead, revived: &HashSet<Key>, dry_run: bool) -> Result<bool, Failure> {
    match &dead.dedup_key {
        None => Ok(false),
        Some(key) => Ok(revived.contains(key) || target.is_taken(key, dry_run)?),
    }
}

/// Whether a dead letter may be redriven; adds it to the skipped ones if not.
fn is_redrivable(report: &mut RedriveReport, revived: &mut HashSet<Key>, dead: &Dead, taken: bool) -> bool {
    if taken {
        report.skipped.push((dead.id(), RedriveSkip::DedupKeyTaken));
        return false;
    }
    revived.extend(dead.dedup_key.clone());
    true
}
