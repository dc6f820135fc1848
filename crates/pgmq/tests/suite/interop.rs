//! Other clients of PGMQ on the same queues, both ways. They use only PGMQ's functions.

use std::collections::HashSet;
use std::time::Duration;

use postrider_core::{
    DeadLetters, Message, MessageId, MessagingError, MessagingService, Nack, QueueAdmin, QueueName, ReceiveOptions,
    Settlement,
};
use postrider_pgmq::tokio_postgres::Client;

use crate::{Fixture, client, is_empty, soon, take};

async fn foreign_queue(fixture: &Fixture) -> (Client, QueueName) {
    let (client, queue) = (client().await, fixture.queue("orders"));
    client.execute("select pgmq.create($1)", &[&queue.as_str()]).await.unwrap();
    (client, queue)
}

async fn foreign_send(client: &Client, queue: &QueueName, message: &str, headers: &str) -> i64 {
    let send = format!("select pgmq.send('{queue}', '{message}'::jsonb, '{headers}'::jsonb)");
    client.query_one(&send, &[]).await.unwrap().get(0)
}

/// What `pgmq.read` gives: the number, the JSON, the headers.
async fn foreign_read(client: &Client, queue: &QueueName, vt: i32) -> Vec<(i64, String, String)> {
    let read = "select msg_id, message::text, coalesce(headers, '{}')::text from pgmq.read($1, $2, 100) order by 1";
    let rows = client.query(read, &[&queue.as_str(), &vt]).await.unwrap();
    rows.iter().map(|row| (row.get(0), row.get(1), row.get(2))).collect()
}

#[tokio::test]
async fn what_another_client_sends_is_received_under_one_id() {
    let fixture = Fixture::new();
    let (client, queue) = foreign_queue(&fixture).await;
    let provider = fixture.connect().await;
    let msg_id = foreign_send(&client, &queue, r#"{"bb": 1, "a": "x"}"#, r#"{"tenant": "acme", "n": 7}"#).await;
    let first = take(&provider, &queue).await;
    assert_eq!(first.id(), MessageId::derived("pgmq", queue.as_str(), &msg_id.to_string()));
    assert_eq!(first.message, r#"{"a": "x", "bb": 1}"#);
    assert_eq!(first.envelope.content_type.as_str(), "application/json");
    assert_eq!(first.envelope.headers.iter().collect::<Vec<_>>(), [("n", "7"), ("tenant", "acme")]);
    let id = first.id();
    provider.nack_message(&queue, first, Nack::retry_after(Duration::ZERO), soon()).await.unwrap();
    let second = take(&provider, &queue).await;
    assert_eq!((second.id(), second.receive_count(), second.envelope.attempts_count), (id, 2, 1));
    provider.nack_message(&queue, second, Nack::dead_letter("rejected"), soon()).await.unwrap();
    let letter = provider.get_dead_letter(&queue, id, soon()).await.unwrap();
    assert_eq!((letter.deliveries_count, letter.headers.get("tenant")), (2, Some("acme")));
    provider.redrive_dead_letters(&queue, &postrider_core::Redrive::default(), soon()).await.unwrap();
    let again = provider.receive_by_id(&queue, id, &ReceiveOptions::default(), soon()).await.unwrap().unwrap();
    assert_eq!(again.message, r#"{"a": "x", "bb": 1}"#);
}

#[tokio::test]
async fn a_message_is_received_by_the_number_or_the_id_that_an_event_names() {
    let fixture = Fixture::new();
    let (client, queue) = foreign_queue(&fixture).await;
    let provider = fixture.connect().await;
    let mut numbers = Vec::new();
    for n in 0..3 {
        numbers.push(foreign_send(&client, &queue, &n.to_string(), "{}").await);
    }
    let options = ReceiveOptions::default();
    let store = provider.store();
    let found = store.receive_by_msg_id(&queue, numbers[1], &options, soon()).await.unwrap().unwrap();
    assert_eq!(found.body, "1");
    assert!(store.receive_by_msg_id(&queue, numbers[1], &options, soon()).await.unwrap().is_none(), "it is leased");
    provider.ack_message(&queue, found.receipt, soon()).await.unwrap();
    let id = MessageId::derived("pgmq", queue.as_str(), &numbers[2].to_string());
    let found = provider.receive_by_id(&queue, id, &options, soon()).await.unwrap().unwrap();
    assert_eq!(found.message, "2");
    let missing = fixture.queue("missing");
    assert!(store.receive_by_msg_id(&missing, 1, &options, soon()).await.unwrap().is_none());
}

#[tokio::test]
async fn what_is_sent_here_is_read_there() {
    let fixture = Fixture::new();
    let (provider, queue) = (fixture.connect().await, fixture.queue("orders"));
    let messages = vec![
        Message::new(r#"{"a":1}"#).header("tenant", "acme").unwrap().ordering_key("k").unwrap(),
        Message::new("plain"),
        Message::new(&b"\xff\x00"[..]),
    ];
    let ids: Vec<_> = provider.send_batch(&queue, messages, soon()).await.unwrap();
    let client = client().await;
    let read = foreign_read(&client, &queue, 30).await;
    let bodies: Vec<&str> = read.iter().map(|(_, message, _)| message.as_str()).collect();
    assert_eq!(bodies, [r#"{"a": 1}"#, r#"{"text": "plain"}"#, r#"{"base64": "/wA="}"#]);
    let headers: serde_json::Value = serde_json::from_str(&read[0].2).unwrap();
    assert_eq!((&headers["tenant"], &headers["x-pgmq-group"]), (&"acme".into(), &"k".into()));
    assert_eq!(headers["postrider-message"]["id"], ids[0].as_ref().unwrap().to_string());
    assert!(is_empty(&provider, &queue).await, "the other client has them");
    for (msg_id, ..) in &read {
        client.execute("select pgmq.delete($1, $2::bigint)", &[&queue.as_str(), msg_id]).await.unwrap();
    }
    assert_eq!(provider.queue_stats(&queue, soon()).await.unwrap().message_count(), Some(0));
}

/// Checks that every use of a receipt fails.
async fn is_over(provider: &postrider_pgmq::PgmqProvider, receipt: &postrider_core::ReceiptHandle) {
    let queue = receipt.queue();
    let extend = provider.extend_visibility(queue, receipt, Duration::from_secs(60), soon()).await;
    let mut answers = vec![extend.map(|_| ()), provider.ack_message(queue, receipt.clone(), soon()).await];
    for nack in [Nack::retry_after(Duration::ZERO), Nack::Release, Nack::dead_letter("late")] {
        answers.push(provider.nack_message(queue, receipt.clone(), nack, soon()).await);
    }
    for answer in answers {
        assert!(matches!(answer, Err(MessagingError::VisibilityExpired { .. })), "{answer:?}");
    }
}

#[tokio::test]
async fn any_change_by_another_client_ends_the_lease() {
    let fixture = Fixture::new();
    let (client, queue) = foreign_queue(&fixture).await;
    let provider = fixture.connect().await;
    let name = queue.as_str();
    for step in [
        // The lease is ended early, and another client reads the message.
        "select pgmq.set_vt($1, $2::bigint, 0), pgmq.read($1, 60, 1)",
        // The lease's end is moved, later and earlier.
        "select pgmq.set_vt($1, $2::bigint, 600)",
        "select pgmq.set_vt($1, $2::bigint, 0)",
        "select pgmq.archive($1, $2::bigint)",
        "select pgmq.delete($1, $2::bigint)",
    ] {
        let msg_id = foreign_send(&client, &queue, "{}", "{}").await;
        let receipt = take(&provider, &queue).await.into_receipt();
        client.query(step, &[&name, &msg_id]).await.unwrap();
        is_over(&provider, &receipt).await;
        client.query("select pgmq.purge_queue($1)", &[&name]).await.unwrap();
    }
    assert_eq!(provider.queue_stats(&queue, soon()).await.unwrap().dead.value(), Some(0));
}

#[tokio::test]
async fn a_lease_that_ran_out_does_not_come_to_life_when_another_client_hides_the_message() {
    let fixture = Fixture::new();
    let (client, queue) = foreign_queue(&fixture).await;
    let provider = fixture.connect().await;
    let msg_id = foreign_send(&client, &queue, "{}", "{}").await;
    let options = ReceiveOptions::default().visibility(Duration::from_millis(1)).wait(Duration::from_secs(10));
    let receipt = provider.receive_messages(&queue, &options, soon()).await.unwrap().remove(0).into_receipt();
    client.query("select pg_sleep(0.01)", &[]).await.unwrap();
    client.query("select pgmq.set_vt($1, $2::bigint, 600)", &[&queue.as_str(), &msg_id]).await.unwrap();
    is_over(&provider, &receipt).await;
}

#[tokio::test]
async fn an_extended_lease_is_its_holders_until_another_client_hides_the_message() {
    let fixture = Fixture::new();
    let (client, queue) = foreign_queue(&fixture).await;
    let provider = fixture.connect().await;
    let msg_id = foreign_send(&client, &queue, "{}", "{}").await;
    let receipt = take(&provider, &queue).await.into_receipt();
    for _ in 0..2 {
        provider.extend_visibility(&queue, &receipt, Duration::from_secs(90), soon()).await.unwrap();
    }
    client.query("select pgmq.set_vt($1, $2::bigint, 600)", &[&queue.as_str(), &msg_id]).await.unwrap();
    is_over(&provider, &receipt).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_kinds_of_readers_share_a_queue_and_nothing_is_read_twice() {
    const MESSAGES: usize = 300;
    let fixture = Fixture::new();
    let (foreign, queue) = foreign_queue(&fixture).await;
    let provider = fixture.connect().await;
    let theirs = async {
        for n in 0..MESSAGES / 2 {
            foreign_send(&foreign, &queue, &n.to_string(), "{}").await;
        }
    };
    let ours = async {
        for n in MESSAGES / 2..MESSAGES {
            provider.send_message(&queue, Message::new(n.to_string()), soon()).await.unwrap();
        }
    };
    tokio::join!(theirs, ours);
    let (reader, name) = (client().await, queue.clone());
    let theirs = tokio::spawn(async move {
        let mut seen = Vec::new();
        loop {
            let some = "select msg_id from pgmq.read($1, 60, 7)";
            let rows = reader.query(some, &[&name.as_str()]).await.unwrap();
            if rows.is_empty() {
                return seen;
            }
            for row in rows {
                let msg_id: i64 = row.get(0);
                reader.execute("select pgmq.delete($1, $2::bigint)", &[&name.as_str(), &msg_id]).await.unwrap();
                seen.push(msg_id);
            }
        }
    });
    let mut count = 0;
    let mut ids = HashSet::new();
    loop {
        let options = ReceiveOptions::batch(7).visibility(Duration::from_secs(60));
        let messages = provider.receive_messages(&queue, &options, soon()).await.unwrap();
        if messages.is_empty() {
            break;
        }
        for message in messages {
            assert!(ids.insert(message.id()), "read twice");
            provider.ack_message(&queue, message, soon()).await.unwrap();
            count += 1;
        }
    }
    let theirs = theirs.await.unwrap();
    assert_eq!(theirs.iter().collect::<HashSet<_>>().len(), theirs.len(), "read twice");
    assert_eq!(count + theirs.len(), MESSAGES);
}

#[tokio::test]
async fn a_key_goes_on_when_another_client_removes_its_head() {
    let fixture = Fixture::new();
    let (provider, queue) = (fixture.connect().await, fixture.queue("orders"));
    let keyed = |body: &str| Message::new(body.to_owned()).ordering_key("k").unwrap();
    provider.send_batch(&queue, vec![keyed("one"), keyed("two"), keyed("three")], soon()).await.unwrap();
    let client = client().await;
    let head = "select pgmq.delete($1, (select min(msg_id) from pgmq.read($1, 0, 100)))";
    client.query(head, &[&queue.as_str()]).await.unwrap();
    let second = take(&provider, &queue).await;
    assert_eq!(second.message, "two");
    assert!(is_empty(&provider, &queue).await, "one of a key at a time");
    // And so does one that another client has sent with its group.
    provider.ack_message(&queue, second, soon()).await.unwrap();
    foreign_send(&client, &queue, "4", r#"{"x-pgmq-group": "k"}"#).await;
    for expected in ["three", "4"] {
        let message = take(&provider, &queue).await;
        assert_eq!(message.message, expected);
        assert_eq!(message.envelope.ordering_key.as_ref().map(|key| key.as_str()), Some("k"));
        assert!(is_empty(&provider, &queue).await);
        provider.ack_message(&queue, message, soon()).await.unwrap();
    }
}

#[tokio::test]
async fn a_dedup_key_is_free_when_another_client_has_removed_its_message() {
    let fixture = Fixture::new();
    let (provider, queue) = (fixture.connect().await, fixture.queue("orders"));
    let send = async || {
        let message = Message::new("x").dedup_key("d").unwrap();
        provider.send_message(&queue, message, soon()).await.unwrap()
    };
    let first = send().await;
    assert_eq!(send().await, first);
    client().await.query("select pgmq.pop($1)", &[&queue.as_str()]).await.unwrap();
    let second = send().await;
    assert_ne!(second, first);
    assert_eq!(send().await, second);
}

#[tokio::test]
async fn dead_letters_are_a_queue_that_others_read_too() {
    let fixture = Fixture::new();
    let (client, queue) = foreign_queue(&fixture).await;
    let provider = fixture.connect().await;
    let msg_id = foreign_send(&client, &queue, r#"{"a": 1}"#, "{}").await;
    let message = take(&provider, &queue).await;
    let id = message.id();
    let dead = Nack::dead_letter("rejected").with_error("no such customer");
    let settled = provider.settle(vec![Settlement::nack(message, dead).by("rider")], soon()).await.unwrap();
    settled.into_iter().for_each(|row| row.unwrap());
    let read = foreign_read(&client, &queue.dead_letters(), 0).await;
    assert_eq!(read[0].1, r#"{"a": 1}"#);
    let headers: serde_json::Value = serde_json::from_str(&read[0].2).unwrap();
    let record = &headers["postrider-message"]["dead"];
    assert_eq!((&record["reason"], &record["error"]), (&"rejected".into(), &"no such customer".into()));
    assert_eq!((&record["origin"], &record["deliveries"]), (&queue.as_str().into(), &1.into()));
    let failure = &headers["postrider-message"]["failures"][0];
    assert_eq!((&failure["error"], &failure["worker"]), (&"no such customer".into(), &"rider".into()));
    assert_eq!(id, MessageId::derived("pgmq", queue.as_str(), &msg_id.to_string()));
    // A dead letter of another client has no record, and is listed too.
    let stray = foreign_send(&client, &queue.dead_letters(), "5", "{}").await;
    let stray = MessageId::derived("pgmq", queue.dead_letters().as_str(), &stray.to_string());
    let letter = provider.get_dead_letter(&queue, stray, soon()).await.unwrap();
    assert_eq!((letter.reason.as_str(), &letter.body[..]), ("foreign", &b"5"[..]));
    let report = provider.redrive_dead_letters(&queue, &postrider_core::Redrive::default(), soon()).await.unwrap();
    assert_eq!(report.redriven, [id, stray]);
}

#[tokio::test]
async fn headers_that_nobody_expects_hold_nothing_up() {
    let fixture = Fixture::new();
    let (client, queue) = foreign_queue(&fixture).await;
    let provider = fixture.connect().await;
    let odd = [
        r#"{"postrider-message": {"expires_at": "soon", "released": {}, "attempts": -1, "failures": 5, "id": 7}}"#,
        r#"{"postrider-message": {"expires_at": 1e300, "released": 1e300, "returned": -0.5, "lease_ends": null}}"#,
        r#"{"postrider-message": [1, 2]}"#,
        r#"[1, 2]"#,
        r#""text""#,
        "null",
    ];
    for headers in odd {
        let msg_id = foreign_send(&client, &queue, "1", headers).await;
        for attempt in 1..=2 {
            let message = take(&provider, &queue).await;
            assert_eq!(message.id(), MessageId::derived("pgmq", queue.as_str(), &msg_id.to_string()), "{headers}");
            assert_eq!(message.receive_count(), attempt, "{headers}");
            provider.extend_visibility(&queue, message.receipt(), Duration::from_secs(60), soon()).await.unwrap();
            let nack = Nack::retry_after(Duration::ZERO).with_error("no");
            provider.nack_message(&queue, message, nack, soon()).await.unwrap();
        }
        let message = take(&provider, &queue).await;
        provider.nack_message(&queue, message, Nack::dead_letter("odd"), soon()).await.unwrap();
    }
    let sealed = r#"{"postrider-message": {"body": "base64"}}"#;
    let msg_id = foreign_send(&client, &queue, r#"{"base64": "?"}"#, sealed).await;
    assert!(is_empty(&provider, &queue).await, "a body that is not what it says dies unread");
    let id = MessageId::derived("pgmq", queue.as_str(), &msg_id.to_string());
    let letter = provider.get_dead_letter(&queue, id, soon()).await.unwrap();
    assert_eq!((letter.reason.as_str(), &letter.body[..]), ("undecodable", &br#"{"base64": "?"}"#[..]));
}

#[tokio::test]
async fn a_queue_that_others_drop_and_make_again_goes_on() {
    let fixture = Fixture::new();
    let (client, queue) = foreign_queue(&fixture).await;
    let provider = fixture.connect().await;
    provider.send_message(&queue, Message::new("one"), soon()).await.unwrap();
    let receipt = take(&provider, &queue).await.into_receipt();
    client.query("select pgmq.drop_queue($1)", &[&queue.as_str()]).await.unwrap();
    is_over(&provider, &receipt).await;
    assert!(is_empty(&provider, &queue).await);
    let listed = provider.list_queues(soon()).await.unwrap();
    assert!(!listed.contains(&queue));
    provider.send_message(&queue, Message::new("two"), soon()).await.unwrap();
    is_over(&provider, &receipt).await;
    assert_eq!(take(&provider, &queue).await.message, "two");
}

#[tokio::test]
async fn a_queue_with_capital_letters_is_known_by_small_ones_and_removed_whole() {
    let fixture = Fixture::new();
    let (provider, client) = (fixture.connect().await, client().await);
    let (theirs, ours) = (format!("{}_MyCaps", fixture.schema), fixture.queue("mycaps"));
    client.execute("select pgmq.create($1)", &[&theirs]).await.unwrap();
    assert!(provider.list_queues(soon()).await.unwrap().contains(&ours));
    provider.delete_queue(&ours, soon()).await.unwrap();
    let noted = client.query("select 1 from pgmq.meta where queue_name = $1", &[&theirs]).await.unwrap();
    assert!(noted.is_empty(), "PGMQ still lists it, and its metrics would fail");
}
