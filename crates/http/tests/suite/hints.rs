//! Wake-up hints: they arrive, are merged, and survive a lost connection.

use std::sync::Mutex;

use futures_util::FutureExt;
use postrider_core::{MessagingError, MessagingService};
use postrider_wire::{Code, Problem};
use tokio::sync::mpsc;

use crate::fake::{Fake, Reply};
use crate::{queue, soon};

/// A server with streams of events, and the senders of these, one a connection.
async fn server(count: usize) -> (Fake, Vec<mpsc::UnboundedSender<&'static str>>) {
    let (senders, streams): (Vec<_>, Vec<_>) = (0..count).map(|_| mpsc::unbounded_channel()).unzip();
    let streams = Mutex::new(streams.into_iter());
    let fake = Fake::start(move |_| match streams.lock().unwrap().next() {
        Some(stream) => Reply::Events(stream),
        None => Reply::Cut,
    })
    .await;
    (fake, senders)
}

#[tokio::test]
async fn hints_arrive_and_unread_ones_are_merged() {
    let (fake, senders) = server(1).await;
    let provider = fake.connect().await;
    let mut hints = provider.subscribe(&queue("orders"), soon()).await.unwrap();
    assert!(fake.seen().await.is("GET", "/v1/queues/orders/wake-ups"));
    assert!(hints.next().now_or_never().is_none(), "nothing has happened");
    senders[0].send("wake").unwrap();
    hints.next().await.unwrap();
    senders[0].send("ping").unwrap();
    senders[0].send("wake").unwrap();
    hints.next().await.unwrap();
}

#[tokio::test]
async fn a_lost_connection_is_replaced_with_a_hint() {
    let (fake, mut senders) = server(2).await;
    let provider = fake.connect().await;
    let mut hints = provider.subscribe(&queue("orders"), soon()).await.unwrap();
    fake.seen().await;
    drop(senders.remove(0));
    // No event was sent: the hint comes from the reconnect.
    hints.next().await.unwrap();
    assert!(fake.seen().await.is("GET", "/v1/queues/orders/wake-ups"));
    senders[0].send("wake").unwrap();
    hints.next().await.unwrap();
}

#[tokio::test]
async fn closing_ends_the_stream_and_dropping_the_stream_ends_the_request() {
    let (fake, _senders) = server(2).await;
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
async fn a_refusal_is_an_error() {
    let fake = Fake::start(|_| Reply::problem(&Problem::new(Code::Forbidden, "not your queue"))).await;
    let provider = fake.connect().await;
    let refused = provider.subscribe(&queue("orders"), soon()).await;
    assert!(matches!(refused, Err(MessagingError::InvalidInput { what: "token", .. })), "{refused:?}");
}
