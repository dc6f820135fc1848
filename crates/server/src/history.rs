//! How queues have been.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use postrider::{QueueName, QueueStats};
use postrider_wire::history::QueueHistory;

use crate::looking::Seen;
use crate::meter::{Happened, QueueCounts};

/// So many looks are remembered: an hour, at one every five seconds.
pub(crate) const REMEMBERED: usize = 720;

/// A queue at one moment, and what happened since the moment before.
#[derive(Debug, Clone, Copy, Default)]
struct Moment {
    ready: Option<u64>,
    in_flight: Option<u64>,
    delayed: Option<u64>,
    dead: Option<u64>,
    happened: [u64; 5],
}

const SHOWN: [Happened; 5] =
    [Happened::Sent, Happened::Received, Happened::Acked, Happened::Retried, Happened::DeadLettered];

#[derive(Debug, Default)]
struct QueuePast {
    /// One an interval, newest last; `None` where the queue was not seen.
    moments: VecDeque<Option<Moment>>,
    counted: [u64; 5],
    /// As it was last told.
    told: Option<QueueStats>,
}

impl QueuePast {
    fn add(&mut self, moment: Option<Moment>) {
        if self.moments.len() == REMEMBERED {
            self.moments.pop_front();
        }
        self.moments.push_back(moment);
    }

    /// What was counted since the last time.
    fn since_last(&mut self, counts: Option<&QueueCounts>) -> [u64; 5] {
        let now = SHOWN.map(|what| counts.map_or(0, |counts| counts.get(what)));
        let before = std::mem::replace(&mut self.counted, now);
        // A queue that was gone is counted from the beginning.
        std::array::from_fn(|at| now[at].checked_sub(before[at]).unwrap_or(now[at]))
    }
}

/// The past of every queue. A lock, held for a look.
#[derive(Debug, Default)]
pub(crate) struct History(Mutex<BTreeMap<QueueName, QueuePast>>);

/// The past of some queues, and how many looks each of its numbers stands for.
#[derive(Debug)]
pub(crate) struct Shown {
    pub(crate) queues: Vec<QueueHistory>,
    pub(crate) looks_per_point: usize,
}

/// One number for every `size`, counted from the newest. The oldest are left out where they are fewer: what happened in a
/// shorter time would look like less.
fn thinned(numbers: Vec<Option<u64>>, size: usize, join: fn(u64, u64) -> u64) -> Vec<Option<u64>> {
    if size <= 1 {
        return numbers;
    }
    let some = numbers.rchunks_exact(size).rev();
    some.map(|some| some.iter().flatten().copied().reduce(join)).collect()
}

impl History {
    /// The past of the queues that `wanted` names, in at most `most` numbers each.
    pub(crate) fn show(&self, wanted: impl Fn(&QueueName) -> bool, most: usize) -> Shown {
        let past = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // Of those alone that are shown: the others, which may be hidden, must not make a difference.
        let shown: Vec<_> = past.iter().filter(|(queue, _)| wanted(queue)).collect();
        let longest = shown.iter().map(|(_, past)| past.moments.len()).max().unwrap_or_default();
        let size = longest.div_ceil(most.max(1)).max(1);
        let queues = shown
            .into_iter()
            .map(|(queue, past)| {
                let of = |number: &dyn Fn(&Moment) -> Option<u64>, join: fn(u64, u64) -> u64| {
                    let missing = longest - past.moments.len();
                    let known = past.moments.iter().map(|moment| moment.as_ref().and_then(number));
                    thinned(std::iter::repeat_n(None, missing).chain(known).collect(), size, join)
                };
                // A queue that was full for a moment was full; what happened is counted together.
                let depth = |number: &dyn Fn(&Moment) -> Option<u64>| of(number, u64::max);
                let happened = |at: usize| of(&|moment| Some(moment.happened[at]), u64::saturating_add);
                QueueHistory {
                    queue: QueueName::clone(queue),
                    ready: depth(&|moment| moment.ready),
                    in_flight: depth(&|moment| moment.in_flight),
                    delayed: depth(&|moment| moment.delayed),
                    dead: depth(&|moment| moment.dead),
                    sent: happened(0),
                    received: happened(1),
                    acked: happened(2),
                    retried: happened(3),
                    dead_lettered: happened(4),
                }
            })
            .collect();
        Shown { queues, looks_per_point: size }
    }

    /// The bytes that an answer of these queues needs, while it is made.
    pub(crate) fn bytes(&self, wanted: impl Fn(&QueueName) -> bool, most: usize) -> usize {
        /// Of a number, in memory and as text.
        const NUMBER: usize = 24;
        let past = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let numbers = past.iter().filter(|(queue, _)| wanted(queue)).map(|(_, past)| past.moments.len().min(most));
        numbers.sum::<usize>() * 9 * NUMBER
    }

    /// What was seen: answers the queues that are different, and those that are gone.
    pub(crate) fn seen(
        &self,
        seen: &Seen,
        counts: impl Fn(&QueueName) -> Option<Arc<QueueCounts>>,
        is_kept: bool,
    ) -> (Vec<QueueStats>, Vec<QueueName>) {
        let mut past = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut changed = Vec::new();
        for stats in &seen.stats {
            let own = past.entry(stats.queue.clone()).or_default();
            if own.told.as_ref() != Some(stats) {
                own.told = Some(stats.clone());
                changed.push(stats.clone());
            }
            if is_kept {
                let happened = own.since_last(counts(&stats.queue).as_deref());
                own.add(Some(Moment {
                    ready: stats.ready.value(),
                    in_flight: stats.in_flight.value(),
                    delayed: stats.delayed.value(),
                    dead: stats.dead.value(),
                    happened,
                }));
            }
        }
        let looked_at: HashSet<&QueueName> = seen.stats.iter().map(|stats| &stats.queue).collect();
        let mut gone = Vec::new();
        past.retain(|queue, own| {
            if looked_at.contains(queue) {
                return true;
            }
            let is_there = seen.listed.contains(queue);
            if !is_there && own.told.take().is_some() {
                gone.push(queue.clone());
            }
            if is_kept {
                own.add(None);
            }
            // One that was never seen again is forgotten when its last moment is.
            is_there || own.moments.iter().any(Option::is_some)
        });
        (changed, gone)
    }

    /// Nothing could be seen.
    pub(crate) fn unseen(&self) {
        let mut past = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        past.values_mut().for_each(|own| own.add(None));
    }
}

#[cfg(test)]
mod tests {
    use postrider::Measured;

    use super::*;

    fn stats(queue: &str, ready: u64) -> QueueStats {
        QueueStats {
            queue: QueueName::new(queue).unwrap(),
            ready: Measured::Exact(ready),
            in_flight: Measured::Exact(0),
            delayed: Measured::Unknown,
            dead: Measured::Exact(0),
            oldest_age: Measured::Exact(None),
            paused: false,
        }
    }

    fn seen(all: &[QueueStats], unseen: &[&str]) -> Seen {
        let unseen = unseen.iter().map(|queue| QueueName::new(queue).unwrap());
        Seen { listed: all.iter().map(|stats| stats.queue.clone()).chain(unseen).collect(), stats: all.to_vec() }
    }

    #[test]
    fn only_what_changed_is_told_and_every_queue_has_a_row_of_the_same_length() {
        let history = History::default();
        fn names<'a>(queues: impl Iterator<Item = &'a QueueName>) -> Vec<String> {
            queues.map(ToString::to_string).collect()
        }
        let see = |all: &[QueueStats]| {
            let (changed, gone) = history.seen(&seen(all, &[]), |_| None, true);
            (names(changed.iter().map(|stats| &stats.queue)), names(gone.iter()))
        };
        assert_eq!(see(&[stats("a", 1)]), (vec!["a".into()], vec![]));
        assert_eq!(see(&[stats("a", 1), stats("b", 2)]), (vec!["b".into()], vec![]));
        assert_eq!(see(&[stats("b", 3)]), (vec!["b".into()], vec!["a".into()]));
        assert_eq!(see(&[stats("b", 3)]), (vec![], vec![]));
        let shown = history.show(|_| true, REMEMBERED).queues;
        let ready: Vec<_> = shown.iter().map(|queue| (queue.queue.as_str(), queue.ready.clone())).collect();
        assert_eq!(ready, [("a", vec![Some(1), Some(1), None, None]), ("b", vec![None, Some(2), Some(3), Some(3)])]);
        assert_eq!(shown[0].delayed, [None, None, None, None], "nobody knows");
        // One that is younger has no numbers of a time before it, where an older one is hidden.
        let of_b = history.show(|queue| queue.as_str() == "b", REMEMBERED).queues;
        assert_eq!((of_b.len(), &of_b[0].ready[..]), (1, &[Some(2), Some(3), Some(3)][..]));
    }

    #[test]
    fn a_queue_that_could_not_be_looked_at_is_not_gone() {
        let history = History::default();
        let see = |all: &[QueueStats], unseen: &[&str]| {
            let (changed, gone) = history.seen(&seen(all, unseen), |_| None, true);
            (changed.len(), gone.len())
        };
        assert_eq!(see(&[stats("a", 1), stats("b", 1)], &[]), (2, 0));
        assert_eq!(see(&[stats("a", 1)], &["b"]), (0, 0));
        history.unseen();
        assert_eq!(see(&[stats("a", 1), stats("b", 1)], &[]), (0, 0));
        assert_eq!(see(&[stats("b", 1)], &[]), (0, 1));
        let shown = history.show(|_| true, REMEMBERED).queues;
        assert_eq!(shown[0].ready, [Some(1), Some(1), None, Some(1), None]);
        assert_eq!(shown[1].ready, [Some(1), None, None, Some(1), Some(1)]);
    }

    #[test]
    fn fewer_numbers_stand_for_more_looks_and_lose_no_peak() {
        let history = History::default();
        let meter = crate::meter::Meter::new("none");
        for ready in [1, 9, 2, 3, 8] {
            let now = stats("a", ready);
            meter.count(&now.queue, Happened::Sent, 10);
            history.seen(&seen(&[now], &[]), |queue| meter.counts(queue), true);
        }
        let all = history.show(|_| true, 5);
        assert_eq!((all.looks_per_point, all.queues[0].sent.len()), (1, 5));
        let few = history.show(|_| true, 3);
        assert_eq!(few.looks_per_point, 2);
        assert_eq!(few.queues[0].ready, [Some(9), Some(8)], "the first look stands alone and is left out");
        assert_eq!(few.queues[0].sent, [Some(20), Some(20)]);
        assert_eq!(few.queues[0].delayed, [None, None], "nobody knows");
    }
}
