//! Replays many dead tasks, at a limited rate.

use std::time::Duration;

use postrider_core::task::{ScheduleStore, TaskFilter, TaskId, TaskQuery, TaskState, TaskStore};
use postrider_core::{Deadline, MessagingError, MessagingService};
use tokio::time::Instant;

use crate::client::TaskClient;

/// Tasks replayed in one transaction, unless the rate requires fewer.
const CHUNK: usize = 500;

/// Options of a replay of many tasks.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct ReplayOptions {
    /// Only return the tasks that would be replayed.
    pub dry_run: bool,
    /// Upper bound of tasks per second.
    pub rate: Option<f64>,
    /// Upper bound of tasks in all.
    pub limit: Option<usize>,
}

impl ReplayOptions {
    fn check(&self) -> Result<(), MessagingError> {
        // One task a day is the slowest sensible rate.
        if self.rate.is_some_and(|rate| !rate.is_finite() || rate < 1.0 / 86400.0) {
            return Err(MessagingError::invalid("rate", "it must be a number of tasks per second, at least one a day"));
        }
        Ok(())
    }

    /// The number of tasks in one transaction: at most half a second's worth.
    fn chunk(&self) -> usize {
        // Clamped before it is converted to a whole number.
        self.rate.map_or(CHUNK, |rate| (rate / 2.0).clamp(1.0, CHUNK as f64) as usize)
    }
}

/// The report of a replay of many tasks, or of its dry run.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReplayReport {
    /// The replayed tasks, in the order of their creation.
    pub replayed: Vec<TaskId>,
    /// The skipped tasks: they were replayed or removed meanwhile.
    pub skipped: Vec<TaskId>,
}

impl<S, P> TaskClient<S, P>
where
    S: TaskStore + ScheduleStore + Clone,
    P: MessagingService,
{
    /// Replays the dead tasks that the filter includes; its states are ignored. `report` is called after each chunk
    /// with the report so far.
    ///
    /// Only tasks that are dead when it begins are replayed: one that dies again meanwhile is not replayed a second
    /// time.
    pub async fn replay_matching(
        &self,
        filter: TaskFilter,
        options: &ReplayOptions,
        on_chunk: impl FnMut(&ReplayReport),
    ) -> Result<ReplayReport, MessagingError> {
        options.check()?;
        let chosen = self.dead(filter, options.limit.unwrap_or(usize::MAX)).await?;
        if options.dry_run {
            return Ok(ReplayReport { replayed: chosen, skipped: Vec::new() });
        }
        self.replay_each(&chosen, options.rate, on_chunk).await
    }

    /// Replays these tasks, in their order, at this rate. `on_chunk` is called after each chunk with the report so far.
    pub async fn replay_each(
        &self,
        tasks: &[TaskId],
        rate: Option<f64>,
        mut on_chunk: impl FnMut(&ReplayReport),
    ) -> Result<ReplayReport, MessagingError> {
        let options = ReplayOptions { rate, ..ReplayOptions::default() };
        options.check()?;
        let mut report = ReplayReport::default();
        let began = Instant::now();
        for chunk in tasks.chunks(options.chunk()) {
            if let Some(rate) = rate {
                let done = report.replayed.len() + report.skipped.len();
                tokio::time::sleep_until(began + Duration::from_secs_f64(done as f64 / rate)).await;
            }
            let answers = self.store.replay(chunk, Deadline::default()).await?;
            for (id, answer) in chunk.iter().zip(answers) {
                match answer {
                    Ok(()) => report.replayed.push(*id),
                    Err(MessagingError::TaskConflict { .. } | MessagingError::TaskNotFound { .. }) => {
                        report.skipped.push(*id);
                    }
                    Err(error) => return Err(error),
                }
            }
            on_chunk(&report);
        }
        Ok(report)
    }

    /// The dead tasks that a filter includes, oldest first, so that they are replayed in the order of their creation.
    async fn dead(&self, filter: TaskFilter, limit: usize) -> Result<Vec<TaskId>, MessagingError> {
        let filter = TaskFilter { states: vec![TaskState::Dead], ..filter };
        let mut query = TaskQuery { filter, limit: 1000, after: None };
        let mut found = Vec::new();
        loop {
            let page = self.store.list(&query, Deadline::default()).await?;
            found.extend(page.tasks.iter().map(|task| task.id));
            match page.next {
                Some(next) => query.after = Some(next),
                None => break,
            }
        }
        found.reverse();
        found.truncate(limit);
        Ok(found)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rate_is_kept_by_small_chunks() {
        let chunk = |rate| ReplayOptions { rate, ..ReplayOptions::default() }.chunk();
        assert_eq!((chunk(None), chunk(Some(0.1)), chunk(Some(10.0)), chunk(Some(1e9))), (500, 1, 5, 500));
        for rate in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(ReplayOptions { rate: Some(rate), ..ReplayOptions::default() }.check().is_err());
        }
    }
}
