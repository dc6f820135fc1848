//! Receiving: messages, waits, and messages whose caller is gone.

use std::time::Duration;

use postrider_core::{Deadline, MessageId, MessagingError, MessagingService, Nack, ReceiveOptions, Settlement};
use postrider_http::HttpOptions;
use postrider_wire::Problem;
use serde_json::json;

use crate::fake::{Fake, Reply, http_receipt, received};
use crate::{queue, soon};

const HOUR: Duration = Duration::from_secs(3600);

#[tokio::test]
async fn messages_and_receipts_round_trip() {
    let receipt = http_receipt("orders");
    let (text, shown) = (receipt.to_string(), receipt.clone());
    let fake = Fake::start(move |seen| match seen.path.as_str() {
        "/v1/queues/orders/receive" => Reply::ok(json!({"messages": [received(&shown, "hello")]})),
        _ => Reply::ok(json!({"results": [{"receipt": shown.to_string(), "outcome": "done"}]})),
    })
    .await;
    let options = HttpOptions { worker: Some("host:7".into()), ..HttpOptions::default() };
    let provider = fake.connect_with(options).await;
    let options = ReceiveOptions::batch(3).visibility(Duration::from_millis(1500)).max_receive_count(9);
    let message = provider.receive_messages(&queue("orders"), &options, soon()).await.unwrap().remove(0);
    assert_eq!((&*message.message, message.receive_count()), (&b"hello"[..], 1));
    assert_eq!(message.receipt(), &receipt);
    let asked = json!({"max": 3, "visibility": "1s500ms", "wait": "0s", "max_receive_count": 9, "worker": "host:7"});
    assert_eq!(fake.seen().await.body, asked);
    provider.ack_message(&queue("orders"), message, soon()).await.unwrap();
    assert_eq!(fake.seen().await.body, json!({"settlements": [{"receipt": text, "outcome": "ack"}]}));
}

#[tokio::test]
async fn a_malformed_message_does_not_affect_the_others() {
    let (good, bad) = (http_receipt("orders"), http_receipt("orders"));
    let id = good.message_id();
    let fake = Fake::start(move |_| {
        let mut odd = received(&bad, "odd");
        odd["headers"] = json!({"not allowed": "x"});
        Reply::ok(json!({"messages": [odd, received(&good, "good")]}))
    })
    .await;
    let provider = fake.connect().await;
    let messages = provider.receive_messages(&queue("orders"), &ReceiveOptions::batch(2), soon()).await.unwrap();
    assert_eq!(messages.iter().map(|message| message.id()).collect::<Vec<_>>(), [id]);
    messages.into_iter().for_each(|message| drop(message.into_receipt()));
}

#[tokio::test]
async fn a_dropped_message_is_returned_with_its_delivery_counted() {
    let receipt = http_receipt("orders");
    let text = receipt.to_string();
    let fake = Fake::start(move |seen| match seen.path.as_str() {
        "/v1/messages/extend" => Reply::ok(json!({"results": [{"receipt": "x", "outcome": "done"}]})),
        _ => Reply::ok(json!({"messages": [received(&receipt, "hello")]})),
    })
    .await;
    let provider = fake.connect().await;
    drop(provider.receive_messages(&queue("orders"), &ReceiveOptions::default(), soon()).await.unwrap());
    fake.seen().await;
    let returned = fake.seen().await;
    assert!(returned.is("POST", "/v1/messages/extend"), "{returned:?}");
    assert_eq!(returned.body, json!({"receipts": [text], "visibility": "1us"}));
}

#[tokio::test]
async fn a_long_wait_takes_several_requests() {
    let receipt = http_receipt("orders");
    let fake = Fake::start(move |seen| match seen.number {
        0 | 1 => Reply::ok(json!({"messages": []})),
        _ => Reply::ok(json!({"messages": [received(&receipt, "hello")]})),
    })
    .await;
    let provider = fake.connect().await;
    let options = ReceiveOptions::default().wait(HOUR);
    let messages = provider.receive_messages(&queue("orders"), &options, Deadline::never()).await.unwrap();
    assert_eq!(messages.len(), 1);
    drop(messages.into_iter().next().unwrap().into_receipt());
    for _ in 0..3 {
        assert_eq!(fake.seen().await.body["wait"], "1m");
    }
}

#[tokio::test]
async fn a_wait_ends_empty_before_its_deadline() {
    let fake = Fake::start(|_| Reply::ok(json!({"messages": []}))).await;
    let provider = fake.connect().await;
    let options = ReceiveOptions::default().wait(HOUR);
    let deadline = Deadline::after(Duration::from_millis(1500));
    assert!(provider.receive_messages(&queue("orders"), &options, deadline).await.unwrap().is_empty());
    // No busy loop with a server that does not wait.
    assert!(fake.rest().await.len() <= 15);
}

#[tokio::test]
async fn a_canceled_receive_drops_its_request() {
    let fake = Fake::start(|_| Reply::Hang).await;
    let provider = fake.connect().await;
    let options = ReceiveOptions::default().wait(HOUR);
    let orders = queue("orders");
    let mut receive = Box::pin(provider.receive_messages(&orders, &options, Deadline::never()));
    let seen = tokio::select! {
        seen = fake.seen() => seen,
        received = &mut receive => panic!("{received:?}"),
    };
    drop(receive);
    assert_eq!(fake.gone().await, seen.connection);
}

#[tokio::test]
async fn a_wait_survives_one_lost_connection() {
    let receipt = http_receipt("orders");
    let fake = Fake::start(move |seen| match seen.number {
        0 => Reply::Cut,
        1 => Reply::ok(json!({"messages": [received(&receipt, "hello")]})),
        _ => Reply::Cut,
    })
    .await;
    let provider = fake.connect().await;
    let options = ReceiveOptions::default().wait(HOUR);
    let messages = provider.receive_messages(&queue("orders"), &options, soon()).await.unwrap();
    messages.into_iter().for_each(|message| drop(message.into_receipt()));
    let failed = provider.receive_messages(&queue("orders"), &options, soon()).await;
    assert!(matches!(&failed, Err(error @ MessagingError::Connection { .. }) if error.is_retryable()), "{failed:?}");
}

#[tokio::test]
async fn a_message_is_received_by_its_id() {
    let receipt = http_receipt("orders");
    let id = receipt.message_id();
    let fake = Fake::start(move |seen| match seen.body["id"] == json!(id) {
        true => Reply::ok(json!({"messages": [received(&receipt, "hello")]})),
        false => Reply::ok(json!({"messages": []})),
    })
    .await;
    let provider = fake.connect().await;
    let options = ReceiveOptions::default();
    let found = provider.receive_by_id(&queue("orders"), id, &options, soon()).await.unwrap().unwrap();
    assert_eq!(found.into_receipt().message_id(), id);
    let other = provider.receive_by_id(&queue("orders"), MessageId::generate(), &options, soon()).await.unwrap();
    assert!(other.is_none());
}

#[tokio::test]
async fn settlements_share_a_request_with_a_receive_that_does_not_wait() {
    let next = http_receipt("mail");
    let fake = Fake::start(move |seen| match seen.number {
        0 => {
            let rows = seen.body["settlements"].as_array().unwrap().iter().enumerate().map(|(at, row)| {
                let busy = Problem::of(&MessagingError::busy("later"));
                match at {
                    0 => json!({"receipt": row["receipt"], "outcome": "done"}),
                    _ => json!({"receipt": row["receipt"], "problem": busy}),
                }
            });
            Reply::ok(json!({"settled": rows.collect::<Vec<_>>(), "messages": [], "receive_problem": null}))
        }
        _ => Reply::ok(json!({"settled": [], "messages": [received(&next, "hello")], "receive_problem": null})),
    })
    .await;
    let provider = fake.connect().await;
    let rows = vec![
        Settlement::ack(http_receipt("orders")),
        Settlement::nack(http_receipt("orders"), Nack::dead_letter("")),
        Settlement::nack(http_receipt("orders"), Nack::Release),
    ];
    let options = ReceiveOptions::batch(5).wait(HOUR);
    let done = provider
        .settle_and_receive(rows, &[queue("orders"), queue("mail")], &options, Deadline::never())
        .await
        .unwrap();
    assert!(done.settled[0].is_ok());
    assert!(matches!(done.settled[1], Err(MessagingError::InvalidInput { .. })), "refused by the client");
    assert!(matches!(done.settled[2], Err(MessagingError::Busy { .. })));
    done.received.unwrap().into_iter().for_each(|message| drop(message.into_receipt()));
    let first = fake.seen().await;
    assert!(first.is("POST", "/v1/receive"));
    assert_eq!((&first.body["wait"], &first.body["max"]), (&json!("0s"), &json!(5)));
    assert_eq!(first.body["settlements"].as_array().unwrap().len(), 2);
    let second = fake.seen().await;
    assert!(second.is("POST", "/v1/receive") && second.body.get("settlements").is_none());
    let worker = &first.body["worker"];
    assert!(worker.is_string(), "{first:?}");
    let room = json!({
        "queues": ["orders", "mail"], "max": 4, "visibility": "30s", "wait": "1m", "max_receive_count": 3, "worker": worker,
    });
    assert_eq!(second.body, room, "a message that was not settled takes up room");
}

#[tokio::test]
async fn settlements_hold_if_the_receive_fails_and_are_unknown_if_the_answer_is_lost() {
    let fake = Fake::start(move |seen| match seen.number {
        0 => {
            let problem = Problem::of(&MessagingError::busy("later"));
            let rows = json!([{"receipt": "x", "outcome": "done"}]);
            Reply::ok(json!({"settled": rows, "messages": [], "receive_problem": problem}))
        }
        _ => Reply::Cut,
    })
    .await;
    let provider = fake.connect().await;
    let (options, orders) = (ReceiveOptions::default(), [queue("orders")]);
    let ack = || vec![Settlement::ack(http_receipt("orders"))];
    let done = provider.settle_and_receive(ack(), &orders, &options, soon()).await.unwrap();
    assert!(done.settled[0].is_ok() && matches!(done.received, Err(MessagingError::Busy { .. })));
    let lost = provider.settle_and_receive(ack(), &orders, &options, soon()).await;
    assert!(matches!(&lost, Err(MessagingError::OutcomeUnknown { ids, .. }) if ids.len() == 1), "{lost:?}");
    assert_eq!(fake.rest().await.len(), 2, "not repeated");
}

#[tokio::test]
async fn many_queues_are_requested_in_groups() {
    let receipt = http_receipt("q150");
    let fake = Fake::start(move |seen| {
        let queues = seen.body["queues"].as_array().unwrap();
        match seen.number >= 3 && queues.contains(&json!("q150")) {
            true => Reply::ok(json!({"messages": [received(&receipt, "hello")]})),
            false => Reply::ok(json!({"messages": []})),
        }
    })
    .await;
    let provider = fake.connect().await;
    let queues: Vec<_> = (0..250).map(|n| queue(&format!("q{n}"))).collect();
    let options = ReceiveOptions::batch(5000).wait(HOUR);
    let done = provider.settle_and_receive(Vec::new(), &queues, &options, soon()).await.unwrap();
    done.received.unwrap().into_iter().for_each(|message| drop(message.into_receipt()));
    let asked: Vec<_> = fake.rest().await.into_iter().map(|seen| seen.body).collect();
    let first: Vec<_> = asked.iter().map(|body| body["queues"][0].as_str().unwrap().to_owned()).collect();
    assert_eq!(first, ["q0", "q100", "q200", "q0", "q100"]);
    let waits: Vec<_> = asked.iter().map(|body| body["wait"].as_str().unwrap().to_owned()).collect();
    assert_eq!(waits, ["0s", "0s", "0s", "1s", "1s"], "requests wait only after each group was requested");
    assert!(asked.iter().all(|body| body["max"] == 1000));
    // Without a wait every group is requested as well.
    let empty = provider.settle_and_receive(Vec::new(), &queues[..102], &ReceiveOptions::default(), soon()).await;
    assert!(empty.unwrap().received.unwrap().is_empty());
    assert_eq!(fake.rest().await.len(), 2);
}
