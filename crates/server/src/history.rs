//! The recent history of queues: depths and throughput.

use std::collections::{BTreeMap, HashSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use postrider::{QueueName, QueueStats};
use postrider_wire::history::QueueHistory;

use crate::metrics::{MessageEvent, QueueCounts};
use crate::sampler::Sample;

/// Upper bound of the points of a queue: an hour, at a sample every five seconds.
pub(crate) const MAX_POINTS: usize = 720;

/// One sample of a queue, and the events since the previous one.
#[derive(Debug, Clone, Copy, Default)]
struct Point {
    ready: Option<u64>,
    in_flight: Option<u64>,
    delayed: Option<u64>,
    dead: Option<u64>,
    events: [u64; 5],
}

const SHOWN_EVENTS: [MessageEvent; 5] = [
    MessageEvent::Sent,
    MessageEvent::Received,
    MessageEvent::Acked,
    MessageEvent::Retried,
    MessageEvent::DeadLettered,
];

#[derive(Debug, Default)]
struct QueueSeries {
    /// One per interval, newest last; `None` where the queue could not be sampled.
    points: VecDeque<Option<Point>>,
    counted: [u64; 5],
    /// The last published stats.
    published: Option<QueueStats>,
}

impl QueueSeries {
    fn add(&mut self, point: Option<Point>) {
        if self.points.len() == MAX_POINTS {
            self.points.pop_front();
        }
        self.points.push_back(point);
    }

    /// Returns the events since the last call.
    fn since_last(&mut self, counts: Option<&QueueCounts>) -> [u64; 5] {
        let now = SHOWN_EVENTS.map(|what| counts.map_or(0, |counts| counts.get(what)));
        let before = std::mem::replace(&mut self.counted, now);
        // The counters of a queue that was removed in between begin at zero.
        std::array::from_fn(|at| now[at].checked_sub(before[at]).unwrap_or(now[at]))
    }
}

/// The history of all queues. The lock is held briefly.
#[derive(Debug, Default)]
pub(crate) struct History(Mutex<BTreeMap<QueueName, QueueSeries>>);

/// The history of some queues, and the number of samples per point.
#[derive(Debug)]
pub(crate) struct HistoryView {
    pub(crate) queues: Vec<QueueHistory>,
    pub(crate) samples_per_point: usize,
}

/// Joins every `size` numbers into one, counted from the newest. An incomplete group at the old end is left out: its
/// sum would look like a lower rate.
fn downsample(numbers: Vec<Option<u64>>, size: usize, join: fn(u64, u64) -> u64) -> Vec<Option<u64>> {
    if size <= 1 {
        return numbers;
    }
    let some = numbers.rchunks_exact(size).rev();
    some.map(|some| some.iter().flatten().copied().reduce(join)).collect()
}

impl History {
    /// Returns the history of the wanted queues, in at most `most` points each.
    pub(crate) fn view(&self, wanted: impl Fn(&QueueName) -> bool, most: usize) -> HistoryView {
        let series = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        // The length depends on the shown queues only: queues hidden from the caller must not show.
        let shown: Vec<_> = series.iter().filter(|(queue, _)| wanted(queue)).collect();
        let longest = shown.iter().map(|(_, series)| series.points.len()).max().unwrap_or_default();
        let size = longest.div_ceil(most.max(1)).max(1);
        let queues = shown
            .into_iter()
            .map(|(queue, series)| {
                let of = |number: &dyn Fn(&Point) -> Option<u64>, join: fn(u64, u64) -> u64| {
                    let missing = longest - series.points.len();
                    let known = series.points.iter().map(|point| point.as_ref().and_then(number));
                    downsample(std::iter::repeat_n(None, missing).chain(known).collect(), size, join)
                };
                // Depths keep their peak; events are summed up.
                let depth = |number: &dyn Fn(&Point) -> Option<u64>| of(number, u64::max);
                let events = |at: usize| of(&|point| Some(point.events[at]), u64::saturating_add);
                QueueHistory {
                    queue: QueueName::clone(queue),
                    ready: depth(&|point| point.ready),
                    in_flight: depth(&|point| point.in_flight),
                    delayed: depth(&|point| point.delayed),
                    dead: depth(&|point| point.dead),
                    sent: events(0),
                    received: events(1),
                    acked: events(2),
                    retried: events(3),
                    dead_lettered: events(4),
                }
            })
            .collect();
        HistoryView { queues, samples_per_point: size }
    }

    /// Returns the bytes that an answer about these queues needs.
    pub(crate) fn bytes(&self, wanted: impl Fn(&QueueName) -> bool, most: usize) -> usize {
        /// Bytes of a number, in memory and as text.
        const NUMBER: usize = 24;
        let series = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let numbers = series.iter().filter(|(queue, _)| wanted(queue)).map(|(_, series)| series.points.len().min(most));
        numbers.sum::<usize>() * 9 * NUMBER
    }

    /// Records a sample. Returns the queues that have changed, and those that were removed.
    pub(crate) fn record(
        &self,
        seen: &Sample,
        counts: impl Fn(&QueueName) -> Option<Arc<QueueCounts>>,
        is_recorded: bool,
    ) -> (Vec<QueueStats>, Vec<QueueName>) {
        let mut series = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut changed = Vec::new();
        for stats in &seen.stats {
            let own = series.entry(stats.queue.clone()).or_default();
            if own.published.as_ref() != Some(stats) {
                own.published = Some(stats.clone());
                changed.push(stats.clone());
            }
            if is_recorded {
                let events = own.since_last(counts(&stats.queue).as_deref());
                own.add(Some(Point {
                    ready: stats.ready.value(),
                    in_flight: stats.in_flight.value(),
                    delayed: stats.delayed.value(),
                    dead: stats.dead.value(),
                    events,
                }));
            }
        }
        let sampled: HashSet<&QueueName> = seen.stats.iter().map(|stats| &stats.queue).collect();
        let mut gone = Vec::new();
        series.retain(|queue, own| {
            if sampled.contains(queue) {
                return true;
            }
            let is_there = seen.listed.contains(queue);
            if !is_there && own.published.take().is_some() {
                gone.push(queue.clone());
            }
            if is_recorded {
                own.add(None);
            }
            // A removed queue stays until its last point is dropped.
            is_there || own.points.iter().any(Option::is_some)
        });
        (changed, gone)
    }

    /// Records that the store could not be sampled.
    pub(crate) fn record_gap(&self) {
        let mut series = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        series.values_mut().for_each(|own| own.add(None));
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

    fn seen(all: &[QueueStats], unseen: &[&str]) -> Sample {
        let unseen = unseen.iter().map(|queue| QueueName::new(queue).unwrap());
        Sample { listed: all.iter().map(|stats| stats.queue.clone()).chain(unseen).collect(), stats: all.to_vec() }
    }

    #[test]
    fn only_changes_are_published_and_all_series_have_the_same_length() {
        let history = History::default();
        fn names<'a>(queues: impl Iterator<Item = &'a QueueName>) -> Vec<String> {
            queues.map(ToString::to_string).collect()
        }
        let see = |all: &[QueueStats]| {
            let (changed, gone) = history.record(&seen(all, &[]), |_| None, true);
            (names(changed.iter().map(|stats| &stats.queue)), names(gone.iter()))
        };
        assert_eq!(see(&[stats("a", 1)]), (vec!["a".into()], vec![]));
        assert_eq!(see(&[stats("a", 1), stats("b", 2)]), (vec!["b".into()], vec![]));
        assert_eq!(see(&[stats("b", 3)]), (vec!["b".into()], vec!["a".into()]));
        assert_eq!(see(&[stats("b", 3)]), (vec![], vec![]));
        let shown = history.view(|_| true, MAX_POINTS).queues;
        let ready: Vec<_> = shown.iter().map(|queue| (queue.queue.as_str(), queue.ready.clone())).collect();
        assert_eq!(ready, [("a", vec![Some(1), Some(1), None, None]), ("b", vec![None, Some(2), Some(3), Some(3)])]);
        assert_eq!(shown[0].delayed, [None, None, None, None], "the store does not count them");
        // Where an older queue is hidden, a younger one has no points of the time before it.
        let of_b = history.view(|queue| queue.as_str() == "b", MAX_POINTS).queues;
        assert_eq!((of_b.len(), &of_b[0].ready[..]), (1, &[Some(2), Some(3), Some(3)][..]));
    }

    #[test]
    fn a_queue_that_could_not_be_sampled_is_not_removed() {
        let history = History::default();
        let see = |all: &[QueueStats], unseen: &[&str]| {
            let (changed, gone) = history.record(&seen(all, unseen), |_| None, true);
            (changed.len(), gone.len())
        };
        assert_eq!(see(&[stats("a", 1), stats("b", 1)], &[]), (2, 0));
        assert_eq!(see(&[stats("a", 1)], &["b"]), (0, 0));
        history.record_gap();
        assert_eq!(see(&[stats("a", 1), stats("b", 1)], &[]), (0, 0));
        assert_eq!(see(&[stats("b", 1)], &[]), (0, 1));
        let shown = history.view(|_| true, MAX_POINTS).queues;
        assert_eq!(shown[0].ready, [Some(1), Some(1), None, Some(1), None]);
        assert_eq!(shown[1].ready, [Some(1), None, None, Some(1), Some(1)]);
    }

    #[test]
    fn fewer_points_join_samples_and_keep_peaks() {
        let history = History::default();
        let metrics = crate::metrics::Metrics::new("none");
        for ready in [1, 9, 2, 3, 8] {
            let now = stats("a", ready);
            metrics.count(&now.queue, MessageEvent::Sent, 10);
            history.record(&seen(&[now], &[]), |queue| metrics.counts(queue), true);
        }
        let all = history.view(|_| true, 5);
        assert_eq!((all.samples_per_point, all.queues[0].sent.len()), (1, 5));
        let few = history.view(|_| true, 3);
        assert_eq!(few.samples_per_point, 2);
        assert_eq!(few.queues[0].ready, [Some(9), Some(8)], "the oldest sample is an incomplete group and is left out");
        assert_eq!(few.queues[0].sent, [Some(20), Some(20)]);
        assert_eq!(few.queues[0].delayed, [None, None], "the store does not count them");
    }
}
