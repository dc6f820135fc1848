//! `postrider serve`, and every command with a server as its store.

mod encrypted;
pub(crate) mod served;
mod stopping;
mod tokens;

use std::process::Stdio;

use serde_json::json;

use crate::scratch::{PROGRAM, Scratch, text};
use served::Served;

/// Servers on a file, on the default store, and on a store in memory.
fn servers() -> [Served; 3] {
    [Scratch::new(), Scratch::bare(), Scratch::bare().at("memory:")].map(Served::start)
}

#[test]
fn a_server_prints_its_address_and_store() {
    let [file, fresh, memory] = servers();
    for (served, provider) in [(&file, "sqlite"), (&fresh, "sqlite"), (&memory, "memory")] {
        let address = text(&served.row["address"]);
        let expected = json!({
            "url": format!("http://{address}"), "address": address, "provider": provider, "open": true,
        });
        assert_eq!(served.row, expected);
        assert!(!address.ends_with(":0"), "{address}");
        assert!(served.get("/healthz").starts_with("HTTP/1.1 200"), "{}", served.get("/healthz"));
    }
    let embedded = fresh.home.file(".local/share/postrider/postrider.db");
    assert!(embedded.exists(), "the embedded file is made");
    let url = memory.url();
    memory.signal(rustix::process::Signal::TERM);
    let (code, printed, _) = memory.end();
    assert_eq!(code, Some(0), "{printed}");
    assert!(
        printed.contains("serving memory:, tasks and tokens included; all is lost when this process ends"),
        "{printed}"
    );
    assert!(printed.contains(&format!("'postrider --url {url} token create NAME --role admin' creates")), "{printed}");
}

#[test]
fn a_server_on_memory_leaves_no_files_unless_state_url_is_set() {
    let home = Scratch::bare();
    let temporary = home.file("temporary");
    std::fs::create_dir(&temporary).unwrap();
    let entries = || std::fs::read_dir(&temporary).unwrap().map(|entry| entry.unwrap().path()).collect::<Vec<_>>();
    let served = Served::start(home.at("memory:").with("TMPDIR", temporary.to_str().unwrap()));
    served.scratch.run(&["task", "create", "mail", "{}"]).done();
    assert!(!served.home.file(".local/share/postrider").exists(), "nothing is in the data folder");
    assert_eq!(entries().len(), 1);
    served.signal(rustix::process::Signal::TERM);
    let (code, printed, _home) = served.end_and_keep();
    assert_eq!((code, entries()), (Some(0), Vec::new()), "{printed}");

    let home = Scratch::bare();
    let state = format!("sqlite:{}", home.file("state.db").display());
    let served = Served::start(home.at("memory:").with("POSTRIDER__STATE__URL", &state));
    served.scratch.run(&["task", "create", "mail", "{}"]).done();
    served.signal(rustix::process::Signal::TERM);
    let (code, printed, home) = served.end_and_keep();
    assert!(printed.contains(&format!("serving memory:; tasks and tokens are in {state}")), "{printed}");
    assert!(code == Some(0) && home.file("state.db").exists(), "{printed}");
}

#[test]
fn each_request_is_a_line_of_the_log() {
    for format in ["text", "json"] {
        let served = Served::start_with(Scratch::new(), &["--listen", "127.0.0.1:0", "--log-format", format]);
        served.get_with("/healthz", "x-request-id: request-7\r\n");
        served.signal(rustix::process::Signal::TERM);
        let (_, printed, _) = served.end();
        let lines: Vec<_> = printed.lines().filter(|line| line.contains("request-7")).collect();
        assert_eq!(lines.len(), 1, "{printed}");
        if format == "text" {
            let noted = " INFO postrider: request (method GET, route /healthz, status 200, ";
            assert!(lines[0].contains(noted) && lines[0].ends_with("request id request-7)"), "{printed}");
        } else {
            let row: serde_json::Value = serde_json::from_str(lines[0]).unwrap();
            assert_eq!((&row["level"], &row["target"]), (&json!("INFO"), &json!("postrider::access")));
            assert_eq!((&row["method"], &row["route"]), (&json!("GET"), &json!("/healthz")));
            assert_eq!((&row["status"], &row["request_id"]), (&json!(200), &json!("request-7")));
        }
    }
}

#[test]
fn the_address_is_printed_as_text() {
    let scratch = Scratch::new();
    let mut command = scratch.command(PROGRAM);
    let mut child = command.args(["serve", "--listen", "127.0.0.1:0"]).stdin(Stdio::null()).spawn().unwrap();
    let mut line = String::new();
    let stdout = child.stdout.take().unwrap();
    std::io::BufRead::read_line(&mut std::io::BufReader::new(stdout), &mut line).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert!(line.starts_with("Postrider is at http://127.0.0.1:"), "{line}");
}

#[test]
fn a_receipt_is_valid_in_another_process() {
    for served in servers() {
        let scratch = &served.scratch;
        let id = scratch.send(&["orders", "hello", "--header", "a=1", "--key", "k"]);
        let row = scratch.row(&["receive", "orders"]);
        assert_eq!((&row["id"], &row["body"], &row["headers"]), (&json!(id), &json!("hello"), &json!({"a": "1"})));
        let receipt = text(&row["receipt"]);
        assert_eq!(scratch.run(&["--json", "extend", &receipt, "1m"]).done().outcomes(), ["extended"]);
        assert_eq!(scratch.run(&["--json", "ack", &receipt]).done().outcomes(), ["acked"]);
        assert_eq!(scratch.run(&["--json", "ack", &receipt]).failed(1).outcomes(), ["expired"]);
        let id = scratch.send(&["orders", "again"]);
        let receipt = scratch.receive(&["orders"]);
        assert_eq!(scratch.run(&["--json", "nack", &receipt, "--retry-after", "0s"]).done().outcomes(), ["retried"]);
        let row = scratch.row(&["receive", "orders", "--wait", "20s"]);
        assert_eq!((&row["id"], &row["receive_count"]), (&json!(id), &json!(2)));
        assert_eq!(scratch.run(&["--json", "release", &text(&row["receipt"])]).done().outcomes(), ["released"]);
        assert_eq!(scratch.row(&["receive", "orders", "--ack", "--wait", "20s"])["id"], json!(id));
        let stats = scratch.row(&["stats", "orders"]);
        assert_eq!((&stats["ready"], &stats["in_flight"]), (&json!(0), &json!(0)), "{stats}");
    }
}

#[test]
fn queues_are_peeked_paused_and_purged() {
    for served in servers() {
        let scratch = &served.scratch;
        scratch.run_with(&["send", "orders", "--lines"], b"1\n2\n3\n").done();
        scratch.send(&["orders", "later", "--delay", "1h"]);
        let stats = scratch.row(&["stats", "orders"]);
        assert_eq!((&stats["ready"], &stats["delayed"]), (&json!(3), &json!(1)));
        assert_eq!(scratch.row(&["queues"])["queue"], "orders");
        let peeked: Vec<_> =
            scratch.rows(&["peek", "orders", "--max", "2"]).iter().map(|row| text(&row["body"])).collect();
        assert_eq!(peeked, ["1", "2"]);
        scratch.run(&["pause", "orders"]).done();
        let run = scratch.run(&["receive", "orders"]).done();
        assert!(run.stdout.is_empty() && run.stderr.contains("is paused"), "{run:?}");
        scratch.run(&["resume", "orders"]).done();
        assert_eq!(scratch.rows(&["receive", "orders", "--max", "10", "--ack"]).len(), 3);
        scratch.run(&["purge", "orders", "--yes"]).done();
        assert_eq!(scratch.row(&["stats", "orders"])["delayed"], 0);
        scratch.run(&["queues", "create", "mail"]).done();
        scratch.run(&["queues", "delete", "mail", "--yes"]).done();
        assert_eq!(scratch.rows(&["queues"]).len(), 1);
    }
}

#[test]
fn messages_are_handled_and_dead_letters_edited_and_redriven() {
    for served in servers() {
        let scratch = &served.scratch;
        scratch.run_with(&["send", "orders", "--lines"], b"1\n2\n3\n").done();
        // 65 dead-letters at once.
        let script = r#"test "$POSTRIDER_URL" = "$SERVER" || exit 1; grep -q 2 && exit 65; exit 0"#;
        let mut work = scratch.command(PROGRAM);
        work.env("SERVER", served.url()).stdin(Stdio::null());
        let output = work.args(["work", "orders", "--drain", "--", "sh", "-c", script]).output().unwrap();
        assert!(output.status.success(), "{output:?}");
        let letter = scratch.row(&["dlq", "list", "orders"]);
        let id = text(&letter["id"]);
        assert_eq!(letter["body"], "2");
        assert_eq!(scratch.row(&["dlq", "show", "orders", &id])["receive_count"], 1);
        scratch.run(&["dlq", "edit", "orders", &id, "--body", "two"]).done();
        scratch.run(&["dlq", "redrive", "orders", &id]).done();
        assert_eq!(scratch.row(&["receive", "orders", "--ack"])["body"], "two");
        scratch.dead_letter("orders", "bad", "poison");
        scratch.run(&["dlq", "purge", "orders", "--all", "--yes"]).done();
        assert_eq!(scratch.row(&["stats", "orders"])["dead"], 0);
    }
}

#[test]
fn a_server_is_examined_verified_and_measured() {
    let served = Served::start(Scratch::new());
    let (scratch, url) = (&served.scratch, served.url());
    scratch.send(&["orders", "hello"]);
    let rows = scratch.rows(&["doctor"]);
    let found = |check: &str| rows.iter().filter(|row| row["check"] == check).count();
    assert_eq!((found("connection"), found("schema"), found("queues")), (2, 1, 1), "{rows:?}");
    assert!(text(&rows[0]["found"]).contains("with sqlite, version "), "{rows:?}");
    let run = scratch.run(&["migrate"]).done();
    assert!(run.stderr.contains("no migration is missing"), "{run:?}");
    let rows = scratch.rows(&["config"]);
    let value = |key: &str| rows.iter().find(|row| row["key"] == key).map(|row| row["value"].clone());
    assert_eq!(value("common.messaging.url"), Some(json!(url)));
    assert_eq!(value("common.messaging.provider"), Some(json!("http")));
    assert_eq!(value("state.url"), Some(json!(url)));
    let rules = scratch.rows(&["verify", "--rules", "L1,L2,L3", "--messages", "200"]);
    let holding: Vec<_> = rules.iter().filter(|row| row["outcome"] == "holds").map(|row| text(&row["rule"])).collect();
    assert_eq!(holding, ["L1", "L2", "L3"], "{rules:?}");
    assert!(rules.iter().all(|row| row["outcome"] != "broken"), "{rules:?}");
    let measured = scratch.rows(&["bench", "--messages", "100", "--workload", "send-one,send-batch,drain"]);
    assert_eq!(measured.len(), 3, "{measured:?}");
    let run = scratch.run(&["bench", "--archive", "none"]).failed(2);
    assert!(run.stderr.contains("has no archive; omit --archive"), "{run:?}");
}

#[test]
fn a_stopped_server_is_reported_by_every_command() {
    let served = Served::start(Scratch::new());
    let url = served.url();
    drop(served);
    let scratch = Scratch::bare().at(&url);
    for args in [&["stats"][..], &["send", "orders", "x"], &["task", "list"], &["token", "list"], &["migrate"]] {
        let run = scratch.run(args).failed(1);
        assert!(run.stderr.contains("cannot reach"), "{args:?}: {run:?}");
    }
    let run = scratch.run(&["--json", "doctor"]).failed(1);
    assert_eq!(run.rows()[0]["severity"], "problem", "{run:?}");
}

#[test]
fn a_wrong_url_of_a_server_is_explained() {
    let served = Served::start(Scratch::new());
    let url = served.url();
    for (wrong, code, words) in [
        (format!("{url}/nope"), 2, "correct the path"),
        (format!("{url}/ui"), 1, "check the URL and its path"),
        (url.replace("http:", "https:"), 1, "write http:// instead of https://"),
        ("http://127.0.0.1:70000".to_owned(), 2, "has an invalid port"),
        ("http://127.0.0.1:1".to_owned(), 1, "cannot reach the server: http://127.0.0.1:1: "),
    ] {
        let run = Scratch::bare().at(&wrong).run(&["stats"]).failed(code);
        assert!(run.stderr.contains(words) && !run.stderr.contains("client error"), "{wrong}: {run:?}");
    }
    let run = Scratch::bare().at(&url).with("POSTRIDER_COMMON__MESSAGING__HTTP__TOKEN", "x").run(&["stats"]).failed(2);
    assert!(run.stderr.contains("did you mean POSTRIDER__COMMON__MESSAGING__HTTP__TOKEN?"), "{run:?}");
}

#[test]
fn invalid_options_of_a_server_are_refused_with_the_next_step() {
    let served = Served::start(Scratch::new());
    let address = text(&served.row["address"]);
    let run = served.scratch.run(&["serve"]).failed(2);
    assert!(run.stderr.contains("is a server itself; pass the URL of the store to serve"), "{run:?}");
    let run = Scratch::new().run(&["serve", "--listen", &address]).failed(1);
    assert!(run.stderr.contains(&format!("{address} is in use")) && run.stderr.contains("--listen"), "{run:?}");
    let run = Scratch::new().run(&["serve", "--listen", "0.0.0.0:0"]).failed(1);
    assert!(run.stderr.contains("postrider token create NAME --role admin"), "{run:?}");
    let scratch = Scratch::new();
    let wrong: &[(&str, &[&str])] = &[
        ("listen", &["serve", "--listen", "8025"]),
        ("certificate_alone", &["serve", "--tls-certificate", "server.pem"]),
        ("of_a_server", &["--url", "http://127.0.0.1", "serve"]),
        ("role", &["token", "create", "ci", "--role", "root"]),
        ("no_role", &["token", "create", "ci"]),
        ("pattern", &["token", "create", "ci", "--role", "read", "--queue", "*"]),
        ("revoke", &["token", "revoke", "ci"]),
    ];
    for (name, args) in wrong {
        insta::assert_snapshot!(format!("usage_serve_{name}"), scratch.run(args).failed(2).seen());
    }
    std::fs::write(scratch.file("server.pem"), "no certificate").unwrap();
    let args = ["serve", "--listen", "127.0.0.1:0", "--tls-certificate", "server.pem", "--tls-key", "server.pem"];
    let run = scratch.run(&args).failed(1);
    assert!(run.stderr.contains("the certificate cannot be used: server.pem"), "{run:?}");
}
