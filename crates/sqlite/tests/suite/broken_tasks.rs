//! That the suite for tasks can fail: a store on a file that breaks one rule at a time.

use futures_util::{StreamExt, stream};
use postrider_conformance::tasks::broken::{BrokenTaskHarness, TaskFault};
use postrider_conformance::{exercise_task_test, exercise_tasks};

use crate::tasks::ByHand;

/// Runs the tests that must catch a fault, each on a file of its own, and answers those that did not.
async fn missed_by(fault: TaskFault) -> Vec<String> {
    let mut missed = Vec::new();
    for test in fault.caught_by() {
        let finding = exercise_task_test(&BrokenTaskHarness::new(ByHand::new(), Some(fault)), test).await;
        assert_eq!(finding.test, *test);
        match finding.fault {
            // A wrong answer is what catches a fault; a call that fails would only show that the wrapper is of no use.
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
async fn a_store_that_is_wrapped_and_not_broken_is_found_to_be_right() {
    for finding in exercise_tasks(&BrokenTaskHarness::new(ByHand::new(), None)).await {
        assert_eq!(finding.fault, None, "{finding}");
    }
}
