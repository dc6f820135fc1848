//! The lock of shared state; replaced by shuttle's when interleavings are explored.

/// A lock that is never held across an await.
///
/// A panic leaves the state as it was at that moment. Every critical section finishes its bookkeeping before it calls
/// anything that can panic, so a poisoned state is still consistent.
#[cfg(not(shuttle))]
#[derive(Debug, Default)]
pub(crate) struct Mutex<T>(std::sync::Mutex<T>);

#[cfg(not(shuttle))]
impl<T> Mutex<T> {
    pub(crate) fn new(value: T) -> Self {
        Self(std::sync::Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> Guard<'_, T> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }
}

/// The guard of the lock.
#[cfg(not(shuttle))]
pub(crate) type Guard<'a, T> = std::sync::MutexGuard<'a, T>;

#[cfg(shuttle)]
pub(crate) use explored::{Guard, Mutex};

#[cfg(shuttle)]
mod explored {
    use std::ops::{Deref, DerefMut};
    use std::sync::PoisonError;

    /// Shuttle's lock.
    #[derive(Debug, Default)]
    pub(crate) struct Mutex<T>(shuttle::sync::Mutex<T>);

    impl<T> Mutex<T> {
        pub(crate) fn new(value: T) -> Self {
            Self(shuttle::sync::Mutex::new(value))
        }

        pub(crate) fn lock(&self) -> Guard<'_, T> {
            Guard(Some(self.0.lock().unwrap_or_else(PoisonError::into_inner)))
        }
    }

    /// Lets other tasks run right after the lock is released. Shuttle itself switches only before a lock is taken, and
    /// would miss what happens between a check of the state and the wait that follows.
    pub(crate) struct Guard<'a, T>(Option<shuttle::sync::MutexGuard<'a, T>>);

    impl<T> Deref for Guard<'_, T> {
        type Target = T;

        fn deref(&self) -> &T {
            match &self.0 {
                Some(guard) => guard,
                None => unreachable!("it is emptied only on drop"),
            }
        }
    }

    impl<T> DerefMut for Guard<'_, T> {
        fn deref_mut(&mut self) -> &mut T {
            match &mut self.0 {
                Some(guard) => guard,
                None => unreachable!("it is emptied only on drop"),
            }
        }
    }

    impl<T> Drop for Guard<'_, T> {
        fn drop(&mut self) {
            drop(self.0.take());
            if !std::thread::panicking() {
                shuttle::thread::yield_now();
            }
        }
    }
}
