//! Dead letters on a broker: held for a moment, looked at, moved or removed, and put back.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};

use postrider_core::{
    Bytes, DeadLetter, DeadLetterCursor, DeadLetterEdit, DeadLetterPage, DeadLetterQuery, DeadLetterReason,
    DeadLetterSelection, Deadline, Headers, Limits, MessageId, MessagingError, QueueName, RedriveReport, RedriveSkip,
    Timestamp,
};

use crate::broker::{Broker, Held, Hold, ids};
use crate::stored::Stored;

/// So many dead letters are taken from the broker at a time.
const CHUNK: usize = 500;

/// A page, in the order of deaths. A broker hands messages out in an order of its own, which changes when they are put
/// back: so each page looks at all of them, those that this connection has leased included, because the broker shows
/// these to nobody, and keeps as many as it shows, of each only what it shows.
pub(crate) async fn list<B: Broker>(
    broker: &B,
    queue: &QueueName,
    query: &DeadLetterQuery,
    bodies: bool,
    deadline: Deadline,
) -> Result<DeadLetterPage, MessagingError> {
    let mut page = Page::after(query, queue, bodies)?;
    page.add(broker.leased(queue));
    let mut hold = broker.hold(queue, deadline).await?;
    let filled = fill(&mut page, &mut hold).await;
    let back = hold.put_back().await;
    filled.and_then(|()| back.map(|()| page.finish()))
}

/// Removes dead letters for good; answers their number.
pub(crate) async fn purge_all<B: Broker>(
    broker: &B,
    queue: &QueueName,
    selection: &DeadLetterSelection,
    deadline: Deadline,
) -> Result<u64, MessagingError> {
    let mut hold = broker.hold(queue, deadline).await?;
    let purged = purge(&mut hold, selection).await;
    // Whatever went wrong, the others are let go.
    let back = hold.put_back().await;
    purged.and_then(|purged| back.map(|()| purged))
}

async fn fill<H: Hold>(page: &mut Page<'_>, hold: &mut H) -> Result<(), MessagingError> {
    while !page.choice.is_complete() {
        let more = hold.take(CHUNK).await?;
        if more.is_empty() {
            break;
        }
        page.add(more.into_iter().map(|held| held.stored).collect());
    }
    Ok(())
}

/// Which letters are meant, and which of those that are meant by id were met.
struct Choice<'a> {
    selection: &'a DeadLetterSelection,
    missing: HashSet<MessageId>,
    met: HashSet<MessageId>,
}

impl<'a> Choice<'a> {
    fn new(selection: &'a DeadLetterSelection) -> Self {
        let missing = match selection {
            DeadLetterSelection::Ids(ids) => ids.iter().copied().collect(),
            DeadLetterSelection::All | DeadLetterSelection::Reason(_) => HashSet::new(),
        };
        Self { selection, missing, met: HashSet::new() }
    }

    fn includes(&mut self, id: MessageId, reason: &DeadLetterReason) -> bool {
        match self.selection {
            DeadLetterSelection::All => true,
            DeadLetterSelection::Reason(wanted) => wanted == reason,
            DeadLetterSelection::Ids(_) => self.met.contains(&id) || self.missing.remove(&id) && self.met.insert(id),
        }
    }

    /// Whether every letter that is meant by its id was met.
    fn is_complete(&self) -> bool {
        matches!(self.selection, DeadLetterSelection::Ids(_)) && self.missing.is_empty()
    }

    /// Whether a letter is left alone by what began at that time.
    fn comes_too_late(&self, stored: &Stored, began: Timestamp) -> bool {
        !matches!(self.selection, DeadLetterSelection::Ids(_)) && stored.dead_at() > began
    }
}

/// Whether all of them died after that: then what began at that time has its end here, although others go on dying.
fn are_all_later(letters: &[Held], began: Timestamp) -> bool {
    letters.iter().all(|held| held.stored.dead_at() > began)
}

/// The position of a dead letter in the list.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Position {
    dead_at: Timestamp,
    id: MessageId,
}

impl Position {
    fn cursor(self) -> DeadLetterCursor {
        DeadLetterCursor(format!("{}.{}", self.dead_at.as_micros(), self.id))
    }

    fn read(cursor: &DeadLetterCursor) -> Result<Self, MessagingError> {
        let position = cursor.0.split_once('.').and_then(|(dead_at, id)| {
            Some(Self { dead_at: Timestamp::from_micros(dead_at.parse().ok()?), id: id.parse().ok()? })
        });
        position.ok_or_else(|| {
            MessagingError::invalid(
                "cursor",
                format!("'{}' is not of this list; pass `next` of the previous page", cursor.0),
            )
        })
    }
}

/// The first letters after a position, out of many that come in any order.
struct Page<'a> {
    query: &'a DeadLetterQuery,
    queue: &'a QueueName,
    choice: Choice<'a>,
    after: Option<Position>,
    /// What is shown of each, and of which revision it is.
    letters: BTreeMap<Position, (u32, DeadLetter)>,
    bodies: bool,
    /// The first death of each id. A crash between a copy and its delete leaves a letter twice: it is listed once.
    deaths: HashMap<MessageId, Timestamp>,
    /// There are letters behind the page.
    is_cut: bool,
}

impl<'a> Page<'a> {
    fn after(query: &'a DeadLetterQuery, queue: &'a QueueName, bodies: bool) -> Result<Self, MessagingError> {
        let after = query.after.as_ref().map(Position::read).transpose()?;
        let choice = Choice::new(&query.selection);
        let (letters, deaths) = (BTreeMap::new(), HashMap::new());
        Ok(Self { query, queue, choice, after, letters, bodies, deaths, is_cut: false })
    }

    fn add(&mut self, letters: Vec<Stored>) {
        for stored in letters {
            let position = Position { dead_at: stored.dead_at(), id: stored.id };
            match self.deaths.entry(position.id) {
                Entry::Vacant(entry) => drop(entry.insert(position.dead_at)),
                Entry::Occupied(entry) if *entry.get() < position.dead_at => continue,
                Entry::Occupied(mut entry) if *entry.get() > position.dead_at => {
                    let other = entry.insert(position.dead_at);
                    self.letters.remove(&Position { dead_at: other, id: position.id });
                }
                // The same letter twice: the later edit is right.
                Entry::Occupied(_) => match self.letters.get(&position) {
                    Some((revision, _)) if *revision < stored.revision() => {}
                    _ => continue,
                },
            }
            let is_passed = self.after.is_some_and(|after| position <= after);
            if !self.choice.includes(position.id, &stored.reason()) || is_passed {
                continue;
            }
            let (revision, mut letter) = (stored.revision(), stored.into_dead_letter(self.queue));
            if !self.bodies {
                letter = DeadLetter { body: Bytes::new(), headers: Headers::default(), ..letter };
            }
            self.letters.insert(position, (revision, letter));
            if self.letters.len() > self.query.limit {
                self.letters.pop_last();
                self.is_cut = true;
            }
        }
    }

    fn finish(self) -> DeadLetterPage {
        let last = self.letters.last_key_value().map(|(position, _)| position.cursor());
        let letters = self.letters.into_values().map(|(_, letter)| letter).collect();
        DeadLetterPage { letters, next: last.filter(|_| self.is_cut) }
    }
}

/// Changes a dead letter, and answers it as it is now.
pub(crate) async fn replace<B: Broker>(
    broker: &B,
    queue: &QueueName,
    id: MessageId,
    edit: DeadLetterEdit,
    limits: &Limits,
    deadline: Deadline,
) -> Result<DeadLetter, MessagingError> {
    if ids(&broker.leased(queue)).contains(&id) {
        return Err(MessagingError::MessageLeased { queue: queue.clone(), id });
    }
    let mut hold = broker.hold(queue, deadline).await?;
    let edited = async {
        let found = find(&mut hold, id).await?;
        let Held { stored, place } = found.ok_or(MessagingError::MessageNotFound { queue: queue.clone(), id })?;
        let edited = stored.edited(&edit, limits)?;
        for row in hold.move_to(queue, vec![(place, edited.clone())]).await? {
            row?;
        }
        Ok(edited.into_dead_letter(queue))
    }
    .await;
    let back = hold.put_back().await;
    edited.and_then(|edited| back.map(|()| edited))
}

async fn find<H: Hold>(hold: &mut H, id: MessageId) -> Result<Option<Held>, MessagingError> {
    loop {
        let more = hold.take(CHUNK).await?;
        if more.is_empty() {
            return Ok(None);
        }
        if let Some(found) = more.into_iter().find(|held| held.stored.id == id) {
            return Ok(Some(found));
        }
    }
}

/// Revives dead letters, or tells which ones a redrive would revive.
pub(crate) async fn revive<B: Broker>(
    broker: &B,
    queue: &QueueName,
    target: &QueueName,
    selection: &DeadLetterSelection,
    dry_run: bool,
    deadline: Deadline,
) -> Result<RedriveReport, MessagingError> {
    let (mut report, mut choice) = (RedriveReport::default(), Choice::new(selection));
    for leased in broker.leased(queue) {
        if choice.includes(leased.id, &leased.reason()) {
            report.skipped.push((leased.id, RedriveSkip::Leased));
        }
    }
    let mut hold = broker.hold(queue, deadline).await?;
    let revived = revive_held(&mut hold, target, dry_run, &mut choice, &mut report).await;
    let back = hold.put_back().await;
    revived?;
    back?;
    Ok(report)
}

/// A message that was given a new life.
struct Life {
    /// When its last one had begun, which is the same in every copy that a crash has left.
    old: Timestamp,
    /// When the new one has: by that a message which died again meanwhile is known, and left alone.
    begun: Timestamp,
    revision: u32,
}

async fn revive_held<H: Hold>(
    hold: &mut H,
    target: &QueueName,
    dry_run: bool,
    choice: &mut Choice<'_>,
    report: &mut RedriveReport,
) -> Result<(), MessagingError> {
    let (mut lives, began): (HashMap<MessageId, Life>, _) = (HashMap::new(), Timestamp::now());
    while !choice.is_complete() {
        let mut more = hold.take(CHUNK).await?;
        if more.is_empty() {
            break;
        }
        let is_end = are_all_later(&more, began);
        // Of the copies of a letter the one that was edited last is revived.
        more.sort_by_key(|held| std::cmp::Reverse(held.stored.revision()));
        let (mut moved, mut copies, mut redriven, now) = (Vec::new(), Vec::new(), Vec::new(), Timestamp::now());
        for Held { stored, place } in more {
            if choice.comes_too_late(&stored, began) || !choice.includes(stored.id, &stored.reason()) {
                continue;
            }
            match lives.get(&stored.id) {
                Some(life) if stored.enqueued_at >= life.begun => continue,
                Some(life) if stored.enqueued_at == life.old => {
                    // What was edited after the one that lives now is kept.
                    if stored.revision() <= life.revision {
                        copies.push(place);
                    }
                    continue;
                }
                Some(_) | None => {}
            }
            let (old, revision) = (stored.enqueued_at, stored.revision());
            let revived = stored.revived(now);
            if let Entry::Vacant(entry) = lives.entry(revived.id) {
                entry.insert(Life { old, begun: revived.enqueued_at, revision });
                redriven.push((place, revived.id));
            }
            moved.push((place, revived));
        }
        if !dry_run {
            moved.sort_by_key(|(place, _)| *place);
            for row in hold.move_to(target, moved).await? {
                row?;
            }
            // What they are copies of is durable by now.
            hold.remove(&copies).await?;
        }
        redriven.sort_unstable_by_key(|(place, _)| *place);
        report.redriven.extend(redriven.into_iter().map(|(_, id)| id));
        if is_end {
            break;
        }
    }
    Ok(())
}

async fn purge<H: Hold>(hold: &mut H, selection: &DeadLetterSelection) -> Result<u64, MessagingError> {
    let (mut choice, mut purged, began) = (Choice::new(selection), HashSet::new(), Timestamp::now());
    while !choice.is_complete() {
        let more = hold.take(CHUNK).await?;
        if more.is_empty() {
            break;
        }
        let is_end = are_all_later(&more, began);
        let (mut places, mut ids) = (Vec::new(), Vec::new());
        for Held { stored, place } in more {
            if !choice.comes_too_late(&stored, began) && choice.includes(stored.id, &stored.reason()) {
                places.push(place);
                ids.push(stored.id);
            }
        }
        hold.remove(&places).await?;
        purged.extend(ids);
        if is_end {
            break;
        }
    }
    Ok(purged.len() as u64)
}

#[cfg(test)]
mod tests;
