//! Dead letters and queue health on a database.

use std::collections::HashSet;

use postrider_core::{
    DeadLetter, DeadLetterReason, DeadLetterSelection, Deadline, MessageId, MessagingError, QueueHealthReport,
    QueueName,
};
use postrider_provider::Undone;

use crate::store::SqlStore;

/// Whether no database can store the text.
fn is_unstorable(text: &str) -> bool {
    text.contains('\0')
}

/// [`Store::findable`](postrider_provider::Store::findable) of a database: a reason that it cannot store matches
/// nothing.
pub fn findable(selection: &DeadLetterSelection) -> DeadLetterSelection {
    match selection {
        DeadLetterSelection::Reason(reason) if is_unstorable(reason.as_str()) => DeadLetterSelection::Ids(Vec::new()),
        selection => selection.clone(),
    }
}

/// The ids of a selection. `find` filters by reason and error; ids are filtered here.
pub async fn find_dead<'s, F>(
    selection: &'s DeadLetterSelection,
    error: Option<&'s str>,
    find: impl FnOnce(Option<&'s str>, Option<&'s str>) -> F,
) -> Result<Option<Vec<MessageId>>, Undone>
where
    F: Future<Output = Result<Vec<MessageId>, Undone>>,
{
    let (reason, wanted) = match selection {
        DeadLetterSelection::All => (None, None),
        DeadLetterSelection::Reason(reason) => (Some(DeadLetterReason::as_str(reason)), None),
        DeadLetterSelection::Ids(ids) => (None, Some(ids.iter().copied().collect::<HashSet<_>>())),
    };
    if wanted.as_ref().is_some_and(HashSet::is_empty) || error.is_some_and(is_unstorable) {
        return Ok(Some(Vec::new()));
    }
    let mut found = find(reason, error).await?;
    if let Some(wanted) = wanted {
        found.retain(|id| wanted.contains(id));
    }
    Ok(Some(found))
}

/// One dead letter, or the error that it does not exist.
pub async fn get_dead<S: SqlStore>(
    store: &S,
    queue: &QueueName,
    id: MessageId,
    deadline: Deadline,
) -> Result<DeadLetter, Undone> {
    let found = store.get_dead(queue, id, deadline).await?;
    found.ok_or_else(|| MessagingError::MessageNotFound { queue: queue.dead_letters(), id }.into())
}

/// Which of the queues exist, given the names of the existing origins.
pub fn health(queues: &[QueueName], exist: &HashSet<String>) -> QueueHealthReport {
    let mut report = QueueHealthReport::default();
    for queue in queues {
        let is_there = exist.contains(queue.origin().as_str());
        let list = if is_there { &mut report.healthy } else { &mut report.missing };
        list.push(queue.clone());
    }
    report
}
