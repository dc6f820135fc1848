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
    // The demo must ignore the user's store.
    command.args(args).env("TMPDIR", folder).env("POSTRIDER_URL", "sqlite:/nowhere/at/all.db").current_dir(folder);
    command
}

fn demo(folder: &Path, args: &[&str]) -> Output {
    let output = demo_in(folder, args).output().unwrap();
    assert!(output.status.success(), "{}{}", stdout(&output), stderr(&output));
    let noted = stderr(&output);
    assert!(noted.is_empty() || noted.starts_with("postrider: created "), "{noted}");
    output
}

fn entries(folder: &Path) -> usize {
    std::fs::read_dir(folder).unwrap().count()
}

/// The text without ids and paths.
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
fn the_tour_prints_its_steps_and_leaves_no_files() {
    let folder = tempfile::tempdir().unwrap();
    let output = demo(folder.path(), &["demo", "--fast"]);
    insta::assert_snapshot!("demo", settled(&stdout(&output), folder.path()));
    assert_eq!(entries(folder.path()), 0);
}

#[test]
fn with_json_the_demo_prints_an_object_per_step() {
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
fn in_the_users_store_the_demo_uses_a_new_queue() {
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
fn a_signal_ends_the_demo_and_removes_the_file() {
    for signal in [Signal::INT, Signal::HUP] {
        let folder = tempfile::tempdir().unwrap();
        let (mut reader, writer) = full_pipe();
        let mut command = crate::listening_program();
        command.arg("demo").env("TMPDIR", folder.path()).stdout(writer).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        drop(command);
        // It listens before it creates its folder, and cannot end before its output is read.
        while entries(folder.path()) == 0 {
            assert_eq!(child.try_wait().unwrap(), None, "it ended by itself");
            std::thread::sleep(std::time::Duration::from_millis(10));
        }
        kill_process(Pid::from_child(&child), signal).unwrap();
        std::io::copy(&mut reader, &mut std::io::sink()).unwrap();
        let output = child.wait_with_output().unwrap();
        assert_eq!(output.status.code(), Some(1));
        assert_eq!(
            stderr(&output),
            "postrider: interrupted\npostrider: the files and queues of the demo were removed\n"
        );
        assert_eq!(entries(folder.path()), 0);
    }
}

/// A pipe that blocks writes until it is read.
fn full_pipe() -> (std::io::PipeReader, std::io::PipeWriter) {
    use std::io::Write;

    use rustix::fs::{OFlags, fcntl_getfl, fcntl_setfl};

    let (reader, mut writer) = std::io::pipe().unwrap();
    let flags = fcntl_getfl(&writer).unwrap();
    fcntl_setfl(&writer, flags | OFlags::NONBLOCK).unwrap();
    while writer.write(&[b'\n'; 512]).is_ok() {}
    fcntl_setfl(&writer, flags).unwrap();
    (reader, writer)
}
