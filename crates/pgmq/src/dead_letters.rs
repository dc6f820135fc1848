//! Dead letters: redrive, purge, edit.

use std::collections::HashSet;
use std::sync::Arc;

use postrider_core::{
    ArchivePolicy, DeadLetterEdit, DeadLetterSelection, Deadline, Message, MessageId, MessagingError, QueueName,
};
use postrider_core::{RedriveReport, RedriveSkip};
use postrider_provider::{DeadPart, Undone, persist};
use postrider_sql::stripes::{in_order, stripe};

use crate::Session;
use crate::codec::rewrite;
use crate::rows::{Dead, Json};
use crate::store::Shared;

/// What a redrive will do with each dead letter.
#[derive(Debug, Default)]
struct RedrivePlan {
    redriven: Vec<Dead>,
    skipped: Vec<(MessageId, RedriveSkip)>,
}

fn part_end(part: &DeadPart, chosen: &[Dead]) -> Option<i64> {
    part.next(chosen.len(), chosen.last().map(|dead| dead.msg_id))
}

fn plan(chosen: Vec<Dead>, mut taken: HashSet<String>) -> RedrivePlan {
    let mut plan = RedrivePlan::default();
    for dead in chosen {
        let key = dead.decoded.dedup_key.as_ref().map(|key| key.as_str().to_owned());
        if dead.is_leased {
            plan.skipped.push((dead.decoded.id, RedriveSkip::Leased));
        } else if key.is_some_and(|key| !taken.insert(key)) {
            plan.skipped.push((dead.decoded.id, RedriveSkip::DedupKeyTaken));
        } else {
            plan.redriven.push(dead);
        }
    }
    plan
}

impl Shared {
    /// Returns the dedup keys of dead letters that live messages of the target hold.
    async fn taken_keys(
        &self,
        session: &Session<'_>,
        chosen: &[Dead],
        target: &QueueName,
    ) -> Result<HashSet<String>, Undone> {
        let keys: Vec<&str> =
            chosen.iter().filter_map(|dead| dead.decoded.dedup_key.as_ref()).map(|key| key.as_str()).collect();
        Ok(self.living_holders(session, target, &keys).await?.into_keys().collect())
    }

    /// Returns what a redrive would do.
    pub(crate) async fn rehearse(&self, part: &DeadPart, target: &QueueName) -> Result<RedriveReport, Undone> {
        let chosen = self.select_dead("redrive", Deadline::default(), part).await?;
        let look = || async {
            let mut session = self.database.session("redrive", Deadline::default()).await?;
            session.begin().await?;
            let taken = self.taken_keys(&session, &chosen, target).await?;
            session.rollback().await?;
            Ok(taken)
        };
        let taken = self.if_exists(target, Deadline::default(), look).await?.unwrap_or_default();
        let plan = plan(chosen, taken);
        let redriven = plan.redriven.iter().map(|dead| dead.decoded.id).collect();
        Ok(RedriveReport { redriven, skipped: plan.skipped })
    }

    /// Redrives a part of a selection. Returns what was done and where the next part begins, if there is one.
    pub(crate) async fn redrive(
        &self,
        part: &DeadPart,
        target: &QueueName,
    ) -> Result<(RedriveReport, Option<i64>), Undone> {
        persist(|| self.try_redrive(part, target)).await
    }

    async fn try_redrive(&self, part: &DeadPart, target: &QueueName) -> Result<(RedriveReport, Option<i64>), Undone> {
        let mut chosen = self.select_dead("redrive", Deadline::default(), part).await?;
        let next = part_end(part, &chosen);
        chosen.retain(|dead| !part.revived.contains(&dead.decoded.id));
        if chosen.is_empty() {
            return Ok((RedriveReport::default(), next));
        }
        if !self.exists(target, Deadline::default()).await? {
            self.ensure_queue(target, Deadline::default()).await?;
        }
        self.ensure_dead_letters(target).await?;
        let keys = chosen.iter().flat_map(|dead| [&dead.decoded.ordering_key, &dead.decoded.dedup_key]);
        let stripes = in_order(keys.flatten().map(|key| stripe(target, key.as_str())).collect());
        let class = self.schema.lock_class();
        let statement = self.database.sql.redrive(&part.queue.origin(), target);
        let mut session = self.database.session("redrive", Deadline::default()).await?;
        session.begin().await?;
        if !stripes.is_empty() {
            session.query(&self.database.sql.general.lock_stripes, &[&class, &stripes]).await?;
        }
        let taken = self.taken_keys(&session, &chosen, target).await?;
        let plan = plan(chosen, taken);
        let mut report = RedriveReport { redriven: Vec::new(), skipped: plan.skipped };
        let rows: Vec<i64> = plan.redriven.iter().map(|dead| dead.msg_id).collect();
        let ids: Vec<String> = plan.redriven.iter().map(|dead| dead.decoded.id.to_string()).collect();
        let done = session.query(&statement, &[&rows, &ids, &target.as_str()]).await?;
        let done: HashSet<i64> = done.iter().map(|row| row.get("msg_id")).collect();
        session.commit().await?;
        for dead in &plan.redriven {
            match done.contains(&dead.msg_id) {
                true => report.redriven.push(dead.decoded.id),
                // A concurrent claim leased it.
                false => report.skipped.push((dead.decoded.id, RedriveSkip::Leased)),
            }
        }
        self.touch([target]);
        Ok((report, next))
    }

    /// Purges a part of a selection. Returns the number of purged messages and where the next part begins, if there is
    /// one.
    pub(crate) async fn purge_dead(&self, part: &DeadPart) -> Result<(u64, Option<i64>), Undone> {
        const PURGE: &str = "purge dead letters";
        let chosen = self.select_dead(PURGE, Deadline::default(), part).await?;
        let rows: Vec<i64> = chosen.iter().filter(|dead| !dead.is_leased).map(|dead| dead.msg_id).collect();
        let keeps = self.options.archive != ArchivePolicy::None;
        let sql = self.database.sql.of(&part.queue.origin());
        let purge = || async { self.ask(PURGE, Deadline::default(), &sql.purge_dead, vec![&rows, &keeps]).await };
        let gone = self.if_exists(&part.queue.dead_letters(), Deadline::default(), purge).await?.unwrap_or_default();
        let gone = gone.first().map_or(0, |row| row.get::<_, i64>(0).max(0).cast_unsigned());
        Ok((gone, part_end(part, &chosen)))
    }

    /// Edits the oldest dead letter with an id.
    pub(crate) async fn edit_dead(
        &self,
        queue: &QueueName,
        id: MessageId,
        edit: &DeadLetterEdit,
        deadline: Deadline,
    ) -> Result<(), Undone> {
        const EDIT: &str = "edit dead letter";
        let (sql, dead_queue) = (self.database.sql.of(&queue.origin()), queue.dead_letters());
        let not_found = || MessagingError::MessageNotFound { queue: queue.dead_letters(), id };
        let selection = DeadLetterSelection::Ids(vec![id]);
        let part = DeadPart { queue: queue.clone(), selection, after: 0, limit: 1, revived: Arc::default() };
        let found = self.select_dead(EDIT, deadline, &part).await?;
        let msg_id = found.first().ok_or_else(not_found)?.msg_id;
        let mut session = self.database.session(EDIT, deadline).await?;
        session.begin().await?;
        let locked = session.query(&sql.dead_for_edit, &[&msg_id]).await?;
        let locked = Dead::read_all(&dead_queue, &locked);
        let edited = match locked.into_iter().next() {
            None => Err(not_found()),
            Some(dead) if dead.is_leased => Err(MessagingError::MessageLeased { queue: dead_queue, id }),
            Some(dead) => edited(dead, edit, &self.capabilities.limits),
        };
        let (message, headers) = match edited {
            Ok(edited) => edited,
            Err(error) => {
                session.rollback().await?;
                return Err(error.into());
            }
        };
        session.query(&sql.edit_dead_letter, &[&msg_id, &Json(&message), &Json(&headers)]).await?;
        session.commit().await
    }
}

/// Returns the JSON and the headers of an edited dead letter. Refuses an edit after which it could not be sent.
fn edited(
    dead: Dead,
    edit: &DeadLetterEdit,
    limits: &postrider_core::Limits,
) -> Result<(String, String), MessagingError> {
    let mut message = Message::new(dead.decoded.body).id(dead.decoded.id).content_type(dead.decoded.content_type);
    message.headers = dead.decoded.headers;
    message.ordering_key = dead.decoded.ordering_key;
    message.dedup_key = dead.decoded.dedup_key;
    let message = edit.apply_to(message, limits)?;
    let rewritten = rewrite(&dead.headers, &message, edit.headers.is_some());
    Ok((rewritten.message, rewritten.headers))
}
