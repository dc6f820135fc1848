//! Who has a connection, when there are not enough for everybody.
//!
//! The last quarter of the places is for sources that have less than a quarter of all, so that nobody alone can take
//! them all. A newcomer for whom there is no place takes that of a connection on which nothing is asked, the one that has
//! been so for longest, of its own source when that has its share, else of the source that has most. When all are
//! busy it waits.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::{IpAddr, Ipv6Addr};
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};

use axum::body::{Body, Bytes};
use http_body::{Frame, SizeHint};
use tokio::sync::oneshot;
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use crate::leases::Unflushed;

/// Where connections come from: an IPv4 address, or the first half of an IPv6 address, of whose other half one host has
/// every value.
fn source(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address => address,
    }
}

/// A connection that has a place.
#[derive(Debug)]
struct Open {
    source: IpAddr,
    /// Requests that are carried out, or whose answers are being written.
    busy: usize,
    /// Since when there is none.
    idle_since: Instant,
    /// Asked to make room. It counts no more.
    is_leaving: bool,
    leave: CancellationToken,
    unflushed: Arc<Unflushed>,
}

/// The connections of one source that count.
#[derive(Debug, Default)]
struct Own {
    count: usize,
    /// Those on which nothing is asked, and since when.
    idle: BTreeSet<(Instant, u64)>,
}

/// A connection that waits for a place.
#[derive(Debug)]
struct Waiter {
    number: u64,
    unflushed: Arc<Unflushed>,
    entered: oneshot::Sender<Place>,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    open: HashMap<u64, Open>,
    /// How many connections count, in all and of each source that has some.
    count: usize,
    own: HashMap<IpAddr, Own>,
    /// The lines of the sources that have one. None is empty.
    waiting: HashMap<IpAddr, VecDeque<Waiter>>,
}

/// The places of all connections.
#[derive(Debug)]
pub(super) struct Places {
    most: usize,
    /// A lock, held for a look.
    state: Mutex<State>,
}

/// The place of a connection; dropped, it is free.
#[derive(Debug)]
pub(super) struct Place {
    places: Arc<Places>,
    number: u64,
    leave: CancellationToken,
}

impl Places {
    pub(super) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, state: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// How many connections of one source count as its share.
    fn share(&self) -> usize {
        (self.most / 4).max(1)
    }

    /// A place for a connection, as soon as there is one. `None` when too many of its source wait already.
    pub(super) async fn enter(self: &Arc<Self>, address: IpAddr, unflushed: &Arc<Unflushed>) -> Option<Place> {
        /// Leaves the line when the wait ends.
        struct Waiting<'a>(&'a Places, IpAddr, u64);

        impl Drop for Waiting<'_> {
            fn drop(&mut self) {
                let Self(places, source, number) = self;
                places.lock().leave_line(*source, |waiter| waiter.number == *number);
            }
        }

        let source = source(address);
        let (waiting, entered) = {
            let mut state = self.lock();
            if let Some(place) = self.take(&mut state, source, unflushed) {
                return Some(place);
            }
            let number = state.number();
            let line = state.waiting.entry(source).or_default();
            if line.len() >= self.share() {
                return None;
            }
            let (sender, entered) = oneshot::channel();
            line.push_back(Waiter { number, unflushed: unflushed.clone(), entered: sender });
            (Waiting(self, source, number), entered)
        };
        let place = entered.await.ok();
        drop(waiting);
        place
    }

    /// Whether there is a place without another connection's leaving.
    fn has_room(&self, state: &State, own: usize) -> bool {
        state.count < self.most - self.most / 4 || (state.count < self.most && own < self.share())
    }

    /// A place now, if there is one or can be made.
    fn take(self: &Arc<Self>, state: &mut State, source: IpAddr, unflushed: &Arc<Unflushed>) -> Option<Place> {
        let own = state.count_of(&source);
        if !self.has_room(state, own) {
            let leaving = if own >= self.share() { state.idle_of(&source) } else { state.idle_of_most() };
            state.ask_to_leave(leaving?);
        }
        let (number, leave, idle_since) = (state.number(), CancellationToken::new(), Instant::now());
        state.count += 1;
        let own = state.own.entry(source).or_default();
        own.count += 1;
        own.idle.insert((idle_since, number));
        let places = Arc::downgrade(self);
        // An answer is flushed after its request has ended.
        unflushed.on_flush(move || {
            if let Some(places) = places.upgrade() {
                places.admit();
            }
        });
        let (unflushed, place) = (unflushed.clone(), leave.clone());
        state.open.insert(number, Open { source, busy: 0, idle_since, is_leaving: false, leave, unflushed });
        Some(Place { places: self.clone(), number, leave: place })
    }

    /// Lets one connection in that waits, the first of those for which there is a place.
    fn admit(self: &Arc<Self>) {
        let admitted = {
            let mut state = self.lock();
            state.first_in_line(self).and_then(|source| {
                let waiter = state.leave_line(source, |_| true)?;
                Some((self.take(&mut state, source, &waiter.unflushed)?, waiter.entered))
            })
        };
        // A place that is not taken any more is dropped here, without the lock, and the next one is let in.
        if let Some((place, entered)) = admitted {
            let _ = entered.send(place);
        }
    }
}

impl State {
    fn number(&mut self) -> u64 {
        self.next += 1;
        self.next
    }

    fn count_of(&self, source: &IpAddr) -> usize {
        self.own.get(source).map_or(0, |own| own.count)
    }

    /// The connection of a source that has been idle for longest.
    fn idle_of(&self, source: &IpAddr) -> Option<u64> {
        let is_flushed = |number: &u64| self.open.get(number).is_some_and(|open| open.unflushed.is_empty());
        self.own.get(source)?.idle.iter().map(|(_, number)| *number).find(is_flushed)
    }

    /// The same of the source that has most connections, of those that have an idle one.
    fn idle_of_most(&self) -> Option<u64> {
        let mut most = None;
        for (source, own) in &self.own {
            if most.is_none_or(|(count, _)| own.count > count)
                && let Some(number) = self.idle_of(source)
            {
                most = Some((own.count, number));
            }
        }
        most.map(|(_, number)| number)
    }

    /// The source of the connection that has waited for longest, of those for which there is a place.
    fn first_in_line(&self, places: &Places) -> Option<IpAddr> {
        if self.waiting.is_empty() {
            return None;
        }
        let has_idle = self.idle_of_most().is_some();
        let can_enter = |source: &IpAddr| {
            let own = self.count_of(source);
            let can_make_room = || if own >= places.share() { self.idle_of(source).is_some() } else { has_idle };
            places.has_room(self, own) || can_make_room()
        };
        let lines = self.waiting.iter().filter(|(source, _)| can_enter(source));
        lines.min_by_key(|(_, line)| line.front().map(|waiter| waiter.number)).map(|(source, _)| *source)
    }

    /// Takes the first of a line that is meant out of it.
    fn leave_line(&mut self, source: IpAddr, is_meant: impl FnMut(&Waiter) -> bool) -> Option<Waiter> {
        let line = self.waiting.get_mut(&source)?;
        let waiter = line.iter().position(is_meant).and_then(|at| line.remove(at));
        if line.is_empty() {
            self.waiting.remove(&source);
        }
        waiter
    }

    /// It counts no more, whether it has left or is about to.
    fn discount(&mut self, source: IpAddr, idle_since: Instant, number: u64) {
        self.count -= 1;
        if let Some(own) = self.own.get_mut(&source) {
            own.count -= 1;
            own.idle.remove(&(idle_since, number));
            if own.count == 0 {
                self.own.remove(&source);
            }
        }
    }

    fn ask_to_leave(&mut self, number: u64) {
        let Some(open) = self.open.get_mut(&number) else { return };
        open.is_leaving = true;
        open.leave.cancel();
        let (source, idle_since) = (open.source, open.idle_since);
        self.discount(source, idle_since, number);
    }
}

impl Place {
    /// Waits until it shall make room.
    pub(super) async fn is_asked_to_leave(&self) {
        self.leave.cancelled().await;
    }

    /// Whether nothing is asked on its connection now.
    pub(super) fn is_idle(&self) -> bool {
        self.places.lock().open.get(&self.number).is_none_or(|open| open.busy == 0 && open.unflushed.is_empty())
    }

    /// Something is asked on it, until the answer is dropped.
    pub(super) fn busy(self: &Arc<Self>) -> Busy {
        let mut state = self.places.lock();
        let State { open, own, .. } = &mut *state;
        if let Some(open) = open.get_mut(&self.number) {
            open.busy += 1;
            if let Some(own) = own.get_mut(&open.source) {
                own.idle.remove(&(open.idle_since, self.number));
            }
        }
        Busy(self.clone())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut state = self.places.lock();
        let Some(Open { source, idle_since, is_leaving: false, .. }) = state.open.remove(&self.number) else { return };
        state.discount(source, idle_since, self.number);
        drop(state);
        self.places.admit();
    }
}

/// A request that is carried out, or whose answer is being written.
#[derive(Debug)]
pub(super) struct Busy(Arc<Place>);

impl Drop for Busy {
    fn drop(&mut self) {
        let Place { places, number, .. } = &*self.0;
        let mut state = places.lock();
        let State { open, own, .. } = &mut *state;
        let Some(open) = open.get_mut(number) else { return };
        open.busy = open.busy.saturating_sub(1);
        open.idle_since = Instant::now();
        if open.busy > 0 || open.is_leaving {
            return;
        }
        if let Some(own) = own.get_mut(&open.source) {
            own.idle.insert((open.idle_since, *number));
        }
        drop(state);
        // It may make room now.
        places.admit();
    }
}

/// An answer whose connection is busy until it is handed on.
pub(super) struct BusyBody {
    pub(super) inner: Body,
    pub(super) _busy: Busy,
}

impl http_body::Body for BusyBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Self::Data>, Self::Error>>> {
        Pin::new(&mut self.inner).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.inner.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.inner.size_hint()
    }
}

#[cfg(test)]
mod tests {
    use futures_util::FutureExt;

    use super::*;

    fn address(last: u8) -> IpAddr {
        IpAddr::from([127, 0, 0, last])
    }

    fn enter(places: &Arc<Places>, last: u8) -> Option<Arc<Place>> {
        places.enter(address(last), &Arc::default()).now_or_never().flatten().map(Arc::new)
    }

    fn left(place: &Place) -> bool {
        place.leave.is_cancelled()
    }

    #[tokio::test(start_paused = true)]
    async fn idle_ones_make_room_the_oldest_of_whoever_has_most_first() {
        let places = Places::new(8);
        let mut many = Vec::new();
        for _ in 0..6 {
            many.push(enter(&places, 1).unwrap());
            tokio::time::advance(std::time::Duration::from_secs(1)).await;
        }
        let _other = enter(&places, 2).unwrap();
        // The last quarter is for others: whoever has their share has a new one for an old one.
        let next = enter(&places, 1).unwrap();
        assert!(left(&many[0]) && !left(&many[1]));
        let _busy: Vec<_> = [&many[1], &many[2]].map(Place::busy).into();
        let newcomer = enter(&places, 3).unwrap();
        assert!(!many.iter().skip(1).any(|place| left(place)), "there was a place");
        assert!(enter(&places, 4).is_some() && left(&many[3]), "the oldest that is idle");
        assert!(!left(&newcomer) && !left(&next));
    }

    #[tokio::test]
    async fn where_all_are_busy_a_newcomer_waits_for_the_first_that_ends() {
        let places = Places::new(2);
        let (one, two) = (enter(&places, 1).unwrap(), enter(&places, 2).unwrap());
        let (first, second) = (one.busy(), two.busy());
        let unflushed = Arc::default();
        let mut waits = Box::pin(places.enter(address(3), &unflushed));
        assert!(waits.as_mut().now_or_never().is_none());
        assert!(enter(&places, 3).is_none(), "its share waits already");
        drop(first);
        assert!(waits.as_mut().now_or_never().flatten().is_some() && left(&one));
        drop((waits, second, two));
        assert!(enter(&places, 3).is_some());
        assert!(places.lock().waiting.is_empty());
    }

    #[tokio::test]
    async fn a_place_goes_to_the_first_that_can_have_it_and_to_no_other() {
        let places = Places::new(8);
        let many: Vec<_> = (0..6).map(|_| enter(&places, 1).unwrap()).collect();
        let others: Vec<_> = (0..2).map(|_| enter(&places, 2).unwrap()).collect();
        let busy: Vec<_> = many.iter().map(Place::busy).collect();
        let mut others_busy: Vec<_> = others.iter().map(Place::busy).collect();
        let unflushed = Arc::default();
        let mut waits: Vec<_> = [1, 3, 4, 3].map(|last| Box::pin(places.enter(address(last), &unflushed))).into();
        for wait in &mut waits {
            assert!(wait.as_mut().now_or_never().is_none());
        }
        let lines = || {
            let mut lines: Vec<_> = places.lock().waiting.keys().copied().collect();
            lines.sort();
            lines
        };
        drop(waits.remove(1));
        others_busy.pop();
        // The first has its share, and none of its own is idle; the second waits no more.
        assert_eq!(lines(), [address(1), address(3)]);
        assert!(left(&others[1]) && !many.iter().any(|place| left(place)));
        drop(busy);
        assert!(lines().is_empty() && left(&many[0]) && !left(&many[5]));
        // What was let in and never took its place leaves nothing behind.
        drop((waits, many, others_busy, others));
        let state = places.lock();
        assert!(state.open.is_empty() && state.own.is_empty() && state.count == 0, "{state:?}");
    }

    #[tokio::test]
    async fn one_end_lets_one_in() {
        let places = Places::new(4);
        let taken: Vec<_> = [1, 2, 3, 4].map(|last| enter(&places, last).unwrap()).into();
        let mut busy: Vec<_> = taken.iter().map(Place::busy).collect();
        let unflushed = Arc::default();
        let mut waits: Vec<_> = [1, 5, 6].map(|last| Box::pin(places.enter(address(last), &unflushed))).into();
        for wait in &mut waits {
            assert!(wait.as_mut().now_or_never().is_none());
        }
        // The first has its share, and none of its own is idle.
        busy.pop();
        assert_eq!((places.lock().waiting.len(), left(&taken[3])), (2, true));
        drop(taken[2].busy());
        assert_eq!(places.lock().waiting.len(), 2, "it is busy still");
        busy.pop();
        assert_eq!(places.lock().waiting.len(), 1);
        busy.remove(0);
        assert!(left(&taken[0]) && !left(&taken[1]) && places.lock().waiting.is_empty());
    }

    #[test]
    fn a_host_is_one_source_whatever_its_addresses() {
        let source = |text: &str| source(text.parse().unwrap());
        assert_eq!(source("2001:db8:1:2::1"), source("2001:db8:1:2:ffff:ffff:ffff:ffff"));
        assert_ne!(source("2001:db8:1:2::1"), source("2001:db8:1:3::1"));
        assert_ne!(source("192.0.2.1"), source("192.0.2.2"));
        assert_eq!(source("::ffff:192.0.2.1"), source("192.0.2.1"));
    }
}
