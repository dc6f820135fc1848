//! Connection permits, shared fairly between sources.
//!
//! The last quarter of the permits is reserved for sources that hold less than a quarter of all, so that no single
//! source can hold them all. If no permit is free, a new connection evicts the longest idle one: of its own source if
//! that has its share, else of the source with the most connections. If all are busy, it waits.

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

/// Returns the source of a connection: an IPv4 address, or the /64 prefix of an IPv6 address, as one host has all
/// addresses of its prefix.
fn source(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => Ipv6Addr::from_bits(address.to_bits() >> 64 << 64).into(),
        address => address,
    }
}

/// A connection that holds a permit.
#[derive(Debug)]
struct OpenConnection {
    source: IpAddr,
    /// Running requests, until their answers are written.
    busy: usize,
    /// Start of the idle time.
    idle_since: Instant,
    /// Evicted: it is closing, and no longer counted.
    is_evicted: bool,
    eviction: CancellationToken,
    unflushed: Arc<Unflushed>,
}

/// The counted connections of one source.
#[derive(Debug, Default)]
struct SourceConnections {
    count: usize,
    /// The idle ones, by the start of their idle time.
    idle: BTreeSet<(Instant, u64)>,
}

/// A connection that waits for a permit.
#[derive(Debug)]
struct Waiter {
    number: u64,
    unflushed: Arc<Unflushed>,
    granted: oneshot::Sender<ConnectionPermit>,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    open: HashMap<u64, OpenConnection>,
    /// Counted connections, in all and by source.
    count: usize,
    own: HashMap<IpAddr, SourceConnections>,
    /// Waiting connections by source. No entry is empty.
    waiting: HashMap<IpAddr, VecDeque<Waiter>>,
}

/// The permits of all connections.
#[derive(Debug)]
pub(super) struct ConnectionPermits {
    most: usize,
    /// The lock is held briefly.
    state: Mutex<State>,
}

/// The permit of a connection; freed on drop.
#[derive(Debug)]
pub(super) struct ConnectionPermit {
    permits: Arc<ConnectionPermits>,
    number: u64,
    eviction: CancellationToken,
}

impl ConnectionPermits {
    pub(super) fn new(most: usize) -> Arc<Self> {
        Arc::new(Self { most, state: Mutex::default() })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Connections that are the fair share of one source.
    fn share(&self) -> usize {
        (self.most / 4).max(1)
    }

    /// Waits for a permit. `None` if too many connections of its source wait already.
    pub(super) async fn acquire(
        self: &Arc<Self>,
        address: IpAddr,
        unflushed: &Arc<Unflushed>,
    ) -> Option<ConnectionPermit> {
        /// Removes the waiter when the wait ends.
        struct Waiting<'a>(&'a ConnectionPermits, IpAddr, u64);

        impl Drop for Waiting<'_> {
            fn drop(&mut self) {
                let Self(permits, source, number) = self;
                permits.lock().remove_waiter(*source, |waiter| waiter.number == *number);
            }
        }

        let source = source(address);
        let (waiting, granted) = {
            let mut state = self.lock();
            if let Some(permit) = self.take(&mut state, source, unflushed) {
                return Some(permit);
            }
            let number = state.number();
            let waiters = state.waiting.entry(source).or_default();
            if waiters.len() >= self.share() {
                return None;
            }
            let (sender, granted) = oneshot::channel();
            waiters.push_back(Waiter { number, unflushed: unflushed.clone(), granted: sender });
            (Waiting(self, source, number), granted)
        };
        let permit = granted.await.ok();
        drop(waiting);
        permit
    }

    /// Whether a permit is free without an eviction.
    fn has_room(&self, state: &State, own: usize) -> bool {
        state.count < self.most - self.most / 4 || (state.count < self.most && own < self.share())
    }

    /// Takes a permit if one is free or an idle connection can be evicted.
    fn take(
        self: &Arc<Self>,
        state: &mut State,
        source: IpAddr,
        unflushed: &Arc<Unflushed>,
    ) -> Option<ConnectionPermit> {
        let own = state.count_of(&source);
        if !self.has_room(state, own) {
            let leaving = if own >= self.share() { state.idle_of(&source) } else { state.idle_of_most() };
            state.evict(leaving?);
        }
        let (number, eviction, idle_since) = (state.number(), CancellationToken::new(), Instant::now());
        state.count += 1;
        let own = state.own.entry(source).or_default();
        own.count += 1;
        own.idle.insert((idle_since, number));
        let permits = Arc::downgrade(self);
        // An answer is flushed after its request has ended; the connection is idle only then.
        unflushed.on_flush(move || {
            if let Some(permits) = permits.upgrade() {
                permits.admit();
            }
        });
        let (unflushed, permit) = (unflushed.clone(), eviction.clone());
        state
            .open
            .insert(number, OpenConnection { source, busy: 0, idle_since, is_evicted: false, eviction, unflushed });
        Some(ConnectionPermit { permits: self.clone(), number, eviction: permit })
    }

    /// Gives a permit to the first waiter that can have one.
    fn admit(self: &Arc<Self>) {
        let admitted = {
            let mut state = self.lock();
            state.first_admissible(self).and_then(|source| {
                let waiter = state.remove_waiter(source, |_| true)?;
                Some((self.take(&mut state, source, &waiter.unflushed)?, waiter.granted))
            })
        };
        // If the waiter has left, the permit is dropped here, without the lock, and admits the next one.
        if let Some((permit, granted)) = admitted {
            let _ = granted.send(permit);
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

    /// The longest idle connection of a source.
    fn idle_of(&self, source: &IpAddr) -> Option<u64> {
        let is_flushed = |number: &u64| self.open.get(number).is_some_and(|open| open.unflushed.is_empty());
        self.own.get(source)?.idle.iter().map(|(_, number)| *number).find(is_flushed)
    }

    /// The longest idle connection of the source with the most connections, among sources that have an idle one.
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

    /// The source of the longest waiting connection that can have a permit.
    fn first_admissible(&self, permits: &ConnectionPermits) -> Option<IpAddr> {
        if self.waiting.is_empty() {
            return None;
        }
        let has_idle = self.idle_of_most().is_some();
        let can_enter = |source: &IpAddr| {
            let own = self.count_of(source);
            let can_make_room = || if own >= permits.share() { self.idle_of(source).is_some() } else { has_idle };
            permits.has_room(self, own) || can_make_room()
        };
        let sources = self.waiting.iter().filter(|(source, _)| can_enter(source));
        sources.min_by_key(|(_, waiters)| waiters.front().map(|waiter| waiter.number)).map(|(source, _)| *source)
    }

    /// Removes the first matching waiter of a source.
    fn remove_waiter(&mut self, source: IpAddr, matches: impl FnMut(&Waiter) -> bool) -> Option<Waiter> {
        let waiters = self.waiting.get_mut(&source)?;
        let waiter = waiters.iter().position(matches).and_then(|at| waiters.remove(at));
        if waiters.is_empty() {
            self.waiting.remove(&source);
        }
        waiter
    }

    /// Stops counting a connection that has closed or is closing.
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

    fn evict(&mut self, number: u64) {
        let Some(open) = self.open.get_mut(&number) else { return };
        open.is_evicted = true;
        open.eviction.cancel();
        let (source, idle_since) = (open.source, open.idle_since);
        self.discount(source, idle_since, number);
    }
}

impl ConnectionPermit {
    /// Waits until the connection is evicted.
    pub(super) async fn evicted(&self) {
        self.eviction.cancelled().await;
    }

    /// Whether no request runs on the connection.
    pub(super) fn is_idle(&self) -> bool {
        self.permits.lock().open.get(&self.number).is_none_or(|open| open.busy == 0 && open.unflushed.is_empty())
    }

    /// Marks the connection as busy until the guard is dropped.
    pub(super) fn busy(self: &Arc<Self>) -> Busy {
        let mut state = self.permits.lock();
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

impl Drop for ConnectionPermit {
    fn drop(&mut self) {
        let mut state = self.permits.lock();
        let Some(OpenConnection { source, idle_since, is_evicted: false, .. }) = state.open.remove(&self.number) else {
            return;
        };
        state.discount(source, idle_since, self.number);
        drop(state);
        self.permits.admit();
    }
}

/// A running request, until its answer is written.
#[derive(Debug)]
pub(super) struct Busy(Arc<ConnectionPermit>);

impl Drop for Busy {
    fn drop(&mut self) {
        let ConnectionPermit { permits, number, .. } = &*self.0;
        let mut state = permits.lock();
        let State { open, own, .. } = &mut *state;
        let Some(open) = open.get_mut(number) else { return };
        open.busy = open.busy.saturating_sub(1);
        open.idle_since = Instant::now();
        if open.busy > 0 || open.is_evicted {
            return;
        }
        if let Some(own) = own.get_mut(&open.source) {
            own.idle.insert((open.idle_since, *number));
        }
        drop(state);
        // The connection can be evicted now.
        permits.admit();
    }
}

/// An answer that keeps its connection busy until it is sent.
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

    fn acquire(permits: &Arc<ConnectionPermits>, last: u8) -> Option<Arc<ConnectionPermit>> {
        permits.acquire(address(last), &Arc::default()).now_or_never().flatten().map(Arc::new)
    }

    fn is_evicted(permit: &ConnectionPermit) -> bool {
        permit.eviction.is_cancelled()
    }

    #[tokio::test(start_paused = true)]
    async fn the_longest_idle_connection_of_the_largest_source_is_evicted_first() {
        let permits = ConnectionPermits::new(8);
        let mut many = Vec::new();
        for _ in 0..6 {
            many.push(acquire(&permits, 1).unwrap());
            tokio::time::advance(std::time::Duration::from_secs(1)).await;
        }
        let _other = acquire(&permits, 2).unwrap();
        // The last quarter is reserved: a source with its share evicts a connection of its own.
        let next = acquire(&permits, 1).unwrap();
        assert!(is_evicted(&many[0]) && !is_evicted(&many[1]));
        let _busy: Vec<_> = [&many[1], &many[2]].map(ConnectionPermit::busy).into();
        let newcomer = acquire(&permits, 3).unwrap();
        assert!(!many.iter().skip(1).any(|permit| is_evicted(permit)), "a permit was free");
        assert!(acquire(&permits, 4).is_some() && is_evicted(&many[3]), "the longest idle one");
        assert!(!is_evicted(&newcomer) && !is_evicted(&next));
    }

    #[tokio::test]
    async fn if_all_are_busy_a_new_connection_waits_for_the_first_to_become_idle() {
        let permits = ConnectionPermits::new(2);
        let (one, two) = (acquire(&permits, 1).unwrap(), acquire(&permits, 2).unwrap());
        let (first, second) = (one.busy(), two.busy());
        let unflushed = Arc::default();
        let mut waits = Box::pin(permits.acquire(address(3), &unflushed));
        assert!(waits.as_mut().now_or_never().is_none());
        assert!(acquire(&permits, 3).is_none(), "its share waits already");
        drop(first);
        assert!(waits.as_mut().now_or_never().flatten().is_some() && is_evicted(&one));
        drop((waits, second, two));
        assert!(acquire(&permits, 3).is_some());
        assert!(permits.lock().waiting.is_empty());
    }

    #[tokio::test]
    async fn a_permit_goes_to_the_first_waiter_that_can_have_it() {
        let permits = ConnectionPermits::new(8);
        let many: Vec<_> = (0..6).map(|_| acquire(&permits, 1).unwrap()).collect();
        let others: Vec<_> = (0..2).map(|_| acquire(&permits, 2).unwrap()).collect();
        let busy: Vec<_> = many.iter().map(ConnectionPermit::busy).collect();
        let mut others_busy: Vec<_> = others.iter().map(ConnectionPermit::busy).collect();
        let unflushed = Arc::default();
        let mut waits: Vec<_> = [1, 3, 4, 3].map(|last| Box::pin(permits.acquire(address(last), &unflushed))).into();
        for wait in &mut waits {
            assert!(wait.as_mut().now_or_never().is_none());
        }
        let sources = || {
            let mut sources: Vec<_> = permits.lock().waiting.keys().copied().collect();
            sources.sort();
            sources
        };
        drop(waits.remove(1));
        others_busy.pop();
        // The first waiter's source has its share and no idle connection; the second waiter has left.
        assert_eq!(sources(), [address(1), address(3)]);
        assert!(is_evicted(&others[1]) && !many.iter().any(|permit| is_evicted(permit)));
        drop(busy);
        assert!(sources().is_empty() && is_evicted(&many[0]) && !is_evicted(&many[5]));
        // A waiter that was admitted and has left leaves nothing behind.
        drop((waits, many, others_busy, others));
        let state = permits.lock();
        assert!(state.open.is_empty() && state.own.is_empty() && state.count == 0, "{state:?}");
    }

    #[tokio::test]
    async fn one_freed_permit_admits_one_waiter() {
        let permits = ConnectionPermits::new(4);
        let taken: Vec<_> = [1, 2, 3, 4].map(|last| acquire(&permits, last).unwrap()).into();
        let mut busy: Vec<_> = taken.iter().map(ConnectionPermit::busy).collect();
        let unflushed = Arc::default();
        let mut waits: Vec<_> = [1, 5, 6].map(|last| Box::pin(permits.acquire(address(last), &unflushed))).into();
        for wait in &mut waits {
            assert!(wait.as_mut().now_or_never().is_none());
        }
        // The first waiter's source has its share and no idle connection.
        busy.pop();
        assert_eq!((permits.lock().waiting.len(), is_evicted(&taken[3])), (2, true));
        drop(taken[2].busy());
        assert_eq!(permits.lock().waiting.len(), 2, "it is still busy");
        busy.pop();
        assert_eq!(permits.lock().waiting.len(), 1);
        busy.remove(0);
        assert!(is_evicted(&taken[0]) && !is_evicted(&taken[1]) && permits.lock().waiting.is_empty());
    }

    #[test]
    fn a_host_is_one_source_with_all_its_addresses() {
        let source = |text: &str| source(text.parse().unwrap());
        assert_eq!(source("2001:db8:1:2::1"), source("2001:db8:1:2:ffff:ffff:ffff:ffff"));
        assert_ne!(source("2001:db8:1:2::1"), source("2001:db8:1:3::1"));
        assert_ne!(source("192.0.2.1"), source("192.0.2.2"));
        assert_eq!(source("::ffff:192.0.2.1"), source("192.0.2.1"));
    }
}
