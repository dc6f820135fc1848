//! `postrider dlq redrive` and `purge`
//!
//! Both work page by page and print each finished page, so that after a failure the output shows what was done.

use std::collections::HashSet;

use indicatif::ProgressBar;
use postrider::{DeadLetterSelection, DeadLetters, Deadline, MessageId, QueueName, RedriveReport, RedriveSkip};
use serde::Serialize;

use super::selection::{Chosen, Pages, Selection, note_none_found, still_dead};
use crate::args::Global;
use crate::confirm::{confirm, should_ask};
use crate::failure::Failure;
use crate::output::note;
use crate::progress;
use crate::queues::must_exist;
use crate::session::Session;
use crate::text::counted;
use crate::values;

/// Send dead letters to their queue again
///
/// The messages keep their ids, their counts are reset, and they go to the end of their original queue.
#[derive(Debug, clap::Args)]
pub(super) struct Redrive {
    /// The queue
    #[arg(value_parser = values::readable_queue)]
    queue: QueueName,

    #[command(flatten)]
    selection: Selection,

    /// Send them to this queue instead [default: their original queue]
    #[arg(long, value_name = "QUEUE", value_parser = values::queue)]
    to: Option<QueueName>,

    /// Show what would be done, and change nothing
    #[arg(long)]
    dry_run: bool,
}

/// Remove dead letters
///
/// Asks for confirmation if stdin is a terminal.
#[derive(Debug, clap::Args)]
pub(super) struct Purge {
    /// The queue
    #[arg(value_parser = values::readable_queue)]
    queue: QueueName,

    #[command(flatten)]
    selection: Selection,

    /// Show what would be done, and change nothing
    #[arg(long)]
    dry_run: bool,

    /// Do not ask for confirmation
    #[arg(long)]
    yes: bool,
}

/// One line of `--json`.
#[derive(Serialize)]
struct Row<'a> {
    id: MessageId,
    queue: &'a QueueName,
    outcome: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    to: Option<&'a QueueName>,
}

/// The progress of a bulk operation, and its output.
struct Progress<'a> {
    session: &'a Session,
    queue: QueueName,
    to: Option<QueueName>,
    bar: ProgressBar,
    done: u64,
    skipped: u64,
}

impl<'a> Progress<'a> {
    fn begin(session: &'a Session, queue: QueueName, to: Option<QueueName>) -> Self {
        Self { session, queue, to, bar: progress::bar("dead letters"), done: 0, skipped: 0 }
    }

    /// Prints the outcome of a page.
    fn report(
        &mut self,
        done: &[MessageId],
        outcome: &'static str,
        skipped: &[(MessageId, RedriveSkip)],
    ) -> Result<(), Failure> {
        self.done += done.len() as u64;
        self.skipped += skipped.len() as u64;
        self.bar.set_position(self.done + self.skipped);
        let (queue, to) = (&self.queue, self.to.as_ref());
        self.bar.suspend(|| {
            for (id, why) in skipped {
                note(format!("message {id} was skipped: {why}"));
            }
            if !self.session.out.is_json() {
                return Ok(());
            }
            let done = done.iter().map(|id| Row { id: *id, queue, outcome, to });
            let skipped = skipped.iter().map(|(id, why)| Row { id: *id, queue, outcome: skip_name(*why), to: None });
            self.session.out.rows(done.chain(skipped).map(|row| (row, "")))
        })
    }

    fn note_if_nothing(&self, chosen: &Chosen) {
        if let Chosen::Filter(filter) = chosen
            && self.done + self.skipped == 0
        {
            note_none_found(&self.queue, filter);
        }
    }

    /// Prints the total; fails if messages were skipped.
    fn end(self, verb: &str) -> Result<(), Failure> {
        self.bar.finish_and_clear();
        if !self.session.out.is_json() {
            let target = self.to.as_ref().map_or_else(String::new, |to| format!(" to '{to}'"));
            let (one, several) = (format!("dead letter {verb}{target}"), format!("dead letters {verb}{target}"));
            self.session.out.text(&format!("{}\n", counted(self.done, &one, &several)))?;
        }
        match self.skipped {
            0 => Ok(()),
            skipped => {
                note(counted(skipped, "message was skipped", "messages were skipped"));
                Err(Failure::Reported)
            }
        }
    }

    /// Notes what was done before a page failed.
    fn stopped(&self, failure: Failure, verb: &str) -> Failure {
        self.bar.finish_and_clear();
        if self.done > 0 {
            note(format!("{} {verb} before this failed:", counted(self.done, "dead letter was", "dead letters were")));
        }
        failure
    }
}

fn skip_name(why: RedriveSkip) -> &'static str {
    match why {
        RedriveSkip::Leased => "leased",
        RedriveSkip::DedupKeyTaken => "dedup_key_taken",
        RedriveSkip::NotFound => "not_found",
    }
}

pub(super) async fn redrive(global: &Global, command: Redrive) -> Result<(), Failure> {
    let chosen = command.selection.chosen()?;
    let session = global.connect().await?;
    let target = command.to.clone().unwrap_or_else(|| command.queue.origin());
    must_exist(&session, &command.queue).await?;
    let mut progress = Progress::begin(&session, command.queue.origin(), Some(target));
    let (outcome, verb) =
        if command.dry_run { ("would_redrive", "would be redriven") } else { ("redriven", "redriven") };
    if command.dry_run
        && let Some(selection) = chosen.selection()
    {
        // One call, so that the answer is of one moment.
        let report = call_redrive(&session, &command.queue, command.to.as_ref(), selection, true).await?;
        progress.report(&report.redriven, outcome, &report.skipped)?;
        progress.note_if_nothing(&chosen);
        let result = progress.end(verb);
        return session.close().await.and(result);
    }
    let mut pages = Pages::begin(&session, &command.queue, chosen.clone()).await?;
    progress.bar.set_length(pages.max());
    loop {
        let page = match pages.next_ids().await {
            Ok(Some(ids)) => call_redrive(&session, &command.queue, command.to.as_ref(), ids, command.dry_run).await,
            Ok(None) => break,
            Err(failure) => Err(failure),
        };
        let report = page.map_err(|failure| progress.stopped(failure, "redriven"))?;
        progress.report(&report.redriven, outcome, &report.skipped)?;
    }
    progress.note_if_nothing(&chosen);
    let result = progress.end(verb);
    session.close().await.and(result)
}

async fn call_redrive(
    session: &Session,
    queue: &QueueName,
    to: Option<&QueueName>,
    selection: DeadLetterSelection,
    dry_run: bool,
) -> Result<RedriveReport, Failure> {
    let redrive = postrider::Redrive { selection, to: to.cloned(), dry_run };
    let deadline = if dry_run { Deadline::never() } else { Deadline::default() };
    Ok(session.provider.redrive_dead_letters(queue, &redrive, deadline).await?)
}

pub(super) async fn purge(global: &Global, command: Purge) -> Result<(), Failure> {
    let chosen = command.selection.chosen()?;
    let session = global.connect().await?;
    must_exist(&session, &command.queue).await?;
    if !command.dry_run && should_ask(command.yes) {
        let letters = counted(count(&session, &command.queue, &chosen).await?, "dead letter", "dead letters");
        confirm(&format!("Remove {letters} of '{}' for good?", command.queue.origin()), command.yes)?;
    }
    let mut progress = Progress::begin(&session, command.queue.origin(), None);
    let mut pages = Pages::begin(&session, &command.queue, chosen.clone()).await?;
    progress.bar.set_length(pages.max());
    loop {
        let page = match pages.next_ids().await {
            Ok(Some(ids)) => purge_page(&session, &command.queue, ids, command.dry_run).await,
            Ok(None) => break,
            Err(failure) => Err(failure),
        };
        let (gone, skipped) = page.map_err(|failure| progress.stopped(failure, "removed"))?;
        progress.report(&gone, if command.dry_run { "would_purge" } else { "purged" }, &skipped)?;
    }
    progress.note_if_nothing(&chosen);
    let result = progress.end(if command.dry_run { "would be removed" } else { "removed" });
    session.close().await.and(result)
}

/// Removes a page. A purge returns only a count, so if it is too low the rest is looked up.
async fn purge_page(
    session: &Session,
    queue: &QueueName,
    selection: DeadLetterSelection,
    dry_run: bool,
) -> Result<(Vec<MessageId>, Vec<(MessageId, RedriveSkip)>), Failure> {
    let DeadLetterSelection::Ids(ids) = &selection else { return Ok(Default::default()) };
    let dead: HashSet<_> = still_dead(session, queue, ids).await?.into_iter().collect();
    let mut skipped: Vec<_> =
        ids.iter().filter(|id| !dead.contains(id)).map(|id| (*id, RedriveSkip::NotFound)).collect();
    let mut gone: Vec<_> = ids.iter().filter(|id| dead.contains(id)).copied().collect();
    if !dry_run {
        let purged = session.provider.purge_dead_letters(queue, &selection, Deadline::default()).await?;
        if purged < gone.len() as u64 {
            let left: HashSet<_> = still_dead(session, queue, &gone).await?.into_iter().collect();
            skipped.extend(gone.iter().filter(|id| left.contains(id)).map(|id| (*id, RedriveSkip::Leased)));
            gone.retain(|id| !left.contains(id));
        }
    }
    Ok((gone, skipped))
}

/// Counts the selected dead letters, for the confirmation.
async fn count(session: &Session, queue: &QueueName, chosen: &Chosen) -> Result<u64, Failure> {
    let mut pages = Pages::begin(session, queue, chosen.clone()).await?;
    let mut count = 0;
    while let Some(DeadLetterSelection::Ids(ids)) = pages.next_ids().await? {
        count += match chosen {
            Chosen::Ids(_) => still_dead(session, queue, &ids).await?.len() as u64,
            Chosen::Filter(_) => ids.len() as u64,
        };
    }
    Ok(count)
}
