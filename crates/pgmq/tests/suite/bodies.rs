//! Bodies are received as the bytes that were sent.

use postrider_core::{ContentType, Message, MessagingService, ReceiveOptions};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};

use crate::{Fixture, client, soon};

/// Returns random JSON, in usual and unusual forms.
fn json(random: &mut StdRng, depth: u32) -> String {
    let gap = |random: &mut StdRng| ["", "", "", " ", "\n\t"][random.random_range(0..5)];
    match random.random_range(0..if depth == 0 { 5 } else { 8 }) {
        0 => ["null", "true", "false", "0", "-0", "-0.0", "1e3", "1E-7", "1.50", "12345678901234567890123"]
            [random.random_range(0..10)]
        .to_owned(),
        1 => format!("{}", random.random_range(-1000..1000)),
        2 => format!("{:?}", random.random_range(-10.0..10.0_f64)),
        3 | 4 => string(random),
        5 | 6 => {
            let members: Vec<String> = (0..random.random_range(0..4))
                .map(|_| {
                    let (before, after) = (gap(random), gap(random));
                    format!("{before}{}{before}:{after}{}", string(random), json(random, depth - 1))
                })
                .collect();
            format!("{{{}}}", members.join([",", ", "][random.random_range(0..2)]))
        }
        _ => {
            let items: Vec<String> = (0..random.random_range(0..4)).map(|_| json(random, depth - 1)).collect();
            format!("[{}]", items.join([",", ", "][random.random_range(0..2)]))
        }
    }
}

fn string(random: &mut StdRng) -> String {
    let parts = [
        "a",
        "b",
        "",
        "é",
        "\u{1f600}",
        "\\n",
        "\\u000a",
        "\\u001f",
        "\\u001F",
        "\\/",
        "\\\\",
        "\\\"",
        "\\u00e9",
        "\\ud83d\\ude00",
        "\u{7f}",
        ": ",
        ", ",
        "{",
        "\\u0000",
        "\\ud83d",
        "\u{2028}",
    ];
    // Rarely, or the server would refuse most texts.
    let most = if random.random_range(0..20) == 0 { parts.len() } else { 18 };
    let text: String = (0..random.random_range(0..4)).map(|_| parts[random.random_range(0..most)]).collect();
    format!("\"{text}\"")
}

#[tokio::test]
async fn every_body_comes_back_as_it_was_sent() {
    let fixture = Fixture::new();
    let (provider, queue) = (fixture.connect().await, fixture.queue("orders"));
    let seed = rand::random();
    let mut random = StdRng::seed_from_u64(seed);
    let mut bodies: Vec<Vec<u8>> = (0..1500).map(|_| json(&mut random, 4).into_bytes()).collect();
    for _ in 0..200 {
        bodies.push((0..random.random_range(0..40)).map(|_| random.random()).collect());
    }
    bodies.extend([b"".to_vec(), b"\0".to_vec(), b"{".to_vec(), b"[1, 2".to_vec(), b" {} ".to_vec()]);
    for types in [[ContentType::JSON, ContentType::OCTET_STREAM], [ContentType::MSGPACK, ContentType::JSON]] {
        let message = |(n, body): (usize, &Vec<u8>)| Message::new(body.clone()).content_type(types[n % 2].clone());
        let sent: Vec<Message> = bodies.iter().enumerate().map(message).collect();
        for row in provider.send_batch(&queue, sent.clone(), soon()).await.unwrap() {
            row.unwrap();
        }
        let mut by_id: std::collections::HashMap<_, _> =
            sent.into_iter().map(|message| (message.id, (message.body, message.content_type))).collect();
        while !by_id.is_empty() {
            let options = ReceiveOptions::batch(500);
            let received = provider.receive_messages(&queue, &options, soon()).await.unwrap();
            assert!(!received.is_empty(), "seed {seed}: {} are missing", by_id.len());
            for message in received {
                let (body, content_type) = by_id.remove(&message.id()).unwrap();
                assert_eq!(message.message, body, "seed {seed}");
                assert_eq!(message.envelope.content_type, content_type, "seed {seed}");
                provider.ack_message(&queue, message, soon()).await.unwrap();
            }
        }
    }
}

#[tokio::test]
async fn json_is_json_for_other_clients() {
    let fixture = Fixture::new();
    let (provider, queue) = (fixture.connect().await, fixture.queue("orders"));
    // The keys are not in the server's order, so the text is stored beside the JSON.
    let order = r#"{"order":7,"id":"x"}"#;
    provider.send_message(&queue, Message::new(order), soon()).await.unwrap();
    let row = client()
        .await
        .query_one(
            "select message->>'order', headers->'postrider-message'->>'raw' from pgmq.read($1, 0, 1)",
            &[&queue.as_str()],
        )
        .await
        .unwrap();
    assert_eq!((row.get::<_, &str>(0), row.get::<_, &str>(1)), ("7", order));
    assert_eq!(crate::take(&provider, &queue).await.message, order);
}
