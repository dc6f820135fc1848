//! `postrider task list` and `get`

use serde_json::{Value, json};

use super::home::{Home, TaskScratch};
use crate::scratch::text;

fn ids(rows: &[Value]) -> Vec<String> {
    rows.iter().map(|row| text(&row["id"])).collect()
}

fn make(scratch: &TaskScratch, task_type: &str, count: usize) -> Vec<String> {
    let lines: String = (0..count).map(|n| format!("{n}\n")).collect();
    ids(&scratch.run_with(&["--json", "task", "create", task_type, "--lines"], lines.as_bytes()).done().rows())
}

#[test]
fn a_list_follows_its_pages_to_the_end_newest_first() {
    for home in Home::everywhere() {
        let scratch = &home.scratch;
        let mut made = make(scratch, "a", 1100);
        made.extend(make(scratch, "b", 5));
        made.reverse();
        let all = scratch.rows(&["task", "list", "--all"]);
        assert_eq!(ids(&all), made);
        let row = &all[0];
        assert_eq!((&row["type"], &row["state"], &row["attempt_count"]), (&json!("b"), &json!("PENDING"), &json!(0)));
        assert!(row.get("payload").is_none() && row.get("attempts").is_none(), "{row}");

        let run = scratch.run(&["--json", "task", "list"]).done();
        assert_eq!(ids(&run.rows()), made[..100]);
        assert!(run.stderr.contains("there are more tasks; pass --all"), "{run:?}");
        let run = scratch.run(&["--json", "task", "list", "--limit", "1050"]).done();
        assert_eq!(ids(&run.rows()), made[..1050]);
        let run = scratch.run(&["--json", "task", "list", "--limit", "1105"]).done();
        assert_eq!((run.rows().len(), run.stderr.as_str()), (1105, ""), "there are no more");
        assert_eq!(ids(&scratch.rows(&["task", "list", "--type", "b"])), made[..5]);
        assert_eq!(scratch.rows(&["task", "list", "--type", "a", "--type", "b", "--all"]).len(), 1105);

        let table = scratch.run(&["task", "list", "--all"]).done().stdout;
        assert_eq!(table.lines().filter(|line| line.starts_with("ID ")).count(), 1);
        assert_eq!(table.lines().count(), 1106);
    }
}

#[test]
fn a_list_has_the_tasks_that_match_all_filters() {
    for home in Home::everywhere() {
        let scratch = &home.scratch;
        let old = scratch.create(&["mail", "65", "--tag", "a", "--tag", "b"]);
        let dead = scratch.create(&["mail", "65", "--tag", "a"]);
        let done = scratch.create(&["mail", "0", "--tag", "a"]);
        let failed = scratch.create(&["mail", "3", "--max-attempts", "1"]);
        scratch.drain("mail", r#"echo "no route to $POSTRIDER_TASK_ID" >&2; exit "$(cat)""#);
        let later = scratch.create(&["mail", "0", "--in", "1h"]);
        let list = |args: &[&str]| ids(&scratch.rows(&[&["task", "list"], args].concat()));
        assert_eq!(list(&[]), [&*later, &failed, &done, &dead, &old]);
        assert_eq!(list(&["--state", "dead"]), [&*failed, &dead, &old]);
        assert_eq!(list(&["--state", "SUCCEEDED", "--state", "PENDING"]), [&*later, &done]);
        assert_eq!(list(&["--tag", "a"]), [&*done, &dead, &old]);
        assert_eq!(list(&["--tag", "a", "--tag", "b"]), [&*old]);
        assert_eq!(list(&["--reason", "permanent", "--type", "mail"]), [&*dead, &old]);
        assert_eq!(list(&["--error", &format!("no route to {dead}")]), [&*dead]);
        assert_eq!(list(&["--schedule", "nightly"]), [""; 0]);
        assert_eq!(list(&["--since", "1h"]).len(), 5);
        assert_eq!(list(&["--since", &text(&scratch.get(&done)["created_at"])]), [&*later, &failed, &done]);
        assert_eq!(list(&["--since", "2099-01-01T00:00:00Z"]), [""; 0]);

        let table = scratch.run(&["task", "list"]).done().stdout;
        let line = |id: &str| table.lines().find(|line| line.starts_with(id)).unwrap_or_default().to_owned();
        assert!(line(&later).ends_with("due in 1h") || line(&later).contains("due in 59m"), "{table}");
        assert!(line(&failed).contains("DEAD            1/1") && line(&failed).contains("max_attempts: exit code 3"));
        assert!(line(&dead).contains(r"permanent: exit code 65 (refuses the task)\nno route"), "{table}");
    }
}

#[test]
fn a_task_is_shown_with_its_record() {
    let scratch = Home::sqlite().scratch;
    let id = scratch.create(&["mail", "hello", "--tag", "a", "--retry", "constant,delay=0s,attempts=2", "--key", "k"]);
    scratch.drain("mail", "echo oops >&2; exit 3");
    let shown = scratch.run(&["task", "get", &id]).done().stdout;
    for line in
        ["state            DEAD\n", "reason           max_attempts\n", "attempts         2/2\n", "tag              a\n"]
    {
        assert!(shown.contains(line), "{shown}");
    }
    assert!(
        shown.contains("error            exit code 3\n                 oops\n")
            && shown.ends_with("\n\npayload\nhello\n"),
        "{shown}"
    );
    assert!(!shown.contains("\nattempt "), "{shown}");
    let shown = scratch.run(&["task", "get", &id, "--attempts"]).done().stdout;
    let attempts: Vec<_> = shown.lines().filter(|line| line.starts_with("attempt ")).collect();
    assert_eq!(attempts.len(), 2, "{shown}");
    assert!(attempts[1].contains(" 2 failed after ") && attempts[1].ends_with(": exit code 3"), "{shown}");
    assert_eq!(shown.matches(": exit code 3\n                 oops\n").count(), 2, "{shown}");
}

#[test]
fn a_due_time_in_three_hours_is_shown_exactly() {
    let scratch = Home::sqlite().scratch;
    scratch.create(&["mail", "", "--in", "3h"]);
    let table = scratch.run(&["task", "list"]).done().stdout;
    assert!(table.contains("due in 3h") || table.contains("due in 2h59m"), "{table}");
}
