//! How dead letters come back to life, in their own queue or in another.

use std::collections::HashSet;

use postrider_core::{Key, MessagingError, QueueName, Redrive, RedriveReport, RedriveSkip};

use crate::admin::with;
use crate::dead_letters::Dead;
use crate::error::Failure;
use crate::session::Session;
use crate::store::Shared;

/// Brings dead letters of a queue back, or tells which ones would come.
pub(crate) fn redrive(shared: &Shared, queue: &QueueName, redrive: &Redrive) -> Result<RedriveReport, MessagingError> {
    let target = redrive.target(queue)?;
    let origin = queue.origin();
    let into_error = |failure: Failure| failure.into_error("redrive");
    if target == origin {
        let mut report = with(
            shared,
            "redrive",
            queue,
            || Ok(RedriveReport::default()),
            |session| {
                let (dead, mut report) = session.redrivable(redrive)?;
                let mut revived = HashSet::new();
                for dead in dead {
                    let taken = is_taken(session, &dead, &revived, redrive.dry_run)?;
                    if redriven(&mut report, &mut revived, &dead, taken) && !redrive.dry_run {
                        session.revive(&dead, None)?;
                    }
                }
                Ok(report)
            },
        )?;
        report.add_missing(&redrive.selection);
        return Ok(report);
    }
    let to = shared.queue(&target)?;
    if !redrive.dry_run {
        // Makes it, or says that it is not there.
        to.dirs(shared).map_err(into_error)?;
    }
    // Both locks are held at once, always taken in the order of the names.
    let from = shared.queue(&origin)?;
    let mut report = None;
    let mut both = |session: &mut Session<'_>, target: Option<&mut Session<'_>>| -> Result<(), Failure> {
        report = Some(redrive_across(session, target, redrive)?);
        Ok(())
    };
    let done = if origin < target {
        from.locked(shared, |session| {
            let inner = to.locked(shared, |target| both(session, Some(target)))?;
            match inner {
                Some(inner) => Ok(inner.complete(shared)?),
                None => both(session, None),
            }
        })
    } else {
        let outer = to.locked(shared, |target| match from.locked(shared, |session| both(session, Some(target)))? {
            Some(inner) => Ok(inner.complete(shared)?),
            None => Ok(()),
        });
        match outer {
            // A dry run to a queue that is not there.
            Ok(None) => from.locked(shared, |session| both(session, None)),
            other => other,
        }
    };
    if let Some(done) = done.map_err(into_error)? {
        done.complete(shared).map_err(|error| error.into_error("redrive"))?;
    }
    let mut report = report.unwrap_or_default();
    report.add_missing(&redrive.selection);
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
        if redriven(&mut report, &mut revived, &dead, taken)
            && !redrive.dry_run
            && let Some(target) = &mut target
        {
            session.revive(&dead, Some(target))?;
        }
    }
    Ok(report)
}

/// Whether a message with its dedup key lives where it would go. `revived` are the keys that this redrive itself has
/// brought back, so that a dry run tells what a real one does.
fn is_taken(target: &mut Session<'_>, dead: &Dead, revived: &HashSet<Key>, dry_run: bool) -> Result<bool, Failure> {
    match &dead.dedup_key {
        None => Ok(false),
        Some(key) => Ok(revived.contains(key) || target.is_taken(key, dry_run)?),
    }
}

/// Notes what becomes of a dead letter, and answers whether it goes back to life.
fn redriven(report: &mut RedriveReport, revived: &mut HashSet<Key>, dead: &Dead, taken: bool) -> bool {
    if taken {
        report.skipped.push((dead.id(), RedriveSkip::DedupKeyTaken));
        return false;
    }
    revived.extend(dead.dedup_key.clone());
    report.redriven.push(dead.id());
    true
}
