//! Commands with unusual behaviour: slow, noisy, forking, too large.

use std::process::Stdio;

use postrider::Message;
use rustix::process::{Signal, kill_process};

use super::notices;
use super::scratch::{Scratch, runs};
use crate::{stderr, stdout};

#[test]
fn a_command_may_take_longer_than_the_lease() {
    let scratch = Scratch::new();
    scratch.send(Message::new("a"));
    let worker = scratch.start(&["--visibility", "6s"], "echo $$ > pid; until test -e go; do sleep 0.02; done");
    scratch.process("pid");
    scratch.eventually_renewed("while the command runs", || {
        assert!(scratch.receive().is_none(), "another has it meanwhile");
    });
    std::fs::write(scratch.file("go"), "").unwrap();
    scratch.eventually("it is done", || (scratch.counts() == [0, 0, 0, 0]).then_some(()));
    let output = worker.stop();
    assert!(stdout(&output).contains(r#""outcome":"acked""#), "{}", stderr(&output));
    assert!(stdout(&output).contains(r#""receive_count":1"#));
}

#[test]
fn a_command_that_times_out_is_stopped_with_everything_it_started() {
    let scratch = Scratch::new();
    scratch.send(Message::new("a"));
    let script = "sleep 1000 & echo $! > pid; echo working >&2; wait";
    let rows = scratch.rows(&["--drain", "--timeout", "3s", "--retry", "none"], script);
    assert_eq!((rows[0]["outcome"].as_str(), rows[0]["signal"].as_i64()), (Some("dead_lettered"), Some(15)));
    assert!(!runs(scratch.process("pid")));
    assert_eq!(scratch.dead_letters()[0].error.as_deref(), Some("stopped after 3s, its --timeout\nworking"));
}

#[test]
fn a_command_may_print_megabytes() {
    let scratch = Scratch::new();
    scratch.send(Message::new("a"));
    let script = "head -c 3000000 /dev/zero & head -c 3000000 /dev/zero >&2; wait; echo the end >&2; exit 65";
    let output = scratch.work(&["--drain"], script).output().unwrap();
    assert!(output.status.success());
    // stdout has only the row of the message; the output of the command is on stderr.
    assert_eq!(stdout(&output).lines().count(), 1);
    // The pipes may be read in any order.
    let notices = notices(&output);
    assert_eq!(notices.bytes().filter(|byte| *byte == 0).count(), 6_000_000);
    let text = notices.replace('\0', "");
    let lines: Vec<_> = text.lines().filter(|line| !line.is_empty()).collect();
    assert_eq!(lines, ["the end", "postrider: 0 done, 0 retried, 1 dead, 0 lost"]);
    let error = scratch.dead_letters()[0].error.clone().unwrap();
    assert!(error.ends_with("the end") && error.len() < 8 * 1024, "{}", error.len());
}

#[test]
fn unread_output_does_not_block_a_command() {
    let scratch = Scratch::new();
    scratch.send(Message::new("a"));
    let mut work = scratch.work(&["--drain"], "head -c 3000000 /dev/zero >&2; touch printed");
    // The pipe stays open and is never read.
    let mut child = work.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!((scratch.files("printed"), scratch.counts()), (1, [0, 0, 0, 0]));
}

#[test]
fn output_without_a_newline_ends_with_a_line_break() {
    let scratch = Scratch::new();
    scratch.send(Message::new("a"));
    let output = scratch.work(&["--drain"], "printf out; printf err >&2; exit 65").output().unwrap();
    let notices = notices(&output);
    assert!(notices.ends_with("\npostrider: 0 done, 0 retried, 1 dead, 0 lost"), "{notices}");
    assert!(!notices.contains("\n\n") && notices.contains("out") && notices.contains("err"), "{notices}");
}

#[test]
fn a_process_outside_the_group_is_not_reported_as_killed() {
    let scratch = Scratch::new();
    scratch.send(Message::new("a"));
    let script = "setsid sh -c 'echo $$ > pid; exec sleep 1000' & until test -s pid; do sleep 0.02; done";
    let output = scratch.work(&["--drain"], script).output().unwrap();
    assert!(stdout(&output).contains("acked") && output.status.success(), "{}", stderr(&output));
    assert!(stderr(&output).contains("is in another process group and keeps running"), "{}", stderr(&output));
    let left = scratch.process("pid");
    assert!(runs(left));
    kill_process(left, Signal::KILL).unwrap();
}

#[test]
fn a_command_need_not_read_its_message() {
    let scratch = Scratch::new();
    scratch.send(Message::new(vec![b'x'; 1024 * 1024]));
    let rows = scratch.rows(&["--drain"], "exit 0");
    assert_eq!(rows[0]["outcome"], "acked");
}

#[test]
fn a_leftover_process_with_open_pipes_does_not_block_the_worker() {
    let scratch = Scratch::new();
    scratch.send(Message::new("a"));
    let output = scratch.work(&["--drain"], "sleep 1000 & echo $! > pid").output().unwrap();
    assert!(stdout(&output).contains("acked") && output.status.success(), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("left a process behind that held its output open; it was killed"),
        "{}",
        stderr(&output)
    );
    assert!(!runs(scratch.process("pid")));
}

#[test]
fn a_command_has_its_own_process_group() {
    let scratch = Scratch::new();
    scratch.send(Message::new("a"));
    let rows = scratch.rows(&["--drain"], "test \"$(cut -d' ' -f5 /proc/$$/stat)\" = $$");
    assert_eq!(rows[0]["outcome"], "acked");
}

#[test]
fn a_message_too_large_for_the_environment_is_a_failed_attempt() {
    let scratch = Scratch::new();
    scratch.send(Message::new("a").header("long", "x".repeat(60 * 1024)).unwrap());
    // With this stack limit, arguments and environment have 128 KiB in all; the environment has the header twice.
    let work = scratch.work(&["--drain", "--retry", "none"], "exit 0");
    let mut limited = std::process::Command::new("/bin/sh");
    limited.args(["-c", "ulimit -s 512; exec \"$0\" \"$@\""]).arg(work.get_program()).args(work.get_args());
    let output = limited.env("FILLING", "x".repeat(20 * 1024)).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stdout(&output).contains("dead-lettered: retries_exhausted"), "{}", stdout(&output));
    assert!(scratch.dead_letters()[0].error.as_deref().unwrap().contains("are too long"));
}
