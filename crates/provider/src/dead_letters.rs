//! The dead-letter operations of the contract.

use std::collections::HashSet;
use std::sync::Arc;

use postrider_core::{
    DeadLetter, DeadLetterEdit, DeadLetterPage, DeadLetterQuery, DeadLetterSelection, DeadLetterSummaryPage,
    DeadLetters, Deadline, MessageId, MessagingError, QueueAdmin, QueueName, Redrive, RedriveReport, async_trait,
};

use crate::service::Provider;
use crate::store::{DeadPart, Store};

impl<S: Store> Provider<S> {
    async fn list_dead(
        &self,
        queue: &QueueName,
        query: &DeadLetterQuery,
        bodies: bool,
        deadline: Deadline,
    ) -> Result<DeadLetterPage, MessagingError> {
        const LIST: &str = "list dead letters";
        self.begin(LIST, deadline)?;
        query.check()?;
        let (store, queue, mut query) = (self.store().clone(), queue.clone(), query.clone());
        query.selection = S::findable(&query.selection);
        self.read(LIST, deadline, async move { store.list_dead(&queue, &query, bodies, deadline).await }).await
    }

    /// Finds the ids of a selection by reading all of its pages.
    async fn find_by_pages(
        &self,
        queue: &QueueName,
        selection: &DeadLetterSelection,
        error: Option<&str>,
        deadline: Deadline,
    ) -> Result<Vec<MessageId>, MessagingError> {
        let mut query = DeadLetterQuery { selection: selection.clone(), ..DeadLetterQuery::default() };
        let wanted: Option<HashSet<MessageId>> = match selection {
            // A store would search each page of a long list of ids from the beginning.
            DeadLetterSelection::Ids(ids) if ids.len() > query.limit => {
                query.selection = DeadLetterSelection::All;
                Some(ids.iter().copied().collect())
            }
            _ => None,
        };
        let mut found = Vec::new();
        loop {
            let page = self.list_dead(queue, &query, false, deadline).await?;
            let letters = page.letters.iter().filter(|letter| {
                wanted.as_ref().is_none_or(|wanted| wanted.contains(&letter.id))
                    && error.is_none_or(|error| letter.error.as_deref() == Some(error))
            });
            found.extend(letters.map(|letter| letter.id));
            match page.next {
                Some(next) => query.after = Some(next),
                None => return Ok(found),
            }
        }
    }
}

/// Splits a list of ids into chunks of at most `most`. Other selections are split by the order of deaths instead.
fn chunks(selection: &DeadLetterSelection, most: usize) -> Vec<DeadLetterSelection> {
    match selection {
        DeadLetterSelection::Ids(ids) => ids.chunks(most).map(|ids| DeadLetterSelection::Ids(ids.to_vec())).collect(),
        whole => vec![whole.clone()],
    }
}

#[async_trait]
impl<S: Store> DeadLetters for Provider<S> {
    async fn list_dead_letters(
        &self,
        queue: &QueueName,
        query: &DeadLetterQuery,
        deadline: Deadline,
    ) -> Result<DeadLetterPage, MessagingError> {
        self.list_dead(queue, query, true, deadline).await
    }

    async fn find_dead_letters(
        &self,
        queue: &QueueName,
        selection: &DeadLetterSelection,
        error: Option<&str>,
        deadline: Deadline,
    ) -> Result<Vec<MessageId>, MessagingError> {
        let (store, name, chosen) = (self.store().clone(), queue.clone(), S::findable(selection));
        let text = error.map(str::to_owned);
        let find = async move { store.find_dead(&name, &chosen, text.as_deref(), deadline).await };
        match self.read("find dead letters", deadline, find).await? {
            Some(found) => Ok(found),
            None => self.find_by_pages(queue, selection, error, deadline).await,
        }
    }

    async fn list_dead_letter_summaries(
        &self,
        queue: &QueueName,
        query: &DeadLetterQuery,
        deadline: Deadline,
    ) -> Result<DeadLetterSummaryPage, MessagingError> {
        Ok(self.list_dead(queue, query, false, deadline).await?.into())
    }

    async fn get_dead_letter(
        &self,
        queue: &QueueName,
        id: MessageId,
        deadline: Deadline,
    ) -> Result<DeadLetter, MessagingError> {
        const GET: &str = "get dead letter";
        let (store, name) = (self.store().clone(), queue.clone());
        let found = self.read(GET, deadline, async move { store.get_dead(&name, id, deadline).await }).await?;
        found.ok_or_else(|| MessagingError::MessageNotFound { queue: queue.dead_letters(), id })
    }

    async fn edit_dead_letter(
        &self,
        queue: &QueueName,
        id: MessageId,
        edit: DeadLetterEdit,
        deadline: Deadline,
    ) -> Result<DeadLetter, MessagingError> {
        const EDIT: &str = "edit dead letter";
        self.begin(EDIT, deadline)?;
        let (store, queue) = (self.store().clone(), queue.clone());
        let edit = async move { store.edit_dead(&queue, id, edit, deadline).await };
        self.carry_out(EDIT, vec![id], deadline, edit).await
    }

    async fn redrive_dead_letters(
        &self,
        queue: &QueueName,
        redrive: &Redrive,
        deadline: Deadline,
    ) -> Result<RedriveReport, MessagingError> {
        const REDRIVE: &str = "redrive";
        self.begin(REDRIVE, deadline)?;
        let target = redrive.target(queue)?;
        if !self.store().creates_queues()
            && !self.verify_queues(std::slice::from_ref(&target), deadline).await?.missing.is_empty()
        {
            return Err(MessagingError::QueueNotFound { queue: target });
        }
        let part =
            |selection, after, limit, revived| DeadPart { queue: queue.clone(), selection, after, limit, revived };
        let mut report = RedriveReport::default();
        if redrive.dry_run {
            let (store, part) =
                (self.store().clone(), part(S::findable(&redrive.selection), 0, usize::MAX, Arc::default()));
            let rehearse = async move { store.rehearse(&part, &target, deadline).await };
            report = self.read(REDRIVE, deadline, rehearse).await?;
        } else {
            let mut revived: Arc<HashSet<MessageId>> = Arc::default();
            for selection in chunks(&S::findable(&redrive.selection), S::DEAD_CHUNK) {
                let mut after = Some(0);
                while let Some(from) = after {
                    let part = part(selection.clone(), from, S::DEAD_CHUNK, revived.clone());
                    let (store, target) = (self.store().clone(), target.clone());
                    let step = async move { store.redrive(&part, &target, deadline).await };
                    let (done, next) = self.step(REDRIVE, deadline, report.redriven.is_empty(), step).await?;
                    Arc::make_mut(&mut revived).extend(&done.redriven);
                    report.redriven.extend(done.redriven);
                    report.skipped.extend(done.skipped);
                    after = next;
                }
            }
        }
        report.add_missing(&redrive.selection);
        Ok(report)
    }

    async fn purge_dead_letters(
        &self,
        queue: &QueueName,
        selection: &DeadLetterSelection,
        deadline: Deadline,
    ) -> Result<u64, MessagingError> {
        const PURGE: &str = "purge dead letters";
        self.begin(PURGE, deadline)?;
        let mut purged = 0;
        for selection in chunks(&S::findable(selection), S::DEAD_CHUNK) {
            let mut after = Some(0);
            while let Some(from) = after {
                let (store, revived) = (self.store().clone(), Arc::default());
                let part = DeadPart {
                    queue: queue.clone(),
                    selection: selection.clone(),
                    after: from,
                    limit: S::DEAD_CHUNK,
                    revived,
                };
                let step = async move { store.purge_dead(&part, deadline).await };
                let (rows, next) = self.step(PURGE, deadline, purged == 0, step).await?;
                purged += rows;
                after = next;
            }
        }
        Ok(purged)
    }
}
