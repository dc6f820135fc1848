//! The log of commands that run until they are stopped.

use postrider::Timestamp;
use serde_json::Value;

use crate::place::{PROGRAM, Place, text};
use crate::serving::served::Served;

/// What the program writes to stderr as it is.
fn log(place: &Place, args: &[&str]) -> (i32, Vec<String>) {
    let output = place.command(PROGRAM).args(args).output().expect("a run");
    let lines = String::from_utf8(output.stderr).expect("text").lines().map(str::to_owned).collect();
    (output.status.code().expect("an end of its own"), lines)
}

/// The level of a line of text, its sentence, and whether its time is one of the last minutes.
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

/// A message that is tried again, and one that dies, each with what its command says.
fn fails(format: &str, variable: &str) -> (Place, [String; 2], Vec<String>) {
    let place = Place::new().with("RUST_LOG", variable);
    let ids = [place.send(&["orders", "75"]), place.send(&["orders", "65"])];
    let work = ["--log-format", format, "work", "orders", "--drain", "--retry", "constant,delay=1h"];
    let (code, lines) = log(&place, &[&work[..], &["--", "sh", "-c", "exit $(cat)"]].concat());
    assert_eq!(code, 0, "{lines:?}");
    (place, ids, lines)
}

#[test]
fn a_retry_is_a_warning_and_a_death_an_error_with_all_that_is_known() {
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
    assert!(retry.starts_with(&begin) && retry.ends_with("): exit code 75 (asks for a retry)"), "{retry}");
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
    // Nobody listens there.
    let (code, lines) =
        log(&Place::bare().at("http://127.0.0.1:9"), &["--log-format", "json", "work", "orders", "--", "true"]);
    let last = objects(&lines).pop().unwrap();
    assert_eq!((code, &last["level"]), (1, &"ERROR".into()), "{lines:?}");
}

#[test]
fn the_variable_says_what_is_logged() {
    let (place, _, lines) = fails("text", "error");
    assert!(lines.len() == 1 && parts(&lines[0]).0 == "ERROR", "{lines:?}");
    let (_, _, lines) = fails("text", "postrider_subscriber=info");
    let told = lines.iter().any(|line| line.contains(" INFO postrider_subscriber: subscriber started"));
    assert!(told && !lines.iter().any(|line| line.contains(" postrider: ")), "{lines:?}");
    let (code, lines) = log(&place.with("RUST_LOG", "postrider=loud"), &["work", "orders", "--", "true"]);
    assert!(code == 2 && lines[0].contains("RUST_LOG: 'postrider=loud' cannot be read"), "{lines:?}");
}

#[test]
fn tasks_are_logged_as_messages_are() {
    let place = Place::new();
    let create =
        |payload: &str| text(&place.row(&["task", "create", "mail", payload, "--retry", "constant,delay=1h"])["id"]);
    let (retried, dead) = (create("1"), create("65"));
    let worker =
        ["--log-format", "json", "task", "worker", "--type", "mail", "--drain", "--", "sh", "-c", "exit $(cat)"];
    let (code, lines) = log(&place, &worker);
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
fn a_file_that_others_may_read_is_told_by_what_runs_for_long() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::new();
    place.send(&["orders", "x"]);
    let work = ["work", "orders", "--drain", "--", "true"];
    let told = |lines: &[String]| lines.iter().filter(|line| line.contains("may read or write it (mode 644)")).count();
    let (code, lines) = log(&place, &work);
    assert_eq!((code, told(&lines)), (0, 0), "{lines:?}");

    let file = place.file("queues.db");
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o644)).unwrap();
    let (code, lines) = log(&place, &work);
    assert_eq!((code, told(&lines)), (0, 1), "{lines:?}");
    assert!(lines[0].contains("WARN postrider: the embedded file: other users") && lines[0].contains("chmod 600 '"));
    assert_eq!(place.run(&["stats", "orders"]).done().stderr, "", "a command that ends at once says nothing");
    let served = Served::start(place);
    served.signal(rustix::process::Signal::TERM);
    let (_, said, _) = served.end();
    assert_eq!(told(&said.lines().map(str::to_owned).collect::<Vec<_>>()), 1, "{said}");
}
