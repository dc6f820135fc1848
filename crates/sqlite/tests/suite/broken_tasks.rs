//! Shows that the suite for tasks can fail, with stores that break one rule at a time.

use futures_util::{StreamExt, stream};
use postrider_conformance::tasks::broken::{BrokenTaskHarness, TaskFault};
use postrider_conformance::{exercise_task_test, exercise_tasks};

use crate::tasks::ManualClockHarness;

/// Runs the tests that must catch a fault, each on a file of its own, and returns those that did not.
async fn missed_by(fault: TaskFault) -> Vec<String> {
    let mut missed = Vec::new();
    for test in fault.caught_by() {
        let finding = exercise_task_test(&BrokenTaskHarness::new(ManualClockHarness::new(), Some(fault)), test).await;
        assert_eq!(finding.test, *test);
        match finding.fault {
            // The test must see a wrong answer; a failed call would only show that the wrapper is useless.
            Some(why) if !why.starts_with("a call failed") => {}
            other => missed.push(format!("{fault:?} is not caught by {test}: {other:?}")),
        }
    }
    missed
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_broken_store_is_caught_by_its_tests() {
    let missed = stream::iter(TaskFault::ALL.iter().copied()).map(missed_by).buffer_unordered(6);
    let missed: Vec<String> = missed.collect::<Vec<_>>().await.concat();
    assert!(missed.is_empty(), "{}", missed.join("\n"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_wrapped_store_without_a_fault_passes() {
    for finding in exercise_tasks(&BrokenTaskHarness::new(ManualClockHarness::new(), None)).await {
        assert_eq!(finding.fault, None, "{finding}");
    }
}
