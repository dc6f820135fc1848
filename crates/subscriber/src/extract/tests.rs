use postrider_core::{Envelope, Headers, Key, MessageId, QueueName};
use tokio_util::sync::CancellationToken;

use super::*;
use crate::control::Control;
use crate::error::{BoxError, ErrorKind};
use crate::testing::{delivery, with_header};

fn extract<T: FromDelivery<(), Part>>(delivery: &mut Delivery) -> Result<T, HandlerError> {
    T::from_delivery(delivery, &())
}

#[test]
fn each_part_of_a_message_is_an_argument() {
    let mut delivery = with_header(delivery("x"), "tenant", "acme");
    delivery.envelope.attempts_count = 2;
    delivery.envelope.receive_count = 5;
    delivery.envelope.ordering_key = Some(Key::new("ordering key", "k").unwrap());
    let of = &mut delivery;
    assert_eq!(extract::<Attempt>(of).unwrap(), Attempt(3));
    assert_eq!(extract::<ReceiveCount>(of).unwrap(), ReceiveCount(5));
    assert_eq!(extract::<OrderingKey>(of).unwrap().0.unwrap().as_str(), "k");
    assert_eq!(extract::<EnqueuedAt>(of).unwrap().0, of.envelope.enqueued_at);
    assert_eq!(extract::<MessageId>(of).unwrap(), of.id());
    assert_eq!(extract::<QueueName>(of).unwrap().as_str(), "orders");
    assert_eq!(extract::<Headers>(of).unwrap().get("tenant"), Some("acme"));
    assert_eq!(extract::<Envelope>(of).unwrap(), of.envelope);
    assert_eq!(extract::<String>(of).unwrap(), "x");
}

#[test]
fn control_and_token_are_the_messages_own() {
    let mut delivery = delivery("x");
    assert!(extract::<Control>(&mut delivery).unwrap().ack());
    assert!(delivery.control().decided().is_some());
    let token: CancellationToken = extract(&mut delivery).unwrap();
    delivery.cancellation().cancel();
    assert!(token.is_cancelled());
}

#[test]
fn a_context_has_every_part_of_the_envelope() {
    let mut delivery = with_header(delivery("x"), "tenant", "acme");
    delivery.envelope.attempts_count = u32::MAX;
    let context: Context = extract(&mut delivery).unwrap();
    assert_eq!((context.id(), context.queue()), (delivery.id(), &delivery.envelope.queue));
    assert_eq!((context.header("tenant"), context.headers().len()), (Some("acme"), 1));
    assert_eq!((context.attempt(), context.receive_count()), (u32::MAX, 1));
    assert_eq!((context.ordering_key(), context.enqueued_at()), (None, delivery.envelope.enqueued_at));
    assert_eq!(context.envelope(), &delivery.envelope);
    context.control().ack();
    assert!(delivery.control().decided().is_some());
    delivery.cancellation().cancel();
    assert!(context.cancellation().is_cancelled());
}

#[derive(Debug, Clone, PartialEq)]
struct Shard(u8);

impl FromHeader for Shard {
    const NAME: &'static str = "shard";

    fn from_header(text: &str) -> Result<Self, BoxError> {
        Ok(Self(text.parse()?))
    }
}

#[test]
fn a_missing_or_invalid_header_is_permanent() {
    assert_eq!(extract::<Header<Shard>>(&mut with_header(delivery(""), "shard", "7")).unwrap().0, Shard(7));
    assert_eq!(extract::<Option<Header<Shard>>>(&mut delivery("")).unwrap(), None);
    let missing = extract::<Header<Shard>>(&mut delivery("")).unwrap_err();
    assert_eq!(
        (*missing.kind(), missing.to_string()),
        (ErrorKind::Permanent, "the message has no header 'shard'".into())
    );
    let odd = extract::<Option<Header<Shard>>>(&mut with_header(delivery(""), "shard", "x")).unwrap_err();
    assert_eq!(*odd.kind(), ErrorKind::Permanent);
    assert_eq!(odd.to_string(), "header 'shard' cannot be used: invalid digit found in string");
}

#[test]
fn an_extension_is_the_value_that_a_layer_attached() {
    let mut delivery = delivery("");
    let missing = extract::<Extension<Shard>>(&mut delivery).unwrap_err();
    assert_eq!(*missing.kind(), ErrorKind::Retryable, "a forgotten layer dead-letters no message");
    assert!(missing.to_string().contains("Shard"), "{missing}");
    assert_eq!(extract::<Option<Extension<Shard>>>(&mut delivery).unwrap(), None);
    delivery.extensions_mut().insert(Shard(1));
    assert_eq!(extract::<Extension<Shard>>(&mut delivery).unwrap(), Extension(Shard(1)));
}
