//! The steps of the tour, in their order.

use std::time::Instant;

use postrider::{
    DeadLetterEdit, DeadLetterQuery, DeadLetterSelection, DeadLetters, Deadline, Feature, Message, MessagingError,
    MessagingService, QueuedMessage, Redrive, duration_text,
};

use super::Location;
use super::tour::{Tour, check};
use super::transcript::Transcript;
use super::worker::work;
use crate::failure::Failure;

/// Runs every step; fails if a printed line is not true.
pub(super) async fn run(tour: &mut Tour, location: &Location) -> Result<(), Failure> {
    send(tour, location).await?;
    retry(tour).await?;
    send_once(tour).await?;
    order(tour).await?;
    delay(tour).await?;
    late_worker(tour).await?;
    poison(tour).await?;
    redrive(tour).await?;
    stats(tour).await
}

async fn send(tour: &mut Tour, location: &Location) -> Result<(), Failure> {
    tour.step("send", "Messages are sent to a queue and handled").await?;
    tour.line(format!("The queue '{}' is in {}", location.queue, location.endpoint)).await?;
    for body in ["tea", "coffee"] {
        let id = tour.send(Message::new(body)).await?;
        tour.line(format!("{body}: sent, and durable in the store as {id}")).await?;
    }
    check(tour.counts().await?[0] == 2, "the store does not count two messages")?;
    let ended = work(tour, 2, |_, _| Ok(())).await?;
    check(ended[0].body == "tea" && ended[1].body == "coffee", "the messages came in another order")
}

async fn retry(tour: &mut Tour) -> Result<(), Failure> {
    tour.step("retry", "A handler fails: the message is retried, each time after a longer delay").await?;
    tour.send(Message::new("milk")).await?;
    let fails_twice = |_: &str, attempt| if attempt < 3 { Err("the shop is closed") } else { Ok(()) };
    let ended = work(tour, 1, fails_twice).await?;
    check(ended[0].attempts == 3 && !ended[0].died, "the third attempt did not succeed")
}

async fn send_once(tour: &mut Tour) -> Result<(), Failure> {
    tour.step("dedup", "Two sends with one dedup key make one message").await?;
    if !tour.offers(Feature::Dedup).await? {
        return Ok(());
    }
    let invoice = || Message::new("invoice 7").dedup_key("invoice-7");
    let (first, second) = (tour.send(invoice()?).await?, tour.send(invoice()?).await?);
    tour.line(format!("invoice 7: sent, {first}")).await?;
    tour.line(format!("invoice 7: sent again, {second}: the same id")).await?;
    check(first == second && tour.counts().await?[0] == 1, "two messages were created")?;
    work(tour, 1, |_, _| Ok(())).await.map(drop)
}

async fn order(tour: &mut Tour) -> Result<(), Failure> {
    tour.step("order", "Messages with one ordering key keep their order, even when one fails").await?;
    if !tour.offers(Feature::OrderByKey).await? {
        return Ok(());
    }
    for (key, body) in [("anna", "anna opens"), ("anna", "anna pays"), ("anna", "anna closes"), ("bert", "bert opens")]
    {
        tour.send(Message::new(body).ordering_key(key)?).await?;
    }
    tour.line("Sent: anna opens, anna pays, anna closes, bert opens; their keys are 'anna' and 'bert'").await?;
    let first_fails = |body: &str, attempt| match body {
        "anna opens" if attempt == 1 => Err("no answer"),
        _ => Ok(()),
    };
    let ended = work(tour, 4, first_fails).await?;
    let anna: Vec<_> = ended.iter().map(|ended| ended.body.as_str()).filter(|body| body.starts_with("anna")).collect();
    check(anna == ["anna opens", "anna pays", "anna closes"], "the order of a key was broken")?;
    tour.line("Anna's other messages waited for the one that failed").await?;
    // Not every store returns all due messages at once, so Bert's may come later by chance.
    if ended[0].body == "bert opens" {
        tour.line("Bert's message did not wait for it").await?;
    }
    Ok(())
}

async fn delay(tour: &mut Tour) -> Result<(), Failure> {
    tour.step("delay", "A delayed message is delivered when it is due").await?;
    if !tour.offers(Feature::Delay).await? {
        return Ok(());
    }
    let (sent, delay) = (Instant::now(), tour.pace.delay);
    tour.send(Message::new("reminder").delay(delay)).await?;
    tour.line(format!("reminder: sent, due in {}", duration_text::show(delay))).await?;
    work(tour, 1, |_, _| Ok(())).await?;
    check(sent.elapsed() >= delay, "it was delivered too early")
}

async fn late_worker(tour: &mut Tour) -> Result<(), Failure> {
    tour.step("lease", "A worker's lease expires, another worker takes over, and the late acknowledgement is refused")
        .await?;
    tour.send(Message::new("parcel")).await?;
    let (begun, lease) = (Instant::now(), tour.pace.lease);
    let leased = tour.receive(&tour.first, 1, lease).await?.pop();
    // Keeps only the receipt: dropping the message would release the lease, and this lease must expire.
    let Some(stale) = leased.map(QueuedMessage::into_receipt) else {
        return check(false, "no message was received");
    };
    tour.line(format!("Worker 1 leases parcel for {} and crashes", duration_text::show(lease))).await?;
    let Some(message) = tour.receive(&tour.second, 1, Deadline::DEFAULT).await?.pop() else {
        return check(false, "the message was not delivered again");
    };
    check(message.id() == stale.message_id() && message.receive_count() == 2, "another message was delivered")?;
    check(begun.elapsed() >= lease, "two workers held the message at once")?;
    tour.line("The lease has expired: worker 2 receives parcel, its second delivery").await?;
    match tour.first.ack_message(&tour.queue, stale, Deadline::default()).await {
        Err(error @ MessagingError::VisibilityExpired { .. }) => {
            tour.line("Worker 1 is back and acknowledges the message. The store refuses:").await?;
            tour.line(format!("  \"{error}\"")).await?;
        }
        Ok(()) => return check(false, "the late worker settled another worker's delivery"),
        Err(other) => return Err(other.into()),
    }
    tour.second.ack_message(&tour.queue, message, Deadline::default()).await?;
    tour.line("parcel: handled by worker 2, which holds the valid lease").await
}

async fn poison(tour: &mut Tour) -> Result<(), Failure> {
    tour.step("dead_letter", "A message that always fails becomes a dead letter, with its record").await?;
    for body in ["amount: twelve", "amount: 30"] {
        tour.send(Message::new(body)).await?;
    }
    let ended = work(tour, 2, read_amount).await?;
    let died: Vec<_> = ended.iter().filter(|ended| ended.died).map(|ended| ended.body.as_str()).collect();
    check(died == ["amount: twelve"], "the wrong message became a dead letter")?;
    let page = tour.first.list_dead_letters(&tour.queue, &DeadLetterQuery::default(), Deadline::default()).await?;
    check(page.letters.len() == 1, "there is not exactly one dead letter")?;
    for letter in page.letters {
        let error = letter.error.unwrap_or_default();
        check(error == NOT_A_NUMBER && letter.attempts_count >= 2, "the dead letter has the wrong record")?;
        tour.line(format!(
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

const NOT_A_NUMBER: &str = "not a number";

fn read_amount(body: &str, _attempt: u32) -> Result<(), &'static str> {
    let amount = body.strip_prefix("amount: ").unwrap_or(body);
    amount.parse::<f64>().map(drop).map_err(|_| NOT_A_NUMBER)
}

async fn redrive(tour: &mut Tour) -> Result<(), Failure> {
    tour.step("redrive", "A dead letter is edited and redriven").await?;
    let query = DeadLetterQuery::default();
    let page = tour.first.list_dead_letters(&tour.queue, &query, Deadline::default()).await?;
    let ids: Vec<_> = page.letters.iter().map(|letter| letter.id).collect();
    for id in &ids {
        let edit = DeadLetterEdit { body: Some("amount: 12".into()), ..DeadLetterEdit::default() };
        let letter = tour.first.edit_dead_letter(&tour.queue, *id, edit, Deadline::default()).await?;
        tour.line(format!("Edited: \"{}\"", String::from_utf8_lossy(&letter.body))).await?;
    }
    let redrive = Redrive { selection: DeadLetterSelection::Ids(ids.clone()), ..Redrive::default() };
    let report = tour.first.redrive_dead_letters(&tour.queue, &redrive, Deadline::default()).await?;
    check(report.redriven == ids, "it is still a dead letter")?;
    tour.line("Redriven: the same message, with its counts reset").await?;
    let ended = work(tour, 1, read_amount).await?;
    check(ended[0].attempts == 1 && !ended[0].died, "it was not handled at the first attempt")
}

async fn stats(tour: &mut Tour) -> Result<(), Failure> {
    tour.step("stats", "No message was lost, and none is left").await?;
    let counts = tour.counts().await?;
    check(counts == [0; 4], format!("the queue still has {counts:?} messages"))?;
    let [ready, in_flight, delayed, dead] = counts;
    tour.line(format!("ready {ready}, in flight {in_flight}, delayed {delayed}, dead {dead}")).await?;
    tour.transcript.end_step()
}

/// Prints commands for the user to try next.
pub(super) fn show_next(transcript: &mut Transcript, location: &Location, kept: bool) -> Result<(), Failure> {
    let queue = if kept { location.queue.as_str() } else { "orders" };
    let (thing, url) = match &location.file_url {
        // The user's URL may contain a password.
        None => (format!("queue '{}'", location.queue), "'the same URL'".to_owned()),
        Some(url) if kept => ("file".to_owned(), format!("'{url}'")),
        Some(_) => ("file".to_owned(), "\"sqlite:$PWD/orders.db\"".to_owned()),
    };
    let what = match kept {
        true => format!("The {thing} is kept. Continue with it:"),
        false => format!("The {thing} was removed. Continue with your own:"),
    };
    transcript.close(
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
