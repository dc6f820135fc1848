//! Many dead letters, with a worker that rejects them again.

use std::time::Duration;

use postrider_conformance::redrive::{letters_rejected_again_are_all_there_once, reject_all};
use postrider_core::{
    DeadLetterEdit, DeadLetters, Headers, Limits, Message, MessagingError, MessagingService, QueueAdmin, QueueName,
    ReceiveOptions,
};
use postrider_rabbitmq::RabbitmqOptions;

use crate::{connect_with, options, prefix, soon};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn letters_that_are_rejected_again_during_a_redrive_are_all_there_once() {
    let (provider, worker) = (connect_with(options()).await, connect_with(options()).await);
    let queue = QueueName::new(format!("{}_again", prefix())).unwrap();
    letters_rejected_again_are_all_there_once(&provider, &worker, &queue).await;
    provider.delete_queue(&queue, soon()).await.unwrap();
}

#[tokio::test]
async fn an_edit_with_headers_too_large_for_a_frame_is_refused_and_keeps_the_connection() {
    let limits = Limits { max_header_bytes: 1 << 20, ..Limits::default() };
    let provider = connect_with(RabbitmqOptions { limits, ..options() }).await;
    let queue = QueueName::new(format!("{}_edit", prefix())).unwrap();
    let id = provider.send_message(&queue, Message::new("x"), soon()).await.unwrap();
    let held = Message::new("held");
    let other = QueueName::new(format!("{}_held", prefix())).unwrap();
    provider.send_message(&other, held, soon()).await.unwrap();
    let options = ReceiveOptions::default().wait(Duration::from_secs(20));
    let held = provider.receive_messages(&other, &options, soon()).await.unwrap().remove(0);
    assert_eq!(reject_all(&provider, &queue).await, 1);
    let mut headers = Headers::new();
    for n in 0..1400 {
        headers.insert(format!("h{n}"), "x".repeat(100)).unwrap();
    }
    let edit = DeadLetterEdit { headers: Some(headers), ..DeadLetterEdit::default() };
    let error = provider.edit_dead_letter(&queue, id, edit, soon()).await.unwrap_err();
    assert!(matches!(&error, MessagingError::InvalidInput { .. }) && error.to_string().contains("1400"), "{error:?}");
    // The lease would be lost with its connection.
    provider.ack_message(&other, held, soon()).await.unwrap();
    let letter = provider.get_dead_letter(&queue, id, soon()).await.unwrap();
    assert_eq!((letter.revision, letter.headers.len()), (0, 0));
    for queue in [queue, other] {
        provider.delete_queue(&queue, soon()).await.unwrap();
    }
}
