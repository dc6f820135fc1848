//! Which waiting messages a command is about.

use std::collections::HashMap;

use postrider::{
    Deadline, Key, MessageId, PeekQuery, PeekedMessage, QueueAdmin, QueueName, Timestamp, WaitingFilter, WaitingState,
};

use crate::failure::Failure;
use crate::session::Session;
use crate::values::{self, Since};

/// Messages that are read at a time. Their bodies come with them.
const PAGE: usize = 100;

#[derive(Debug, clap::Args)]
pub(super) struct Choice {
    /// The queue
    #[arg(value_parser = values::waiting_queue)]
    pub(super) queue: QueueName,

    /// The messages
    #[arg(value_name = "ID", value_parser = values::id, conflicts_with_all = ["all", "state", "key", "header", "since", "before"])]
    ids: Vec<MessageId>,

    /// Every waiting message, or every one that is left by what else is said
    #[arg(long)]
    all: bool,

    /// Only those that can be received (ready), or only those that wait for their time or a retry (delayed)
    #[arg(long, value_parser = values::waiting_state)]
    state: Option<WaitingState>,

    /// Only those with this ordering key
    #[arg(long, value_name = "KEY", value_parser = values::key)]
    key: Option<Key>,

    /// Only those with this header
    #[arg(long, value_name = "NAME=VALUE", value_parser = values::header)]
    header: Option<(String, String)>,

    /// Only those that were enqueued since then: how long ago, like 2h or 3d, or a time like 2026-03-01T09:30:00Z
    #[arg(long, value_name = "WHEN", value_parser = values::since, allow_hyphen_values = true)]
    since: Option<Since>,

    /// Only those that were enqueued before: how long ago, or a time
    #[arg(long, value_name = "WHEN", value_parser = values::since, allow_hyphen_values = true)]
    before: Option<Since>,

    /// Only tell what would be done
    #[arg(long)]
    pub(super) dry_run: bool,

    /// Do not ask
    #[arg(long)]
    pub(super) yes: bool,
}

/// A message that is meant, and why nothing can be done with it.
pub(super) type Meant = (MessageId, Option<Stays>);

/// Why a message stays as it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Stays {
    Leased,
    NotFound,
}

impl Choice {
    /// Whether the messages are chosen by what they have in common. Nothing is not everything.
    pub(super) fn is_bulk(&self) -> Result<bool, Failure> {
        let nothing = self.state.is_none() && self.key.is_none() && self.header.is_none();
        match self.ids.is_empty() {
            true if !self.all && nothing && self.since.is_none() && self.before.is_none() => Err(Failure::usage(
                "no messages are chosen; name them by their ids, or say --all, or what they have in common, like --key KEY",
            )),
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

    /// The messages that are meant, in send order; named ones in the order of their names, each once.
    pub(super) async fn meant(&self, session: &Session) -> Result<Vec<Meant>, Failure> {
        if self.ids.is_empty() {
            let (filter, now) = (self.filter(), Timestamp::now());
            let mut meant = Vec::new();
            each(session, &self.queue, |message| {
                if filter.chooses(message, now) {
                    meant.push((message.id, None));
                }
            })
            .await?;
            return Ok(meant);
        }
        let mut seen = std::collections::HashSet::new();
        let ids = self.ids.iter().copied().filter(|id| seen.insert(*id));
        if !self.dry_run {
            return Ok(ids.map(|id| (id, None)).collect());
        }
        let (mut found, now) = (HashMap::new(), Timestamp::now());
        each(session, &self.queue, |message| {
            let is_leased = WaitingState::of(message, now) == WaitingState::InFlight;
            found.entry(message.id).or_insert(is_leased.then_some(Stays::Leased));
        })
        .await?;
        Ok(ids.map(|id| (id, found.get(&id).copied().unwrap_or(Some(Stays::NotFound)))).collect())
    }
}

/// Calls `see` with the messages of a queue, in send order: no more than there are when it begins, or a sender kept it
/// running.
async fn each(session: &Session, queue: &QueueName, mut see: impl FnMut(&PeekedMessage)) -> Result<(), Failure> {
    let stats = session.provider.queue_stats(queue, Deadline::default()).await?;
    let mut left = stats.message_count().unwrap_or(u64::MAX);
    let mut query = PeekQuery { limit: PAGE, after: None };
    loop {
        let page = session.provider.peek_page(queue, &query, Deadline::default()).await?;
        page.messages.iter().for_each(&mut see);
        left = left.saturating_sub(page.messages.len() as u64);
        query.after = page.next;
        if left == 0 || query.after.is_none() {
            return Ok(());
        }
    }
}
