//! Dead letters on a broker: held for a moment, read, moved or removed, and released.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, HashMap, HashSet};

use postrider_core::{
    Bytes, DeadLetter, DeadLetterCursor, DeadLetterEdit, DeadLetterPage, DeadLetterQuery, DeadLetterReason,
    DeadLetterSelection, Deadline, Headers, Limits, MessageId, MessagingError, QueueName, RedriveReport, RedriveSkip,
    Timestamp,
};

use crate::broker::{Broker, Held, Hold, ids};
use crate::stored::Stored;

/// Upper bound of the dead letters taken from the broker at a time.
const CHUNK: usize = 500;

/// Lists a page in the order of deaths. A broker delivers messages in an order of its own, which changes when they are
/// released. So each page reads all of them, and keeps only what it shows. It includes those that this connection has
/// leased, because no hold gets these.
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
    let released = hold.put_back().await;
    filled.and_then(|()| released.map(|()| page.finish()))
}

/// Purges dead letters; returns their number.
pub(crate) async fn purge<B: Broker>(
    broker: &B,
    queue: &QueueName,
    selection: &DeadLetterSelection,
    deadline: Deadline,
) -> Result<u64, MessagingError> {
    let mut hold = broker.hold(queue, deadline).await?;
    let purged = purge_held(&mut hold, selection).await;
    // The remaining messages are released even after an error.
    let released = hold.put_back().await;
    purged.and_then(|purged| released.map(|()| purged))
}

async fn fill<H: Hold>(page: &mut Page<'_>, hold: &mut H) -> Result<(), MessagingError> {
    while !page.selected.has_found_all() {
        let more = hold.take(CHUNK).await?;
        if more.is_empty() {
            break;
        }
        page.add(more.into_iter().map(|held| held.stored).collect());
    }
    Ok(())
}

/// A selection of dead letters. For ids, which of them were found.
struct Selected<'a> {
    selection: &'a DeadLetterSelection,
    missing: HashSet<MessageId>,
    found: HashSet<MessageId>,
}

impl<'a> Selected<'a> {
    fn new(selection: &'a DeadLetterSelection) -> Self {
        let missing = match selection {
            DeadLetterSelection::Ids(ids) => ids.iter().copied().collect(),
            DeadLetterSelection::All | DeadLetterSelection::Reason(_) => HashSet::new(),
        };
        Self { selection, missing, found: HashSet::new() }
    }

    fn includes(&mut self, id: MessageId, reason: &DeadLetterReason) -> bool {
        match self.selection {
            DeadLetterSelection::All => true,
            DeadLetterSelection::Reason(wanted) => wanted == reason,
            DeadLetterSelection::Ids(_) => {
                self.found.contains(&id) || self.missing.remove(&id) && self.found.insert(id)
            }
        }
    }

    /// Whether every selected id was found.
    fn has_found_all(&self) -> bool {
        matches!(self.selection, DeadLetterSelection::Ids(_)) && self.missing.is_empty()
    }

    /// Whether a dead letter died after the operation began. An id is selected whenever it died.
    fn died_since(&self, stored: &Stored, began: Timestamp) -> bool {
        !matches!(self.selection, DeadLetterSelection::Ids(_)) && stored.dead_at() > began
    }
}

/// Whether all of them died after the operation began: then it ends here, although further messages may die.
fn all_died_since(letters: &[Held], began: Timestamp) -> bool {
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
        position.ok_or_else(|| MessagingError::invalid_cursor(&cursor.0))
    }
}

/// The first dead letters after a position, from many that come in any order.
struct Page<'a> {
    query: &'a DeadLetterQuery,
    queue: &'a QueueName,
    selected: Selected<'a>,
    after: Option<Position>,
    /// Each dead letter with its revision.
    letters: BTreeMap<Position, (u32, DeadLetter)>,
    bodies: bool,
    /// The first death of each id. A crash between a copy and the removal leaves a dead letter twice; it is listed
    /// once.
    deaths: HashMap<MessageId, Timestamp>,
    /// Whether more dead letters follow the page.
    is_cut: bool,
}

impl<'a> Page<'a> {
    fn after(query: &'a DeadLetterQuery, queue: &'a QueueName, bodies: bool) -> Result<Self, MessagingError> {
        let after = query.after.as_ref().map(Position::read).transpose()?;
        let selected = Selected::new(&query.selection);
        let (letters, deaths) = (BTreeMap::new(), HashMap::new());
        Ok(Self { query, queue, selected, after, letters, bodies, deaths, is_cut: false })
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
                // A copy: the one that was edited last counts.
                Entry::Occupied(_) => match self.letters.get(&position) {
                    Some((revision, _)) if *revision < stored.revision() => {}
                    _ => continue,
                },
            }
            let is_passed = self.after.is_some_and(|after| position <= after);
            if !self.selected.includes(position.id, &stored.reason()) || is_passed {
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

/// Edits a dead letter, and returns its new state.
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
    let released = hold.put_back().await;
    edited.and_then(|edited| released.map(|()| edited))
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

/// Redrives dead letters, or in a dry run reports which ones it would redrive.
pub(crate) async fn redrive<B: Broker>(
    broker: &B,
    queue: &QueueName,
    target: &QueueName,
    selection: &DeadLetterSelection,
    dry_run: bool,
    deadline: Deadline,
) -> Result<RedriveReport, MessagingError> {
    let (mut report, mut selected) = (RedriveReport::default(), Selected::new(selection));
    for leased in broker.leased(queue) {
        if selected.includes(leased.id, &leased.reason()) {
            report.skipped.push((leased.id, RedriveSkip::Leased));
        }
    }
    let mut hold = broker.hold(queue, deadline).await?;
    let revived = redrive_held(&mut hold, target, dry_run, &mut selected, &mut report).await;
    let released = hold.put_back().await;
    revived?;
    released?;
    Ok(report)
}

/// A message that was redriven.
struct Redriven {
    /// When it was sent before: the same in every copy that a crash has left.
    previous: Timestamp,
    /// When it was sent now. A copy with this time or a later one died again meanwhile, and is left alone.
    enqueued_at: Timestamp,
    revision: u32,
}

async fn redrive_held<H: Hold>(
    hold: &mut H,
    target: &QueueName,
    dry_run: bool,
    selected: &mut Selected<'_>,
    report: &mut RedriveReport,
) -> Result<(), MessagingError> {
    let (mut live_messages, began): (HashMap<MessageId, Redriven>, _) = (HashMap::new(), Timestamp::now());
    while !selected.has_found_all() {
        let mut more = hold.take(CHUNK).await?;
        if more.is_empty() {
            break;
        }
        let is_last = all_died_since(&more, began);
        // Of several copies the one that was edited last is redriven.
        more.sort_by_key(|held| std::cmp::Reverse(held.stored.revision()));
        let (mut moved, mut copies, mut redriven, now) = (Vec::new(), Vec::new(), Vec::new(), Timestamp::now());
        for Held { stored, place } in more {
            if selected.died_since(&stored, began) || !selected.includes(stored.id, &stored.reason()) {
                continue;
            }
            match live_messages.get(&stored.id) {
                Some(live) if stored.enqueued_at >= live.enqueued_at => continue,
                Some(live) if stored.enqueued_at == live.previous => {
                    // A copy with a later edit than the redriven one is kept.
                    if stored.revision() <= live.revision {
                        copies.push(place);
                    }
                    continue;
                }
                Some(_) | None => {}
            }
            let (previous, revision) = (stored.enqueued_at, stored.revision());
            let revived = stored.revived(now);
            if let Entry::Vacant(entry) = live_messages.entry(revived.id) {
                entry.insert(Redriven { previous, enqueued_at: revived.enqueued_at, revision });
                redriven.push((place, revived.id));
            }
            moved.push((place, revived));
        }
        if !dry_run {
            moved.sort_by_key(|(place, _)| *place);
            for row in hold.move_to(target, moved).await? {
                row?;
            }
            // The messages that they duplicate are durable now.
            hold.remove(&copies).await?;
        }
        redriven.sort_unstable_by_key(|(place, _)| *place);
        report.redriven.extend(redriven.into_iter().map(|(_, id)| id));
        if is_last {
            break;
        }
    }
    Ok(())
}

async fn purge_held<H: Hold>(hold: &mut H, selection: &DeadLetterSelection) -> Result<u64, MessagingError> {
    let (mut selected, mut purged, began) = (Selected::new(selection), HashSet::new(), Timestamp::now());
    while !selected.has_found_all() {
        let more = hold.take(CHUNK).await?;
        if more.is_empty() {
            break;
        }
        let is_last = all_died_since(&more, began);
        let (mut places, mut ids) = (Vec::new(), Vec::new());
        for Held { stored, place } in more {
            if !selected.died_since(&stored, began) && selected.includes(stored.id, &stored.reason()) {
                places.push(place);
                ids.push(stored.id);
            }
        }
        hold.remove(&places).await?;
        purged.extend(ids);
        if is_last {
            break;
        }
    }
    Ok(purged.len() as u64)
}

#[cfg(test)]
mod tests;
