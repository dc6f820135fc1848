//! `postrider token`, and the rights of clients.

use serde_json::json;

use super::served::Served;
use crate::scratch::{Scratch, text};

/// A scratch folder with the server as its store, and a token.
fn with_token(served: &Served, token: &str) -> Scratch {
    Scratch::bare().at(served.url()).with("POSTRIDER_TOKEN", token)
}

#[test]
fn after_the_first_token_a_server_requires_one() {
    let served = Served::start(Scratch::new());
    served.scratch.send(&["orders", "hello"]);
    let run = served.scratch.run(&["token", "create", "anna", "--role", "admin"]).done();
    let token = run.stdout.trim_end().to_owned();
    assert!(token.starts_with("prt_") && !token.contains(char::is_whitespace), "{run:?}");
    assert!(run.stderr.contains("it is shown only once"), "{run:?}");

    let run = served.scratch.run(&["stats"]).failed(1);
    assert!(run.stderr.contains("POSTRIDER_TOKEN") && run.stdout.is_empty(), "{run:?}");
    let anna = with_token(&served, &token);
    assert_eq!(anna.row(&["stats"])["ready"], 1);
    let wrong = with_token(&served, "prt_0123456789abcdef0123456789abcdef_wrong").run(&["stats"]).failed(1);
    assert!(wrong.stderr.contains("POSTRIDER_TOKEN") && !wrong.stderr.contains("prt_0123"), "{wrong:?}");

    // No command shows it.
    let run = anna.run(&["--json", "config", "common.messaging.http"]).done();
    assert!(run.stdout.contains("\"***\"") && !run.stdout.contains(&token), "{run:?}");
    let listed = anna.row(&["token", "list"]);
    assert_eq!(
        (&listed["name"], &listed["roles"], &listed["queues"]),
        (&json!("anna"), &json!(["admin"]), &json!(null))
    );
    assert!(listed.get("token").is_none(), "{listed}");
}

#[test]
fn a_token_allows_only_its_roles_on_its_queues() {
    let served = Served::start(Scratch::new());
    let admin =
        with_token(&served, served.scratch.run(&["token", "create", "a", "--role", "admin"]).done().stdout.trim());
    let reads = ["token", "create", "looks", "--role", "read", "--expires-in", "1h"];
    let made = admin.row(&reads);
    assert!(made["expires_at"].is_string(), "{made}");
    let reader = with_token(&served, &text(&made["token"]));
    assert_eq!(reader.rows(&["stats"]), Vec::<serde_json::Value>::new());
    admin.run(&["queues", "create", "orders"]).done();
    let run = reader.run(&["send", "orders", "x"]).failed(1);
    assert!(run.stderr.contains("'produce'") && run.stderr.contains("POSTRIDER_TOKEN"), "{run:?}");
    for args in
        [&["purge", "orders", "--yes"][..], &["receive", "orders"], &["token", "list"], &["task", "create", "t", "x"]]
    {
        let run = reader.run(args).failed(1);
        assert!(run.stderr.contains("POSTRIDER_TOKEN") && run.stdout.is_empty(), "{args:?}: {run:?}");
    }
    let made =
        admin.row(&["token", "create", "sends", "--role", "read,produce", "--queue", "mail.*", "--queue", "orders"]);
    assert_eq!((&made["roles"], &made["queues"]), (&json!(["read", "produce"]), &json!(["mail.*", "orders"])));
    let sender = with_token(&served, &text(&made["token"]));
    sender.send(&["orders", "1"]);
    sender.send(&["mail.out", "2"]);
    let run = sender.run(&["send", "bills", "3"]).failed(1);
    assert!(run.stderr.contains("bills"), "{run:?}");
    // Other queues are hidden.
    admin.send(&["bills", "3"]);
    let seen: Vec<_> = sender.rows(&["stats"]).iter().map(|row| text(&row["queue"])).collect();
    assert_eq!(seen, ["mail.out", "orders"]);
}

#[test]
fn tokens_are_the_same_in_the_state_and_over_its_server() {
    let home = Scratch::new();
    let made = home.row(&["token", "create", "first", "--role", "admin", "--role", "read"]);
    let served = Served::start(home);
    assert_eq!(served.row["open"], false);
    let admin = with_token(&served, &text(&made["token"]));
    let second = text(&admin.row(&["token", "create", "second", "--role", "consume"])["id"]);
    for scratch in [&served.home, &admin] {
        let names: Vec<_> = scratch.rows(&["token", "list"]).iter().map(|row| text(&row["name"])).collect();
        assert_eq!(names, ["first", "second"]);
    }
    let table = admin.run(&["token", "list"]).done().stdout;
    assert!(table.lines().nth(2).unwrap().contains("second  consume"), "{table}");
    assert_eq!(admin.row(&["token", "revoke", &second]), json!({"id": second, "outcome": "revoked"}));
    for scratch in [&served.home, &admin] {
        let run = scratch.run(&["token", "revoke", &second]).failed(1);
        assert!(run.stderr.contains("'postrider token list' lists the tokens"), "{run:?}");
        let run = scratch.run(&["token", "create", " ", "--role", "read"]).failed(2);
        assert!(run.stderr.contains("name of a token"), "{run:?}");
    }
    let first = text(&made["id"]);
    let run = served.home.run(&["token", "revoke", &first]).done();
    assert_eq!(run.stdout, format!("{first} was revoked\n"));
    assert!(run.stderr.contains("no token with the role 'admin' is left"), "{run:?}");
}

#[test]
fn the_first_token_must_be_an_admins() {
    let served = Served::start(Scratch::new());
    for scratch in [&served.home, &served.scratch] {
        let run = scratch.run(&["token", "create", "ci", "--role", "produce"]).failed(2);
        assert!(run.stderr.contains("postrider token create NAME --role admin"), "{run:?}");
    }
    assert_eq!(served.scratch.rows(&["token", "list"]).len(), 0, "it is as open as before");
}

#[test]
fn the_audit_log_has_changes_made_directly_on_the_state() {
    let home = Scratch::new().with("USER", "anna");
    let made = home.row(&["token", "create", "first", "--role", "admin"]);
    let second = text(&home.row(&["token", "create", "second", "--role", "read"])["id"]);
    let run = home.run(&["token", "revoke", &second]).done();
    assert!(!run.stderr.contains("is left"), "{run:?}");
    let served = Served::start(home);
    let head = format!("authorization: Bearer {}\r\n", text(&made["token"]));
    let answer = served.get_with("/v1/audit", &head);
    let (_, body) = answer.split_once("\r\n\r\n").unwrap();
    let log: serde_json::Value = serde_json::from_str(body).unwrap();
    let noted: Vec<_> = log["entries"]
        .as_array()
        .unwrap()
        .iter()
        .map(|row| json!([row["who"], row["action"], row["target"]]))
        .collect();
    let who = "user anna on the state";
    let expected = [
        json!([who, "revoke_token", second]),
        json!([who, "create_token", "second"]),
        json!([who, "create_token", "first"]),
    ];
    assert_eq!(noted, expected);
}

#[test]
fn a_public_address_is_served_once_a_token_exists() {
    let home = Scratch::new();
    let token = home.run(&["token", "create", "a", "--role", "admin"]).done().stdout;
    let served = Served::start_with(home, &["--listen", "0.0.0.0:0"]);
    let port = text(&served.row["address"]).rsplit_once(':').unwrap().1.to_owned();
    let scratch = Scratch::bare().at(format!("http://127.0.0.1:{port}"));
    assert!(scratch.run(&["stats"]).failed(1).stderr.contains("POSTRIDER_TOKEN"));
    scratch.with("POSTRIDER_TOKEN", token.trim()).run(&["stats"]).done();
}
