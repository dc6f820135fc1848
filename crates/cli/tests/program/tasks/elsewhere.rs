//! Tasks whose queues are in another store.

use serde_json::json;

use super::home::{Behind, Home, TaskScratch, eventually};
use crate::scratch::{Scratch, text};

/// Messages in a folder, tasks in a file.
fn apart() -> TaskScratch {
    let scratch = Scratch::bare();
    let (spool, state) = (scratch.file("spool"), scratch.file("state.db"));
    let scratch = scratch.at(format!("spool:{}", spool.display()));
    TaskScratch(scratch).with("POSTRIDER__STATE__URL", format!("sqlite:{}", state.display()))
}

#[test]
fn a_queue_in_another_store_delivers_tasks() {
    let scratch = apart().with("POSTRIDER__TASKS__MODE", "queue");
    let ids: Vec<_> =
        (0..3).map(|n| scratch.create(&["greet", &n.to_string(), "--retry", "constant,delay=0s"])).collect();
    // The second attempt of each task succeeds.
    let script = r#"test "$POSTRIDER_TASK_ATTEMPT" = 2 && cat"#;
    let run = scratch.drain("greet", script);
    assert_eq!(run.rows().len(), 6, "{run:?}");
    for (n, id) in ids.iter().enumerate() {
        let task = scratch.get(id);
        assert_eq!((&task["state"], &task["result"]), (&json!("SUCCEEDED"), &json!(n.to_string())));
    }
    assert_eq!(scratch.row(&["stats", "task_greet"])["ready"], 0);
}

#[test]
fn a_dead_task_sends_an_event_to_the_configured_queue() {
    let homes = Home::in_every_mode().into_iter().map(|(_, home)| home.with_scratch());
    for (_home, scratch) in homes.chain([(Behind::Nothing, apart())]) {
        let scratch = scratch.with("POSTRIDER__TASKS__DEAD_EVENTS", "deaths");
        let id = scratch.create(&["mail", "hello", "--max-attempts", "1"]);
        scratch.drain("mail", "echo no route >&2; exit 3");
        let event = scratch.row(&["receive", "deaths", "--wait", "20s", "--ack"]);
        assert_eq!(event["content_type"], "application/json");
        let event: serde_json::Value = serde_json::from_str(&text(&event["body"])).unwrap();
        assert_eq!((&event["taskId"], &event["taskType"]), (&json!(id), &json!("mail")));
        assert_eq!((&event["reason"], &event["error"]), (&json!("max_attempts"), &json!("exit code 3\nno route")));
        assert_eq!((&event["attemptCount"], &event["maxAttempts"]), (&json!(1), &json!(1)));
        assert_eq!(event["payload"], json!({"revision": 0, "bytes": 5}));
        assert_eq!(event["workerId"], scratch.get(&id)["worker"]);
    }
}

#[test]
fn tasks_can_be_created_and_read_while_the_broker_is_unreachable() {
    let scratch = Scratch::bare();
    let state = format!("sqlite:{}", scratch.file("state.db").display());
    let away = |mode: &str| {
        let scratch = Scratch::bare().at("amqp://rider@127.0.0.1:1/mail");
        TaskScratch(scratch).with("POSTRIDER__STATE__URL", &state).with("POSTRIDER__TASKS__MODE", mode)
    };
    let queue_mode = away("queue");
    let run = queue_mode.run(&["--json", "task", "create", "a", "x"]).done();
    assert!(run.stderr.contains("until the queues can be reached"), "{run:?}");
    let id = text(&run.rows()[0]["id"]);
    let polling = away("polling");
    let run = polling.run(&["--json", "task", "create", "a", "x"]).done();
    assert!(!run.stderr.contains("amqp"), "{run:?}");
    assert_eq!(queue_mode.rows(&["task", "list"]).len(), 2);
    queue_mode.run(&["task", "cancel", &id]).done();
    let run = queue_mode.run(&["task", "worker", "--type", "a", "--drain", "--", "true"]).failed(1);
    assert!(run.stderr.contains("cannot reach"), "{run:?}");
}

#[test]
fn messages_in_memory_do_no_harm_to_tasks_in_a_file() {
    let scratch = Scratch::bare().at("memory:");
    let state = format!("sqlite:{}", scratch.file("state.db").display());
    let scratch = TaskScratch(scratch).with("POSTRIDER__STATE__URL", state);
    let id = scratch.create(&["a", "x"]);
    scratch.drain("a", "cat");
    assert_eq!(scratch.get(&id)["result"], "x");
    for (variable, value) in [("POSTRIDER__TASKS__MODE", "queue"), ("POSTRIDER__TASKS__DEAD_EVENTS", "deaths")] {
        let scratch =
            Scratch::bare().at("memory:").with("POSTRIDER__STATE__URL", "sqlite:state.db").with(variable, value);
        let run = scratch.run(&["task", "list"]).failed(2);
        assert!(run.stderr.contains("every message of a task"), "{run:?}");
    }
}

#[test]
fn without_state_url_tasks_are_stored_in_the_embedded_file() {
    let scratch = TaskScratch(Scratch::bare());
    let spool = scratch.file("spool");
    let url = format!("spool:{}", spool.display());
    let run = scratch.run(&["--json", "--url", &url, "task", "create", "a", "x"]).done();
    assert!(run.stderr.contains("created ") && run.stderr.contains("postrider.db"), "{run:?}");
    let id = text(&run.rows()[0]["id"]);
    eventually("it is there", || Some(scratch.row(&["task", "get", &id])["state"] == "PENDING").filter(|is| *is));
}
