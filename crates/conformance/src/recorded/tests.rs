use std::time::Duration;

use postrider_core::{
    Bytes, DeadLetterEdit, DeadLetterSelection, DeadLetters, Deadline, Disposition, Feature, Limits, MemoryProvider,
    MemoryStore, Message, MessageId, MessagingError, MessagingService, Nack, QueueAdmin, QueueName, ReceiptHandle,
    ReceiveOptions, Redrive, Settlement,
};

use super::unanswering::Unanswering;
use super::{Recorded, failure, lease_outcome};
use crate::checker::{CheckOptions, check};
use crate::history::{
    BodyHash, DeleteCall, EditCall, ExtendCall, History, LeaseOutcome, Operation, Outcome, PurgeCall, Purged,
    ReceiveCall, RedriveCall, Selection, SendCall, SettleCall,
};

const LEASE: Duration = Duration::from_secs(30);

fn orders() -> QueueName {
    QueueName::new("orders").unwrap()
}

fn soon() -> Deadline {
    Deadline::after(Duration::from_secs(5))
}

fn on(store: &MemoryStore, worker: u32) -> Recorded<MemoryProvider> {
    Recorded::new(store.open(), History::new(), worker)
}

fn recorded() -> Recorded<MemoryProvider> {
    on(&MemoryStore::new(), 7)
}

/// The operations so far, in the order in which they began.
fn operations<P>(recorded: &Recorded<P>) -> Vec<Operation> {
    recorded.history().events().into_iter().map(|event| event.operation).collect()
}

fn last<P>(recorded: &Recorded<P>) -> Operation {
    operations(recorded).pop().expect("something was recorded")
}

fn settled(recorded: &Recorded<MemoryProvider>) -> Vec<(Disposition, LeaseOutcome)> {
    let rows = operations(recorded).into_iter().filter_map(|operation| match operation {
        Operation::Settle(SettleCall { disposition, outcome, .. }) => Some((disposition, outcome)),
        _ => None,
    });
    rows.collect()
}

async fn send_one(recorded: &Recorded<MemoryProvider>) -> MessageId {
    recorded.send_message(&orders(), Message::new("body"), soon()).await.unwrap()
}

async fn receive_one(recorded: &Recorded<MemoryProvider>, from: &QueueName) -> ReceiptHandle {
    let received = recorded.receive_messages(from, &ReceiveOptions::default().visibility(LEASE), soon()).await;
    received.unwrap().pop().expect("a message").into_receipt()
}

#[tokio::test(start_paused = true)]
async fn sends_are_recorded_row_by_row() {
    let small = Limits { max_body_bytes: 10, ..Limits::default() };
    let recorded = on(&MemoryStore::builder().limits(small).build(), 7);
    let first = Message::new("first").dedup_key("d").unwrap().ordering_key("k").unwrap().expires_in(LEASE);
    let again = Message::new("again").dedup_key("d").unwrap().delay(Duration::from_secs(1));
    let large = Message::new("larger than ten bytes");
    let ids = [first.id, again.id, large.id];
    let rows = recorded.send_batch(&orders(), vec![first, again, large], soon()).await.unwrap();
    assert!(rows[2].is_err());
    let sends: Vec<SendCall> = operations(&recorded)
        .into_iter()
        .map(|operation| match operation {
            Operation::Send(call) => call,
            other => panic!("{other:?}"),
        })
        .collect();
    assert_eq!(
        sends.iter().map(|call| (call.id, call.row, call.batch)).collect::<Vec<_>>(),
        [(ids[0], 0, ids[0]), (ids[1], 1, ids[0]), (ids[2], 2, ids[0]),]
    );
    assert_eq!(sends[0].outcome, Outcome::Done(ids[0]));
    assert_eq!(sends[1].outcome, Outcome::Done(ids[0]), "the returned id, not the one that was sent");
    assert!(matches!(sends[2].outcome, Outcome::Failed(_)));
    assert_eq!((sends[0].ordering_key.as_deref(), sends[0].expires_in), (Some("k"), Some(LEASE)));
    assert_eq!((sends[1].delay, sends[1].body_hash), (Duration::from_secs(1), BodyHash::of(b"again")));
}

#[tokio::test(start_paused = true)]
async fn an_error_for_the_whole_batch_is_recorded_for_every_row() {
    let recorded = recorded();
    recorded.close(soon()).await.unwrap();
    let messages = vec![Message::new("a"), Message::new("b")];
    assert!(recorded.send_batch(&orders(), messages, soon()).await.is_err());
    let failed = operations(&recorded);
    assert_eq!(failed.len(), 2);
    for operation in failed {
        assert!(matches!(&operation, Operation::Send(SendCall { outcome: Outcome::Failed(_), .. })), "{operation:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn times_are_those_of_the_call() {
    let recorded = recorded();
    let options = ReceiveOptions::default().wait(Duration::from_secs(3));
    assert!(recorded.receive_messages(&orders(), &options, soon()).await.unwrap().is_empty());
    let event = recorded.history().events().pop().unwrap();
    assert_eq!(event.end.since(event.start), Duration::from_secs(3));
    assert_eq!(event.worker, 7);
}

#[tokio::test(start_paused = true)]
async fn every_way_to_settle_is_recorded() {
    let recorded = recorded();
    for _ in 0..5 {
        send_one(&recorded).await;
    }
    let mut receipts = Vec::new();
    for _ in 0..5 {
        receipts.push(receive_one(&recorded, &orders()).await);
    }
    let stale = receipts[0].clone();
    recorded.ack_message(&orders(), receipts[0].clone(), soon()).await.unwrap();
    recorded.nack_message(&orders(), receipts[1].clone(), Nack::Release, soon()).await.unwrap();
    recorded.ack_messages(&orders(), vec![receipts[2].clone()], soon()).await.unwrap();
    let rows = vec![
        Settlement::nack(receipts[3].clone(), Nack::retry_after(LEASE)),
        Settlement::ack(stale.clone()),
        Settlement::nack(receipts[4].clone(), Nack::dead_letter("no")),
    ];
    recorded.settle(rows, soon()).await.unwrap();
    let done = |nack| (Disposition::Nack(nack), LeaseOutcome::Done);
    assert_eq!(
        settled(&recorded),
        [
            (Disposition::Ack, LeaseOutcome::Done),
            done(Nack::Release),
            (Disposition::Ack, LeaseOutcome::Done),
            done(Nack::retry_after(LEASE)),
            (Disposition::Ack, LeaseOutcome::Expired),
            done(Nack::dead_letter("no")),
        ]
    );
    let elsewhere = QueueName::new("elsewhere").unwrap();
    assert!(recorded.ack_message(&elsewhere, stale, soon()).await.is_err());
    assert!(matches!(settled(&recorded).pop(), Some((Disposition::Ack, LeaseOutcome::Failed(_)))));
}

#[tokio::test(start_paused = true)]
async fn extensions_are_recorded() {
    let recorded = recorded();
    send_one(&recorded).await;
    let receipt = receive_one(&recorded, &orders()).await;
    recorded.extend_visibility(&orders(), &receipt, LEASE, soon()).await.unwrap();
    let Operation::Extend(ExtendCall { token, extension, outcome, .. }) = last(&recorded) else { panic!() };
    assert_eq!((token, extension, outcome), (receipt.token(), LEASE, LeaseOutcome::Done));
    recorded.ack_message(&orders(), receipt.clone(), soon()).await.unwrap();
    assert!(recorded.extend_visibility(&orders(), &receipt, LEASE, soon()).await.is_err());
    assert!(matches!(last(&recorded), Operation::Extend(ExtendCall { outcome: LeaseOutcome::Expired, .. })));
}

#[tokio::test(start_paused = true)]
async fn a_dropped_message_is_recorded_and_returned() {
    let recorded = recorded();
    let id = send_one(&recorded).await;
    let received = recorded.receive_messages(&orders(), &ReceiveOptions::default(), soon()).await.unwrap();
    let token = received[0].receipt().token();
    drop(received);
    let Operation::Dropped(dropped) = last(&recorded) else { panic!("{:?}", last(&recorded)) };
    assert_eq!((dropped.id, dropped.token, dropped.queue), (id, token, orders()));
    let again = recorded.receive_messages(&orders(), &ReceiveOptions::default(), soon()).await.unwrap();
    assert_eq!(again[0].receive_count(), 2);
}

#[tokio::test(start_paused = true)]
async fn a_receipt_that_was_taken_out_keeps_its_lease() {
    let recorded = recorded();
    send_one(&recorded).await;
    let receipt = receive_one(&recorded, &orders()).await;
    assert!(matches!(last(&recorded), Operation::Receive(_)), "nothing was dropped");
    let again = recorded.receive_messages(&orders(), &ReceiveOptions::default(), soon()).await.unwrap();
    assert!(again.is_empty(), "the provider's own message must not return the lease");
    recorded.ack_message(&orders(), receipt, soon()).await.unwrap();
}

#[tokio::test(start_paused = true)]
async fn settle_and_receive_records_both_with_a_row_per_queue() {
    let recorded = recorded();
    let other = QueueName::new("other").unwrap();
    send_one(&recorded).await;
    let receipt = receive_one(&recorded, &orders()).await;
    let id = send_one(&recorded).await;
    let start = recorded.history().len();
    let queues = [orders(), other.clone(), orders()];
    let settlements = vec![Settlement::ack(receipt)];
    let answer = recorded.settle_and_receive(settlements, &queues, &ReceiveOptions::batch(5), soon()).await.unwrap();
    let received = answer.received.unwrap();
    let mut rows = operations(&recorded).split_off(start);
    rows.retain(|operation| !matches!(operation, Operation::Dropped(_)));
    assert_eq!(rows.len(), 3, "{rows:?}");
    for row in rows {
        match row {
            Operation::Settle(call) => assert_eq!(call.outcome, LeaseOutcome::Done),
            Operation::Receive(ReceiveCall { queue, outcome: Outcome::Done(deliveries), .. }) => {
                let expected = if queue == orders() { vec![id] } else { Vec::new() };
                assert_eq!(deliveries.iter().map(|delivery| delivery.id).collect::<Vec<_>>(), expected);
            }
            unexpected => panic!("{unexpected:?}"),
        }
    }
    assert_eq!(received.len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_receive_by_id_is_a_receive() {
    let recorded = recorded();
    let id = send_one(&recorded).await;
    let options = ReceiveOptions::default().max_receive_count(9);
    let received = recorded.receive_by_id(&orders(), id, &options, soon()).await.unwrap().unwrap();
    let Operation::Receive(call) = last(&recorded) else { panic!() };
    assert_eq!((call.max_receive_count, call.visibility), (9, options.visibility));
    let deliveries = call.outcome.done().unwrap();
    assert_eq!((deliveries[0].id, deliveries[0].token), (id, received.receipt().token()));
}

#[tokio::test(start_paused = true)]
async fn operations_on_dead_letters_are_recorded() {
    let recorded = recorded();
    let id = send_one(&recorded).await;
    let receipt = receive_one(&recorded, &orders()).await;
    recorded.nack_message(&orders(), receipt, Nack::dead_letter("no"), soon()).await.unwrap();

    let edit = DeadLetterEdit { body: Some(Bytes::from_static(b"better")), ..DeadLetterEdit::default() };
    recorded.edit_dead_letter(&orders().dead_letters(), id, edit, soon()).await.unwrap();
    let body_hash = Some(BodyHash::of(b"better"));
    assert_eq!(last(&recorded), EditCall { queue: orders(), id, body_hash, outcome: Outcome::Done(()) }.into());

    let events = recorded.history().len();
    let dry_run = Redrive { dry_run: true, ..Redrive::default() };
    recorded.redrive_dead_letters(&orders(), &dry_run, soon()).await.unwrap();
    assert_eq!(recorded.history().len(), events, "a dry run does nothing");

    let to = Some(QueueName::new("other").unwrap());
    let redrive = Redrive { selection: DeadLetterSelection::Ids(vec![id]), to: to.clone(), dry_run: false };
    recorded.redrive_dead_letters(&orders(), &redrive, soon()).await.unwrap();
    let (selection, outcome) = (Selection::Ids(vec![id]), Outcome::Done(vec![id]));
    assert_eq!(last(&recorded), RedriveCall { queue: orders(), to, selection, outcome }.into());

    let selection = DeadLetterSelection::Reason("no".into());
    recorded.purge_dead_letters(&orders(), &selection, soon()).await.unwrap();
    let what = Purged::DeadLetters(Selection::Reason("no".into()));
    assert_eq!(last(&recorded), PurgeCall { queue: orders(), what, outcome: Outcome::Done(0) }.into());
}

#[tokio::test(start_paused = true)]
async fn removals_are_recorded() {
    let recorded = recorded();
    send_one(&recorded).await;
    recorded.purge(&orders(), soon()).await.unwrap();
    let purge = PurgeCall { queue: orders(), what: Purged::Waiting, outcome: Outcome::Done(1) };
    assert_eq!(last(&recorded), purge.into());
    recorded.delete_queue(&orders(), soon()).await.unwrap();
    assert_eq!(last(&recorded), DeleteCall { queue: orders(), outcome: Outcome::Done(()) }.into());
}

/// Polls once, so that the store has done its part, then cancels.
async fn cancel(call: impl Future) {
    let mut call = Box::pin(call);
    assert!(futures_util::poll!(&mut call).is_pending());
}

#[tokio::test(start_paused = true)]
async fn a_cancelled_call_is_unknown() {
    let store = MemoryStore::new();
    let direct = on(&store, 0);
    send_one(&direct).await;
    let receipt = receive_one(&direct, &orders()).await;
    let options = ReceiveOptions::default();
    let recorded = Recorded::new(Unanswering::new(store.open()), History::new(), 1);
    cancel(recorded.send_batch(&orders(), vec![Message::new("a"), Message::new("b")], soon())).await;
    cancel(recorded.send_message(&orders(), Message::new("c"), soon())).await;
    cancel(recorded.receive_messages(&orders(), &options, soon())).await;
    cancel(recorded.receive_by_id(&orders(), MessageId::generate(), &options, soon())).await;
    cancel(recorded.extend_visibility(&orders(), &receipt, LEASE, soon())).await;
    cancel(recorded.ack_message(&orders(), receipt.clone(), soon())).await;
    cancel(recorded.nack_message(&orders(), receipt.clone(), Nack::Release, soon())).await;
    cancel(recorded.ack_messages(&orders(), vec![receipt.clone()], soon())).await;
    cancel(recorded.settle(vec![Settlement::ack(receipt.clone())], soon())).await;
    let both = vec![Settlement::ack(receipt)];
    cancel(recorded.settle_and_receive(both, &[orders()], &options, soon())).await;
    cancel(recorded.redrive_dead_letters(&orders(), &Redrive::default(), soon())).await;
    cancel(recorded.edit_dead_letter(&orders(), MessageId::generate(), DeadLetterEdit::default(), soon())).await;
    cancel(recorded.purge_dead_letters(&orders(), &DeadLetterSelection::All, soon())).await;
    cancel(recorded.purge(&orders(), soon())).await;
    cancel(recorded.delete_queue(&orders(), soon())).await;
    let unknown = operations(&recorded).iter().filter(|operation| is_unknown(operation)).count();
    assert_eq!((unknown, recorded.history().len()), (17, 17));
}

fn is_unknown(operation: &Operation) -> bool {
    match operation {
        Operation::Send(call) => call.outcome == Outcome::Unknown,
        Operation::Receive(call) => call.outcome == Outcome::Unknown,
        Operation::Settle(call) => call.outcome == LeaseOutcome::Unknown,
        Operation::Extend(call) => call.outcome == LeaseOutcome::Unknown,
        Operation::Redrive(call) => call.outcome == Outcome::Unknown,
        Operation::Purge(call) => call.outcome == Outcome::Unknown,
        Operation::Edit(call) => call.outcome == Outcome::Unknown,
        Operation::Delete(call) => call.outcome == Outcome::Unknown,
        Operation::Dropped(_) | Operation::Final(_) => false,
    }
}

#[tokio::test(start_paused = true)]
async fn a_call_that_was_never_begun_is_not_recorded() {
    let recorded = recorded();
    drop(recorded.send_message(&orders(), Message::new("a"), soon()));
    assert!(recorded.history().is_empty());
}

#[tokio::test(start_paused = true)]
async fn an_emulated_peek_counts_as_a_receive() {
    let store = MemoryStore::new();
    let (native, emulated) = (on(&store, 0), Recorded::new(Unanswering::new(store.open()), History::new(), 1));
    native.peek(&orders(), 5, soon()).await.unwrap();
    emulated.peek(&orders(), 5, soon()).await.unwrap();
    assert!(native.history().is_empty());
    assert!(matches!(last(&emulated), Operation::Receive(ReceiveCall { outcome: Outcome::Unknown, .. })));
    emulated.record_final(&[orders()], soon()).await.unwrap();
    let Operation::Final(state) = last(&emulated) else { panic!() };
    assert_eq!(state.live, None, "an emulated peek sees a part of the queue");
}

#[test]
fn only_a_promise_that_nothing_was_done_is_a_failure() {
    let id = MessageId::generate();
    let source = || std::sync::Arc::new(std::io::Error::other("no"));
    let queue = orders();
    let nothing_done = [
        MessagingError::Connection { provider: "p", detail: String::new(), source: None },
        MessagingError::DeadlineExceeded { operation: "send" },
        MessagingError::Closed { provider: "p" },
        MessagingError::invalid("body", "no"),
        MessagingError::invalid_receipt("no"),
        MessagingError::NotSupported { provider: "p", feature: Feature::Delay, why: String::new() },
        MessagingError::QueueNotFound { queue: queue.clone() },
        MessagingError::CircuitBreakerOpen { provider: "p", retry_after: LEASE },
        MessagingError::Provider { provider: "p", operation: "send", source: source(), retryable: true },
    ];
    for error in &nothing_done {
        assert_eq!(failure::<()>(error), Outcome::Failed(error.to_string()));
        assert_eq!(lease_outcome(Err(error)), LeaseOutcome::Failed(error.to_string()));
    }
    let anything = [
        MessagingError::OutcomeUnknown { operation: "send", ids: vec![id], source: None },
        MessagingError::MessageNotFound { queue: queue.clone(), id },
        MessagingError::Serialization { content_type: "JSON", source: source() },
    ];
    for error in &anything {
        assert_eq!(failure::<()>(error), Outcome::Unknown);
        assert_eq!(lease_outcome(Err(error)), LeaseOutcome::Unknown);
    }
    let expired = MessagingError::VisibilityExpired { queue, id };
    assert_eq!(lease_outcome(Err(&expired)), LeaseOutcome::Expired);
    assert_eq!(lease_outcome(Ok(())), LeaseOutcome::Done);
}

#[tokio::test(start_paused = true)]
async fn the_reference_store_passes_with_its_final_state() {
    let recorded = recorded();
    for number in 0..1_500 {
        let message = Message::new(format!("{number}")).ordering_key(format!("{}", number % 700)).unwrap();
        recorded.send_message(&orders(), message, soon()).await.unwrap();
    }
    for round in 0..600 {
        let receipt = receive_one(&recorded, &orders()).await;
        let nack = match round % 4 {
            0 => Nack::dead_letter("no"),
            1 => Nack::Release,
            2 => Nack::retry_after(Duration::from_secs(1)),
            _ => {
                recorded.ack_message(&orders(), receipt, soon()).await.unwrap();
                continue;
            }
        };
        recorded.nack_message(&orders(), receipt, nack, soon()).await.unwrap();
        tokio::time::advance(Duration::from_millis(1)).await;
    }
    recorded.record_final(&[orders()], soon()).await.unwrap();
    let verdict = check(&recorded.history().events(), &CheckOptions::default());
    assert!(verdict.is_clean(), "{verdict}");
    let counts = verdict.counts;
    assert_eq!((counts.sends, counts.deliveries, counts.acks, counts.dead), (1_500, 600, 150, 150));
    assert_eq!(counts.live, 1_200, "all pages of the live and of the dead");
}
