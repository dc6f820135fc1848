//! Rate limits by token bucket.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// Upper bound of the buckets. Full ones are dropped: a new bucket is full, too.
const MAX: usize = 10_000;

/// A token bucket for each caller. The lock is held briefly.
#[derive(Debug)]
pub(crate) struct Rate {
    per_second: f64,
    most: f64,
    buckets: Mutex<HashMap<Arc<str>, (f64, Instant)>>,
}

impl Rate {
    /// A limit of `per_second`, with bursts of up to `most`.
    pub(crate) fn new(per_second: f64, most: f64) -> Self {
        Self { per_second, most: most.max(1.0), buckets: Mutex::default() }
    }

    /// Takes one; otherwise returns the seconds until one is available.
    pub(crate) fn take(&self, who: &str) -> Result<(), u64> {
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if buckets.len() >= MAX && !buckets.contains_key(who) {
            buckets.retain(|_, bucket| self.filled(*bucket, now) < self.most);
        }
        let left = self.left(buckets.get(who), now)?;
        buckets.insert(who.into(), (left - 1.0, now));
        Ok(())
    }

    /// Checks that one is available; otherwise returns the seconds until then.
    pub(crate) fn check(&self, who: &str) -> Result<(), u64> {
        let buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        self.left(buckets.get(who), Instant::now()).map(drop)
    }

    fn filled(&self, (left, since): (f64, Instant), now: Instant) -> f64 {
        self.most.min(left + now.duration_since(since).as_secs_f64() * self.per_second)
    }

    fn left(&self, bucket: Option<&(f64, Instant)>, now: Instant) -> Result<f64, u64> {
        let left = bucket.map_or(self.most, |bucket| self.filled(*bucket, now));
        match left < 1.0 {
            true => Err(((1.0 - left) / self.per_second).ceil().max(1.0) as u64),
            false => Ok(left),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_caller_has_its_own_bucket() {
        let rate = Rate::new(0.5, 2.0);
        assert!(rate.take("anna").is_ok() && rate.check("anna").is_ok() && rate.take("anna").is_ok());
        assert_eq!((rate.check("anna"), rate.take("anna")), (Err(2), Err(2)));
        assert!(rate.take("ben").is_ok());
    }
}
