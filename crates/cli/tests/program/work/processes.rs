//! Commands that behave in every way a process can.

use std::process::Stdio;

use postrider::Message;
use rustix::process::{Signal, kill_process};

use super::place::{Place, runs};
use super::told;
use crate::{stderr, stdout};

#[test]
fn a_command_may_take_longer_than_the_lease() {
    let place = Place::new();
    place.send(Message::new("a"));
    let worker = place.start(&["--visibility", "6s"], "echo $$ > pid; until test -e go; do sleep 0.02; done");
    place.process("pid");
    place.eventually_renewed("while the command runs", || {
        assert!(place.receive().is_none(), "another has it meanwhile");
    });
    std::fs::write(place.file("go"), "").unwrap();
    place.eventually("it is done", || (place.counts() == [0, 0, 0, 0]).then_some(()));
    let output = worker.stop();
    assert!(stdout(&output).contains(r#""outcome":"acked""#), "{}", stderr(&output));
    assert!(stdout(&output).contains(r#""receive_count":1"#));
}

#[test]
fn a_command_that_runs_too_long_is_stopped_with_all_that_it_started() {
    let place = Place::new();
    place.send(Message::new("a"));
    let script = "sleep 1000 & echo $! > pid; echo working >&2; wait";
    let rows = place.rows(&["--drain", "--timeout", "3s", "--retry", "none"], script);
    assert_eq!((rows[0]["outcome"].as_str(), rows[0]["signal"].as_i64()), (Some("dead_lettered"), Some(15)));
    assert!(!runs(place.process("pid")));
    assert_eq!(place.dead_letters()[0].error.as_deref(), Some("stopped after 3s, its --timeout\nworking"));
}

#[test]
fn a_command_may_print_as_much_as_it_likes() {
    let place = Place::new();
    place.send(Message::new("a"));
    let script = "head -c 3000000 /dev/zero & head -c 3000000 /dev/zero >&2; wait; echo the end >&2; exit 65";
    let output = place.work(&["--drain"], script).output().unwrap();
    assert!(output.status.success());
    // Ours is only the line about the message; what the command printed is with everything else that is no result.
    assert_eq!(stdout(&output).lines().count(), 1);
    // The last of one pipe may be read after the last of the other.
    let told = told(&output);
    assert_eq!(told.bytes().filter(|byte| *byte == 0).count(), 6_000_000);
    let text = told.replace('\0', "");
    let lines: Vec<_> = text.lines().filter(|line| !line.is_empty()).collect();
    assert_eq!(lines, ["the end", "postrider: 0 done, 0 retried, 1 dead, 0 lost"]);
    let error = place.dead_letters()[0].error.clone().unwrap();
    assert!(error.ends_with("the end") && error.len() < 8 * 1024, "{}", error.len());
}

#[test]
fn nobody_need_read_what_a_command_prints() {
    let place = Place::new();
    place.send(Message::new("a"));
    let mut work = place.work(&["--drain"], "head -c 3000000 /dev/zero >&2; touch printed");
    // Its pipe stays open and is never read.
    let mut child = work.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!((place.files("printed"), place.counts()), (1, [0, 0, 0, 0]));
}

#[test]
fn what_a_command_prints_without_a_line_end_is_a_line() {
    let place = Place::new();
    place.send(Message::new("a"));
    let output = place.work(&["--drain"], "printf out; printf err >&2; exit 65").output().unwrap();
    let told = told(&output);
    assert!(told.ends_with("\npostrider: 0 done, 0 retried, 1 dead, 0 lost"), "{told}");
    assert!(!told.contains("\n\n") && told.contains("out") && told.contains("err"), "{told}");
}

#[test]
fn what_left_the_group_of_its_command_is_not_said_to_be_killed() {
    let place = Place::new();
    place.send(Message::new("a"));
    let script = "setsid sh -c 'echo $$ > pid; exec sleep 1000' & until test -s pid; do sleep 0.02; done";
    let output = place.work(&["--drain"], script).output().unwrap();
    assert!(stdout(&output).contains("acked") && output.status.success(), "{}", stderr(&output));
    assert!(stderr(&output).contains("is in another process group and was let run"), "{}", stderr(&output));
    let left = place.process("pid");
    assert!(runs(left));
    kill_process(left, Signal::KILL).unwrap();
}

#[test]
fn a_command_need_not_read_its_message() {
    let place = Place::new();
    place.send(Message::new(vec![b'x'; 1024 * 1024]));
    let rows = place.rows(&["--drain"], "exit 0");
    assert_eq!(rows[0]["outcome"], "acked");
}

#[test]
fn what_a_command_leaves_behind_with_its_pipes_open_holds_nobody_up() {
    let place = Place::new();
    place.send(Message::new("a"));
    let output = place.work(&["--drain"], "sleep 1000 & echo $! > pid").output().unwrap();
    assert!(stdout(&output).contains("acked") && output.status.success(), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("left a process behind that held its output open; it was killed"),
        "{}",
        stderr(&output)
    );
    assert!(!runs(place.process("pid")));
}

#[test]
fn a_command_has_a_process_group_of_its_own() {
    let place = Place::new();
    place.send(Message::new("a"));
    let rows = place.rows(&["--drain"], "test \"$(cut -d' ' -f5 /proc/$$/stat)\" = $$");
    assert_eq!(rows[0]["outcome"], "acked");
}

#[test]
fn a_message_that_is_too_much_for_the_system_is_a_failed_attempt() {
    let place = Place::new();
    place.send(Message::new("a").header("long", "x".repeat(60 * 1024)).unwrap());
    // With so small a stack, arguments and environment may have 128 KiB together; the header is there twice.
    let work = place.work(&["--drain", "--retry", "none"], "exit 0");
    let mut limited = std::process::Command::new("/bin/sh");
    limited.args(["-c", "ulimit -s 512; exec \"$0\" \"$@\""]).arg(work.get_program()).args(work.get_args());
    let output = limited.env("FILLING", "x".repeat(20 * 1024)).output().unwrap();
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(stdout(&output).contains("dead-lettered: retries_exhausted"), "{}", stdout(&output));
    assert!(place.dead_letters()[0].error.as_deref().unwrap().contains("are too long"));
}
