//! The log of commands that run until they are stopped.

use postrider::Timestamp;
use serde_json::Value;

use crate::scratch::{PROGRAM, Scratch, text};
use crate::serving::served::Served;

/// Returns the exit code and the raw lines on stderr.
fn log(scratch: &Scratch, args: &[&str]) -> (i32, Vec<String>) {
    let output = scratch.command(PROGRAM).args(args).output().expect("a run");
    let lines = String::from_utf8(output.stderr).expect("text").lines().map(str::to_owned).collect();
    (output.status.code().expect("an end of its own"), lines)
}

/// The level and the message of a line of text, whose time must be recent.
fn parts(line: &str) -> (String, String) {
    let (time, rest) = line.split_once(' ').expect("a time");
    let time: Timestamp = time.parse().unwrap_or_else(|_| panic!("{line}"));
    assert!(Timestamp::now().since(time) < std::time::Duration::from_secs(600), "{line}");
    let (level, sentence) = rest.trim_start().split_once(' ').expect("a level");
    (level.to_owned(), sentence.to_owned())
}

fn objects(lines: &[String]) -> Vec<Value> {
    lines.iter().map(|line| serde_json::from_str(line).unwrap_or_else(|_| panic!("{line}"))).collect()
}

/// Handles a message that is retried and one that dies; returns their ids and the log.
fn fails(format: &str, variable: &str) -> (Scratch, [String; 2], Vec<String>) {
    let scratch = Scratch::new().with("RUST_LOG", variable);
    let ids = [scratch.send(&["orders", "75"]), scratch.send(&["orders", "65"])];
    let work = ["--log-format", format, "work", "orders", "--drain", "--retry", "constant,delay=1h"];
    let (code, lines) = log(&scratch, &[&work[..], &["--", "sh", "-c", "exit $(cat)"]].concat());
    assert_eq!(code, 0, "{lines:?}");
    (scratch, ids, lines)
}

#[test]
fn a_retry_is_logged_as_a_warning_and_a_death_as_an_error() {
    let (_place, [retried, dead], lines) = fails("text", "");
    let parts: Vec<_> = lines.iter().map(|line| parts(line)).collect();
    let line = |level: &str| {
        let found: Vec<_> = parts.iter().filter(|(other, _)| other == level).collect();
        assert_eq!(found.len(), 1, "{level} in {lines:?}");
        found[0].1.clone()
    };
    let retry = line("WARN");
    let begin = format!(
        "postrider_subscriber: a message failed and is tried again (queue orders, id {retried}, attempt 1, next attempt at "
    );
    assert!(retry.starts_with(&begin) && retry.ends_with("): exit code 75 (requests a retry)"), "{retry}");
    let next = retry[begin.len()..].split(')').next().unwrap().parse::<Timestamp>().unwrap();
    let wait = next.since(Timestamp::now()).as_secs();
    assert!((3_000..=3_600).contains(&wait), "{wait}");
    assert_eq!(
        line("ERROR"),
        format!(
            "postrider_subscriber: a message is dead (queue orders, id {dead}, attempt 1, reason rejected): exit code 65 \
             (refuses the message)"
        )
    );
    assert!(line("INFO").starts_with("postrider: 0 done, 1 retried, 1 dead, 0 lost in "), "{lines:?}");
}

#[test]
fn in_json_each_line_is_an_object_and_a_failure_too() {
    let (_place, [retried, dead], lines) = fails("json", "");
    let rows = objects(&lines);
    let row = |level: &str| rows.iter().find(|row| row["level"] == level).unwrap_or_else(|| panic!("{rows:?}"));
    for (level, id, message) in
        [("WARN", &retried, "a message failed and is tried again"), ("ERROR", &dead, "a message is dead")]
    {
        let row = row(level);
        assert_eq!((&row["id"], &row["message"]), (&Value::from(id.as_str()), &Value::from(message)), "{row}");
        assert_eq!((&row["queue"], &row["attempt"]), (&"orders".into(), &1.into()), "{row}");
        assert!(text(&row["error"]).starts_with("exit code "), "{row}");
        text(&row["timestamp"]).parse::<Timestamp>().unwrap();
    }
    assert!(text(&row("WARN")["next_attempt_at"]).parse::<Timestamp>().is_ok());
    assert!(text(&row("INFO")["message"]).starts_with("0 done, 1 retried, 1 dead, 0 lost in "));
    // No server listens there.
    let (code, lines) =
        log(&Scratch::bare().at("http://127.0.0.1:9"), &["--log-format", "json", "work", "orders", "--", "true"]);
    let last = objects(&lines).pop().unwrap();
    assert_eq!((code, &last["level"]), (1, &"ERROR".into()), "{lines:?}");
}

#[test]
fn the_variable_filters_the_log() {
    let (scratch, _, lines) = fails("text", "error");
    assert!(lines.len() == 1 && parts(&lines[0]).0 == "ERROR", "{lines:?}");
    let (_, _, lines) = fails("text", "postrider_subscriber=info");
    let noted = lines.iter().any(|line| line.contains(" INFO postrider_subscriber: subscriber started"));
    let others = lines.iter().filter(|line| line.contains(" INFO postrider: ")).count();
    assert!(noted && others == 1, "the others keep their levels: {lines:?}");
    let (code, lines) = log(&scratch.with("RUST_LOG", "postrider=loud"), &["work", "orders", "--", "true"]);
    assert!(code == 2 && lines[0].contains("RUST_LOG: 'postrider=loud' cannot be read"), "{lines:?}");
}

#[test]
fn a_mistyped_level_is_refused_instead_of_silencing_the_log() {
    for (variable, part) in [("inof", "inof"), ("postrider_subscriber=debug, wran", "wran")] {
        let scratch = Scratch::new().with("RUST_LOG", variable);
        for args in [&["work", "orders", "--", "true"][..], &["task", "keeper"], &["serve"]] {
            let (code, lines) = log(&scratch, args);
            let refused =
                format!("RUST_LOG: '{part}' is neither a level nor a part of Postrider; write a level (off, error, ");
            assert!(code == 2 && lines[0].contains(&refused), "{args:?}: {lines:?}");
        }
    }
    let (_scratch, _, lines) = fails("text", "postrider_subscriber,lapin=warn,off");
    assert!(lines.iter().any(|line| line.contains("ERROR postrider_subscriber: a message is dead")), "{lines:?}");
}

#[test]
fn a_mistyped_part_is_warned_of_and_silences_nothing() {
    let (_scratch, _, lines) = fails("text", "pstrider=debug,lapin=debug");
    let parts: Vec<_> = lines.iter().map(|line| parts(line)).collect();
    let warned = "postrider: RUST_LOG: no part of the program is called 'pstrider'; did you mean 'postrider'?";
    assert_eq!(parts[0], ("WARN".to_owned(), warned.to_owned()), "{lines:?}");
    for (level, sentence) in [
        ("WARN", "postrider_subscriber: a message failed"),
        ("ERROR", "postrider_subscriber: a message is dead"),
        ("INFO", "postrider: 0 done, 1 retried, 1 dead"),
    ] {
        let is_there = parts.iter().filter(|part| part.0 == level && part.1.starts_with(sentence)).count() == 1;
        assert!(is_there, "{level} {sentence} is not in {lines:?}");
    }
    let (_scratch, _, lines) = fails("json", "pstrider=debug");
    assert!(text(&objects(&lines)[0]["message"]).contains("'pstrider'"), "{lines:?}");
    let (_scratch, _, lines) = fails("text", "postrider=warn,lapin=debug");
    assert_eq!(lines.len(), 2, "the levels of the program are the chosen ones: {lines:?}");
}

#[test]
fn tasks_are_logged_as_messages_are() {
    let scratch = Scratch::new();
    let create =
        |payload: &str| text(&scratch.row(&["task", "create", "mail", payload, "--retry", "constant,delay=1h"])["id"]);
    let (retried, dead) = (create("1"), create("65"));
    let worker =
        ["--log-format", "json", "task", "worker", "--type", "mail", "--drain", "--", "sh", "-c", "exit $(cat)"];
    let (code, lines) = log(&scratch, &worker);
    assert_eq!(code, 0, "{lines:?}");
    let rows = objects(&lines);
    for (level, id, message) in
        [("WARN", &retried, "a task failed and is tried again"), ("ERROR", &dead, "a task is dead")]
    {
        let row = rows.iter().find(|row| row["level"] == level).unwrap_or_else(|| panic!("{rows:?}"));
        assert_eq!((&row["id"], &row["message"]), (&Value::from(id.as_str()), &Value::from(message)), "{row}");
        assert_eq!((&row["task_type"], &row["attempt"]), (&"mail".into(), &1.into()), "{row}");
        assert!(text(&row["error"]).starts_with("exit code "), "{row}");
    }
}

#[test]
fn a_file_that_other_users_can_read_is_logged_by_long_running_commands() {
    use std::os::unix::fs::PermissionsExt;
    let scratch = Scratch::new();
    scratch.send(&["orders", "x"]);
    let work = ["work", "orders", "--drain", "--", "true"];
    let noted = |lines: &[String]| lines.iter().filter(|line| line.contains("may read or write it (mode 644)")).count();
    let (code, lines) = log(&scratch, &work);
    assert_eq!((code, noted(&lines)), (0, 0), "{lines:?}");

    let file = scratch.file("queues.db");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    let (code, lines) = log(&scratch, &work);
    assert_eq!((code, noted(&lines)), (0, 1), "{lines:?}");
    assert!(lines[0].contains("WARN postrider: the embedded file: other users") && lines[0].contains("chmod 600 '"));
    assert_eq!(scratch.run(&["stats", "orders"]).done().stderr, "", "a command that ends at once says nothing");
    let served = Served::start(scratch);
    served.signal(rustix::process::Signal::TERM);
    let (_, printed, _) = served.end();
    assert_eq!(noted(&printed.lines().map(str::to_owned).collect::<Vec<_>>()), 1, "{printed}");
}
