//! Tasks whose queues are not where they are kept.

use serde_json::json;

use super::home::{Behind, Home, TaskPlace, eventually};
use crate::place::{Place, text};

/// Messages in a folder, tasks in a file.
fn apart() -> TaskPlace {
    let place = Place::bare();
    let (spool, state) = (place.file("spool"), place.file("state.db"));
    let place = place.at(format!("spool:{}", spool.display()));
    TaskPlace(place).with("POSTRIDER__STATE__URL", format!("sqlite:{}", state.display()))
}

#[test]
fn a_queue_elsewhere_brings_tasks_to_their_workers() {
    let place = apart().with("POSTRIDER__TASKS__MODE", "queue");
    let ids: Vec<_> =
        (0..3).map(|n| place.create(&["greet", &n.to_string(), "--retry", "constant,delay=0s"])).collect();
    // Every second attempt goes well, and nothing is left in between.
    let script = r#"test "$POSTRIDER_TASK_ATTEMPT" = 2 && cat"#;
    let run = place.drain("greet", script);
    assert_eq!(run.rows().len(), 6, "{run:?}");
    for (n, id) in ids.iter().enumerate() {
        let task = place.get(id);
        assert_eq!((&task["state"], &task["result"]), (&json!("SUCCEEDED"), &json!(n.to_string())));
    }
    assert_eq!(place.row(&["stats", "task_greet"])["ready"], 0);
}

#[test]
fn a_death_is_told_to_the_queue_that_is_named() {
    let homes = Home::in_every_mode().into_iter().map(|(_, home)| home.with_place());
    for (_home, place) in homes.chain([(Behind::Nothing, apart())]) {
        let place = place.with("POSTRIDER__TASKS__DEAD_EVENTS", "deaths");
        let id = place.create(&["mail", "hello", "--max-attempts", "1"]);
        place.drain("mail", "echo no route >&2; exit 3");
        let event = place.row(&["receive", "deaths", "--wait", "20s", "--ack"]);
        assert_eq!(event["content_type"], "application/json");
        let event: serde_json::Value = serde_json::from_str(&text(&event["body"])).unwrap();
        assert_eq!((&event["taskId"], &event["taskType"]), (&json!(id), &json!("mail")));
        assert_eq!((&event["reason"], &event["error"]), (&json!("max_attempts"), &json!("exit code 3\nno route")));
        assert_eq!((&event["attemptCount"], &event["maxAttempts"]), (&json!(1), &json!(1)));
        assert_eq!(event["payload"], json!({"revision": 0, "bytes": 5}));
        assert_eq!(event["workerId"], place.get(&id)["worker"]);
    }
}

#[test]
fn a_broker_that_is_away_keeps_nobody_from_making_and_reading_tasks() {
    let place = Place::bare();
    let state = format!("sqlite:{}", place.file("state.db").display());
    let away = |mode: &str| {
        let place = Place::bare().at("amqp://rider@127.0.0.1:1/mail");
        TaskPlace(place).with("POSTRIDER__STATE__URL", &state).with("POSTRIDER__TASKS__MODE", mode)
    };
    let place_in_queue_mode = away("queue");
    let run = place_in_queue_mode.run(&["--json", "task", "create", "a", "x"]).done();
    assert!(run.stderr.contains("until the queue is there"), "{run:?}");
    let id = text(&run.rows()[0]["id"]);
    let polling = away("polling");
    let run = polling.run(&["--json", "task", "create", "a", "x"]).done();
    assert!(!run.stderr.contains("amqp"), "{run:?}");
    assert_eq!(place_in_queue_mode.rows(&["task", "list"]).len(), 2);
    place_in_queue_mode.run(&["task", "cancel", &id]).done();
    let run = place_in_queue_mode.run(&["task", "worker", "--type", "a", "--drain", "--", "true"]).failed(1);
    assert!(run.stderr.contains("cannot reach"), "{run:?}");
}

#[test]
fn messages_in_memory_do_no_harm_to_tasks_in_a_file() {
    let place = Place::bare().at("memory:");
    let state = format!("sqlite:{}", place.file("state.db").display());
    let place = TaskPlace(place).with("POSTRIDER__STATE__URL", state);
    let id = place.create(&["a", "x"]);
    place.drain("a", "cat");
    assert_eq!(place.get(&id)["result"], "x");
    for (variable, value) in [("POSTRIDER__TASKS__MODE", "queue"), ("POSTRIDER__TASKS__DEAD_EVENTS", "deaths")] {
        let place = Place::bare().at("memory:").with("POSTRIDER__STATE__URL", "sqlite:state.db").with(variable, value);
        let run = place.run(&["task", "list"]).failed(2);
        assert!(run.stderr.contains("every message of a task"), "{run:?}");
    }
}

#[test]
fn without_a_name_tasks_are_kept_in_the_embedded_file() {
    let place = TaskPlace(Place::bare());
    let spool = place.file("spool");
    let url = format!("spool:{}", spool.display());
    let run = place.run(&["--json", "--url", &url, "task", "create", "a", "x"]).done();
    assert!(run.stderr.contains("made ") && run.stderr.contains("postrider.db"), "{run:?}");
    let id = text(&run.rows()[0]["id"]);
    eventually("it is there", || Some(place.row(&["task", "get", &id])["state"] == "PENDING").filter(|is| *is));
}
