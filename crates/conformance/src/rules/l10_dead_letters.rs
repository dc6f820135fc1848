//! L10: dead-lettering is one move that keeps the whole message and can be undone.

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use futures_util::future::try_join;
use postrider_core::{
    ContentType, DeadLetter, DeadLetterCursor, DeadLetterEdit, DeadLetterQuery, DeadLetterReason, DeadLetterSelection,
    DeadLetterSummary, DeadLetters, Deadline, Feature, Headers, Message, MessageId, MessagingError, MessagingService,
    Nack, QueueName, QueuedMessage, ReceiveOptions, Redrive, RedriveReport, RedriveSkip, Settlement, SharedProvider,
    Timestamp,
};

use crate::probe::{
    Check, Probe, Stop, ensure, ensure_invalid_cursor, ensure_same, list_dead_letters, soon, violation,
};

/// More dead letters than any provider moves in one step.
const MANY: usize = 600;

/// Sends a message and lets its handler reject it.
async fn dead_letter(probe: &Probe<'_>, queue: &QueueName, message: Message, reason: &str) -> Result<MessageId, Stop> {
    let id = probe.send(queue, message).await?;
    let message = probe.take(queue, &probe.long()).await?;
    ensure_same("the message", message.id(), id)?;
    probe.nack(message, Nack::dead_letter(reason).with_error(format!("because of {reason}"))).await?;
    Ok(id)
}

fn ids(letters: &[DeadLetter]) -> Vec<MessageId> {
    letters.iter().map(|letter| letter.id).collect()
}

pub(super) async fn l10_a_dead_letter_keeps_its_record(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("record").await?;
    let body = Bytes::from_static(b"\x00\xffraw");
    let mut message = Message::new(body.clone()).header("tenant", "acme")?;
    if probe.offers(Feature::OrderByKey) {
        message = message.ordering_key("k")?;
    }
    let sent = message.clone();
    let id = probe.send(&queue, message).await?;
    let first = probe.take(&queue, &probe.long()).await?;
    let accepted = first.envelope.enqueued_at;
    probe.nack(first, Nack::retry_after(Duration::ZERO).with_error("first failure")).await?;
    let second = probe.take(&queue, &probe.long()).await?;
    probe.nack(second, Nack::dead_letter("rejected").with_error("second failure")).await?;
    probe.nothing(&queue, "it was dead-lettered").await?;

    let letter = probe.provider.get_dead_letter(&queue, id, soon()).await?;
    ensure_same("the listed letters", probe.dead_letters(&queue).await?, vec![letter.clone()])?;
    ensure_same("the id", letter.id, id)?;
    ensure_same("the origin", &letter.origin, &queue)?;
    ensure_same("the body", &letter.body, &body)?;
    ensure_same("the content type", &letter.content_type, &sent.content_type)?;
    ensure_same("the headers", &letter.headers, &sent.headers)?;
    ensure_same("the ordering key", &letter.ordering_key, &sent.ordering_key)?;
    ensure_same("the reason", letter.reason.as_str(), "rejected")?;
    ensure_same("the error", letter.error.as_deref(), Some("second failure"))?;
    ensure_same("the deliveries", letter.deliveries_count, 2)?;
    ensure_same("the failures", letter.attempts_count, 1)?;
    ensure_same("when it was accepted", letter.enqueued_at, accepted)?;
    ensure(letter.last_attempt_at >= letter.first_attempt_at, || {
        format!("its last attempt is before its first: {letter:?}")
    })?;
    let first_attempt_at = letter.first_attempt_at.unwrap_or_default();
    let in_order = letter.enqueued_at <= first_attempt_at && first_attempt_at <= letter.dead_at;
    ensure(in_order, || format!("the times are out of order: {letter:?}"))?;
    let unknown = probe.provider.get_dead_letter(&queue, MessageId::generate(), soon()).await;
    ensure(matches!(unknown, Err(MessagingError::MessageNotFound { .. })), || {
        format!("an unknown dead letter answered {unknown:?}")
    })
}

pub(super) async fn l10_dead_letters_are_listed_once_and_by_pages(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("pages").await?;
    let mut expected = Vec::new();
    for n in 0..5 {
        let reason = if n % 2 == 0 { "even" } else { "odd" };
        expected.push(dead_letter(probe, &queue, Message::new(format!("{n}")), reason).await?);
    }
    let mut seen = Vec::new();
    let mut query = DeadLetterQuery { limit: 2, ..DeadLetterQuery::default() };
    loop {
        let page = probe.provider.list_dead_letters(&queue, &query, soon()).await?;
        ensure(page.letters.len() <= 2, || format!("a page of two has {} letters", page.letters.len()))?;
        seen.extend(ids(&page.letters));
        query.after = page.next;
        if query.after.is_none() || seen.len() > 10 {
            break;
        }
    }
    let times: Vec<_> = probe.dead_letters(&queue).await?.iter().map(|letter| letter.dead_at).collect();
    ensure(times.is_sorted(), || format!("the oldest dead letter is not listed first: {times:?}"))?;
    let (mut sorted, mut wanted) = (seen, expected.clone());
    sorted.sort_unstable();
    wanted.sort_unstable();
    ensure_same("what the pages list", sorted, wanted)?;
    let mut summaries = Vec::new();
    let mut query = DeadLetterQuery { limit: 2, ..DeadLetterQuery::default() };
    loop {
        let page = probe.provider.list_dead_letter_summaries(&queue, &query, soon()).await?;
        summaries.extend(page.summaries);
        query.after = page.next;
        if query.after.is_none() || summaries.len() > 10 {
            break;
        }
    }
    let whole: Vec<_> = probe.dead_letters(&queue).await?.into_iter().map(DeadLetterSummary::from).collect();
    ensure_same("what the pages without bodies list", summaries, whole)?;
    let odd = DeadLetterQuery { selection: DeadLetterSelection::Reason("odd".into()), ..DeadLetterQuery::default() };
    let odd = probe.provider.list_dead_letters(&queue, &odd, soon()).await?;
    let found: HashSet<_> = ids(&odd.letters).into_iter().collect();
    ensure_same("what died for that reason", found, HashSet::from([expected[1], expected[3]]))?;
    let query = DeadLetterQuery { after: Some(DeadLetterCursor("nonsense".into())), ..DeadLetterQuery::default() };
    let refused = probe.provider.list_dead_letters(&queue, &query, soon()).await.map(drop);
    ensure_invalid_cursor(refused)
}

/// Sends many messages and lets a handler reject them all.
async fn dead_letter_many(probe: &Probe<'_>, queue: &QueueName, count: usize) -> Result<Vec<MessageId>, Stop> {
    let sent = probe.send_all(queue, (0..count).map(|n| Message::new(n.to_string())).collect()).await?;
    let received = probe.take_all(queue, count, &probe.long()).await?;
    reject(&probe.provider, received).await?;
    Ok(sent)
}

async fn reject(worker: &SharedProvider, received: Vec<QueuedMessage>) -> Check {
    let rejected = |message| Settlement::nack(message, Nack::dead_letter("rejected").with_error("no"));
    let rows = worker.settle(received.into_iter().map(rejected).collect(), soon()).await?;
    Ok(rows.into_iter().collect::<Result<(), _>>()?)
}

/// A worker that rejects every message for the time of the wait.
async fn reject_all(worker: &SharedProvider, queue: &QueueName, options: &ReceiveOptions) -> Check {
    let options = ReceiveOptions { max: 100, ..options.clone() };
    loop {
        reject(worker, worker.receive_messages(queue, &options, soon()).await?).await?;
    }
}

pub(super) async fn l10_dead_letters_are_listed_alike_whenever_somebody_looks(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("alike").await?;
    let expected: HashSet<_> = dead_letter_many(probe, &queue, MANY / 5).await?.into_iter().collect();
    let mut first = None;
    for _ in 0..3 {
        let (mut listed, mut query) = (Vec::new(), DeadLetterQuery { limit: 25, ..DeadLetterQuery::default() });
        while listed.len() <= expected.len() {
            let page = probe.provider.list_dead_letters(&queue, &query, soon()).await?;
            listed.extend(ids(&page.letters));
            query.after = page.next;
            if query.after.is_none() {
                break;
            }
        }
        let listed_once: HashSet<_> = listed.iter().copied().collect();
        ensure(listed.len() == expected.len() && listed_once == expected, || {
            let missing = expected.difference(&listed_once).count();
            format!("of {} dead letters {missing} are not listed, and {} are", expected.len(), listed.len())
        })?;
        let first = first.get_or_insert_with(|| listed.clone());
        ensure(*first == listed, || "the dead letters are listed in another order than before".into())?;
    }
    Ok(())
}

pub(super) async fn l10_a_redrive_loses_nothing_that_dies_again(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("dies_again").await?;
    let mut expected = dead_letter_many(probe, &queue, MANY).await?;
    expected.sort_unstable();
    let worker = probe.open().await?;
    let options = probe.long().wait(probe.unit / 4);
    let redriving = async {
        let deadline = Deadline::after(probe.time_limit() * 3);
        let mut redriven = probe.provider.redrive_dead_letters(&queue, &Redrive::default(), deadline).await?.redriven;
        redriven.sort_unstable();
        ensure(redriven == expected, || format!("{} of {MANY} letters were redriven", redriven.len()))?;
        // Until all of them are dead-lettered again.
        let letters = async || Ok(list_dead_letters(&probe.provider, &queue).await?.len());
        probe.eventually(letters, |letters| *letters >= MANY).await?;
        let mut dead = ids(&probe.dead_letters(&queue).await?);
        dead.sort_unstable();
        ensure(dead == expected, || format!("of {MANY} letters {} are left, or others", dead.len()))
    };
    tokio::select! {
        biased;
        stopped = reject_all(&worker, &queue, &options) => stopped,
        done = redriving => done,
    }
}

/// A store may replace characters and truncate a text that it cannot hold. It may not refuse a handler's error.
pub(super) async fn l10_no_text_fails_a_settle_or_a_listing(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("texts").await?;
    let texts = [
        "\0".to_owned(),
        "before\0after".to_owned(),
        "it's \"quoted\" \\ %s {} $1 :ids ?1 -- /* */ \u{1b}[31m\r\n\t\u{7f}".to_owned(),
        "\u{feff}\u{202e}ä\u{1f40e}\u{fffd}\u{ffff}".to_owned(),
        "ä".repeat(50 * 1024),
    ];
    for text in texts {
        let id = probe.send(&queue, Message::new("one")).await?;
        let failed = Nack::retry_after(Duration::ZERO).with_error(text.clone());
        probe.nack(probe.take(&queue, &probe.long()).await?, failed).await?;
        let died = Nack::dead_letter("rejected").with_error(text.clone());
        probe.nack(probe.take(&queue, &probe.long()).await?, died).await?;
        let kept = probe.provider.get_dead_letter(&queue, id, soon()).await?.error.unwrap_or_default();
        let whole = text.replace('\0', "\u{fffd}");
        if whole.len() < 1000 {
            ensure_same("the error", &kept, &whole)?;
        } else {
            ensure(kept.len() >= 1000 && whole.starts_with(&kept), || format!("{} bytes are kept", kept.len()))?;
        }
        probe.provider.purge_dead_letters(&queue, &DeadLetterSelection::Ids(vec![id]), soon()).await?;
    }

    let reason = "it's \"quoted\" \\ ä\u{1f40e} %s $1";
    let id = dead_letter(probe, &queue, Message::new("two"), reason).await?;
    let died_of = |reason: &str| DeadLetterSelection::Reason(reason.into());
    for (reason, expected) in [(reason, vec![id]), ("nul\0", vec![]), ("it's", vec![])] {
        let query = DeadLetterQuery { selection: died_of(reason), ..DeadLetterQuery::default() };
        let listed = probe.provider.list_dead_letters(&queue, &query, soon()).await?;
        ensure_same(&format!("what died of {reason:?}"), ids(&listed.letters), expected)?;
    }
    let never = died_of("nul\0");
    let redrive = Redrive { selection: never.clone(), ..Redrive::default() };
    for dry_run in [true, false] {
        let redrive = Redrive { dry_run, ..redrive.clone() };
        let report = probe.provider.redrive_dead_letters(&queue, &redrive, soon()).await?;
        ensure_same("what a redrive by no reason does", report, RedriveReport::default())?;
    }
    ensure_same("what a purge by no reason does", probe.provider.purge_dead_letters(&queue, &never, soon()).await?, 0)?;

    // A reason that no store accepts must leave the lease unchanged.
    probe.send(&queue, Message::new("three")).await?;
    let receipt = probe.take(&queue, &probe.long()).await?.into_receipt();
    let refused = probe.nack(receipt.clone(), Nack::dead_letter("nul\0")).await;
    ensure(matches!(refused, Err(MessagingError::InvalidInput { .. })), || {
        format!("a reason with a control character answered {refused:?}")
    })?;
    Ok(probe.ack(receipt).await?)
}

pub(super) async fn l10_dead_letters_are_found_by_their_errors(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("find").await?;
    let mut expected = Vec::new();
    for error in ["timed out", "refused", "timed out", "timed out again", "nul\u{fffd}"] {
        let id = probe.send(&queue, Message::new(error)).await?;
        let reason = if error == "refused" { "other" } else { "rejected" };
        let died = Nack::dead_letter(reason).with_error(error);
        probe.nack(probe.take(&queue, &probe.long()).await?, died).await?;
        expected.push(id);
    }
    let (all, reason) = (DeadLetterSelection::All, DeadLetterSelection::Reason("other".into()));
    let (some, none) = (DeadLetterSelection::Ids(expected[1..3].to_vec()), DeadLetterSelection::Ids(Vec::new()));
    for (selection, error, indexes) in [
        (&all, None, vec![0, 1, 2, 3, 4]),
        (&all, Some("timed out"), vec![0, 2]),
        (&all, Some("timed"), vec![]),
        (&all, Some("nul\0"), vec![]),
        (&reason, None, vec![1]),
        (&reason, Some("timed out"), vec![]),
        (&some, None, vec![1, 2]),
        (&some, Some("timed out"), vec![2]),
        (&none, Some("timed out"), vec![]),
    ] {
        for name in [&queue, &queue.dead_letters()] {
            let found = probe.provider.find_dead_letters(name, selection, error, soon()).await?;
            let indexes: Vec<_> = indexes.iter().map(|place: &usize| expected[*place]).collect();
            ensure_same(&format!("what is found by {selection:?} and {error:?}"), found, indexes)?;
        }
    }
    Ok(())
}

pub(super) async fn l10_a_purge_counts_all_that_it_removes_while_others_die(probe: &Probe<'_>) -> Check {
    const ROUNDS: usize = 5;
    const EACH: usize = MANY / 10;
    let queue = probe.queue("purged").await?;
    let mut sent: HashSet<_> = dead_letter_many(probe, &queue, EACH).await?.into_iter().collect();
    let worker = probe.open().await?;
    let is_over = AtomicBool::new(false);
    let dying = async {
        for _ in 0..ROUNDS {
            let more = (0..EACH).map(|n| Message::new(n.to_string())).collect();
            sent.extend(probe.send_all(&queue, more).await?);
            let mut rejected = 0;
            while rejected < EACH {
                let options = ReceiveOptions { max: 20, ..probe.long().wait(probe.unit) };
                let received = worker.receive_messages(&queue, &options, soon()).await?;
                rejected += received.len();
                reject(&worker, received).await?;
            }
        }
        is_over.store(true, Ordering::Relaxed);
        Ok::<_, Stop>(())
    };
    let purging = async {
        let mut purged = 0;
        while !is_over.load(Ordering::Relaxed) {
            purged += probe.provider.purge_dead_letters(&queue, &DeadLetterSelection::All, soon()).await?;
            tokio::time::sleep(probe.unit / 20).await;
        }
        Ok::<_, Stop>(purged)
    };
    let ((), purged) = try_join(dying, purging).await?;
    let purged = usize::try_from(purged).unwrap_or(usize::MAX);
    let expected = sent.len().saturating_sub(purged);
    let letters = async || Ok(list_dead_letters(&probe.provider, &queue).await?.len());
    probe.eventually(letters, |letters| *letters >= expected).await?;
    let left = ids(&probe.dead_letters(&queue).await?);
    let known: HashSet<_> = left.iter().copied().filter(|id| sent.contains(id)).collect();
    ensure(left.len() == expected && known.len() == expected, || {
        format!("of {} letters {purged} were purged, and {} are left", sent.len(), left.len())
    })
}

pub(super) async fn l10_a_dead_letter_can_be_edited(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("edit").await?;
    let id = dead_letter(probe, &queue, Message::new("wrong").header("keep", "1")?, "rejected").await?;
    let edit = DeadLetterEdit { body: Some("right".into()), ..DeadLetterEdit::default() };
    let letter = probe.provider.edit_dead_letter(&queue, id, edit, soon()).await?;
    ensure_same("the body", &letter.body, &Bytes::from("right"))?;
    ensure_same("the revision", letter.revision, 1)?;
    ensure_same("the kept header", letter.headers.get("keep"), Some("1"))?;
    let edit = DeadLetterEdit { headers: Some(Headers::new()), ..DeadLetterEdit::default() };
    let letter = probe.provider.edit_dead_letter(&queue, id, edit, soon()).await?;
    ensure_same("the headers", letter.headers.len(), 0)?;
    ensure_same("the body", &letter.body, &Bytes::from("right"))?;
    ensure_same("the reason", letter.reason.as_str(), "rejected")?;
    probe.provider.redrive_dead_letters(&queue, &Redrive::default(), soon()).await?;
    let message = probe.take(&queue, &probe.long()).await?;
    ensure_same("the redriven body", message.message.clone(), Bytes::from("right"))
}

pub(super) async fn l10_an_edit_leaves_no_json_that_is_none(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("json").await?;
    let json = Message::new("{\"litres\": 7}").content_type(ContentType::JSON);
    let id = dead_letter(probe, &queue, json, "rejected").await?;
    let text = Message::new("seven").content_type(ContentType::from_static("text/plain"));
    let text = dead_letter(probe, &queue, text, "rejected").await?;
    let edit = DeadLetterEdit { body: Some("{\n  \"litres\" 7}".into()), ..DeadLetterEdit::default() };
    let renamed = DeadLetterEdit { content_type: Some(ContentType::JSON), ..DeadLetterEdit::default() };
    for (id, edit, place) in [(id, &edit, "line 2, column 12"), (text, &renamed, "line 1, column 1")] {
        let answer = probe.provider.edit_dead_letter(&queue, id, edit.clone(), soon()).await;
        let is_told =
            matches!(&answer, Err(error @ MessagingError::InvalidInput { .. }) if error.to_string().contains(place));
        ensure(is_told, || format!("{edit:?}, which is no JSON at {place}, answered {answer:?}"))?;
    }
    let letter = probe.provider.get_dead_letter(&queue, id, soon()).await?;
    ensure_same("the body", &letter.body, &Bytes::from("{\"litres\": 7}"))?;
    ensure_same("the revision", letter.revision, 0)?;
    // With a new content type any bytes are valid.
    let edit = DeadLetterEdit { content_type: Some(ContentType::from_static("text/plain")), ..edit };
    let letter = probe.provider.edit_dead_letter(&queue, id, edit, soon()).await?;
    ensure_same("the content type", letter.content_type.as_str(), "text/plain")
}

pub(super) async fn l10_a_redrive_keeps_the_id_and_resets_the_counts(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("redrive").await?;
    let id = probe.send(&queue, Message::new("one").header("tenant", "acme")?).await?;
    let message = probe.take(&queue, &probe.long()).await?;
    probe.nack(message, Nack::retry_after(Duration::ZERO)).await?;
    let message = probe.take(&queue, &probe.long()).await?;
    probe.nack(message, Nack::dead_letter("rejected")).await?;

    let report = probe.provider.redrive_dead_letters(&queue, &Redrive::default(), soon()).await?;
    ensure_same("the redriven", report.redriven, vec![id])?;
    ensure_same("the dead letters left", probe.dead_letters(&queue).await?.len(), 0)?;
    let message = probe.take(&queue, &probe.long()).await?;
    ensure_same("the id", message.id(), id)?;
    ensure_same("the header", message.envelope.headers.get("tenant"), Some("acme"))?;
    ensure_same("the delivery", message.receive_count(), 1)?;
    ensure_same("the failures", message.envelope.attempts_count, 0)?;
    probe.ack(message).await?;
    probe.nothing(&queue, "it was redriven once and acknowledged").await?;
    let again = Redrive { selection: DeadLetterSelection::Ids(vec![id]), ..Redrive::default() };
    let report = probe.provider.redrive_dead_letters(&queue, &again, soon()).await?;
    ensure_same("what a second redrive skips", report.skipped, vec![(id, RedriveSkip::NotFound)])
}

pub(super) async fn l10_a_dry_run_changes_nothing(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("dry_run").await?;
    let id = dead_letter(probe, &queue, Message::new("one"), "rejected").await?;
    let before = probe.dead_letters(&queue).await?;
    let dry_run = Redrive { dry_run: true, ..Redrive::default() };
    let report = probe.provider.redrive_dead_letters(&queue, &dry_run, soon()).await?;
    ensure_same("what would be redriven", report.redriven, vec![id])?;
    ensure_same("the dead letters", probe.dead_letters(&queue).await?, before)?;
    probe.nothing(&queue, "the redrive was a dry run").await
}

pub(super) async fn l10_a_redrive_can_go_elsewhere_and_by_reason(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("from").await?;
    let elsewhere = probe.queue("to").await?;
    let good = dead_letter(probe, &queue, Message::new("good"), "mistake").await?;
    let bad = dead_letter(probe, &queue, Message::new("bad"), "poison").await?;
    let redrive = Redrive {
        selection: DeadLetterSelection::Reason("mistake".into()),
        to: Some(elsewhere.clone()),
        dry_run: false,
    };
    let report = probe.provider.redrive_dead_letters(&queue, &redrive, soon()).await?;
    ensure_same("the redriven", report.redriven, vec![good])?;
    ensure_same("the dead letters left", ids(&probe.dead_letters(&queue).await?), vec![bad])?;
    let message = probe.take(&elsewhere, &probe.long()).await?;
    ensure_same("the message", message.id(), good)?;
    probe.nothing(&queue, "it was redriven elsewhere").await?;
    let to_the_dead = Redrive { to: Some(queue.dead_letters()), ..Redrive::default() };
    match probe.provider.redrive_dead_letters(&queue, &to_the_dead, soon()).await {
        Err(MessagingError::InvalidInput { .. }) => Ok(()),
        other => violation(format!("a redrive to a dead-letter queue answered {other:?}")),
    }
}

pub(super) async fn l10_dead_letters_can_be_received_without_a_limit(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("receive").await?;
    let dead_queue = queue.dead_letters();
    let id = dead_letter(probe, &queue, Message::new("one"), "rejected").await?;
    for _ in 0..4 {
        let message = probe.take(&dead_queue, &probe.long().max_receive_count(1)).await?;
        ensure_same("the message", message.id(), id)?;
        probe.nack(message, Nack::retry_after(Duration::ZERO)).await?;
    }
    let message = probe.take(&dead_queue, &probe.long()).await?;
    let receipt = message.into_receipt();
    let again = probe.nack(receipt.clone(), Nack::dead_letter("again")).await;
    ensure(again.is_err(), || "a dead letter was dead-lettered again".into())?;
    let report = probe.provider.redrive_dead_letters(&queue, &Redrive::default(), soon()).await?;
    ensure_same("what a redrive skips", report.skipped, vec![(id, RedriveSkip::Leased)])?;
    probe.ack(receipt).await?;
    ensure_same("the dead letters left", probe.dead_letters(&queue).await?.len(), 0)
}

pub(super) async fn l10_dead_letters_can_be_purged(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("purge").await?;
    let kept = dead_letter(probe, &queue, Message::new("kept"), "keep").await?;
    let gone = dead_letter(probe, &queue, Message::new("gone"), "throw away").await?;
    let selection = DeadLetterSelection::Ids(vec![gone]);
    let purged = probe.provider.purge_dead_letters(&queue, &selection, soon()).await?;
    ensure_same("the number purged", purged, 1)?;
    ensure_same("the dead letters left", ids(&probe.dead_letters(&queue).await?), vec![kept])?;
    let purged = probe.provider.purge_dead_letters(&queue, &DeadLetterSelection::All, soon()).await?;
    ensure_same("the number purged", purged, 1)?;
    ensure_same("the dead letters left", probe.dead_letters(&queue).await?.len(), 0)
}

pub(super) async fn l10_nobody_can_send_to_the_dead_letters(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("no_sends").await?;
    let refused = probe.provider.send_message(&queue.dead_letters(), Message::new("one"), soon()).await;
    ensure(refused.is_err(), || "a send to a dead-letter queue was accepted".into())?;
    ensure_same("the dead letters", probe.dead_letters(&queue).await?.len(), 0)?;
    let limit = probe.long().max_receive_count(1);
    probe.send(&queue, Message::new("one")).await?;
    let message = probe.take(&queue, &limit).await?;
    probe.nack(message, Nack::retry_after(Duration::ZERO)).await?;
    let dead = probe.read_until_dead(&queue, 1, &limit).await?;
    ensure_same("the reason", &dead[0].reason, &DeadLetterReason::MAX_RECEIVE_COUNT)
}

pub(super) async fn l10_a_leased_dead_letter_is_left_alone(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("leased").await?;
    let id = dead_letter(probe, &queue, Message::new("one"), "rejected").await?;
    let held = probe.take(&queue.dead_letters(), &probe.long()).await?;
    let edit = DeadLetterEdit { body: Some("changed".into()), ..DeadLetterEdit::default() };
    let edited = probe.provider.edit_dead_letter(&queue, id, edit, soon()).await;
    ensure(matches!(edited, Err(MessagingError::MessageLeased { .. })), || format!("an edit answered {edited:?}"))?;
    let purged = probe.provider.purge_dead_letters(&queue, &DeadLetterSelection::All, soon()).await?;
    ensure_same("the number purged", purged, 0)?;
    probe.nack(held, Nack::Release).await?;
    let letter = probe.provider.get_dead_letter(&queue, id, soon()).await?;
    ensure_same("the body", letter.body, Bytes::from("one"))
}

pub(super) async fn l10_a_redrive_makes_no_second_message_for_a_dedup_key(probe: &Probe<'_>) -> Check {
    if let Some(window) = probe.provider.capabilities().limits.dedup_window {
        return Err(Stop::NotExercised(format!(
            "a dedup key is held for {window:?} here, also after its message has ended"
        )));
    }
    let queue = probe.queue("redrive_dedup").await?;
    let dead = dead_letter(probe, &queue, Message::new("old").dedup_key("k")?, "rejected").await?;
    let living = probe.send(&queue, Message::new("new").dedup_key("k")?).await?;
    let report = probe.provider.redrive_dead_letters(&queue, &Redrive::default(), soon()).await?;
    ensure_same("what a redrive skips", report.skipped, vec![(dead, RedriveSkip::DedupKeyTaken)])?;
    let message = probe.take(&queue, &probe.long()).await?;
    ensure_same("the message", message.id(), living)?;
    probe.ack(message).await?;
    let report = probe.provider.redrive_dead_letters(&queue, &Redrive::default(), soon()).await?;
    ensure_same("the redriven", report.redriven, vec![dead])?;
    let again = probe.send(&queue, Message::new("newer").dedup_key("k")?).await?;
    ensure_same("the message that has the key", again, dead)
}

pub(super) async fn l10_a_redrive_takes_the_dedup_key_of_an_expired_message(probe: &Probe<'_>) -> Check {
    if let Some(window) = probe.provider.capabilities().limits.dedup_window {
        return Err(Stop::NotExercised(format!(
            "a dedup key is held for {window:?} here, also after its message has ended"
        )));
    }
    let queue = probe.queue("redrive_over").await?;
    let dead = dead_letter(probe, &queue, Message::new("old").dedup_key("k")?, "rejected").await?;
    // An expired message that was not read yet does not hold its key against a send, nor against a redrive.
    let over = Message::new("over").dedup_key("k")?.expires_at(Timestamp::from_micros(1));
    let over = probe.send(&queue, over).await?;
    for dry_run in [true, false] {
        let redrive = Redrive { selection: DeadLetterSelection::Ids(vec![dead]), to: None, dry_run };
        let report = probe.provider.redrive_dead_letters(&queue, &redrive, soon()).await?;
        ensure_same("the redriven", report.redriven, vec![dead])?;
    }
    let message = probe.take(&queue, &probe.long()).await?;
    ensure_same("the message", message.id(), dead)?;
    probe.ack(message).await?;
    let letters = probe.read_until_dead(&queue, 1, &probe.long()).await?;
    ensure_same("the dead letters", ids(&letters), vec![over])?;
    ensure_same("the reason", &letters[0].reason, &DeadLetterReason::EXPIRED)
}

pub(super) async fn l10_a_redriven_message_outlives_its_old_expiry(probe: &Probe<'_>) -> Check {
    let queue = probe.queue("redrive_expired").await?;
    let id = probe.send(&queue, Message::new("late").expires_at(Timestamp::from_micros(1))).await?;
    probe.read_until_dead(&queue, 1, &probe.long()).await?;
    let from_the_dead = probe.take(&queue.dead_letters(), &probe.long()).await?;
    ensure_same("the dead letter that was received", from_the_dead.id(), id)?;
    probe.nack(from_the_dead, Nack::Release).await?;
    probe.provider.redrive_dead_letters(&queue, &Redrive::default(), soon()).await?;
    let message = probe.take(&queue, &probe.long()).await?;
    ensure_same("the message", message.id(), id)
}
