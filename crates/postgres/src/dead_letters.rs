//! Dead letters: redrive, purge, edit.

use std::collections::HashSet;
use std::time::Instant;

use bytes::Bytes;
use postrider_core::{
    ArchivePolicy, ContentType, DeadLetterEdit, DeadLetterSelection, Deadline, Message, MessageId, MessagingError,
    QueueName, RedriveReport, RedriveSkip,
};
use tokio_postgres::Row;
use uuid::Uuid;

use postrider_provider::{DeadPart, Undone, persist};
use postrider_sql::stripes::{in_order, stripe};

use crate::Session;
use crate::rows::{content_type_column, headers_column, message_id};
use crate::store::{Shared, in_the_way};

postrider_pg::columns! {
    /// The columns of `select_dead.sql` and `select_dead_by_id.sql`.
    DeadColumns { death, id, message_id, dedup_key, ordering_key, is_leased }
}

/// A dead letter, as far as a redrive or a purge needs it.
#[derive(Debug)]
struct Dead {
    death: i64,
    row: i64,
    id: MessageId,
    dedup_key: Option<String>,
    ordering_key: Option<String>,
    is_leased: bool,
}

impl Dead {
    fn read_all(rows: &[Row]) -> Vec<Self> {
        let columns = DeadColumns::of(rows);
        let read = |row: &Row| Self {
            death: row.get(columns.death),
            row: row.get(columns.id),
            id: message_id(row, columns.message_id),
            dedup_key: row.get(columns.dedup_key),
            ordering_key: row.get(columns.ordering_key),
            is_leased: row.get(columns.is_leased),
        };
        rows.iter().map(read).collect()
    }
}

/// What a redrive will do with each dead letter.
#[derive(Debug, Default)]
struct RedrivePlan {
    redriven: Vec<Dead>,
    skipped: Vec<(MessageId, RedriveSkip)>,
    /// Expired messages that still hold a dedup key.
    expired: Vec<crate::send::Expired>,
}

impl Shared {
    async fn select(&self, session: &Session<'_>, part: &DeadPart) -> Result<Vec<Dead>, Undone> {
        let (sql, origin) = (session.sql(), part.queue.origin());
        let name = origin.as_str();
        let limit = i64::try_from(part.limit).unwrap_or(i64::MAX);
        let reason = match &part.selection {
            DeadLetterSelection::Ids(ids) => {
                let ids: Vec<Uuid> = ids.iter().map(|id| *id.as_uuid()).collect();
                let rows = session.query(&sql.select_dead_by_id, &[&name, &ids]).await?;
                return Ok(Dead::read_all(&rows));
            }
            DeadLetterSelection::All => None,
            DeadLetterSelection::Reason(reason) => Some(reason.as_str()),
        };
        let rows = session.query(&sql.select_dead, &[&name, &part.after, &reason, &limit]).await?;
        Ok(Dead::read_all(&rows))
    }

    async fn plan(&self, session: &Session<'_>, chosen: Vec<Dead>, target: &QueueName) -> Result<RedrivePlan, Undone> {
        let keys: Vec<&str> = chosen.iter().filter_map(|dead| dead.dedup_key.as_deref()).collect();
        let mut taken: HashSet<String> = HashSet::new();
        let mut plan = RedrivePlan::default();
        if !keys.is_empty() {
            let queues = vec![target.as_str(); keys.len()];
            for row in session.query(&session.sql().dedup_holders, &[&queues, &keys]).await? {
                if row.get::<_, Option<bool>>("has_expired").unwrap_or(false) {
                    plan.expired.push((row.get("id"), row.get("queue"), row.get("ordering_key")));
                } else {
                    taken.insert(row.get("dedup_key"));
                }
            }
        }
        for dead in chosen {
            if dead.is_leased {
                plan.skipped.push((dead.id, RedriveSkip::Leased));
            } else if dead.dedup_key.as_ref().is_some_and(|key| !taken.insert(key.clone())) {
                plan.skipped.push((dead.id, RedriveSkip::DedupKeyTaken));
            } else {
                plan.redriven.push(dead);
            }
        }
        Ok(plan)
    }

    /// Returns what a redrive would do.
    pub(crate) async fn rehearse(&self, part: &DeadPart, target: &QueueName) -> Result<RedriveReport, Undone> {
        let mut session = self.database.session("redrive", Deadline::default()).await?;
        session.begin().await?;
        let chosen = self.select(&session, part).await?;
        let plan = self.plan(&session, chosen, target).await?;
        session.rollback().await?;
        let redriven = plan.redriven.iter().map(|dead| dead.id).collect();
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
        let began = Instant::now();
        let mut session = self.database.session("redrive", Deadline::default()).await?;
        session.begin().await?;
        let mut chosen = self.select(&session, part).await?;
        let next = part.next(chosen.len(), chosen.last().map(|last| last.death));
        chosen.retain(|dead| !part.revived.contains(&dead.id));
        let plan = self.plan(&session, chosen, target).await?;
        if !plan.expired.is_empty() {
            session.rollback().await?;
            drop(session);
            self.dead_letter_expired(&plan.expired).await?;
            // The caller tries again, a bounded number of times: another transaction may have locked them.
            return Err(in_the_way(
                "redrive",
                "messages that have expired hold dedup keys and are in other transactions",
            ));
        }
        let mut report = RedriveReport { redriven: Vec::new(), skipped: plan.skipped };
        if !plan.redriven.is_empty() {
            let name = target.as_str();
            let keys: Vec<&str> = plan.redriven.iter().filter_map(|dead| dead.ordering_key.as_deref()).collect();
            self.await_stripes(&session, &in_order(keys.iter().map(|key| stripe(target, key)).collect())).await?;
            session.query(&session.sql().ensure_queue, &[&name]).await?;
            let rows: Vec<i64> = plan.redriven.iter().map(|dead| dead.row).collect();
            let done = session.query(&session.sql().redrive, &[&rows, &name]).await?;
            let done: HashSet<i64> = done.iter().map(|row| row.get("id")).collect();
            self.promote(&session, keys.into_iter().map(|key| (name, key))).await?;
            for dead in &plan.redriven {
                match (done.contains(&dead.row), &dead.dedup_key) {
                    (true, _) => report.redriven.push(dead.id),
                    // A concurrent claim leased it, or a concurrent send took the dedup key.
                    (false, None) => report.skipped.push((dead.id, RedriveSkip::Leased)),
                    (false, Some(_)) => report.skipped.push((dead.id, RedriveSkip::DedupKeyTaken)),
                }
            }
        }
        session.commit().await?;
        self.touch([target], began);
        Ok((report, next))
    }

    /// Purges a part of a selection. Returns the number of purged messages and where the next part begins, if there is
    /// one.
    pub(crate) async fn purge_dead(&self, part: &DeadPart) -> Result<(u64, Option<i64>), Undone> {
        persist(|| self.try_purge_dead(part)).await
    }

    async fn try_purge_dead(&self, part: &DeadPart) -> Result<(u64, Option<i64>), Undone> {
        let mut session = self.database.session("purge dead letters", Deadline::default()).await?;
        session.begin().await?;
        let chosen = self.select(&session, part).await?;
        let mut rows: Vec<i64> = chosen.iter().filter(|dead| !dead.is_leased).map(|dead| dead.row).collect();
        rows.sort_unstable();
        let keeps = self.options.archive != ArchivePolicy::None;
        let gone = session.query(&session.sql().purge_dead, &[&rows, &keeps]).await?;
        session.commit().await?;
        Ok((gone.len() as u64, part.next(chosen.len(), chosen.last().map(|last| last.death))))
    }

    pub(crate) async fn edit_dead(
        &self,
        queue: &QueueName,
        id: MessageId,
        edit: &DeadLetterEdit,
        deadline: Deadline,
    ) -> Result<(), Undone> {
        let origin = queue.origin();
        let mut session = self.database.session("edit dead letter", deadline).await?;
        session.begin().await?;
        let found = session.query(&session.sql().dead_for_edit, &[&origin.as_str(), id.as_uuid()]).await?;
        let allowed = match found.first() {
            None => Err(MessagingError::MessageNotFound { queue: queue.dead_letters(), id }),
            Some(row) if row.get("is_leased") => Err(MessagingError::MessageLeased { queue: queue.dead_letters(), id }),
            Some(row) => check_edit(id, edit, row, &self.capabilities.limits).map(|()| row.get::<_, i64>("id")),
        };
        let row = match allowed {
            Ok(row) => row,
            Err(error) => {
                session.rollback().await?;
                return Err(error.into());
            }
        };
        let body = edit.body.as_deref();
        let content_type = edit.content_type.as_ref().and_then(content_type_column);
        let changes_type = edit.content_type.is_some();
        let headers = edit.headers.as_ref().map(headers_column);
        let parameters: [&(dyn postgres_types::ToSql + Sync); 5] =
            [&row, &body, &changes_type, &content_type, &headers];
        session.query(&session.sql().edit_dead_letter, &parameters).await?;
        session.commit().await?;
        Ok(())
    }
}

/// Refuses an edit after which the message could not be sent.
fn check_edit(
    id: MessageId,
    edit: &DeadLetterEdit,
    row: &Row,
    limits: &postrider_core::Limits,
) -> Result<(), MessagingError> {
    let mut message = Message::new(Bytes::copy_from_slice(row.get("payload"))).id(id);
    // Stored headers and types that cannot be parsed are not part of the edit.
    message.headers = serde_json::from_str(row.get::<_, &str>("headers")).unwrap_or_default();
    let content_type = row.get::<_, Option<&str>>("content_type").map(ContentType::parse);
    message.content_type = content_type.and_then(Result::ok).unwrap_or(ContentType::OCTET_STREAM);
    edit.apply_to(message, limits).map(|_| ())
}
