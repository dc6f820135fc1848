//! `postrider bench`

use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use postrider::{Deadline, QueueAdmin};
use serde_json::Value;

fn command(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_postrider"));
    command.args(args).env_remove("POSTRIDER_URL").env("COLUMNS", "100");
    command
}

fn postrider(args: &[&str]) -> Output {
    command(args).output().expect("the program starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn rows(output: &Output) -> Vec<Value> {
    assert!(output.status.success(), "{}", text(&output.stderr));
    text(&output.stdout).lines().map(|line| serde_json::from_str(line).expect("a JSON object a line")).collect()
}

fn url(folder: &Path) -> String {
    format!("sqlite:{}", folder.join("queues.db").display())
}

fn archived(folder: &Path) -> i64 {
    let connection = postrider_sqlite::rusqlite::Connection::open(folder.join("queues.db")).expect("the file opens");
    connection.query_row("select count(*) from message_archive", [], |row| row.get(0)).expect("a count")
}

#[test]
fn every_workload_has_a_row_with_its_fields() {
    let folder = tempfile::tempdir().expect("a folder");
    for store in ["memory:", &url(folder.path())] {
        let flags = ["--messages", "200", "--callers", "5", "--batch", "30", "--workers", "2", "--pace", "2000"];
        let output = postrider(&[&["--json", "bench", store], &flags[..]].concat());
        let rows = rows(&output);
        let names: Vec<_> = rows.iter().map(|row| row["workload"].as_str()).collect();
        assert_eq!(names, ["send-one", "send-batch", "drain", "handle", "latency"].map(Some));
        for row in &rows[..4] {
            assert_eq!(row["messages"], 200);
            assert!(row["seconds"].as_f64() > Some(0.0) && row["per_second"].as_f64() > Some(0.0), "{row}");
        }
        for field in ["p50_ms", "p95_ms", "p99_ms"] {
            assert!(rows[4][field].as_f64() > Some(0.0), "{}", rows[4]);
        }
        let file = folder.path().join("queues.db");
        let created =
            if store == "memory:" { String::new() } else { format!("postrider: created {}\n", file.display()) };
        assert_eq!(text(&output.stderr), created);
    }
    assert_eq!(archived(folder.path()), 1000, "by default everything is archived");
}

#[test]
fn the_archive_policy_reaches_the_store_and_a_store_without_one_refuses_it() {
    let folder = tempfile::tempdir().expect("a folder");
    let flags = ["--messages", "50", "--workload", "drain", "--archive", "none"];
    let output = postrider(&[&["bench", "--url", &url(folder.path())], &flags[..]].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(text(&output.stdout).starts_with("drain "), "{}", text(&output.stdout));
    assert_eq!(archived(folder.path()), 0);

    let output = postrider(&[&["bench", "memory:"], &flags[..]].concat());
    assert_eq!(output.status.code(), Some(2));
    assert_eq!(text(&output.stderr), "postrider: 'memory:' has no archive; omit --archive\nSee 'postrider --help'.\n");
}

#[test]
fn a_load_of_zero_is_wrong_usage() {
    for flag in ["--messages", "--callers", "--batch", "--workers", "--pace"] {
        let output = postrider(&["bench", "memory:", flag, "0"]);
        assert_eq!(output.status.code(), Some(2), "{flag}");
        assert!(text(&output.stderr).contains("use at least 1"), "{}", text(&output.stderr));
    }
}

/// Kills the program if the test fails.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[tokio::test]
async fn an_interrupted_run_removes_its_queues() {
    let folder = tempfile::tempdir().expect("a folder");
    let url = url(folder.path());
    let provider = postrider::connect(&url).await.expect("a connection");
    let args = ["bench", &url, "--messages", "100000000", "--workload", "send-batch"];
    let mut program = crate::listening_program();
    program.args(args).env_remove("POSTRIDER_URL");
    let mut running = Running(program.stderr(Stdio::piped()).spawn().expect("the program starts"));
    while provider.list_queues(Deadline::default()).await.expect("a list").is_empty() {
        assert!(running.0.try_wait().expect("a status").is_none(), "it ended by itself");
    }
    let kill = Command::new("kill").args(["-INT", &running.0.id().to_string()]).status().expect("kill runs");
    assert!(kill.success());
    let mut stderr = String::new();
    std::io::Read::read_to_string(&mut running.0.stderr.take().expect("piped"), &mut stderr).expect("readable");
    assert_eq!(running.0.wait().expect("an end").code(), Some(1));
    assert_eq!(stderr, "postrider: interrupted; the queues of the run were removed\n");
    assert_eq!(provider.list_queues(Deadline::default()).await.expect("a list"), []);
}
