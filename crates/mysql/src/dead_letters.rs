//! Dead letters: redrive, purge, edit.

use std::collections::HashSet;

use mysql_async::Row;
use postrider_core::{
    ArchivePolicy, ContentType, DeadLetterEdit, DeadLetterSelection, Deadline, Message, MessageId, MessagingError,
    QueueName, RedriveReport, RedriveSkip,
};

use postrider_provider::{DeadPart, Undone, persist};
use postrider_sql::stripes::{in_order, stripe};

use crate::connection::{Session, at_once};
use crate::error::busy;
use crate::literal::{self, by_row, fill, optional};
use crate::rows::{self, columns, content_type_column, headers_column};
use crate::send::{Expired, TRIES, dedup_holders, expired, lock_stripes, promote};
use crate::sql::Sql;
use crate::store::{Shared, ensure_queues};

/// Upper bound of the ids or keys in one statement; a longer one could exceed the server's packet limit.
const MAX_NAMED: usize = 1000;

columns! {
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
            death: rows::number(row, columns.death),
            row: rows::number(row, columns.id),
            id: rows::message_id(row, columns.message_id),
            dedup_key: rows::optional_text(row, columns.dedup_key),
            ordering_key: rows::optional_text(row, columns.ordering_key),
            is_leased: rows::flag(row, columns.is_leased),
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
    expired: Vec<Expired>,
}

enum Redriven {
    Done(RedriveReport, Option<i64>),
    /// Nothing was done; dead-letter these first.
    After(Vec<Expired>),
}

impl Shared {
    async fn select(&self, session: &mut Session<'_>, part: &DeadPart) -> Result<Vec<Dead>, Undone> {
        let (sql, origin) = (session.sql(), part.queue.origin());
        let name = literal::bytes(origin.as_str().as_bytes());
        let reason = match &part.selection {
            DeadLetterSelection::Ids(ids) => {
                let mut dead = Vec::new();
                for ids in ids.chunks(MAX_NAMED) {
                    let ids = literal::list(ids.iter().map(|id| literal::id(*id)));
                    let look = fill(&sql.select_dead_by_id, &[("queue", &name), ("message_ids", &ids)]);
                    dead.extend(Dead::read_all(&session.query(look).await?.concat()));
                }
                dead.sort_by_key(|dead: &Dead| dead.death);
                dead.dedup_by_key(|dead| dead.death);
                return Ok(dead);
            }
            DeadLetterSelection::All => None,
            DeadLetterSelection::Reason(reason) => Some(reason.as_str()),
        };
        let (after, limit) = (part.after.to_string(), part.limit.to_string());
        let reason = optional(reason, literal::text);
        let look = [("queue", name.as_str()), ("after", &after), ("reason", &reason), ("limit", &limit)];
        let found = session.query(fill(&sql.select_dead, &look)).await?.concat();
        Ok(Dead::read_all(&found))
    }

    async fn plan(
        &self,
        session: &mut Session<'_>,
        chosen: Vec<Dead>,
        target: &QueueName,
    ) -> Result<RedrivePlan, Undone> {
        let keys: Vec<(&str, &str)> =
            chosen.iter().filter_map(|dead| Some((target.as_str(), dead.dedup_key.as_deref()?))).collect();
        let mut taken: HashSet<String> = HashSet::new();
        let mut plan = RedrivePlan::default();
        for keys in keys.chunks(MAX_NAMED) {
            let look = dedup_holders(&session.sql().dedup_holders, keys);
            for row in &session.query(look).await?.concat() {
                if rows::flag(row, "has_expired") {
                    plan.expired.push(expired(row));
                } else {
                    taken.insert(rows::text(row, "dedup_key"));
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
        session.begin(String::new()).await?;
        let chosen = self.select(&mut session, part).await?;
        let plan = self.plan(&mut session, chosen, target).await?;
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
        for _ in 0..TRIES {
            match persist(|| self.try_redrive(part, target)).await? {
                Redriven::Done(report, next) => return Ok((report, next)),
                Redriven::After(expired) => self.dead_letter_expired(&expired).await?,
            }
        }
        Err(Undone::InTheWay(busy("redrive", "a message that has expired and has a dedup key of these")))
    }

    async fn try_redrive(&self, part: &DeadPart, target: &QueueName) -> Result<Redriven, Undone> {
        let mut session = self.database.session("redrive", Deadline::default()).await?;
        session.begin(String::new()).await?;
        let mut chosen = self.select(&mut session, part).await?;
        let next = part.next(chosen.len(), chosen.last().map(|last| last.death));
        chosen.retain(|dead| !part.revived.contains(&dead.id));
        let plan = self.plan(&mut session, chosen, target).await?;
        if !plan.expired.is_empty() {
            session.rollback().await?;
            return Ok(Redriven::After(plan.expired));
        }
        let mut report = RedriveReport { redriven: Vec::new(), skipped: plan.skipped };
        let mut steps = Vec::new();
        if !plan.redriven.is_empty() {
            let sql = session.sql();
            let keys: Vec<&str> = plan.redriven.iter().filter_map(|dead| dead.ordering_key.as_deref()).collect();
            let lock = lock_stripes(sql, &in_order(keys.iter().map(|key| stripe(target, key)).collect()));
            if !lock.is_empty() {
                session.query(lock).await?;
            }
            let ids = literal::list(plan.redriven.iter().map(|dead| dead.row));
            let free = session.query(fill(&sql.unleased_dead, &[("ids", &ids)])).await?.concat();
            let free: HashSet<i64> = free.iter().map(|row| rows::number(row, "id")).collect();
            let (revived, leased): (Vec<&Dead>, Vec<&Dead>) =
                plan.redriven.iter().partition(|dead| free.contains(&dead.row));
            report.redriven.extend(revived.iter().map(|dead| dead.id));
            // A concurrent claim leased them.
            report.skipped.extend(leased.iter().map(|dead| (dead.id, RedriveSkip::Leased)));
            let (ids, name) = (literal::list(free), literal::bytes(target.as_str().as_bytes()));
            let messages = revived.iter().map(|dead| (part.queue.as_str(), literal::id(dead.id)));
            let attempts = literal::attempts_of(messages);
            steps.push(ensure_queues(&sql.ensure_queue, [target]));
            // Fails at once, because it holds stripes and an open transaction may hold one of the dedup keys.
            steps.push(at_once(fill(&sql.redrive, &[("queue", &name), ("ids", &ids)])));
            steps.push(fill(&sql.forget_dead, &[("ids", &ids)]));
            steps.push(fill(&sql.forget_attempts, &[("messages", &attempts)]));
            steps.push(fill(&sql.remove, &[("these", &literal::these(&ids))]));
            let keys = keys.into_iter().map(|key| (target.as_str(), key));
            steps = promote(&mut session, steps, keys).await?;
        }
        session.commit(steps.join(";\n")).await?;
        self.touch([target]);
        Ok(Redriven::Done(report, next))
    }

    /// Purges a part of a selection. Returns the number of purged messages and where the next part begins, if there is
    /// one.
    pub(crate) async fn purge_dead(&self, part: &DeadPart) -> Result<(u64, Option<i64>), Undone> {
        persist(|| self.try_purge_dead(part)).await
    }

    async fn try_purge_dead(&self, part: &DeadPart) -> Result<(u64, Option<i64>), Undone> {
        let mut session = self.database.session("purge dead letters", Deadline::default()).await?;
        session.begin(String::new()).await?;
        let chosen = self.select(&mut session, part).await?;
        let sql = session.sql();
        let wanted = literal::list(chosen.iter().filter(|dead| !dead.is_leased).map(|dead| dead.row));
        let gone = session.query(fill(&sql.unleased_dead, &[("ids", &wanted)])).await?.concat();
        let ids = literal::list(gone.iter().map(|row| rows::number(row, "id")));
        let messages = gone.iter().map(|row| (part.queue.as_str(), literal::bytes(rows::bytes(row, "message_id"))));
        let keep = match self.options.archive {
            ArchivePolicy::None => fill(&sql.forget_attempts, &[("messages", &literal::attempts_of(messages))]),
            ArchivePolicy::All | ArchivePolicy::Failed => fill(&sql.archive_dead, &[("ids", &ids)]),
        };
        let (forget, remove) =
            (fill(&sql.forget_dead, &[("ids", &ids)]), fill(&sql.remove, &[("these", &literal::these(&ids))]));
        session.commit([keep, forget, remove].join(";\n")).await?;
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
        session.begin(String::new()).await?;
        let sql = session.sql();
        let look = [("queue", &*literal::bytes(origin.as_str().as_bytes())), ("message_id", &literal::id(id))];
        let found = session.query(fill(&sql.dead_for_edit, &look)).await?.concat();
        let allowed = match found.first() {
            None => Err(MessagingError::MessageNotFound { queue: queue.dead_letters(), id }),
            Some(row) if rows::flag(row, "is_leased") => {
                Err(MessagingError::MessageLeased { queue: queue.dead_letters(), id })
            }
            Some(row) => check_edit(id, edit, row, &self.capabilities.limits).map(|()| rows::number(row, "id")),
        };
        let row = match allowed {
            Ok(row) => row,
            Err(error) => {
                session.rollback().await?;
                return Err(error.into());
            }
        };
        let values = [
            ("id", &*row.to_string()),
            ("payload", &optional(edit.body.as_deref(), literal::bytes)),
            ("changes_type", if edit.content_type.is_some() { "true" } else { "false" }),
            ("content_type", &optional(edit.content_type.as_ref().and_then(content_type_column), literal::text)),
            ("headers", &optional(edit.headers.as_ref(), |headers| literal::text(&headers_column(headers)))),
        ];
        session.commit(fill(&sql.edit_dead_letter, &values)).await?;
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
    let mut message = Message::new(rows::body(row, "payload")).id(id);
    // Stored headers and types that cannot be parsed are not part of the edit.
    message.headers = serde_json::from_slice(rows::bytes(row, "headers")).unwrap_or_default();
    let content_type = rows::optional_text(row, "content_type").map(|name| ContentType::parse(&name));
    message.content_type = content_type.and_then(Result::ok).unwrap_or(ContentType::OCTET_STREAM);
    edit.apply_to(message, limits).map(|_| ())
}

/// Returns the statements that dead-letter rows, each with its reason and error. The caller has locked the rows and
/// holds the stripes of their keys, and promotes afterwards.
pub(crate) fn end_lives(sql: &Sql, dead: &[(i64, String, Option<String>)]) -> Vec<String> {
    if dead.is_empty() {
        return Vec::new();
    }
    let ids = literal::list(dead.iter().map(|(row, ..)| row));
    let reasons: Vec<_> = dead.iter().map(|(row, reason, _)| (*row, literal::text(reason))).collect();
    let errors: Vec<_> = dead.iter().map(|(row, _, error)| (*row, optional(error.as_deref(), literal::text))).collect();
    let record = [("ids", ids.as_str()), ("reasons", &by_row(&reasons)), ("errors", &by_row(&errors))];
    vec![fill(&sql.record_deaths, &record), fill(&sql.dead_letter, &[("ids", &ids)])]
}
