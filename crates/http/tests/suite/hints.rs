//! Wake-up hints: they come, they merge, and they outlast their connection.

use std::sync::Mutex;

use futures_util::FutureExt;
use postrider_core::{MessagingError, MessagingService};
use postrider_wire::{Code, Problem};
use tokio::sync::mpsc;

use crate::fake::{Fake, Reply};
use crate::{queue, soon};

/// A server whose streams of events are told by what is sent to these, one a connection.
async fn server(count: usize) -> (Fake, Vec<mpsc::UnboundedSender<&'static str>>) {
    let (tell, streams): (Vec<_>, Vec<_>) = (0..count).map(|_| mpsc::unbounded_channel()).unzip();
    let streams = Mutex::new(streams.into_iter());
    let fake = Fake::start(move |_| match streams.lock().unwrap().next() {
        Some(stream) => Reply::Events(stream),
        None => Reply::Cut,
    })
    .await;
    (fake, tell)
}

#[tokio::test]
async fn hints_come_and_those_that_nobody_took_are_one() {
    let (fake, tell) = server(1).await;
    let provider = fake.connect().await;
    let mut hints = provider.subscribe(&queue("orders"), soon()).await.unwrap();
    assert!(fake.seen().await.is("GET", "/v1/queues/orders/wake-ups"));
    assert!(hints.next().now_or_never().is_none(), "nothing has happened");
    tell[0].send("wake").unwrap();
    hints.next().await.unwrap();
    tell[0].send("ping").unwrap();
    tell[0].send("wake").unwrap();
    hints.next().await.unwrap();
}

#[tokio::test]
async fn a_lost_connection_is_replaced_and_made_up_for_by_a_hint() {
    let (fake, mut tell) = server(2).await;
    let provider = fake.connect().await;
    let mut hints = provider.subscribe(&queue("orders"), soon()).await.unwrap();
    fake.seen().await;
    drop(tell.remove(0));
    // Nobody told of anything: it is the new connection that says so.
    hints.next().await.unwrap();
    assert!(fake.seen().await.is("GET", "/v1/queues/orders/wake-ups"));
    tell[0].send("wake").unwrap();
    hints.next().await.unwrap();
}

#[tokio::test]
async fn the_stream_ends_with_the_connection_and_the_request_with_the_stream() {
    let (fake, _tell) = server(2).await;
    let provider = fake.connect().await;
    let hints = provider.subscribe(&queue("orders"), soon()).await.unwrap();
    let first = fake.seen().await.connection;
    drop(hints);
    assert_eq!(fake.gone().await, first);
    let mut hints = provider.subscribe(&queue("orders"), soon()).await.unwrap();
    let second = fake.seen().await.connection;
    provider.close(soon()).await.unwrap();
    assert_eq!(hints.next().await, None);
    assert_eq!(fake.gone().await, second);
}

#[tokio::test]
async fn what_the_server_refuses_is_told() {
    let fake = Fake::start(|_| Reply::problem(&Problem::new(Code::Forbidden, "not your queue"))).await;
    let provider = fake.connect().await;
    let refused = provider.subscribe(&queue("orders"), soon()).await;
    assert!(matches!(refused, Err(MessagingError::InvalidInput { what: "token", .. })), "{refused:?}");
}
