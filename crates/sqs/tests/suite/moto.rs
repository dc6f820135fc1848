//! What of rule 1 moto is fast enough for.

use std::collections::HashSet;

use postrider_core::{Message, MessagingService, QueueAdmin};

use crate::{Emulator, Place, queue, soon, take};

#[tokio::test]
async fn what_was_accepted_is_received_whole_and_a_dedup_key_yields_one_message() {
    let place = Place::new(Emulator::Moto);
    let (sender, receiver, orders) = (place.connect().await, place.connect().await, queue("orders"));
    let message = Message::new((0..=255).collect::<Vec<u8>>()).header("tenant", "acmé").unwrap();
    let mut sent = HashSet::from([sender.send_message(&orders, message.clone(), soon()).await.unwrap()]);
    let once = |body: &'static str| Message::new(body).dedup_key("order 7").unwrap();
    let first = sender.send_message(&orders, once("first"), soon()).await.unwrap();
    assert_eq!(sender.send_message(&orders, once("again"), soon()).await.unwrap(), first);
    sent.insert(first);
    let mut seen = HashSet::new();
    for _ in 0..2 {
        let received = take(&receiver, &orders).await;
        if received.id() == message.id {
            assert_eq!((&received.message, &received.envelope.headers), (&message.body, &message.headers));
        }
        seen.insert(received.id());
        receiver.ack_message(&orders, received, soon()).await.unwrap();
    }
    assert_eq!(seen, sent);
    assert_eq!(receiver.queue_stats(&orders, soon()).await.unwrap().message_count(), Some(0));
    place.leave().await;
}
