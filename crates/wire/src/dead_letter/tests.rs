use bytes::Bytes;
use postrider_core::{Headers, Key};

use super::*;
use crate::testing::{is_refused, json, round_trip};

fn letter(is_full: bool) -> DeadLetter {
    let mut headers = Headers::new();
    headers.insert("tenant", "acme").unwrap();
    let key = |text| is_full.then(|| Key::new("key", text).unwrap());
    let time = |micros| is_full.then(|| Timestamp::from_micros(micros));
    DeadLetter {
        id: MessageId::generate(),
        origin: QueueName::new("orders").unwrap(),
        body: Bytes::from_static(if is_full { b"\xff" } else { b"" }),
        content_type: ContentType::JSON,
        headers,
        ordering_key: key("k"),
        dedup_key: key("d"),
        priority: Priority::HIGHEST,
        expires_at: time(1),
        reason: DeadLetterReason::from("odd"),
        error: is_full.then(|| "no".into()),
        deliveries_count: 3,
        attempts_count: 2,
        enqueued_at: Timestamp::from_micros(4),
        first_attempt_at: time(5),
        last_attempt_at: time(6),
        dead_at: Timestamp::from_micros(7),
        revision: 1,
    }
}

#[test]
fn dead_letters_round_trip() {
    for next in [None, Some(DeadLetterCursor("7".into()))] {
        let page = DeadLetterPage { letters: vec![letter(true), letter(false)], next };
        assert_eq!(DeadLetterPage::try_from(round_trip(&DeadPage::from(page.clone()))).unwrap(), page);
    }
}

#[test]
fn edits_round_trip() {
    let full = DeadLetterEdit {
        body: Some(Bytes::from_static(b"\xff")),
        content_type: Some(ContentType::MSGPACK),
        headers: Some(Headers::new()),
    };
    for edit in [full, DeadLetterEdit::default()] {
        assert_eq!(DeadLetterEdit::try_from(round_trip(&EditRequest::from(edit.clone()))).unwrap(), edit);
    }
    assert_eq!(json(&EditRequest::default()), serde_json::json!({}));
    assert!(is_refused::<EditRequest>(r#"{"priority":1}"#));
}

#[test]
fn choices_round_trip() {
    let to = Some(QueueName::new("other").unwrap());
    let selections = [
        DeadLetterSelection::All,
        DeadLetterSelection::Ids(Vec::new()),
        DeadLetterSelection::Ids(vec![MessageId::generate()]),
        DeadLetterSelection::Reason(DeadLetterReason::EXPIRED),
    ];
    for selection in selections {
        let purge = round_trip(&PurgeRequest::from(&selection));
        assert_eq!(purge.choice().unwrap().selection(), selection);
        for dry_run in [true, false] {
            let redrive = Redrive { selection: selection.clone(), to: to.clone(), dry_run };
            assert_eq!(round_trip(&RedriveRequest::from(&redrive)).redrive().unwrap(), redrive);
        }
    }
    let both = PurgeRequest { ids: Some(Vec::new()), error: Some("no".into()), ..PurgeRequest::default() };
    assert!(both.choice().is_err());
    assert!(is_refused::<PurgeRequest>(r#"{"id":"x"}"#));
    assert!(is_refused::<PurgeRequest>(r#"{"filter":{"reasons":"x"}}"#));
    assert!(is_refused::<PurgeRequest>(r#"{"filter":["x"]}"#));
    assert!(is_refused::<RedriveJobRequest>(r#"{"dry_run":true}"#));
}

#[test]
fn filters_round_trip() {
    let text = |text: &str| Some(text.to_owned());
    let filter = Filter {
        reason: text("odd"),
        error: text("no"),
        error_contains: text("n"),
        fingerprint: text("no #"),
        key: text("anna"),
        id: text("abcd"),
        since: Some(Timestamp::from_micros(1)),
        before: Some(Timestamp::from_micros(2)),
        text: text("tea"),
    };
    let redrive = RedriveRequest { filter: Some(filter.clone()), ..RedriveRequest::default() };
    let job = RedriveJobRequest { filter: Some(filter.clone()), ..RedriveJobRequest::default() };
    let purge = PurgeRequest { filter: Some(filter.clone()), ..PurgeRequest::default() };
    let choice = Choice::Filter(DeadLetterFilter::from(filter));
    assert_eq!(round_trip(&redrive).choice().unwrap(), choice);
    assert_eq!(round_trip(&job).choice().unwrap(), choice);
    assert_eq!(round_trip(&purge).choice().unwrap(), choice);
    assert!(RedriveRequest { ids: Some(Vec::new()), ..redrive.clone() }.choice().is_err());
    assert!(RedriveRequest { reason: text("odd"), ..redrive }.choice().is_err(), "set twice");
    let beside = PurgeRequest { reason: text("odd"), ..PurgeRequest::default() };
    let wanted = DeadLetterFilter { reason: Some("odd".into()), ..DeadLetterFilter::default() };
    assert_eq!(beside.choice().unwrap(), Choice::Filter(wanted));
}

#[test]
fn reports_round_trip() {
    let id = MessageId::generate;
    let skipped = [RedriveSkip::Leased, RedriveSkip::DedupKeyTaken, RedriveSkip::NotFound];
    let report = RedriveReport { redriven: vec![id(), id()], skipped: skipped.map(|why| (id(), why)).into() };
    assert_eq!(RedriveReport::from(round_trip(&Redriven::from(report.clone()))), report);
}
