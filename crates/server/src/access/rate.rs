//! How many requests somebody may send.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// So many callers are remembered. Whoever has not used up anything needs not be.
const MOST: usize = 10_000;

/// A bucket for each caller: full at first, and filled at the rate. A lock, held for a look.
#[derive(Debug)]
pub(crate) struct Rate {
    per_second: f64,
    most: f64,
    buckets: Mutex<HashMap<Arc<str>, (f64, Instant)>>,
}

impl Rate {
    /// So many a second, and at most so many at once.
    pub(crate) fn new(per_second: f64, most: f64) -> Self {
        Self { per_second, most: most.max(1.0), buckets: Mutex::default() }
    }

    /// Takes one; otherwise answers after how many seconds there is one.
    pub(crate) fn take(&self, who: &str) -> Result<(), u64> {
        let mut buckets = self.buckets.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if buckets.len() >= MOST && !buckets.contains_key(who) {
            buckets.retain(|_, bucket| self.filled(*bucket, now) < self.most);
        }
        let left = self.left(buckets.get(who), now)?;
        buckets.insert(who.into(), (left - 1.0, now));
        Ok(())
    }

    /// Whether there is one to be taken; otherwise answers after how many seconds there is.
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
    fn each_has_a_bucket_of_their_own() {
        let rate = Rate::new(0.5, 2.0);
        assert!(rate.take("anna").is_ok() && rate.check("anna").is_ok() && rate.take("anna").is_ok());
        assert_eq!((rate.check("anna"), rate.take("anna")), (Err(2), Err(2)));
        assert!(rate.take("ben").is_ok());
    }
}
