//! Which dead letters a command is about.

use clap::builder::NonEmptyStringValueParser;
use postrider::dead_letter::filter::DeadLetterFilter;
use postrider::{DeadLetterQuery, DeadLetterSelection, DeadLetters, Deadline, MessageId, QueueAdmin, QueueName};

use crate::failure::Failure;
use crate::output::note;
use crate::session::Session;
use crate::text::one_line;
use crate::values::{self, Since};

/// So many dead letters are read at a time. Their bodies come with them, and a body may have a megabyte.
pub(super) const PAGE: usize = 100;

#[derive(Debug, clap::Args)]
pub(super) struct Selection {
    /// The messages
    #[arg(value_name = "ID", value_parser = values::id, conflicts_with_all = ["all", "Filter"])]
    ids: Vec<MessageId>,

    /// Every dead letter of the queue
    #[arg(long, conflicts_with = "Filter")]
    all: bool,

    #[command(flatten)]
    filter: Filter,
}

/// What dead letters have in common. Those are meant of which everything holds that is said.
#[derive(Debug, clap::Args)]
pub(super) struct Filter {
    /// Only those that died for this reason
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    reason: Option<String>,

    /// Only those whose error contains this text, in any case
    #[arg(long, value_name = "TEXT", value_parser = NonEmptyStringValueParser::new())]
    error_contains: Option<String>,

    /// Only those whose error is of this kind, as 'dlq groups' shows it
    #[arg(long, value_name = "KIND", value_parser = NonEmptyStringValueParser::new())]
    fingerprint: Option<String>,

    /// Only those that died since then: how long ago, like 2h or 3d, or a time like 2026-03-01T09:30:00Z
    #[arg(long, value_name = "WHEN", value_parser = values::since, allow_hyphen_values = true)]
    since: Option<Since>,
}

impl From<Filter> for DeadLetterFilter {
    fn from(filter: Filter) -> Self {
        let Filter { reason, error_contains, fingerprint, since } = filter;
        let (reason, since) = (reason.map(Into::into), since.map(Since::time));
        Self { reason, error_contains, fingerprint, since, ..Self::default() }
    }
}

/// The dead letters that a command is about.
#[derive(Debug, Clone)]
pub(super) enum Chosen {
    /// These.
    Ids(Vec<MessageId>),
    /// Those that a filter leaves.
    Filter(DeadLetterFilter),
}

impl Chosen {
    /// The same as a store chooses; `None` where it cannot.
    pub(super) fn selection(&self) -> Option<DeadLetterSelection> {
        match self {
            Self::Ids(ids) => Some(DeadLetterSelection::Ids(ids.clone())),
            Self::Filter(filter) => filter.is_selection().then(|| filter.selection()),
        }
    }
}

impl Selection {
    /// What was chosen. Nothing is not everything.
    pub(super) fn chosen(self) -> Result<Chosen, Failure> {
        if !self.ids.is_empty() {
            return Ok(Chosen::Ids(self.ids));
        }
        let filter = DeadLetterFilter::from(self.filter);
        if !self.all && filter == DeadLetterFilter::default() {
            return Err(Failure::usage(
                "no dead letters are chosen; name them by their ids, or say --reason REASON or --all",
            ));
        }
        Ok(Chosen::Filter(filter))
    }
}

/// What was looked for and is not there may be written wrongly.
pub(super) fn note_none_found(queue: &QueueName, filter: &DeadLetterFilter) {
    let queue = queue.origin();
    let what = match &filter.reason {
        _ if *filter == DeadLetterFilter::default() => return,
        Some(reason) if filter.is_selection() => format!("has the reason '{}'", one_line(reason.as_str())),
        _ => "is meant by these options".to_owned(),
    };
    note(format!("no dead letter of '{queue}' {what}; 'postrider dlq list {queue}' shows them all"));
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
    Found { filter: Box<DeadLetterFilter>, query: DeadLetterQuery, left: u64 },
    Nothing,
}

impl<'a> Pages<'a> {
    pub(super) async fn begin(session: &'a Session, queue: &'a QueueName, chosen: Chosen) -> Result<Self, Failure> {
        let (rest, most) = match chosen {
            Chosen::Ids(mut ids) => {
                let mut seen = std::collections::HashSet::new();
                ids.retain(|id| seen.insert(*id));
                let most = ids.len() as u64;
                (Rest::Ids(ids.into_iter()), most)
            }
            Chosen::Filter(filter) => {
                // A message that dies anew while this runs is not chosen again, or a broken handler kept it running.
                let stats = session.provider.queue_stats(&queue.origin(), Deadline::default()).await?;
                let left = stats.dead.value().unwrap_or(u64::MAX);
                let query = DeadLetterQuery { selection: filter.selection(), limit: PAGE, after: None };
                (Rest::Found { filter: Box::new(filter), query, left }, left)
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
        loop {
            let (ids, is_over): (Vec<_>, bool) = match &mut self.rest {
                Rest::Ids(ids) => (ids.take(PAGE).collect(), true),
                Rest::Found { left: 0, .. } | Rest::Nothing => (Vec::new(), true),
                Rest::Found { filter, query, left } => {
                    query.limit = usize::try_from(*left).unwrap_or(usize::MAX).min(PAGE);
                    let provider = &self.session.provider;
                    let page = provider.list_dead_letter_summaries(self.queue, query, Deadline::default()).await?;
                    *left -= (page.summaries.len() as u64).min(*left);
                    let meant = page.summaries.into_iter().filter(|summary| filter.includes_summary(summary));
                    let ids = meant.map(|summary| summary.id).collect();
                    let is_over = page.next.is_none();
                    match page.next {
                        Some(cursor) => query.after = Some(cursor),
                        None => self.rest = Rest::Nothing,
                    }
                    (ids, is_over)
                }
            };
            if !ids.is_empty() {
                return Ok(Some(DeadLetterSelection::Ids(ids)));
            }
            if is_over {
                return Ok(None);
            }
        }
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
