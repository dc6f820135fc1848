//! `postrider demo`
#![expect(clippy::unwrap_used, reason = "the helpers of a test may panic")]

use std::path::Path;
use std::process::{Command, Output, Stdio};

use postrider::{Deadline, QueueAdmin};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

use crate::{seen, stderr, stdout};

fn demo_in(folder: &Path, args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_postrider"));
    // Not used by the demo, which must not touch what the user has.
    command.args(args).env("TMPDIR", folder).env("POSTRIDER_URL", "sqlite:/nowhere/at/all.db").current_dir(folder);
    command
}

fn demo(folder: &Path, args: &[&str]) -> Output {
    let output = demo_in(folder, args).output().unwrap();
    assert!(output.status.success(), "{}{}", stdout(&output), stderr(&output));
    assert_eq!(stderr(&output), "");
    output
}

fn entries(folder: &Path) -> usize {
    std::fs::read_dir(folder).unwrap().count()
}

/// The text without what is different each time.
fn settled(text: &str, folder: &Path) -> String {
    let text = text.replace(folder.to_str().unwrap(), "TMP");
    let words = text.split_inclusive([' ', '\n', ':', '\'']).map(|word| {
        let (plain, end) = word.split_at(word.trim_end_matches([' ', '\n', ':', '\'']).len());
        let is_id = plain.len() == 36 && plain.bytes().filter(|byte| *byte == b'-').count() == 4;
        if is_id { format!("ID{end}") } else { word.to_owned() }
    });
    let text: String = words.collect();
    text.lines()
        .map(|line| line.split_once("TMP/postrider-demo-").map_or(line, |(start, _)| start))
        .collect::<Vec<_>>()
        .join("\n")
}

#[test]
fn help() {
    insta::assert_snapshot!("help_demo", seen(&["demo", "--help"]));
}

#[test]
fn the_tour_tells_what_happens_and_leaves_nothing_behind() {
    let folder = tempfile::tempdir().unwrap();
    let output = demo(folder.path(), &["demo", "--fast"]);
    insta::assert_snapshot!("demo", settled(&stdout(&output), folder.path()));
    assert_eq!(entries(folder.path()), 0);
}

#[test]
fn with_json_it_is_an_object_a_step() {
    let folder = tempfile::tempdir().unwrap();
    let output = demo(folder.path(), &["--json", "demo"]);
    let steps: Vec<Value> = stdout(&output).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let names: Vec<_> = steps.iter().map(|step| step["step"].as_str().unwrap()).collect();
    assert_eq!(names, ["send", "retry", "dedup", "order", "delay", "lease", "dead_letter", "redrive", "stats", "next"]);
    let lease = steps[5]["lines"].as_array().unwrap();
    assert!(lease.iter().any(|line| line.as_str().unwrap().contains("is over; nothing was changed")), "{lease:?}");
}

#[test]
fn the_file_can_be_kept() {
    let folder = tempfile::tempdir().unwrap();
    let output = demo(folder.path(), &["demo", "--keep"]);
    let text = stdout(&output);
    let url = text.split_once("export POSTRIDER_URL='").unwrap().1.split_once('\'').unwrap().0;
    assert!(Path::new(url.strip_prefix("sqlite:").unwrap()).exists(), "{url}");
    assert_eq!(queues(url), ["orders"]);
}

#[test]
fn in_a_store_of_the_user_it_has_a_queue_of_its_own() {
    let folder = tempfile::tempdir().unwrap();
    let url = format!("sqlite:{}", folder.path().join("mine.db").display());
    demo(folder.path(), &["demo", "--url", &url]);
    assert_eq!(queues(&url), [""; 0]);
    demo(folder.path(), &["demo", "--url", &url, "--keep"]);
    assert_eq!(queues(&url).len(), 1);
    assert!(queues(&url)[0].starts_with("demo_"));
    demo(folder.path(), &["demo", "--url", "memory:"]);
}

fn queues(url: &str) -> Vec<String> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let provider = postrider::connect(url).await.unwrap();
        let queues = provider.list_queues(Deadline::default()).await.unwrap();
        queues.iter().map(ToString::to_string).collect()
    })
}

#[test]
fn a_signal_ends_it_and_the_file_is_removed() {
    use std::io::{BufRead, BufReader};

    let folder = tempfile::tempdir().unwrap();
    let mut child = demo_in(folder.path(), &["demo"]).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    // Something was told, so it is under way; what it says later waits in the pipe.
    assert!(lines.any(|line| line.unwrap().contains("1. ")));
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1));
    assert!(stderr(&output).contains("interrupted"), "{}", stderr(&output));
    assert_eq!(entries(folder.path()), 0);
}
