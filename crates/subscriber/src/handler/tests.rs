use std::sync::mpsc;

use postrider_core::{Bytes, FromBytes, Headers, Json, MessageId, MessagingError, MsgPack, QueueMessage, QueueName};
use serde::{Deserialize, Serialize};
use tower::ServiceExt;

use super::*;
use crate::testing::{delivery, encoded};
use crate::{Attempt, Context, Control, ErrorKind, FromRef, ReceiveCount, State};

#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
struct Order {
    id: u64,
}

/// A message type without a wrapper.
#[derive(Debug, PartialEq)]
struct Ping(u8);

impl QueueMessage for Ping {
    fn to_bytes(&self) -> Result<Bytes, MessagingError> {
        Ok(Bytes::copy_from_slice(&[self.0]))
    }
}

impl FromBytes for Ping {
    const CONTENT_TYPE: postrider_core::ContentType = postrider_core::ContentType::OCTET_STREAM;

    fn from_bytes(bytes: &[u8]) -> Result<Self, MessagingError> {
        match bytes {
            [byte] => Ok(Self(*byte)),
            _ => Err(MessagingError::invalid("ping", "it is one byte")),
        }
    }
}

fn order() -> Delivery {
    encoded(&Json(Order { id: 7 }))
}

async fn handled<S>(service: S, delivery: Delivery) -> Result<(), HandlerError>
where
    S: Service<Delivery, Response = (), Error = HandlerError, Future: Send> + Clone + Send + Sync + 'static,
{
    service.oneshot(delivery).await
}

#[tokio::test]
async fn a_message_and_its_context_are_arguments() {
    async fn with_own_type(ping: Ping, context: Context) -> Result<(), std::io::Error> {
        assert_eq!((ping, context.attempt()), (Ping(9), 1));
        Ok(())
    }

    async fn context_first(context: Context, Json(order): Json<Order>) -> Result<(), HandlerError> {
        assert_eq!((order.id, context.queue().as_str()), (7, "orders"));
        Ok(())
    }
    handled(handler(with_own_type), encoded(&Ping(9))).await.unwrap();
    handled(handler(context_first), order()).await.unwrap();
}

#[tokio::test]
async fn arguments_can_be_in_any_order_and_number() {
    let none = handler(async || ());
    handled(none, order()).await.unwrap();
    let body_in_the_middle = handler(async |_: MessageId, MsgPack(id): MsgPack<u64>, _: Headers| assert_eq!(id, 5));
    handled(body_in_the_middle, encoded(&MsgPack(5_u64))).await.unwrap();
    let body_twice = handler(async |bytes: Bytes, text: String| assert_eq!(bytes, text));
    handled(body_twice, delivery("hello")).await.unwrap();
    let eight = handler(
        async |_: Attempt,
               _: ReceiveCount,
               _: QueueName,
               Json(order): Json<Order>,
               _: Control,
               State(n): State<u8>,
               _: Context<u8>,
               _: Context| {
            assert_eq!((order.id, n), (7, 3));
        },
    );
    handled(eight.with_state(3_u8), order()).await.unwrap();
}

#[derive(Clone)]
struct App {
    name: &'static str,
    number: u32,
}

impl FromRef<App> for u32 {
    fn from_ref(app: &App) -> Self {
        app.number
    }
}

#[tokio::test]
async fn a_handler_gets_its_state_whole_or_in_parts() {
    async fn stateful(State(app): State<App>, State(number): State<u32>, id: MessageId, context: Context<App>) {
        assert_eq!((app.name, number, id), ("shop", 4, context.id()));
        assert_eq!(context.state().number, 4);
    }
    let service = handler(stateful).with_state(App { name: "shop", number: 4 });
    handled(service, order()).await.unwrap();
}

#[tokio::test]
async fn a_function_without_a_state_argument_may_have_a_state() {
    handled(handler(async |_: MessageId| ()).with_state(App { name: "shop", number: 4 }), order()).await.unwrap();
}

#[tokio::test]
async fn the_error_of_a_function_is_the_outcome() {
    let failing = handler(async || Err::<(), _>(std::fmt::Error));
    assert_eq!(*handled(failing, order()).await.unwrap_err().kind(), ErrorKind::Retryable);
    let giving_up = handler(async || Err::<(), _>(HandlerError::permanent("no")));
    assert_eq!(*handled(giving_up, order()).await.unwrap_err().kind(), ErrorKind::Permanent);
}

#[tokio::test]
async fn an_undecodable_body_is_never_handled() {
    let (called, calls) = mpsc::channel();
    let service = handler(move |Json(_): Json<Order>| {
        called.send(()).unwrap();
        async {}
    });
    for bad in [delivery("{"), encoded(&MsgPack(Order { id: 7 }))] {
        let error = handled(service.clone(), bad).await.unwrap_err();
        assert_eq!(*error.kind(), ErrorKind::Undecodable, "{error}");
    }
    let error = handled(handler(async |_: String| ()), delivery(&b"\xff"[..])).await.unwrap_err();
    assert_eq!(*error.kind(), ErrorKind::Undecodable, "{error}");
    assert!(calls.try_recv().is_err());
    handled(service, order()).await.unwrap();
    calls.try_recv().unwrap();
}
