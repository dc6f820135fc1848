//! A broker, on which only the receiver of a message can settle it.

use std::process::Stdio;

use serde_json::json;

use crate::scratch::{Scratch, text};
use crate::serving::served::Served;

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| {
        panic!(
            "{name} is not set: start a server with `scripts/services up rabbitmq`, then \
             `eval \"$(scripts/services env)\"`"
        )
    })
}

/// The program on a broker, with a virtual host of its own that is deleted at the end: `doctor` checks a whole one.
pub(crate) struct OnBroker {
    pub(crate) scratch: Scratch,
    url: String,
    host: String,
    queue: String,
}

/// Runs the broker's own tool.
fn operate(args: &[&str]) -> bool {
    let mut tool = std::process::Command::new(variable("POSTRIDER_RABBITMQCTL"));
    tool.args(args).stdout(Stdio::null()).status().is_ok_and(|status| status.success())
}

impl OnBroker {
    pub(crate) fn new() -> Self {
        let management = variable("POSTRIDER_AMQP_MANAGEMENT_URL");
        let id = postrider::MessageId::generate().as_uuid().simple().to_string();
        let host = format!("cli_{}", &id[20..]);
        assert!(operate(&["add_vhost", &host]), "the virtual host is made");
        assert!(operate(&["set_permissions", "--vhost", &host, "postrider", ".*", ".*", ".*"]), "it can be used");
        let usual = variable("POSTRIDER_AMQP_URL");
        let url = format!("{}{host}", usual.strip_suffix("%2f").expect("the URL names a virtual host"));
        let scratch =
            Scratch::bare().at(&url).with("POSTRIDER__COMMON__MESSAGING__RABBITMQ__MANAGEMENT_URL", management);
        Self { scratch, url, host, queue: "orders".to_owned() }
    }
}

impl Drop for OnBroker {
    fn drop(&mut self) {
        // A failed cleanup does not fail the test.
        let _ = operate(&["delete_vhost", &self.host]);
    }
}

#[test]
fn a_receipt_of_a_broker_is_refused_with_an_alternative() {
    let OnBroker { scratch, queue, .. } = &OnBroker::new();
    let id = scratch.send(&[queue, "hello"]);
    let instead = "`postrider work`, or `postrider receive --ack`";
    let run = scratch.run(&["receive", queue, "--wait", "20s"]).done();
    assert!(run.stdout.contains("hello") && !run.stdout.contains("receipt:"), "{run:?}");
    assert!(
        run.stderr.contains("no other process can use the receipts, so the messages go back to the queue now"),
        "{run:?}"
    );
    assert!(run.stderr.contains(instead), "{run:?}");

    let run = scratch.run(&["--json", "receive", queue, "--wait", "20s"]).done();
    let row = &run.rows()[0];
    assert_eq!((&row["id"], &row["receive_count"]), (&json!(id), &json!(2)), "it went back, and that counts");
    let receipt = text(&row["receipt"]);
    for args in [&["ack", &receipt][..], &["nack", &receipt], &["release", &receipt], &["extend", &receipt, "5s"]] {
        let run = scratch.run(&[&["--json"], args].concat()).failed(1);
        assert_eq!(run.outcomes(), ["invalid"], "{args:?}");
        assert!(run.stderr.contains("it was received on another connection"), "{run:?}");
        assert!(run.stderr.contains(instead), "{run:?}");
    }

    let run = scratch.run(&["receive", queue, "--wait", "20s", "--ack"]).done();
    assert!(run.stdout.contains("hello") && !run.stderr.contains("receipts"), "{run:?}");
    assert_eq!(scratch.row(&["stats", queue])["ready"], 0);
    assert_eq!(scratch.run(&["receive", queue]).done().stderr, "", "nothing was received, so nothing goes back");
}

#[test]
fn a_server_on_a_broker_makes_receipts_valid_in_every_process() {
    let mut broker = OnBroker::new();
    let served = Served::start(std::mem::replace(&mut broker.scratch, Scratch::bare()));
    let (scratch, queue) = (&served.scratch, &broker.queue);
    assert_eq!(served.row["provider"], "rabbitmq");
    let id = scratch.send(&[queue, "hello"]);
    let run = scratch.run(&["--json", "receive", queue, "--wait", "20s"]).done();
    assert_eq!(run.stderr, "", "the receipt is of use");
    let (row, receipt) = (&run.rows()[0], text(&run.rows()[0]["receipt"]));
    assert_eq!((&row["id"], &row["body"]), (&json!(id), &json!("hello")));
    assert_eq!(scratch.run(&["--json", "extend", &receipt, "1m"]).done().outcomes(), ["extended"]);
    assert_eq!(scratch.run(&["--json", "ack", &receipt]).done().outcomes(), ["acked"]);
    assert_eq!(scratch.row(&["stats", queue])["ready"], 0);
    scratch.dead_letter(queue, "bad", "poison");
    assert_eq!(scratch.row(&["dlq", "list", queue])["body"], "bad");
    scratch.run(&["dlq", "redrive", queue, "--all"]).done();
    assert_eq!(scratch.row(&["receive", queue, "--wait", "20s", "--ack"])["body"], "bad");
}

#[test]
fn every_command_works_on_a_broker() {
    let OnBroker { scratch, queue, url, .. } = &OnBroker::new();
    scratch.run_with(&["send", queue, "--lines"], b"1\n2\n3\n").done();
    scratch.send(&[queue, "later", "--delay", "1h"]);
    let stats = scratch.row(&["stats", queue]);
    assert_eq!((&stats["ready"], &stats["delayed"]), (&json!(3), &json!(1)));
    assert!(scratch.rows(&["queues"]).iter().any(|row| row["queue"] == queue.as_str()));
    assert_eq!(scratch.rows(&["peek", queue, "--max", "2"]).len(), 2);

    scratch.run(&["pause", queue]).done();
    let run = scratch.run(&["receive", queue]).done();
    assert!(run.stdout.is_empty() && run.stderr.contains("is paused"), "{run:?}");
    scratch.run(&["resume", queue]).done();

    // 65 dead-letters at once.
    let work = ["work", queue, "--drain", "--", "sh", "-c", "grep -q 2 && exit 65; exit 0"];
    let mut command = scratch.command(crate::scratch::PROGRAM);
    let output = command.args(work).stdin(Stdio::null()).output().expect("the program runs");
    assert!(output.status.success(), "{output:?}");
    let letter = scratch.row(&["dlq", "list", queue]);
    assert_eq!(letter["body"], "2");
    scratch.run(&["dlq", "redrive", queue, "--all"]).done();
    assert_eq!(scratch.row(&["receive", queue, "--wait", "20s", "--ack"])["body"], "2");

    scratch.run(&["purge", queue, "--yes"]).done();
    let stats = scratch.row(&["stats", queue]);
    assert_eq!((&stats["ready"], &stats["delayed"], &stats["dead"]), (&json!(0), &json!(0), &json!(0)));
    let checks: Vec<_> = scratch.rows(&["doctor"]).iter().map(|row| text(&row["check"])).collect();
    for check in ["connection", "rights", "version", "management", "alarms", "queues"] {
        assert!(checks.contains(&check.to_owned()), "{checks:?}");
    }
    let run = scratch.run(&["migrate"]).done();
    assert!(run.stderr.contains("no migration is missing"), "{run:?}");
    let run = scratch.run(&["bench", url, "--messages", "200", "--archive", "none"]).failed(2);
    assert!(run.stderr.contains("has no archive; omit --archive"), "{run:?}");
    assert_eq!(scratch.rows(&["bench", url, "--messages", "200", "--workload", "send-one,drain"]).len(), 2);
    let rules = scratch.rows(&["verify", url, "--rules", "L1,L3", "--messages", "0"]);
    assert!(rules.iter().all(|row| row["outcome"] != "broken"), "{rules:?}");
}

#[test]
fn dead_letters_are_listed_in_a_stable_order_and_can_all_be_redriven() {
    let OnBroker { scratch, queue, .. } = &OnBroker::new();
    let lines: String = (0..300).map(|n| format!("{n}\n")).collect();
    scratch.run_with(&["send", queue, "--lines"], lines.as_bytes()).done();
    let mut command = scratch.command(crate::scratch::PROGRAM);
    let work = ["work", queue, "--drain", "--workers", "4", "--", "sh", "-c", "exit 65"];
    let output = command.args(work).stdin(Stdio::null()).output().expect("the program runs");
    assert!(output.status.success(), "{output:?}");
    let list = || scratch.rows(&["dlq", "list", queue]).iter().map(|row| text(&row["id"])).collect::<Vec<_>>();
    let (first, second) = (list(), list());
    assert_eq!(first, second);
    let mut once = first.clone();
    once.sort_unstable();
    once.dedup();
    assert_eq!((first.len(), once.len()), (300, 300));
    let redrive = [&["dlq", "redrive", queue.as_str()][..], &first.iter().map(String::as_str).collect::<Vec<_>>()];
    scratch.run(&redrive.concat()).done();
    let stats = scratch.row(&["stats", queue]);
    assert_eq!((&stats["ready"], &stats["dead"]), (&json!(300), &json!(0)));
}

#[test]
fn a_drain_ends_with_the_last_message_of_a_key() {
    let OnBroker { scratch, queue, .. } = &OnBroker::new();
    scratch.run_with(&["send", queue, "--lines", "--key", "k"], b"1\n2\n3\n4\n5\n6\n").done();
    let mut command = scratch.command(crate::scratch::PROGRAM);
    let output = command.args(["work", queue, "--drain", "--", "sleep", "0.1"]).stdin(Stdio::null()).output().unwrap();
    assert!(output.status.success() && String::from_utf8_lossy(&output.stderr).contains("6 done"), "{output:?}");
    assert_eq!(scratch.row(&["stats", queue])["ready"], 0);
}

#[test]
fn a_broker_delivers_tasks_and_events_of_dead_tasks() {
    let mut broker = OnBroker::new();
    let state = format!("sqlite:{}", broker.scratch.file("state.db").display());
    let scratch = std::mem::replace(&mut broker.scratch, Scratch::bare());
    let scratch = scratch.with("POSTRIDER__STATE__URL", state).with("POSTRIDER__TASKS__MODE", "queue");
    let scratch = scratch.with("POSTRIDER__TASKS__DEAD_EVENTS", "deaths");
    let create = |args: &[&str]| text(&scratch.row(&[&["task", "create", "greet"], args].concat())["id"]);
    let again = create(&["again", "--retry", "constant,delay=0s"]);
    let [first, second] = ["1", "2"].map(|payload| create(&[payload, "--key", "k", "--priority", "9"]));
    let dead = create(&["bad", "--max-attempts", "1"]);
    let script = r#"
        case "$(cat)" in again) test "$POSTRIDER_TASK_ATTEMPT" = 2;; bad) exit 3;; esac && echo "$POSTRIDER_TASK_ID""#;
    let run = scratch.run(&["--json", "task", "worker", "--type", "greet", "--drain", "--", "sh", "-c", script]).done();
    assert_eq!(run.rows().len(), 5, "{run:?}");
    for id in [&again, &first, &second] {
        let task = scratch.row(&["task", "get", id]);
        assert_eq!((&task["state"], &task["result"]), (&json!("SUCCEEDED"), &json!(format!("{id}\n"))));
    }
    let event = scratch.row(&["receive", "deaths", "--wait", "20s", "--ack"]);
    assert!(text(&event["body"]).contains(&dead), "{event}");
    assert_eq!(scratch.row(&["stats", "task_greet"])["ready"], 0);
}

#[test]
fn a_virtual_host_is_given_once() {
    let scratch = Scratch::bare().with("POSTRIDER__COMMON__MESSAGING__RABBITMQ__VHOST", "mail");
    let of = |url: &str| {
        let run = scratch.run(&["--json", "config", "--url", url]);
        let rows = if run.code == 0 { run.rows() } else { Vec::new() };
        let row = rows.iter().find(|row| row["key"] == "common.messaging.rabbitmq.vhost");
        row.map(|row| text(&row["value"]))
    };
    assert_eq!(of("amqp://host").as_deref(), Some("mail"));
    assert_eq!(of("amqp://host/mail").as_deref(), Some("mail"));
    // A flag is above the environment.
    assert_eq!(of("amqp://host/other").as_deref(), Some("other"));
    let run = scratch.at("amqp://rider:secret@host/other").run(&["stats"]).failed(2);
    assert!(run.stderr.contains("the URL names the virtual host 'other'; leave one out"), "{run:?}");
    assert!(!run.stderr.contains("secret"), "{run:?}");
}
