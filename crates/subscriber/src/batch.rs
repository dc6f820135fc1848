//! Handlers of several messages at once.
//!
//! A batch handler returns one result for each message, in their order. Another number of results says nothing about
//! any of them: they may be shifted, and an ack of the wrong message would lose it. So all messages fail, as they do
//! when the handler panics, except those that were settled by hand before.

use std::fmt;
use std::task::{Context, Poll};

use futures_util::FutureExt;
use futures_util::future::BoxFuture;
use tower_service::Service;

use crate::delivery::Delivery;
use crate::error::HandlerError;
use crate::handler::{AFunction, AService};

/// A result for each message, in their order.
pub type BatchResults = Vec<Result<(), HandlerError>>;

/// Makes a service of an `async` function of several messages.
///
/// ```
/// use postrider_core::Json;
/// use postrider_subscriber::{Delivery, HandlerError, batch_handler};
///
/// async fn total(batch: Vec<Delivery>) -> Vec<Result<(), HandlerError>> {
///     let amounts = batch.iter().map(|delivery| delivery.decode::<Json<u64>>());
///     amounts.map(|amount| amount.map(|Json(amount)| println!("{amount}"))).collect()
/// }
/// let service = batch_handler(total);
/// # fn is_service<S: tower_service::Service<Vec<Delivery>>>(_: S) {}
/// # is_service(service);
/// ```
///
/// The function may also return `Result<(), E>`, which counts for all of the messages.
pub fn batch_handler<F, Fut>(function: F) -> BatchFn<F>
where
    F: Fn(Vec<Delivery>) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output: IntoBatchResults> + Send + 'static,
{
    BatchFn(function)
}

/// The result of a batch handler.
#[diagnostic::on_unimplemented(
    message = "a batch handler cannot return `{Self}`",
    note = "it returns `Vec<Result<(), E>>`, one for each message, or `Result<(), E>` for all of them"
)]
pub trait IntoBatchResults {
    /// The results, one for each of `messages`, or an error for all of them.
    fn into_batch_results(self, messages: usize) -> Result<BatchResults, HandlerError>;
}

impl<E: Into<HandlerError>> IntoBatchResults for Vec<Result<(), E>> {
    fn into_batch_results(self, _: usize) -> Result<BatchResults, HandlerError> {
        Ok(self.into_iter().map(|result| result.map_err(Into::into)).collect())
    }
}

impl<E: Into<HandlerError>> IntoBatchResults for Result<(), E> {
    fn into_batch_results(self, messages: usize) -> Result<BatchResults, HandlerError> {
        self.map(|()| vec![Ok(()); messages]).map_err(Into::into)
    }
}

/// The argument of [`SubscriberBuilder::batch_handler`](crate::SubscriberBuilder::batch_handler): an `async` function
/// of `Vec<Delivery>`, or any service of it.
///
/// The compiler infers `Kind`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot handle batches of messages",
    label = "neither an `async fn(Vec<Delivery>)` nor a `tower::Service<Vec<Delivery>>`",
    note = "a batch handler is an `async fn` or closure of one argument, `Vec<Delivery>`; it returns \
            `Vec<Result<(), E>>`, one for each message, or `Result<(), E>` for all of them; its future is `Send`",
    note = "a service returns `BatchResults`, fails with `HandlerError`, and is `Clone + Send + Sync + 'static`"
)]
pub trait IntoBatchHandler<Kind> {
    /// The service.
    type Service: Service<Vec<Delivery>, Response = BatchResults, Error = HandlerError, Future: Send>
        + Clone
        + Send
        + Sync
        + 'static;

    /// Makes the service.
    fn into_batch_handler(self) -> Self::Service;
}

impl<F, Fut> IntoBatchHandler<AFunction<Vec<Delivery>>> for F
where
    F: Fn(Vec<Delivery>) -> Fut + Clone + Send + Sync + 'static,
    Fut: Future<Output: IntoBatchResults> + Send + 'static,
{
    type Service = BatchFn<F>;

    fn into_batch_handler(self) -> BatchFn<F> {
        batch_handler(self)
    }
}

impl<S> IntoBatchHandler<AService> for S
where
    S: Service<Vec<Delivery>, Response = BatchResults, Error = HandlerError, Future: Send>,
    S: Clone + Send + Sync + 'static,
{
    type Service = S;

    fn into_batch_handler(self) -> S {
        self
    }
}

/// A function as a service of batches.
#[derive(Clone)]
pub struct BatchFn<F>(F);

impl<F, Fut> Service<Vec<Delivery>> for BatchFn<F>
where
    F: Fn(Vec<Delivery>) -> Fut,
    Fut: Future<Output: IntoBatchResults> + Send + 'static,
{
    type Response = BatchResults;
    type Error = HandlerError;
    type Future = BoxFuture<'static, Result<BatchResults, HandlerError>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), HandlerError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, batch: Vec<Delivery>) -> Self::Future {
        let messages = batch.len();
        (self.0)(batch).map(move |answer| answer.into_batch_results(messages)).boxed()
    }
}

impl<F> fmt::Debug for BatchFn<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(std::any::type_name::<F>())
    }
}

/// Fails all messages if the number of results is wrong, because the results may be shifted.
pub(crate) fn complete(results: BatchResults, messages: usize) -> BatchResults {
    if results.len() == messages {
        return results;
    }
    let error = HandlerError::retryable(format!(
        "the batch handler returned {} results for {messages} messages; it must return one for each, in order",
        results.len()
    ));
    vec![Err(error); messages]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use crate::run::{Batches, Run};
    use crate::testing::delivery;

    async fn results<S>(service: S) -> BatchResults
    where
        S: Service<Vec<Delivery>, Response = BatchResults, Error = HandlerError, Future: Send>,
        S: Clone + Send + Sync + 'static,
    {
        let mut batches = Batches { service, at_a_time: 3 };
        batches.ready().await.unwrap();
        batches.run(["a", "b", "c"].map(delivery).into_iter().collect()).await.into_vec()
    }

    fn kinds(results: BatchResults) -> Vec<Option<ErrorKind>> {
        results.into_iter().map(|result| result.err().map(|error| *error.kind())).collect()
    }

    #[tokio::test]
    async fn each_message_has_its_own_result() {
        let service = batch_handler(async |batch: Vec<Delivery>| {
            let judged = |delivery: Delivery| if delivery.body == "b" { Err("no") } else { Ok(()) };
            batch.into_iter().map(judged).collect::<Vec<_>>()
        });
        assert_eq!(kinds(results(service).await), [None, Some(ErrorKind::Retryable), None]);
    }

    #[tokio::test]
    async fn one_result_can_count_for_all() {
        let done = batch_handler(async |_: Vec<Delivery>| Ok::<_, HandlerError>(()));
        assert_eq!(kinds(results(done).await), [None; 3]);
        let failed = batch_handler(async |_: Vec<Delivery>| Err::<(), _>(HandlerError::permanent("no")));
        assert_eq!(kinds(results(failed).await), [Some(ErrorKind::Permanent); 3]);
    }

    #[tokio::test]
    async fn a_wrong_number_of_results_acks_nothing() {
        for count in [0, 2, 4] {
            let service =
                batch_handler(move |_: Vec<Delivery>| std::future::ready(vec![Ok::<(), HandlerError>(()); count]));
            let results = results(service).await;
            let text = format!("returned {count} results for 3 messages");
            assert!(results.iter().all(|result| result.as_ref().unwrap_err().to_string().contains(&text)));
            assert_eq!(results.len(), 3);
        }
    }
}
