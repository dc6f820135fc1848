//! The steps of a program and their generators.

use proptest::collection::vec;
use proptest::option;
use proptest::prelude::*;

/// The length of a lease or a delay.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Span {
    /// Ends with the next [`Step::Elapse`].
    Short,
    /// Outlasts the program.
    Long,
}

/// One step. Receipts are numbered in the order of their deliveries, modulo their number, so that every program can run
/// and used receipts occur again.
#[derive(Debug, Clone)]
#[allow(missing_docs)]
pub enum Step {
    Send { key: Option<u8>, dedup: Option<u8>, priority: u8, delay: Option<Span>, expires: Option<Span> },
    Receive { max: u8, lease: Span, limit: u8 },
    ReceiveById { message: u8, lease: Span },
    ReceiveDead { max: u8, lease: Span },
    Ack { receipt: u8 },
    Retry { receipt: u8, after: Option<Span> },
    Release { receipt: u8 },
    DeadLetter { receipt: u8 },
    Extend { receipt: u8, lease: Span },
    Elapse,
    EditDead { message: u8 },
    Redrive { message: Option<u8>, dry_run: bool },
    PurgeDead { message: u8 },
    Purge,
    Pause,
    Resume,
}

fn span() -> impl Strategy<Value = Span> {
    prop_oneof![Just(Span::Short), Just(Span::Long)]
}

fn step() -> impl Strategy<Value = Step> {
    let priority = prop_oneof![6 => Just(4_u8), 1 => 0..10_u8];
    let delay = option::weighted(0.2, span());
    let expires = option::weighted(0.1, span());
    let send = (option::weighted(0.5, 0..3_u8), option::weighted(0.2, 0..3_u8), priority, delay, expires)
        .prop_map(|(key, dedup, priority, delay, expires)| Step::Send { key, dedup, priority, delay, expires });
    prop_oneof![
        8 => send,
        8 => (1..5_u8, span(), 1..4_u8).prop_map(|(max, lease, limit)| Step::Receive { max, lease, limit }),
        1 => (any::<u8>(), span()).prop_map(|(message, lease)| Step::ReceiveById { message, lease }),
        1 => (1..3_u8, span()).prop_map(|(max, lease)| Step::ReceiveDead { max, lease }),
        4 => any::<u8>().prop_map(|receipt| Step::Ack { receipt }),
        3 => (any::<u8>(), option::of(span())).prop_map(|(receipt, after)| Step::Retry { receipt, after }),
        2 => any::<u8>().prop_map(|receipt| Step::Release { receipt }),
        2 => any::<u8>().prop_map(|receipt| Step::DeadLetter { receipt }),
        2 => (any::<u8>(), span()).prop_map(|(receipt, lease)| Step::Extend { receipt, lease }),
        3 => Just(Step::Elapse),
        1 => any::<u8>().prop_map(|message| Step::EditDead { message }),
        2 => (option::of(any::<u8>()), prop::bool::weighted(0.2))
            .prop_map(|(message, dry_run)| Step::Redrive { message, dry_run }),
        1 => any::<u8>().prop_map(|message| Step::PurgeDead { message }),
        1 => prop_oneof![4 => Just(Step::Pause), 1 => Just(Step::Purge)],
        2 => Just(Step::Resume),
    ]
}

/// Programs of up to forty steps.
pub(super) fn programs() -> impl Strategy<Value = Vec<Step>> {
    vec(step(), 1..40)
}
