//! The selection of dead letters on the command line.

use clap::builder::NonEmptyStringValueParser;
use postrider::dead_letter::filter::DeadLetterFilter;
use postrider::{DeadLetterQuery, DeadLetterSelection, DeadLetters, Deadline, MessageId, QueueAdmin, QueueName};

use crate::failure::Failure;
use crate::output::note;
use crate::session::Session;
use crate::text::one_line;
use crate::values::{self, Since};

/// Dead letters of one page. Small, because a page has the bodies, and a body may have a megabyte.
pub(super) const PAGE: usize = 100;

#[derive(Debug, clap::Args)]
pub(super) struct Selection {
    /// Ids of the messages
    #[arg(value_name = "ID", value_parser = values::id, conflicts_with_all = ["all", "Filter"])]
    ids: Vec<MessageId>,

    /// Every dead letter of the queue
    #[arg(long, conflicts_with = "Filter")]
    all: bool,

    #[command(flatten)]
    filter: Filter,
}

/// Conditions on dead letters; all given ones must match.
#[derive(Debug, clap::Args)]
pub(super) struct Filter {
    /// Only dead letters with this reason
    #[arg(long, value_parser = NonEmptyStringValueParser::new())]
    reason: Option<String>,

    /// Only dead letters whose error contains this text; upper and lower case are equal
    #[arg(long, value_name = "TEXT", value_parser = NonEmptyStringValueParser::new())]
    error_contains: Option<String>,

    /// Only dead letters with this kind of error, as 'dlq groups' shows it
    #[arg(long, value_name = "KIND", value_parser = NonEmptyStringValueParser::new())]
    fingerprint: Option<String>,

    /// Only messages dead-lettered at or after WHEN: an age like 2h or 3d, or a time like 2026-03-01T09:30:00Z
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

/// The selected dead letters.
#[derive(Debug, Clone)]
pub(super) enum Chosen {
    Ids(Vec<MessageId>),
    Filter(DeadLetterFilter),
}

impl Chosen {
    /// The selection for the store; `None` if the store cannot evaluate the filter.
    pub(super) fn selection(&self) -> Option<DeadLetterSelection> {
        match self {
            Self::Ids(ids) => Some(DeadLetterSelection::Ids(ids.clone())),
            Self::Filter(filter) => filter.is_selection().then(|| filter.selection()),
        }
    }
}

impl Selection {
    /// Returns the selection; fails if no option is given, which does not mean all.
    pub(super) fn chosen(self) -> Result<Chosen, Failure> {
        if !self.ids.is_empty() {
            return Ok(Chosen::Ids(self.ids));
        }
        let filter = DeadLetterFilter::from(self.filter);
        if !self.all && filter == DeadLetterFilter::default() {
            return Err(Failure::usage("no dead letters are selected; pass their ids, --reason REASON or --all"));
        }
        Ok(Chosen::Filter(filter))
    }
}

/// Notes that the filter matches nothing: its value may be mistyped.
pub(super) fn note_none_found(queue: &QueueName, filter: &DeadLetterFilter) {
    let queue = queue.origin();
    let what = match &filter.reason {
        _ if *filter == DeadLetterFilter::default() => return,
        Some(reason) if filter.is_selection() => format!("has the reason '{}'", one_line(reason.as_str())),
        _ => "matches these options".to_owned(),
    };
    note(format!("no dead letter of '{queue}' {what}; 'postrider dlq list {queue}' shows them all"));
}

/// The ids of a selection, page by page.
pub(super) struct Pages<'a> {
    session: &'a Session,
    queue: &'a QueueName,
    rest: Rest,
    max: u64,
}

enum Rest {
    Ids(std::vec::IntoIter<MessageId>),
    Found { filter: Box<DeadLetterFilter>, query: DeadLetterQuery, left: u64 },
    Nothing,
}

impl<'a> Pages<'a> {
    pub(super) async fn begin(session: &'a Session, queue: &'a QueueName, chosen: Chosen) -> Result<Self, Failure> {
        let (rest, max) = match chosen {
            Chosen::Ids(mut ids) => {
                let mut seen = std::collections::HashSet::new();
                ids.retain(|id| seen.insert(*id));
                let max = ids.len() as u64;
                (Rest::Ids(ids.into_iter()), max)
            }
            Chosen::Filter(filter) => {
                // Bounded by the count at the start: otherwise messages that die again meanwhile would be selected
                // again, for ever.
                let stats = session.provider.queue_stats(&queue.origin(), Deadline::default()).await?;
                let left = stats.dead.value().unwrap_or(u64::MAX);
                let query = DeadLetterQuery { selection: filter.selection(), limit: PAGE, after: None };
                (Rest::Found { filter: Box::new(filter), query, left }, left)
            }
        };
        Ok(Self { session, queue, rest, max })
    }

    /// Upper bound of the number of selected dead letters.
    pub(super) fn max(&self) -> u64 {
        self.max
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
                    let selected = page.summaries.into_iter().filter(|summary| filter.includes_summary(summary));
                    let ids = selected.map(|summary| summary.id).collect();
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

/// Returns those of the messages that are dead letters.
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
