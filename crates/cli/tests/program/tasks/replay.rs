//! `postrider task replay` and `edit`

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use super::home::{Home, TaskScratch};
use crate::scratch::text;

fn ids(rows: &[Value]) -> Vec<String> {
    rows.iter().map(|row| text(&row["id"])).collect()
}

/// Creates dead tasks of a type, each with its own error.
fn dead_tasks(scratch: &TaskScratch, task_type: &str, count: usize) -> Vec<String> {
    let lines: String = (0..count).map(|n| format!("{n}\n")).collect();
    let made = scratch.run_with(&["--json", "task", "create", task_type, "--lines"], lines.as_bytes()).done();
    scratch.drain(task_type, r#"echo "error of $(cat)" >&2; exit 65"#);
    ids(&made.rows())
}

#[test]
fn a_replay_takes_the_selected_tasks_and_has_a_dry_run() {
    for home in Home::everywhere() {
        let scratch = &home.scratch;
        let (mails, others) = (dead_tasks(scratch, "mail", 5), dead_tasks(scratch, "other", 2));
        let dry_run = scratch.run(&["--json", "task", "replay", "--all", "--type", "mail", "--dry-run"]).done();
        assert_eq!(ids(&dry_run.rows()), mails, "in the order in which they were made");
        assert!(dry_run.outcomes().iter().all(|outcome| outcome == "would_replay"));
        assert_eq!(dry_run.stderr, "postrider: 5 dead tasks would be replayed\n");
        assert_eq!(scratch.rows(&["task", "list", "--state", "DEAD"]).len(), 7);

        let run = scratch.run(&["--json", "task", "replay", "--error", "error of 3"]).done();
        assert_eq!((ids(&run.rows()), run.outcomes()), (vec![mails[3].clone()], vec!["replayed".to_owned()]));
        assert_eq!(run.stderr, "postrider: 1 dead task was replayed\n");
        let task = scratch.get(&mails[3]);
        assert_eq!(
            (&task["state"], &task["attempt_count"], &task["replay_count"]),
            (&json!("PENDING"), &json!(0), &json!(1))
        );

        let run = scratch.run(&["--json", "task", "replay", "--all", "--type", "mail", "--limit", "2"]).done();
        assert_eq!(ids(&run.rows()), mails[..2], "the oldest first");
        let run = scratch.run(&["task", "replay", "--all", "--yes"]).done();
        let expected: String =
            [&mails[2], &mails[4], &others[0], &others[1]].map(|id| format!("{id}  replayed\n")).concat();
        assert_eq!(run.stdout, expected);
        scratch.drain("mail", "true");
        scratch.drain("other", "true");
        assert_eq!(scratch.rows(&["task", "list", "--state", "SUCCEEDED"]).len(), 7);
        let run = scratch.run(&["task", "replay", "--all"]).done();
        assert_eq!((run.stdout.as_str(), run.stderr.as_str()), ("", "postrider: 0 dead tasks were replayed\n"));
        let attempts = scratch.get(&mails[0])["attempts"].clone();
        let noted = |n: usize| (attempts[n]["replay"].clone(), attempts[n]["outcome"].clone());
        assert_eq!((noted(0), noted(1)), ((json!(0), json!("failed")), (json!(1), json!("succeeded"))));
    }
}

#[test]
fn tasks_that_are_not_dead_are_skipped_and_reported() {
    let scratch = Home::sqlite().scratch;
    let dead = dead_tasks(&scratch, "mail", 1).remove(0);
    let living = scratch.create(&["mail", ""]);
    let unknown = "0190163d-8694-739b-aea5-966c26f8ad91";
    for dry_run in [&["--dry-run"][..], &[]] {
        let args = [&["--json", "task", "replay", &dead, &living, unknown, &dead], dry_run].concat();
        let run = scratch.run(&args).failed(1);
        let first = if dry_run.is_empty() { "replayed" } else { "would_replay" };
        assert_eq!(run.outcomes(), [first, "conflict", "not_found"]);
        assert!(run.stderr.contains("is PENDING and cannot be replayed; nothing was changed"), "{run:?}");
    }
    let run = scratch.run(&["--json", "task", "replay", &dead]).failed(1);
    assert_eq!(run.outcomes(), ["conflict"]);
}

#[test]
fn a_payload_is_edited_before_a_replay() {
    for home in Home::everywhere() {
        let scratch = &home.scratch;
        let id = dead_tasks(scratch, "mail", 1).remove(0);
        assert_eq!(scratch.row(&["task", "edit", &id, "better"]), json!({"id": id, "revision": 1}));
        let run = scratch.run_with(&["task", "edit", &id], b"\xff").done();
        assert_eq!(run.stdout, format!("{id}  revision 2\n"));
        std::fs::write(scratch.file("payload"), "from a file").unwrap();
        assert_eq!(scratch.row(&["task", "edit", &id, "--file", "payload"])["revision"], 3);
        assert_eq!(scratch.get(&id)["payload"], "from a file");
        let run = scratch.run(&["task", "edit", &id, "--file", "missing"]).failed(1);
        assert!(run.stderr.contains("cannot read 'missing'") && run.stderr.contains("nothing was done"), "{run:?}");

        assert_eq!(scratch.row(&["task", "replay", &id, "--edit", "the best"])["outcome"], "replayed");
        let run = scratch.run(&["task", "edit", &id, "too late"]).failed(1);
        assert!(run.stderr.contains("is PENDING and cannot be edited"), "{run:?}");
        scratch.drain("mail", "cat");
        let task = scratch.get(&id);
        assert_eq!(
            (&task["result"], &task["revision"], &task["replay_count"]),
            (&json!("the best"), &json!(4), &json!(1))
        );
    }
}

#[test]
fn a_retry_replays_dead_tasks() {
    let scratch = Home::sqlite().scratch;
    let id = dead_tasks(&scratch, "mail", 1).remove(0);
    assert_eq!(scratch.row(&["task", "retry", &id]), json!({"id": id, "outcome": "replayed", "was": "DEAD"}));
    assert_eq!(scratch.drain("mail", "true").outcomes(), ["succeeded"]);
}

#[test]
fn a_rate_is_kept() {
    let scratch = Home::sqlite().scratch;
    dead_tasks(&scratch, "mail", 5);
    let begun = Instant::now();
    assert_eq!(scratch.rows(&["task", "replay", "--all", "--rate", "2/s"]).len(), 5);
    assert!(begun.elapsed() >= Duration::from_secs(2), "{:?}", begun.elapsed());
}
