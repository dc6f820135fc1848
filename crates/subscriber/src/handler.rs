//! Functions as handlers.

mod arguments;
mod outcome;

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::future::{Either, Map, Ready, ready};
use tower_service::Service;

use crate::delivery::Delivery;
use crate::error::HandlerError;

pub use outcome::IntoOutcome;

/// An `async` function that handles messages: up to eight arguments, in any order, each of which is
/// [`FromDelivery`](crate::FromDelivery), and a result that is [`IntoOutcome`].
///
/// The compiler infers `Kinds`.
#[diagnostic::on_unimplemented(
    message = "`{Self}` is not a handler of messages",
    label = "not an `async fn` whose arguments are made from a message",
    note = "a handler is an `async fn` or closure of at most eight arguments, in any order; each is a part of the \
            message, its body (`Json<T>`, `MsgPack<T>`, `String`, `Bytes`, a `FromBytes`), `State<T>` or `Context`",
    note = "`Header<T>` needs a type `T` that implements `FromHeader`, which names the header",
    note = "it returns `()` or a `Result` with any error; its future is `Send`"
)]
pub trait Handler<Kinds, S>: Clone + Send + Sync + 'static {
    /// The future of the function.
    type Future: Future<Output: IntoOutcome> + Send + 'static;

    /// Makes the arguments, and calls the function with them.
    fn call(&self, delivery: Delivery, state: &S) -> Result<Self::Future, HandlerError>;
}

/// Makes a service of an `async` function.
///
/// ```
/// use postrider_core::Json;
/// use postrider_subscriber::{Context, HandlerError, handler};
///
/// async fn greet(Json(name): Json<String>, context: Context) -> Result<(), HandlerError> {
///     println!("hello {name}, attempt {}", context.attempt());
///     Ok(())
/// }
/// let service = handler(greet);
/// # fn is_service<S: tower_service::Service<postrider_subscriber::Delivery>>(_: S) {}
/// # is_service(service);
/// ```
///
/// Arguments can be in any order: see [`extract`](crate::extract). A function with a [`State`](crate::State) argument
/// is a service only after [`WithoutState::with_state`].
pub fn handler<F, Kinds, S>(function: F) -> WithoutState<F, Kinds, S>
where
    F: Handler<Kinds, S>,
{
    WithoutState { function, kinds: PhantomData }
}

/// The argument of [`SubscriberBuilder::handler`](crate::SubscriberBuilder::handler): an `async` function of parts of a
/// message that needs no state, or any service of [`Delivery`]s.
///
/// The compiler infers `Kind`. `Answer` is the value of a success: `()` for the messages of a subscriber.
#[diagnostic::on_unimplemented(
    message = "`{Self}` cannot handle messages",
    label = "neither an `async fn` of parts of a message nor a `tower::Service<Delivery>`",
    note = "a handler is an `async fn` or closure of at most eight arguments, in any order; each is a part of the \
            message, its body (`Json<T>`, `MsgPack<T>`, `String`, `Bytes`, a `FromBytes`) or `Context`; it returns \
            `Result<{Answer}, E>`, where `E` is any error, or `()` for `Result<(), E>`; its future is `Send`",
    note = "a handler with a `State<T>` argument needs `handler(function).with_state(state)`",
    note = "a service returns `{Answer}`, fails with `HandlerError`, and is `Clone + Send + Sync + 'static`"
)]
pub trait IntoHandler<Kind, Answer = ()> {
    /// The service.
    type Service: Service<Delivery, Response = Answer, Error = HandlerError, Future: Send>
        + Clone
        + Send
        + Sync
        + 'static;

    /// Makes the service.
    fn into_handler(self) -> Self::Service;
}

/// Marks a handler that is a function.
#[derive(Debug)]
pub struct AFunction<Kinds>(PhantomData<Kinds>);

/// Marks a handler that is a service.
#[derive(Debug)]
pub struct AService;

impl<F, Kinds: 'static, Answer> IntoHandler<AFunction<Kinds>, Answer> for F
where
    F: Handler<Kinds, (), Future: Future<Output: IntoOutcome<Answer = Answer>>>,
    Answer: Send + 'static,
{
    type Service = WithoutState<F, Kinds, ()>;

    fn into_handler(self) -> Self::Service {
        handler(self)
    }
}

impl<S, Answer> IntoHandler<AService, Answer> for S
where
    S: Service<Delivery, Response = Answer, Error = HandlerError, Future: Send> + Clone + Send + Sync + 'static,
{
    type Service = S;

    fn into_handler(self) -> S {
        self
    }
}

/// A function as a handler: a service if it needs no state, otherwise after [`with_state`](Self::with_state).
///
/// ```compile_fail
/// # use postrider_subscriber::{Delivery, State, handler};
/// # fn run<S: tower_service::Service<Delivery>>(_: S) {}
/// run(handler(async |State(_): State<u8>| ())); // its state is not set
/// ```
// The compiler names this type in the error for a missing state.
pub struct WithoutState<F, Kinds, S> {
    function: F,
    kinds: PhantomData<fn() -> (Kinds, S)>,
}

impl<F: Handler<Kinds, S>, Kinds, S> WithoutState<F, Kinds, S> {
    /// Sets the state from which the function's arguments are made.
    pub fn with_state(self, state: S) -> WithState<F, Kinds, S> {
        WithState { function: self.function, state: Arc::new(state), kinds: PhantomData }
    }
}

impl<F: Handler<Kinds, ()>, Kinds> Service<Delivery> for WithoutState<F, Kinds, ()> {
    type Response = Answer<F::Future>;
    type Error = HandlerError;
    type Future = HandlerFuture<F::Future>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), HandlerError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, delivery: Delivery) -> Self::Future {
        run(&self.function, delivery, &())
    }
}

impl<F: Clone, Kinds, S> Clone for WithoutState<F, Kinds, S> {
    fn clone(&self) -> Self {
        Self { function: self.function.clone(), kinds: PhantomData }
    }
}

impl<F, Kinds, S> fmt::Debug for WithoutState<F, Kinds, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(std::any::type_name::<F>())
    }
}

/// A function as a handler, with its state.
pub struct WithState<F, Kinds, S> {
    function: F,
    // Shared, because the service is cloned for every message and the state need not be.
    state: Arc<S>,
    kinds: PhantomData<fn() -> Kinds>,
}

impl<F: Handler<Kinds, S>, Kinds, S> Service<Delivery> for WithState<F, Kinds, S> {
    type Response = Answer<F::Future>;
    type Error = HandlerError;
    type Future = HandlerFuture<F::Future>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), HandlerError>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, delivery: Delivery) -> Self::Future {
        run(&self.function, delivery, &self.state)
    }
}

impl<F: Clone, Kinds, S> Clone for WithState<F, Kinds, S> {
    fn clone(&self) -> Self {
        Self { function: self.function.clone(), state: self.state.clone(), kinds: PhantomData }
    }
}

impl<F, Kinds, S> fmt::Debug for WithState<F, Kinds, S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(std::any::type_name::<F>())
    }
}

/// The value that a function's future returns.
type Answer<Fut> = <<Fut as Future>::Output as IntoOutcome>::Answer;

type Outcome<Fut> = Result<Answer<Fut>, HandlerError>;

/// The future of a function's service: the error of its arguments, or its result.
pub type HandlerFuture<Fut> = Either<Ready<Outcome<Fut>>, Map<Fut, fn(<Fut as Future>::Output) -> Outcome<Fut>>>;

fn run<F: Handler<Kinds, S>, Kinds, S>(function: &F, delivery: Delivery, state: &S) -> HandlerFuture<F::Future> {
    match function.call(delivery, state) {
        Ok(future) => Either::Right(futures_util::FutureExt::map(future, IntoOutcome::into_outcome)),
        Err(error) => Either::Left(ready(Err(error))),
    }
}

#[cfg(test)]
mod tests;
