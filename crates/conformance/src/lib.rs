//! The suite that tests every provider, and the checker that checks every history.
//!
//! **The idea.** A provider is trusted for its behaviour and not for its code. [`exercise`] tests each of the sixteen
//! rules on a live store, as far as the provider's capabilities go, and ends with a storm of concurrent workers whose
//! recorded [`history`] is checked for breaches of the law. With the feature
//! `model`, `compare_with_model` runs generated programs on the in-memory reference and on a provider and compares.
//! The stores beside queues have suites of the same kind: [`exercise_idempotency`],
//! [`exercise_state_records`], [`exercise_tasks`].
//!
//! Tests that only some providers have, because they need a hook into the server or a caller's transaction, are plain
//! functions, which the provider's own tests call with their fixtures: [`archive`], [`faults`], [`locks`], [`order`],
//! [`redrive`], [`sessions`], [`transactions`].
//!
//! **The invariant.** The suite sees a provider only from outside, through the contract and its own monotonic clock,
//! and it accuses only when no order of events could excuse what it saw. [`broken`] providers show that it can
//! accuse: each breaks one rule, and the test named for that fault must catch it.
//!
//! **What was rejected.** Hooks inside providers that let a test read their tables: a third party's provider has none,
//! and tables are not behaviour. Sleeping for a lease's length: a test waits for what the store does, with a deadline,
//! and measures how long it took.

pub mod archive;
pub mod broken;
pub mod checker;
mod exercise;
pub mod faults;
mod forward;
pub mod guarantees;
mod harness;
pub mod history;
mod idempotency;
mod law;
pub mod link;
pub mod locks;
#[cfg(feature = "model")]
pub mod model;
pub mod order;
pub mod private_server;
mod probe;
pub mod processes;
pub mod proxy;
pub mod recorded;
mod records_finding;
pub mod redrive;
mod rules;
pub mod sessions;
mod state_records;
mod storm;
pub mod tasks;
pub mod transactions;

pub use exercise::{Observer, Settings, exercise, sweep};
pub use harness::{ClockShift, Harness};
pub use idempotency::{IdempotencyHarness, exercise_idempotency};
pub use law::{Outcome, Report, Rule, RuleReport, TestReport};
pub use records_finding::RecordsFinding;
pub use state_records::{StateRecordsHarness, exercise_state_records};
pub use storm::{StormReport, StormSettings, storm, storm_under_faults};
pub use tasks::{TaskFinding, TaskHarness, exercise_task_test, exercise_tasks};
