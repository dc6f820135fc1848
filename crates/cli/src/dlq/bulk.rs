//! `postrider dlq redrive` and `purge`
//!
//! Both go page by page: what is done is printed while the rest is still under way, and after a failure it is known how
//! far it came.

use std::collections::HashSet;

use indicatif::ProgressBar;
use postrider::{DeadLetterSelection, DeadLetters, Deadline, MessageId, QueueName, RedriveReport, RedriveSkip};
use serde::Serialize;

use super::selection::{Chosen, Pages, Selection, note_none_found, still_dead};
use crate::args::Global;
use crate::confirm::{asks, confirm};
use crate::failure::Failure;
use crate::output::note;
use crate::progress;
use crate::queues::must_exist;
use crate::session::Session;
use crate::text::counted;
use crate::values;

/// Bring dead letters back to life
///
/// They keep their ids, their counts begin anew, and they join the end of the queue that they died in.
#[derive(Debug, clap::Args)]
pub(super) struct Redrive {
    /// The queue
    #[arg(value_parser = values::readable_queue)]
    queue: QueueName,

    #[command(flatten)]
    selection: Selection,

    /// Bring them to this queue instead
    #[arg(long, value_name = "QUEUE", value_parser = values::queue)]
    to: Option<QueueName>,

    /// Only tell what would be done
    #[arg(long)]
    dry_run: bool,
}

/// Remove dead letters
///
/// Asks first when stdin is a terminal.
#[derive(Debug, clap::Args)]
pub(super) struct Purge {
    /// The queue
    #[arg(value_parser = values::readable_queue)]
    queue: QueueName,

    #[command(flatten)]
    selection: Selection,

    /// Only tell what would be done
    #[arg(long)]
    dry_run: bool,

    /// Do not ask
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

/// What has been told so far.
struct Progress<'a> {
    session: &'a Session,
    queue: QueueName,
    to: Option<QueueName>,
    bar: ProgressBar,
    done: u64,
    stayed: u64,
}

impl<'a> Progress<'a> {
    fn begin(session: &'a Session, queue: QueueName, to: Option<QueueName>) -> Self {
        Self { session, queue, to, bar: progress::bar("dead letters"), done: 0, stayed: 0 }
    }

    fn tell(
        &mut self,
        done: &[MessageId],
        outcome: &'static str,
        stayed: &[(MessageId, RedriveSkip)],
    ) -> Result<(), Failure> {
        self.done += done.len() as u64;
        self.stayed += stayed.len() as u64;
        self.bar.set_position(self.done + self.stayed);
        let (queue, to) = (&self.queue, self.to.as_ref());
        self.bar.suspend(|| {
            for (id, why) in stayed {
                note(format!("message {id} was left as it is: {why}"));
            }
            if !self.session.out.is_json() {
                return Ok(());
            }
            let done = done.iter().map(|id| Row { id: *id, queue, outcome, to });
            let stayed = stayed.iter().map(|(id, why)| Row { id: *id, queue, outcome: skip_name(*why), to: None });
            self.session.out.rows(done.chain(stayed).map(|row| (row, "")))
        })
    }

    fn note_if_nothing(&self, chosen: &Chosen) {
        if let Chosen::Filter(filter) = chosen
            && self.done + self.stayed == 0
        {
            note_none_found(&self.queue, filter);
        }
    }

    /// The last line, and whether all was done.
    fn end(self, verb: &str) -> Result<(), Failure> {
        self.bar.finish_and_clear();
        if !self.session.out.is_json() {
            let target = self.to.as_ref().map_or_else(String::new, |to| format!(" to '{to}'"));
            let (one, several) = (format!("dead letter {verb}{target}"), format!("dead letters {verb}{target}"));
            self.session.out.text(&format!("{}\n", counted(self.done, &one, &several)))?;
        }
        match self.stayed {
            0 => Ok(()),
            stayed => {
                note(counted(stayed, "message was left as it is", "messages were left as they are"));
                Err(Failure::Told)
            }
        }
    }

    /// What is said when a page failed.
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
    let (outcome, verb) = if command.dry_run { ("would_redrive", "would go back") } else { ("redriven", "went back") };
    if command.dry_run
        && let Some(selection) = chosen.selection()
    {
        // In one look, so that what it tells belongs to one moment.
        let report = call_redrive(&session, &command.queue, command.to.as_ref(), selection, true).await?;
        progress.tell(&report.redriven, outcome, &report.skipped)?;
        progress.note_if_nothing(&chosen);
        let result = progress.end(verb);
        return session.close().await.and(result);
    }
    let mut pages = Pages::begin(&session, &command.queue, chosen.clone()).await?;
    progress.bar.set_length(pages.most());
    loop {
        let page = match pages.next_ids().await {
            Ok(Some(ids)) => call_redrive(&session, &command.queue, command.to.as_ref(), ids, command.dry_run).await,
            Ok(None) => break,
            Err(failure) => Err(failure),
        };
        let report = page.map_err(|failure| progress.stopped(failure, "brought back"))?;
        progress.tell(&report.redriven, outcome, &report.skipped)?;
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
    if !command.dry_run && asks(command.yes) {
        let letters = counted(count(&session, &command.queue, &chosen).await?, "dead letter", "dead letters");
        confirm(&format!("Remove {letters} of '{}' for good?", command.queue.origin()), command.yes)?;
    }
    let mut progress = Progress::begin(&session, command.queue.origin(), None);
    let mut pages = Pages::begin(&session, &command.queue, chosen.clone()).await?;
    progress.bar.set_length(pages.most());
    loop {
        let page = match pages.next_ids().await {
            Ok(Some(ids)) => purge_page(&session, &command.queue, ids, command.dry_run).await,
            Ok(None) => break,
            Err(failure) => Err(failure),
        };
        let (gone, stayed) = page.map_err(|failure| progress.stopped(failure, "removed"))?;
        progress.tell(&gone, if command.dry_run { "would_purge" } else { "purged" }, &stayed)?;
    }
    progress.note_if_nothing(&chosen);
    let result = progress.end(if command.dry_run { "would be removed" } else { "removed" });
    session.close().await.and(result)
}

/// Removes a page. A purge answers only how many went, so what stays is looked for when it is not all of them.
async fn purge_page(
    session: &Session,
    queue: &QueueName,
    selection: DeadLetterSelection,
    dry_run: bool,
) -> Result<(Vec<MessageId>, Vec<(MessageId, RedriveSkip)>), Failure> {
    let DeadLetterSelection::Ids(ids) = &selection else { return Ok(Default::default()) };
    let dead: HashSet<_> = still_dead(session, queue, ids).await?.into_iter().collect();
    let mut stayed: Vec<_> =
        ids.iter().filter(|id| !dead.contains(id)).map(|id| (*id, RedriveSkip::NotFound)).collect();
    let mut gone: Vec<_> = ids.iter().filter(|id| dead.contains(id)).copied().collect();
    if !dry_run {
        let purged = session.provider.purge_dead_letters(queue, &selection, Deadline::default()).await?;
        if purged < gone.len() as u64 {
            let left: HashSet<_> = still_dead(session, queue, &gone).await?.into_iter().collect();
            stayed.extend(gone.iter().filter(|id| left.contains(id)).map(|id| (*id, RedriveSkip::Leased)));
            gone.retain(|id| !left.contains(id));
        }
    }
    Ok((gone, stayed))
}

/// How many dead letters are meant, for the question.
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
