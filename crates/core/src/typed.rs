//! Sending and receiving of values instead of bytes.
//!
//! A message that cannot be decoded fails in every delivery, and would fail its batch for ever. So it is dead-lettered
//! with its bytes and the decoder's error, and the rest of the batch is delivered. A decoder that panics counts as
//! failed.
//!
//! An undecodable message is not reported as an error while there are good ones to deliver, because an error would cost
//! them their deliveries. An undecodable message that could not be dead-lettered keeps its lease, is delivered again
//! when the lease expires, and reaches its delivery limit at the latest. It is not given back at once: a store that
//! cannot dead-letter would return it in a hot loop.
//!
//! A dead letter is not dead-lettered again. An undecodable one keeps its lease too, so that the next receive gets the
//! dead letters behind it, and its record is unchanged.

use std::any::Any;
use std::future::Future;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use bytes::Bytes;

use crate::codec::{FromBytes, QueueMessage};
use crate::dead_letter::DeadLetterReason;
use crate::deadline::Deadline;
use crate::disposition::{Nack, Settlement};
use crate::error::MessagingError;
use crate::id::MessageId;
use crate::message::{ContentType, Message};
use crate::queue_name::QueueName;
use crate::queued_message::QueuedMessage;
use crate::receive_options::ReceiveOptions;
use crate::service::MessagingService;

/// Sends and receives values. Implemented for every [`MessagingService`].
pub trait TypedMessaging: MessagingService {
    /// Sends a value, encoded by its codec.
    fn send_typed<T: QueueMessage>(
        &self,
        queue: &QueueName,
        value: &T,
        deadline: Deadline,
    ) -> impl Future<Output = Result<MessageId, MessagingError>> + Send {
        let message = Message::encode(value);
        async move { self.send_message(queue, message?, deadline).await }
    }

    /// Receives messages as values. Undecodable ones are dead-lettered as `undecodable`.
    ///
    /// The result can be empty before the wait is over, if all messages were undecodable. Errors about undecodable
    /// messages (they could not be dead-lettered, or are dead letters already) are returned only if there is no good
    /// one.
    fn receive_typed<T: FromBytes>(
        &self,
        queue: &QueueName,
        options: &ReceiveOptions,
        deadline: Deadline,
    ) -> impl Future<Output = Result<Vec<QueuedMessage<T>>, MessagingError>> + Send {
        async move {
            let received = self.receive_messages(queue, options, deadline).await?;
            let Sorted { decoded, undecodable } = sort(received);
            let failure = match undecodable.first() {
                None => None,
                Some((message, error)) if queue.holds_dead_letters() => {
                    let failure = undecodable_dead_letter::<T>(message, error);
                    keep_leases(undecodable);
                    Some(failure)
                }
                Some(_) => {
                    // The leases of the good messages run meanwhile, so a slow store gets only part of the time.
                    let patience = deadline.at_most(options.visibility / 4);
                    dead_letter(self, undecodable, patience).await.err()
                }
            };
            match failure {
                Some(error) if decoded.is_empty() => Err(error),
                _ => Ok(decoded),
            }
        }
    }
}

impl<S: MessagingService> TypedMessaging for S {}

type Undecodable = Vec<(QueuedMessage, MessagingError)>;

struct Sorted<T> {
    decoded: Vec<QueuedMessage<T>>,
    undecodable: Undecodable,
}

fn sort<T: FromBytes>(received: Vec<QueuedMessage>) -> Sorted<T> {
    let mut sorted = Sorted { decoded: Vec::with_capacity(received.len()), undecodable: Vec::new() };
    for message in received {
        match decode(&message.message, &message.envelope.content_type) {
            Ok(value) => sorted.decoded.push(message.with_message(value)),
            Err(error) => sorted.undecodable.push((message, error)),
        }
    }
    sorted
}

/// Decodes a body. Fails if the content type is another codec's, if the decoder fails, or if it panics.
///
/// Plain bytes are returned without a copy.
pub fn decode<T: FromBytes>(body: &Bytes, content_type: &ContentType) -> Result<T, MessagingError> {
    if let Some(error) = mismatch::<T>(content_type) {
        return Err(error);
    }
    let mut shared = Some(body.clone());
    if let Some(bytes) = (&mut shared as &mut dyn Any).downcast_mut::<Option<T>>().and_then(Option::take) {
        return Ok(bytes);
    }
    match catch_unwind(AssertUnwindSafe(|| T::from_bytes(body))) {
        Ok(result) => result,
        Err(panic) => Err(panicked::<T>(&*panic)),
    }
}

/// Bytes of one codec can be valid in another: the JSON text `5` is 53 in MessagePack. A body without a content type,
/// or with an unknown one, is decoded.
fn mismatch<T: FromBytes>(is: &ContentType) -> Option<MessagingError> {
    let codecs = [ContentType::JSON, ContentType::MSGPACK];
    let wanted = T::CONTENT_TYPE;
    let differs = *is != wanted && codecs.contains(is) && codecs.contains(&wanted);
    differs.then(|| undecodable_as::<T>(format!("its content type is {is}, not {wanted}")))
}

fn panicked<T>(panic: &(dyn Any + Send)) -> MessagingError {
    let text = panic.downcast_ref::<String>().map(String::as_str).or_else(|| panic.downcast_ref::<&str>().copied());
    undecodable_as::<T>(format!("its decoder panicked: {}", text.unwrap_or("no message")))
}

fn undecodable_dead_letter<T>(message: &QueuedMessage, error: &MessagingError) -> MessagingError {
    undecodable_as::<T>(format!(
        "{error} (dead letter {} of queue '{}'; edit or purge it once this lease has ended)",
        message.id(),
        message.envelope.queue.origin()
    ))
}

fn undecodable_as<T>(why: String) -> MessagingError {
    MessagingError::Deserialization {
        content_type: std::any::type_name::<T>(),
        source: Arc::new(std::io::Error::other(why)),
    }
}

fn keep_leases(undecodable: Undecodable) {
    for (message, _) in undecodable {
        message.into_receipt();
    }
}

async fn dead_letter<S: MessagingService + ?Sized>(
    service: &S,
    undecodable: Undecodable,
    deadline: Deadline,
) -> Result<(), MessagingError> {
    let ids = undecodable.iter().map(|(message, _)| message.id()).collect();
    // From here on only these rows hold the leases, so the leases end whatever happens to the call.
    let rows = undecodable
        .into_iter()
        .map(|(message, error)| {
            let nack = Nack::dead_letter(DeadLetterReason::UNDECODABLE).with_error(error.to_string());
            Settlement::nack(message, nack)
        })
        .collect();
    match deadline.limit(service.settle(rows, deadline)).await {
        Some(rows) => rows?.into_iter().collect(),
        None => Err(MessagingError::OutcomeUnknown { operation: "dead-letter", ids, source: None }),
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::codec::Json;
    use crate::disposition::Disposition;
    use crate::message::ContentType;
    use crate::shared_provider::fake_provider::{FakeProvider, Settling};

    fn orders() -> QueueName {
        QueueName::new("orders").unwrap()
    }

    fn with(settling: Settling, bodies: &[&'static str]) -> (FakeProvider, Vec<MessageId>) {
        let provider = FakeProvider::settling(settling);
        let ids = bodies.iter().map(|body| provider.put(&orders(), body)).collect();
        (provider, ids)
    }

    async fn receive<T: FromBytes>(
        provider: &FakeProvider,
        queue: &QueueName,
    ) -> Result<Vec<QueuedMessage<T>>, MessagingError> {
        let deadline = Deadline::after(Duration::from_secs(3600));
        provider.receive_typed(queue, &ReceiveOptions::batch(10), deadline).await
    }

    fn numbers(received: &[QueuedMessage<Json<u32>>]) -> Vec<u32> {
        received.iter().map(|message| message.message.0).collect()
    }

    /// The messages that were dead-lettered in one call, with reason and error.
    fn dead_lettered(provider: &FakeProvider) -> Vec<(MessageId, DeadLetterReason, String)> {
        let calls = provider.settle_calls();
        assert_eq!(calls.len(), 1, "all in one call: {calls:?}");
        let row = |row: Settlement| match row.disposition {
            Disposition::Nack(Nack::DeadLetter { reason, error }) => (row.receipt.message_id(), reason, error.unwrap()),
            other => panic!("{other:?}"),
        };
        calls.into_iter().flatten().map(row).collect()
    }

    #[tokio::test]
    async fn values_arrive_as_they_were_sent() {
        let provider = FakeProvider::default();
        let id = provider.send_typed(&orders(), &Json(7_u32), Deadline::never()).await.unwrap();
        assert_eq!(provider.waiting(&orders())[0].content_type, ContentType::JSON);
        let received = receive::<Json<u32>>(&provider, &orders()).await.unwrap();
        assert_eq!((received[0].id(), received[0].message.0), (id, 7));
        assert_eq!(provider.calls(), ["send_batch", "receive_messages"]);
    }

    #[tokio::test]
    async fn l9_bad_bytes_are_dead_lettered_and_the_rest_is_delivered() {
        let (provider, ids) = with(Settling::Succeeds, &["1", "no number", "2", "", "3"]);
        let received = receive::<Json<u32>>(&provider, &orders()).await.unwrap();
        assert_eq!(numbers(&received), [1, 2, 3]);
        let dead = dead_lettered(&provider);
        assert_eq!(dead.iter().map(|row| row.0).collect::<Vec<_>>(), [ids[1], ids[3]]);
        assert!(dead.iter().all(|row| row.1 == DeadLetterReason::UNDECODABLE));
        assert!(dead[0].2.starts_with("cannot decode the message as JSON: expected ident"), "{}", dead[0].2);
        assert!(provider.returned().is_empty());
    }

    /// Decodes `ok` and panics on other input.
    #[derive(Debug)]
    struct Panicking;

    impl FromBytes for Panicking {
        const CONTENT_TYPE: ContentType = ContentType::OCTET_STREAM;

        fn from_bytes(bytes: &[u8]) -> Result<Self, MessagingError> {
            assert_eq!(bytes, b"ok", "not ok");
            Ok(Self)
        }
    }

    #[tokio::test]
    async fn l9_a_decoder_that_panics_is_one_that_fails() {
        let (provider, ids) = with(Settling::Succeeds, &["ok", "boom", "ok"]);
        let received = receive::<Panicking>(&provider, &orders()).await.unwrap();
        assert_eq!(received.iter().map(QueuedMessage::id).collect::<Vec<_>>(), [ids[0], ids[2]]);
        assert!(provider.returned().is_empty(), "the message was dead-lettered, not returned");
        let (id, reason, error) = dead_lettered(&provider).remove(0);
        assert_eq!((id, reason), (ids[1], DeadLetterReason::UNDECODABLE));
        assert!(error.contains("Panicking: its decoder panicked") && error.contains("not ok"), "{error}");
    }

    #[tokio::test]
    async fn l9_a_batch_of_nothing_but_bad_bytes_is_empty() {
        let (provider, _) = with(Settling::Succeeds, &["a", "b"]);
        assert!(receive::<Json<u32>>(&provider, &orders()).await.unwrap().is_empty());
        assert_eq!(dead_lettered(&provider).len(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn l9_a_failing_dead_letter_call_costs_the_good_messages_nothing() {
        for settling in [Settling::Fails, Settling::RefusesRows, Settling::Hangs] {
            let (provider, _) = with(settling, &["1", "bad", "2"]);
            let begun = tokio::time::Instant::now();
            let received = receive::<Json<u32>>(&provider, &orders()).await.unwrap();
            assert_eq!(numbers(&received), [1, 2], "{settling:?}");
            assert!(begun.elapsed() < ReceiveOptions::default().visibility / 2, "{settling:?}");
            assert_eq!(dead_lettered(&provider).len(), 1);
            assert!(provider.returned().is_empty(), "{settling:?}: the undecodable one keeps its lease");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn l9_a_failing_dead_letter_call_is_told_when_there_is_nothing_else_to_tell() {
        let failure = |settling| async move {
            let (provider, ids) = with(settling, &["bad"]);
            (receive::<Json<u32>>(&provider, &orders()).await.unwrap_err(), ids)
        };
        assert!(matches!(failure(Settling::Fails).await.0, MessagingError::Closed { .. }));
        assert!(matches!(failure(Settling::RefusesRows).await.0, MessagingError::VisibilityExpired { .. }));
        match failure(Settling::Hangs).await {
            (MessagingError::OutcomeUnknown { ids, .. }, expected) => assert_eq!(ids, expected),
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn l9_a_receive_that_is_given_up_hands_the_good_messages_back() {
        let (provider, ids) = with(Settling::Hangs, &["1", "bad"]);
        let queue = orders();
        let receiving = receive::<Json<u32>>(&provider, &queue);
        assert!(tokio::time::timeout(Duration::from_millis(1), receiving).await.is_err());
        assert_eq!(provider.calls(), ["receive_messages", "settle"]);
        assert_eq!(provider.returned(), [ids[0]]);
    }

    #[tokio::test]
    async fn l9_a_dead_letter_that_cannot_be_decoded_undecodable_dead_letter_and_lets_others_pass() {
        let dead = orders().dead_letters();
        let provider = FakeProvider::default();
        provider.put(&dead, "bad");
        provider.put(&dead, "1");
        let received = receive::<Json<u32>>(&provider, &dead).await.unwrap();
        assert_eq!(numbers(&received), [1]);
        let id = provider.put(&dead, "bad");
        let error = receive::<Json<u32>>(&provider, &dead).await.unwrap_err();
        assert!(matches!(error, MessagingError::Deserialization { .. }));
        let text = error.to_string();
        assert!(text.contains(&format!("dead letter {id} of queue 'orders'; edit or purge it")), "{text}");
        assert_eq!(provider.calls(), ["receive_messages"; 2], "its record is unchanged");
        assert!(provider.returned().is_empty(), "its lease is kept");
    }
}
