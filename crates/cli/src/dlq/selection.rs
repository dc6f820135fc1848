//! Which dead letters a command is about.

use postrider::{DeadLetterQuery, DeadLetterSelection, DeadLetters, Deadline, MessageId, QueueAdmin, QueueName};

use crate::failure::Failure;
use crate::output::note;
use crate::session::Session;
use crate::text::one_line;
use crate::values;

/// So many dead letters are read at a time. Their bodies come with them, and a body may have a megabyte.
pub(super) const PAGE: usize = 100;

#[derive(Debug, clap::Args)]
pub(super) struct Selection {
    /// The messages
    #[arg(value_name = "ID", value_parser = values::id, conflicts_with_all = ["all", "reason"])]
    ids: Vec<MessageId>,

    /// Every dead letter of the queue
    #[arg(long, conflicts_with = "reason")]
    all: bool,

    /// Those that died for this reason
    #[arg(long)]
    reason: Option<String>,
}

impl Selection {
    /// What was chosen. Nothing is not everything.
    pub(super) fn chosen(self) -> Result<DeadLetterSelection, Failure> {
        if self.ids.is_empty() && !self.all && self.reason.is_none() {
            return Err(Failure::usage(
                "no dead letters are chosen; name them by their ids, or say --reason REASON or --all",
            ));
        }
        Ok(if self.ids.is_empty() { by_reason(self.reason) } else { DeadLetterSelection::Ids(self.ids) })
    }
}

/// Those of a reason; without one, all.
pub(super) fn by_reason(reason: Option<String>) -> DeadLetterSelection {
    reason.map_or(DeadLetterSelection::All, |reason| DeadLetterSelection::Reason(reason.into()))
}

/// A reason that nobody died for may be written wrongly.
pub(super) fn note_none_of_reason(queue: &QueueName, selection: &DeadLetterSelection) {
    if let DeadLetterSelection::Reason(reason) = selection {
        let (queue, reason) = (queue.origin(), one_line(reason.as_str()));
        note(format!(
            "no dead letter of '{queue}' has the reason '{reason}'; 'postrider dlq list {queue}' shows them all"
        ));
    }
}

/// A selection, page by page, as ids.
pub(super) struct Pages<'a> {
    session: &'a Session,
    queue: &'a QueueName,
    rest: Rest,
    most: u64,
}

enum Rest {
    Ids(std::vec::IntoIter<MessageId>),
    Found { query: DeadLetterQuery, left: u64 },
    Nothing,
}

impl<'a> Pages<'a> {
    pub(super) async fn begin(
        session: &'a Session,
        queue: &'a QueueName,
        selection: DeadLetterSelection,
    ) -> Result<Self, Failure> {
        let (rest, most) = match selection {
            DeadLetterSelection::Ids(mut ids) => {
                let mut seen = std::collections::HashSet::new();
                ids.retain(|id| seen.insert(*id));
                let most = ids.len() as u64;
                (Rest::Ids(ids.into_iter()), most)
            }
            selection => {
                // A message that dies anew while this runs is not chosen again, or a broken handler kept it running.
                let stats = session.provider.queue_stats(&queue.origin(), Deadline::default()).await?;
                let left = stats.dead.value().unwrap_or(u64::MAX);
                (Rest::Found { query: DeadLetterQuery { selection, limit: PAGE, after: None }, left }, left)
            }
        };
        Ok(Self { session, queue, rest, most })
    }

    /// No more dead letters than this are meant.
    pub(super) fn most(&self) -> u64 {
        self.most
    }

    /// The next page; `None` at the end.
    pub(super) async fn next_ids(&mut self) -> Result<Option<DeadLetterSelection>, Failure> {
        let ids: Vec<_> = match &mut self.rest {
            Rest::Ids(ids) => ids.take(PAGE).collect(),
            Rest::Found { left: 0, .. } | Rest::Nothing => Vec::new(),
            Rest::Found { query, left } => {
                query.limit = usize::try_from(*left).unwrap_or(usize::MAX).min(PAGE);
                let page = self.session.provider.list_dead_letters(self.queue, query, Deadline::default()).await?;
                *left -= (page.letters.len() as u64).min(*left);
                match page.next {
                    Some(cursor) => query.after = Some(cursor),
                    None => self.rest = Rest::Nothing,
                }
                page.letters.into_iter().map(|letter| letter.id).collect()
            }
        };
        Ok((!ids.is_empty()).then_some(DeadLetterSelection::Ids(ids)))
    }
}

/// Which of the messages are among the dead letters.
pub(super) async fn still_dead(
    session: &Session,
    queue: &QueueName,
    ids: &[MessageId],
) -> Result<Vec<MessageId>, Failure> {
    let mut query = DeadLetterQuery { selection: DeadLetterSelection::Ids(ids.to_vec()), limit: PAGE, after: None };
    let mut dead = Vec::new();
    loop {
        let page = session.provider.list_dead_letters(queue, &query, Deadline::default()).await?;
        dead.extend(page.letters.into_iter().map(|letter| letter.id));
        match page.next {
            Some(cursor) => query.after = Some(cursor),
            None => return Ok(dead),
        }
    }
}
