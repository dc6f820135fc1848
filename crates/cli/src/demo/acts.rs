//! The acts of the tour, in their order.

use std::time::Instant;

use postrider::{
    DeadLetterEdit, DeadLetterQuery, DeadLetterSelection, DeadLetters, Deadline, Feature, Message, MessagingError,
    MessagingService, QueuedMessage, Redrive, duration_text,
};

use super::Place;
use super::narrator::Narrator;
use super::stage::{Stage, check};
use super::worker::work;
use crate::failure::Failure;

/// Plays everything, and fails when something that is told did not happen.
pub(super) async fn play(stage: &mut Stage, place: &Place) -> Result<(), Failure> {
    send(stage, place).await?;
    retry(stage).await?;
    send_once(stage).await?;
    order(stage).await?;
    delay(stage).await?;
    late_worker(stage).await?;
    poison(stage).await?;
    bring_back(stage).await?;
    nothing_is_left(stage).await
}

async fn send(stage: &mut Stage, place: &Place) -> Result<(), Failure> {
    stage.step("send", "Messages are sent to a queue, and handled").await?;
    stage.line(format!("The queue '{}' lives in {}", place.queue, place.endpoint)).await?;
    for body in ["tea", "coffee"] {
        let id = stage.send(Message::new(body)).await?;
        stage.line(format!("{body}: sent, and safe in the store as {id}")).await?;
    }
    check(stage.counts().await?[0] == 2, "two messages were sent, and the store has not two")?;
    let ended = work(stage, 2, |_, _| Ok(())).await?;
    check(ended[0].body == "tea" && ended[1].body == "coffee", "the messages came in another order")
}

async fn retry(stage: &mut Stage) -> Result<(), Failure> {
    stage.step("retry", "A handler fails: the message comes back, each time later").await?;
    stage.send(Message::new("milk")).await?;
    let fails_twice = |_: &str, attempt| if attempt < 3 { Err("the shop is closed") } else { Ok(()) };
    let ended = work(stage, 1, fails_twice).await?;
    check(ended[0].attempts == 3 && !ended[0].died, "the third attempt did not succeed")
}

async fn send_once(stage: &mut Stage) -> Result<(), Failure> {
    stage.step("dedup", "Sent twice with one dedup key, it is one message").await?;
    if !stage.offers(Feature::Dedup).await? {
        return Ok(());
    }
    let invoice = || Message::new("invoice 7").dedup_key("invoice-7");
    let (first, second) = (stage.send(invoice()?).await?, stage.send(invoice()?).await?);
    stage.line(format!("invoice 7: sent, {first}")).await?;
    stage.line(format!("invoice 7: sent again, {second}: the same")).await?;
    check(first == second && stage.counts().await?[0] == 1, "two messages were made")?;
    work(stage, 1, |_, _| Ok(())).await.map(drop)
}

async fn order(stage: &mut Stage) -> Result<(), Failure> {
    stage.step("order", "Messages with one ordering key keep their order, also when one fails").await?;
    if !stage.offers(Feature::OrderByKey).await? {
        return Ok(());
    }
    for (key, body) in [("anna", "anna opens"), ("anna", "anna pays"), ("anna", "anna closes"), ("bert", "bert opens")]
    {
        stage.send(Message::new(body).ordering_key(key)?).await?;
    }
    stage.line("Sent: anna opens, anna pays, anna closes, bert opens; their keys are 'anna' and 'bert'").await?;
    let first_fails = |body: &str, attempt| match body {
        "anna opens" if attempt == 1 => Err("no answer"),
        _ => Ok(()),
    };
    let ended = work(stage, 4, first_fails).await?;
    let anna: Vec<_> = ended.iter().map(|ended| ended.body.as_str()).filter(|body| body.starts_with("anna")).collect();
    check(anna == ["anna opens", "anna pays", "anna closes"], "the order of a key was broken")?;
    stage.line("Anna's other messages stayed in line behind the one that failed").await?;
    // Not every store hands over all that is due at once, and then bert's may come later by chance.
    if ended[0].body == "bert opens" {
        stage.line("Bert's did not have to wait for it").await?;
    }
    Ok(())
}

async fn delay(stage: &mut Stage) -> Result<(), Failure> {
    stage.step("delay", "A message can wait before it is delivered").await?;
    if !stage.offers(Feature::Delay).await? {
        return Ok(());
    }
    let (sent, delay) = (Instant::now(), stage.pace.delay);
    stage.send(Message::new("reminder").delay(delay)).await?;
    stage.line(format!("reminder: sent, for {} from now", duration_text::show(delay))).await?;
    work(stage, 1, |_, _| Ok(())).await?;
    check(sent.elapsed() >= delay, "it was delivered too early")
}

async fn late_worker(stage: &mut Stage) -> Result<(), Failure> {
    stage.step("lease", "A worker dies, another takes over, and the first comes back too late").await?;
    stage.send(Message::new("parcel")).await?;
    let (begun, lease) = (Instant::now(), stage.pace.lease);
    let leased = stage.receive(&stage.first, 1, lease).await?.pop();
    // Only its receipt is left of it. A message that is dropped whole gives its lease back, and this one shall run out.
    let Some(stale) = leased.map(QueuedMessage::into_receipt) else {
        return check(false, "no message came");
    };
    stage.line(format!("Worker 1 has leased parcel for {} and dies", duration_text::show(lease))).await?;
    let Some(message) = stage.receive(&stage.second, 1, Deadline::DEFAULT).await?.pop() else {
        return check(false, "the message did not come back");
    };
    check(message.id() == stale.message_id() && message.receive_count() == 2, "another message came back")?;
    check(begun.elapsed() >= lease, "two workers had the message at once")?;
    stage.line("The lease has run out: worker 2 gets parcel, as its second delivery").await?;
    match stage.first.ack_message(&stage.queue, stale, Deadline::default()).await {
        Err(error @ MessagingError::VisibilityExpired { .. }) => {
            stage.line("Worker 1 is back and says that it is done. The store refuses:").await?;
            stage.line(format!("  \"{error}\"")).await?;
        }
        Ok(()) => return check(false, "the late worker settled another worker's delivery"),
        Err(other) => return Err(other.into()),
    }
    stage.second.ack_message(&stage.queue, message, Deadline::default()).await?;
    stage.line("parcel: handled by worker 2, whose lease is the one that counts").await
}

async fn poison(stage: &mut Stage) -> Result<(), Failure> {
    stage.step("dead_letter", "What fails every time is put aside, with its story").await?;
    for body in ["amount: twelve", "amount: 30"] {
        stage.send(Message::new(body)).await?;
    }
    let ended = work(stage, 2, read_amount).await?;
    let died: Vec<_> = ended.iter().filter(|ended| ended.died).map(|ended| ended.body.as_str()).collect();
    check(died == ["amount: twelve"], "not the poison died")?;
    let page = stage.first.list_dead_letters(&stage.queue, &DeadLetterQuery::default(), Deadline::default()).await?;
    check(page.letters.len() == 1, "the dead letters are not one")?;
    for letter in page.letters {
        let error = letter.error.unwrap_or_default();
        check(error == NO_NUMBER && letter.attempts_count >= 2, "the dead letter does not tell its story")?;
        stage
            .line(format!(
                "Dead letters of '{}': \"{}\", {}, {} deliveries, last error \"{error}\"",
                letter.origin,
                String::from_utf8_lossy(&letter.body),
                letter.reason,
                letter.deliveries_count
            ))
            .await?;
    }
    Ok(())
}

const NO_NUMBER: &str = "that is no number";

fn read_amount(body: &str, _attempt: u32) -> Result<(), &'static str> {
    let amount = body.strip_prefix("amount: ").unwrap_or(body);
    amount.parse::<f64>().map(drop).map_err(|_| NO_NUMBER)
}

async fn bring_back(stage: &mut Stage) -> Result<(), Failure> {
    stage.step("redrive", "A dead letter is put right and brought back to life").await?;
    let query = DeadLetterQuery::default();
    let page = stage.first.list_dead_letters(&stage.queue, &query, Deadline::default()).await?;
    let ids: Vec<_> = page.letters.iter().map(|letter| letter.id).collect();
    for id in &ids {
        let edit = DeadLetterEdit { body: Some("amount: 12".into()), ..DeadLetterEdit::default() };
        let letter = stage.first.edit_dead_letter(&stage.queue, *id, edit, Deadline::default()).await?;
        stage.line(format!("Edited: \"{}\"", String::from_utf8_lossy(&letter.body))).await?;
    }
    let redrive = Redrive { selection: DeadLetterSelection::Ids(ids.clone()), ..Redrive::default() };
    let report = stage.first.redrive_dead_letters(&stage.queue, &redrive, Deadline::default()).await?;
    check(report.redriven == ids, "it stayed dead")?;
    stage.line("Redriven: the same message, its counts at zero").await?;
    let ended = work(stage, 1, read_amount).await?;
    check(ended[0].attempts == 1 && !ended[0].died, "it was not handled at the first attempt")
}

async fn nothing_is_left(stage: &mut Stage) -> Result<(), Failure> {
    stage.step("stats", "Nothing was lost, and nothing is left").await?;
    let counts = stage.counts().await?;
    check(counts == [0; 4], format!("the queue still has {counts:?} messages"))?;
    let [ready, in_flight, delayed, dead] = counts;
    stage.line(format!("ready {ready}, in flight {in_flight}, delayed {delayed}, dead {dead}")).await?;
    stage.narrator.end_step()
}

/// What the user can do next.
pub(super) fn farewell(narrator: &mut Narrator, place: &Place, kept: bool) -> Result<(), Failure> {
    let queue = if kept { place.queue.as_str() } else { "orders" };
    let (thing, url) = match &place.file_url {
        // The user's URL may have a password in it.
        None => (format!("queue '{}'", place.queue), "'the same URL'".to_owned()),
        Some(url) if kept => ("file".to_owned(), format!("'{url}'")),
        Some(_) => ("file".to_owned(), "\"sqlite:$PWD/orders.db\"".to_owned()),
    };
    let what = match kept {
        true => format!("The {thing} is kept. Go on with it:"),
        false => format!("The {thing} is removed. Go on with one of yours:"),
    };
    narrator.close(
        what,
        vec![
            format!("export POSTRIDER_URL={url}"),
            format!("postrider send {queue} 'two teas'"),
            format!("postrider work {queue} --drain -- cat"),
            format!("postrider stats {queue}"),
            format!("postrider dlq list {queue}"),
            "postrider verify".to_owned(),
        ],
    )
}
