//! Locks for ordering keys.
//!
//! A transaction that adds to a key or removes its head must see what others did to the key before. Otherwise two
//! concurrent ones would each take the other's message for the head, or neither would promote the next. So each takes a
//! lock first. Keys share 256 locks, called stripes, so that a batch of a thousand keys does not fill the server's lock
//! table. Stripes are locked in order, so that no two transactions deadlock, and only by short transactions.

use postrider_core::{LeaseToken, QueueName};

const STRIPES: u64 = 256;

/// The FNV-1a hash. It must never change, because processes of two versions share the locks.
pub fn fnv1a<'a>(bytes: impl IntoIterator<Item = &'a u8>) -> u64 {
    let step = |hash: u64, byte: &u8| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.into_iter().fold(0xcbf2_9ce4_8422_2325, step)
}

/// The stripe of a key.
pub fn stripe(queue: &QueueName, key: &str) -> i32 {
    let bytes = queue.as_str().as_bytes().iter().chain(&[0]).chain(key.as_bytes());
    // The remainder is below 256.
    (fnv1a(bytes) % STRIPES) as i32
}

/// Sorts stripes and removes duplicates.
pub fn in_order(mut stripes: Vec<i32>) -> Vec<i32> {
    stripes.sort_unstable();
    stripes.dedup();
    stripes
}

const ROW_BITS: u32 = 48;
const ROW_MASK: u64 = (1 << ROW_BITS) - 1;

/// Builds the token of a lease: the random number of the claim; the stripe of the message's key, so that a settle can
/// lock it before it reads the row; and the row, so that no two messages of a claim share a token.
pub fn token(lease: i64, stripe: Option<i32>, row: i64) -> LeaseToken {
    let mark = stripe.map_or(0, |stripe| u64::from(stripe.unsigned_abs()) + 1);
    let low = mark << ROW_BITS | (row.cast_unsigned() & ROW_MASK);
    LeaseToken(u128::from(lease.cast_unsigned()) << 64 | u128::from(low))
}

/// Decodes a token into the random number and the stripe; `None` if it cannot belong to this row.
pub fn read_token(token: LeaseToken, row: i64) -> Option<(i64, Option<i32>)> {
    let low = token.0 as u64;
    let mark = low >> ROW_BITS;
    if low & ROW_MASK != row.cast_unsigned() & ROW_MASK || mark > STRIPES {
        return None;
    }
    let lease = ((token.0 >> 64) as u64).cast_signed();
    // The stripe is at most 255.
    Some((lease, mark.checked_sub(1).map(|stripe| stripe as i32)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_token_round_trips_and_fits_one_row() {
        for stripe in [None, Some(0), Some(255)] {
            let token = token(-7, stripe, 12);
            assert_eq!(read_token(token, 12), Some((-7, stripe)));
            assert_eq!(read_token(token, 13), None);
        }
        assert_eq!(read_token(LeaseToken(u128::MAX), -1), None, "the stripe is out of range");
    }

    #[test]
    fn stripes_never_change() {
        let queue = QueueName::new("orders").unwrap();
        assert_eq!([stripe(&queue, "a"), stripe(&queue, "b")].map(|s| (0..256).contains(&s)), [true; 2]);
        assert_eq!(stripe(&queue, "customer-7"), 228);
        assert_eq!(in_order(vec![9, 1, 9, 3]), [1, 3, 9]);
    }
}
