//! Random choices from a seed: the same seed gives the same history, on every machine.

use std::time::Duration;

pub(super) struct Random(u64);

impl Random {
    pub(super) fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// SplitMix64: short, and good enough here.
    pub(super) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(super) fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }

    pub(super) fn percent(&mut self, chance: usize) -> bool {
        self.below(100) < chance
    }

    /// Mostly short, sometimes up to `most`, sometimes zero.
    pub(super) fn duration(&mut self, most: Duration) -> Duration {
        let most = most.as_micros() as usize;
        let micros = match self.below(4) {
            0 => 0,
            1 | 2 => self.below(most / 20 + 1),
            _ => self.below(most + 1),
        };
        Duration::from_micros(micros as u64)
    }

    pub(super) fn pick<T>(&mut self, from: &[T]) -> Option<usize> {
        (!from.is_empty()).then(|| self.below(from.len()))
    }
}
