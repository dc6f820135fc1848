//! Combines concurrent calls into one.
//!
//! A single caller waits for no others: a batch has the calls that came while the one before was under way.

use postrider_core::MessagingError;
use tokio::sync::{mpsc, oneshot};

type Waiting<T, R> = (T, oneshot::Sender<Result<R, MessagingError>>);

/// Combines calls with one row into calls with many.
#[derive(Debug)]
pub(crate) struct Batcher<T, R> {
    operation: &'static str,
    // Unbounded, because it holds at most one row for each handler that runs.
    rows: mpsc::UnboundedSender<Waiting<T, R>>,
}

impl<T, R> Clone for Batcher<T, R> {
    fn clone(&self) -> Self {
        Self { operation: self.operation, rows: self.rows.clone() }
    }
}

impl<T: Send + 'static, R: Send + 'static> Batcher<T, R> {
    /// Calls `call` with up to `max` rows at a time. It returns a result for each row, in their order.
    pub(crate) fn new<F, Fut>(operation: &'static str, max: usize, call: F) -> Self
    where
        F: Fn(Vec<T>) -> Fut + Send + 'static,
        Fut: Future<Output = Result<Vec<R>, MessagingError>> + Send,
    {
        let (sender, mut rows) = mpsc::unbounded_channel::<Waiting<T, R>>();
        // A separate task, so that a caller that is dropped does not cancel the others' call. Ends with the last
        // sender.
        tokio::spawn(async move {
            while let Some(first) = rows.recv().await {
                let mut batch = vec![first];
                // Yields first, so that callers that were woken together share a batch.
                let mut seen = 0;
                while batch.len() > seen && batch.len() < max {
                    seen = batch.len();
                    tokio::task::yield_now().await;
                    while batch.len() < max
                        && let Ok(more) = rows.try_recv()
                    {
                        batch.push(more);
                    }
                }
                let (rows, callers): (Vec<T>, Vec<_>) = batch.into_iter().unzip();
                match call(rows).await {
                    Ok(answers) => callers.into_iter().zip(answers).for_each(|(caller, answer)| {
                        // The caller may have been dropped.
                        let _ = caller.send(Ok(answer));
                    }),
                    Err(error) => callers.into_iter().for_each(|caller| {
                        let _ = caller.send(Err(error.clone()));
                    }),
                }
            }
        });
        Self { operation, rows: sender }
    }

    /// Calls with one row, and returns its result.
    pub(crate) async fn call(&self, row: T) -> Result<R, MessagingError> {
        let unknown = || MessagingError::OutcomeUnknown { operation: self.operation, ids: Vec::new(), source: None };
        let (caller, answer) = oneshot::channel();
        self.rows.send((row, caller)).map_err(|_| unknown())?;
        answer.await.unwrap_or_else(|_| Err(unknown()))
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use futures_util::future::join_all;
    use tokio::sync::Semaphore;

    use super::*;

    #[tokio::test]
    async fn waiting_calls_share_a_batch_and_each_gets_its_own_answer() {
        let sizes = Arc::new(Mutex::new(Vec::new()));
        let gate = Arc::new(Semaphore::new(0));
        let (noted, open) = (sizes.clone(), gate.clone());
        let batcher = Batcher::new("double", 5, move |rows: Vec<u32>| {
            noted.lock().unwrap().push(rows.len());
            let open = open.clone();
            async move {
                open.acquire().await.unwrap().forget();
                Ok(rows.into_iter().map(|row| row * 2).collect())
            }
        });
        gate.add_permits(100);
        let answers = join_all((0..12).map(|row| batcher.call(row))).await;
        assert_eq!(
            answers.into_iter().map(Result::unwrap).collect::<Vec<_>>(),
            (0..12).map(|n| n * 2).collect::<Vec<_>>()
        );
        let sizes = sizes.lock().unwrap();
        assert!(sizes.len() <= 4 && sizes.iter().all(|size| *size <= 5), "{sizes:?}");
    }

    #[tokio::test]
    async fn a_failure_fails_every_call_of_its_batch() {
        let batcher = Batcher::new("fail", 10, async |rows: Vec<u32>| {
            let _ = rows;
            Err::<Vec<u32>, _>(MessagingError::busy("others"))
        });
        for answer in join_all((0..3).map(|row| batcher.call(row))).await {
            assert!(matches!(answer, Err(MessagingError::Busy { .. })), "{answer:?}");
        }
    }
}
