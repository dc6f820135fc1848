//! The selection of waiting messages on the command line.

use std::collections::HashMap;

use postrider::{
    Deadline, Key, MessageId, PeekQuery, PeekedMessage, QueueAdmin, QueueName, Timestamp, WaitingFilter, WaitingState,
};

use crate::failure::Failure;
use crate::session::Session;
use crate::values::{self, Since};

/// Messages of one page, bodies included.
const PAGE: usize = 100;

#[derive(Debug, clap::Args)]
pub(super) struct Choice {
    /// The queue
    #[arg(value_parser = values::waiting_queue)]
    pub(super) queue: QueueName,

    /// Ids of the messages
    #[arg(value_name = "ID", value_parser = values::id, conflicts_with_all = ["all", "state", "key", "header", "since", "before"])]
    ids: Vec<MessageId>,

    /// Every waiting message that matches the other options
    #[arg(long)]
    all: bool,

    /// Only messages in this state: ready (can be received) or delayed (not due yet, or waiting for a retry)
    #[arg(long, value_parser = values::waiting_state)]
    state: Option<WaitingState>,

    /// Only messages with this ordering key
    #[arg(long, value_name = "KEY", value_parser = values::key)]
    key: Option<Key>,

    /// Only messages with this header
    #[arg(long, value_name = "NAME=VALUE", value_parser = values::header)]
    header: Option<(String, String)>,

    /// Only messages enqueued at or after WHEN: an age like 2h or 3d, or a time like 2026-03-01T09:30:00Z
    #[arg(long, value_name = "WHEN", value_parser = values::since, allow_hyphen_values = true)]
    since: Option<Since>,

    /// Only messages enqueued before WHEN: an age, or a time
    #[arg(long, value_name = "WHEN", value_parser = values::since, allow_hyphen_values = true)]
    before: Option<Since>,

    /// Show what would be done, and change nothing
    #[arg(long)]
    pub(super) dry_run: bool,

    /// Do not ask for confirmation
    #[arg(long)]
    pub(super) yes: bool,
}

/// A selected message, and why it must be skipped, if so.
pub(super) type Selected = (MessageId, Option<Skip>);

/// Why a message is skipped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Skip {
    Leased,
    NotFound,
}

impl Choice {
    /// Whether the messages are selected by a filter. Fails without ids, filter and `--all`, which does not mean all.
    pub(super) fn is_bulk(&self) -> Result<bool, Failure> {
        let nothing = self.state.is_none() && self.key.is_none() && self.header.is_none();
        match self.ids.is_empty() {
            true if !self.all && nothing && self.since.is_none() && self.before.is_none() => {
                Err(Failure::usage("no messages are selected; pass their ids, a filter like --key KEY, or --all"))
            }
            is_bulk => Ok(is_bulk),
        }
    }

    fn filter(&self) -> WaitingFilter {
        let time = |when: Option<Since>| {
            when.map(|when| match when {
                Since::At(time) => time,
                Since::Ago(age) => Timestamp::now().saturating_sub(age),
            })
        };
        WaitingFilter {
            state: self.state,
            ordering_key: self.key.as_ref().map(|key| key.as_str().to_owned()),
            header: self.header.clone(),
            since: time(self.since),
            before: time(self.before),
        }
    }

    /// The selected messages in send order; ids are kept in their given order, each once.
    pub(super) async fn select(&self, session: &Session) -> Result<Vec<Selected>, Failure> {
        if self.ids.is_empty() {
            let (filter, now) = (self.filter(), Timestamp::now());
            let mut selected = Vec::new();
            each(session, &self.queue, |message| {
                if filter.chooses(message, now) {
                    selected.push((message.id, None));
                }
            })
            .await?;
            return Ok(selected);
        }
        let mut seen = std::collections::HashSet::new();
        let ids = self.ids.iter().copied().filter(|id| seen.insert(*id));
        if !self.dry_run {
            return Ok(ids.map(|id| (id, None)).collect());
        }
        let (mut found, now) = (HashMap::new(), Timestamp::now());
        each(session, &self.queue, |message| {
            let is_leased = WaitingState::of(message, now) == WaitingState::InFlight;
            found.entry(message.id).or_insert(is_leased.then_some(Skip::Leased));
        })
        .await?;
        Ok(ids.map(|id| (id, found.get(&id).copied().unwrap_or(Some(Skip::NotFound)))).collect())
    }
}

/// Calls `visit` with the messages of a queue, in send order. Bounded by the count at the start: otherwise a fast sender
/// would keep it running.
async fn each(session: &Session, queue: &QueueName, mut visit: impl FnMut(&PeekedMessage)) -> Result<(), Failure> {
    let stats = session.provider.queue_stats(queue, Deadline::default()).await?;
    let mut left = stats.message_count().unwrap_or(u64::MAX);
    let mut query = PeekQuery { limit: PAGE, after: None };
    loop {
        let page = session.provider.peek_page(queue, &query, Deadline::default()).await?;
        page.messages.iter().for_each(&mut visit);
        left = left.saturating_sub(page.messages.len() as u64);
        query.after = page.next;
        if left == 0 || query.after.is_none() {
            return Ok(());
        }
    }
}
