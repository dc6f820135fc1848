//! Tasks and schedules by hand.

use axum::http::Method;
use serde_json::{Value, json};

use super::browser::{Browser, ESCAPE};
use super::scene;
use crate::place::Place;

async fn tasks(place: &Place, query: &str) -> Vec<Value> {
    place.get(&format!("/v1/tasks?limit=1000&{query}")).await.of(200)["tasks"].as_array().unwrap().clone()
}

#[tokio::test]
async fn a_task_is_made_run_now_and_canceled() {
    let place = scene::place().await;
    let browser = Browser::start(&place).await;
    browser.open("/ui/tasks").await;
    browser.see("@empty-tasks").await;
    browser.click("@new-task").await;
    browser.fill("@task-type", "invoice.send").await;
    browser.fill("@task-payload", "{\"order\": 7}").await;
    browser.fill("@task-in", "1h").await;
    browser.fill("@task-max-attempts", "5").await;
    browser.fill("@task-tags", "monthly, north").await;
    browser.fill("@task-idempotency-key", "order-7").await;
    browser.click("@new-task-save").await;
    browser.gone("dialog").await;
    browser.count("@task-row", 1).await;
    let made = &tasks(&place, "type=invoice.send").await[0];
    let id = made["id"].as_str().unwrap().to_owned();
    assert_eq!((&made["tags"], &made["max_attempts"]), (&json!(["monthly", "north"]), &json!(5)));
    assert_eq!((&made["state"], &made["idempotency_key"]), (&json!("PENDING"), &json!("order-7")));
    let due = made["scheduled_for"].clone();

    browser.click("@task-row a").await;
    browser.until(&format!("location.pathname === '/ui/tasks/{id}'")).await;
    browser.reads("@page-task", "monthly").await;
    browser.click("@retry").await;
    browser.reads("@toasts", "It is due now").await;
    assert_ne!(scene::show_task(&place, &id).await["scheduled_for"], due, "it does not wait any longer");

    // A worker takes it; the page tells how far it is, and that it would be interrupted.
    let claim = json!({ "types": ["invoice.send"], "worker": "press-1", "lease": "1m" });
    let claimed = place.post("/v1/tasks/claim", claim).await.of(200);
    let lease = &claimed["tasks"][0]["lease"];
    let beat = json!({ "heartbeats": [{ "lease": lease, "progress": { "fraction": 0.25, "text": "page 1 of 4" } }],
                       "extend": "1m" });
    place.post("/v1/tasks/heartbeat", beat).await.of(200);
    browser.until("$('@page-task').dataset.state === 'PROCESSING'").await;
    browser.reads("@task-progress", "25 %, page 1 of 4").await;
    browser.click("@cancel").await;
    browser.confirm(&["1 task", "press-1 works on it right now", "[Cancel 1 task]"]).await;
    browser.until("$('@page-task').dataset.state === 'CANCELED'").await;
    assert_eq!(scene::show_task(&place, &id).await["state"], "CANCELED");
    let told: Vec<_> = scene::audit(&place).await.into_iter().map(|(action, target, _)| (action, target)).collect();
    assert_eq!(told, [("cancel_task".to_owned(), id.clone()), ("retry_task".to_owned(), id.clone())]);

    let missing = "01900000-0000-7000-8000-000000000000";
    browser.open(&format!("/ui/tasks/{missing}")).await;
    browser.reads("@problem", "task_not_found").await;
    browser.close(&[(&format!("/v1/tasks/{missing}"), 404)]).await;
    place.stop().await;
}

#[tokio::test]
async fn dead_tasks_are_corrected_and_brought_back_alone_and_together() {
    let place = scene::place().await;
    let one = scene::dead_task(&place, "invoice.send", "{\"order\": 1}", "printer is on fire").await;
    for order in 2..8 {
        let error = if order < 6 { "timed out" } else { "no paper" };
        scene::dead_task(&place, "invoice.send", &format!("{{\"order\": {order}}}"), error).await;
    }
    scene::dead_task(&place, "report", "{}", "timed out").await;
    scene::task(&place, json!({ "type": "report", "payload": "{}", "in": "1h" })).await;
    let browser = Browser::start(&place).await;
    browser.open("/ui/tasks").await;
    browser.count("@task-row", 9).await;
    browser.click("@state-DEAD").await;
    browser.count("@task-row", 8).await;
    browser.until("location.search === '?state=DEAD'").await;
    browser.fill("@filter-error", "on fire").await;
    browser.count("@task-row", 1).await;
    browser.click("@task-row a").await;
    browser.reads("@page-task", "printer is on fire").await;

    browser.click("@edit-payload").await;
    browser.fill("@editor-body", "{\"order\": 99}").await;
    browser.click("@editor-review").await;
    browser.reads("@diff-body", "\"order\": 99").await;
    browser.click("@editor-save").await;
    browser.gone("dialog").await;
    browser.reads("@task-revisions", "99").await;
    let shown = scene::show_task(&place, &one).await;
    assert_eq!((&shown["payload"], &shown["revision"]), (&json!("{\"order\": 99}"), &json!(1)));
    assert_eq!(shown["state"], "DEAD", "saved and not replayed");
    browser.shot("task-edited").await;
    browser.click("@replay").await;
    browser.confirm(&["1 task is due at once", "[Replay 1 task]"]).await;
    browser.until("$('@page-task').dataset.state === 'PENDING'").await;
    let shown = scene::show_task(&place, &one).await;
    assert_eq!((&shown["state"], &shown["replay_count"]), (&json!("PENDING"), &json!(1)));

    // Many, by what the filter leaves.
    browser.open("/ui/tasks?state=DEAD").await;
    browser.count("@task-row", 7).await;
    browser.fill("@filter-type", "invoice.send").await;
    browser.fill("@filter-error", "timed out").await;
    browser.count("@task-row", 4).await;
    browser.click("@replay-all").await;
    browser.reads("@bulk-count", "4").await;
    assert_eq!(tasks(&place, "state=DEAD").await.len(), 7, "a preview changes nothing");
    browser.fill("@bulk-rate", "50").await;
    browser.click("@bulk-start").await;
    browser.until("$('@job')?.dataset.state === 'done'").await;
    browser.click("dialog @dialog-cancel").await;
    browser.gone("dialog").await;
    browser.see("@empty-filter").await;
    assert_eq!(tasks(&place, "state=DEAD").await.len(), 3);
    assert_eq!(tasks(&place, "state=PENDING&type=invoice.send").await.len(), 5);

    // Some, by hand.
    browser.open("/ui/tasks?state=PENDING").await;
    browser.count("@task-row", 6).await;
    browser.click("@select-all").await;
    browser.reads("@selection", "6 selected").await;
    browser.click("@selection-cancel").await;
    browser.reads("@bulk-start", "Cancel 6 tasks").await;
    browser.press(ESCAPE).await;
    browser.gone("dialog").await;
    assert_eq!(tasks(&place, "state=CANCELED").await.len(), 0);
    browser.click("@selection-cancel").await;
    browser.click("@bulk-start").await;
    browser.until("$('@job')?.dataset.state === 'done'").await;
    browser.click("dialog @dialog-cancel").await;
    browser.gone("dialog").await;
    assert_eq!(tasks(&place, "state=CANCELED").await.len(), 6);
    let log = scene::audit(&place).await;
    let count = |wanted: &str| log.iter().filter(|(action, ..)| action == wanted).count();
    assert_eq!(
        (count("cancel_tasks"), count("replay_tasks"), count("replay_task"), count("edit_task")),
        (1, 1, 1, 1),
        "{log:?}"
    );
    browser.close(&[]).await;
    place.stop().await;
}

#[tokio::test]
async fn states_are_counted_links_and_what_matches_is_changed_together() {
    let place = scene::place().await;
    for order in 0..3 {
        scene::dead_task(&place, "invoice.send", &format!("{{\"order\": {order}}}"), "exit code 1\nTrace\nno ink")
            .await;
    }
    for order in 0..130 {
        let new = json!({ "type": "report", "payload": order.to_string(), "in": "1h", "tags": ["monthly"] });
        scene::task(&place, new).await;
    }
    let alone = scene::task(&place, json!({ "type": "mail", "payload": "{}", "in": "1h" })).await;
    let browser = Browser::start(&place).await;
    browser.open("/ui/tasks").await;
    browser.reads("@count-all", "134").await;
    browser.reads("@count-DEAD", "3").await;
    browser.reads("@count-PENDING", "131").await;
    browser.count("@task-row", 100).await;
    browser.click("@next-page").await;
    browser.count("@task-row", 34).await;
    browser.see("@tasks-took").await;

    // A tab is a link, and the fields stand in the address too.
    browser.click("@state-DEAD").await;
    browser.count("@task-row", 3).await;
    assert_eq!(browser.text("@exit-badge").await, "exit 1");
    browser.reads("@error-line", "no ink").await;
    assert!(!browser.text("@error-line").await.contains("Trace"), "the last line says it");
    browser.fill("@filter-type", "invoice.send").await;
    browser.until("location.search === '?type=invoice.send&state=DEAD'").await;
    browser.reads("@count-all", "3").await;
    browser.click("@state-PENDING").await;
    browser.see("@empty-filter").await;
    browser.back().await;
    browser.count("@task-row", 3).await;
    assert_eq!(browser.value("$('@filter-type').value").await, "invoice.send");
    browser.back().await;
    browser.until("location.search === '?state=DEAD' && $('@filter-type').value === ''").await;
    browser.shot("tasks-dead").await;

    // On a row.
    browser.open("/ui/tasks?type=mail").await;
    browser.count("@task-row", 1).await;
    let due = scene::show_task(&place, &alone).await["scheduled_for"].clone();
    browser.click("@row-retry").await;
    browser.reads("@toasts", "It is due now").await;
    assert_ne!(scene::show_task(&place, &alone).await["scheduled_for"], due);
    browser.click("@row-cancel").await;
    browser.confirm(&["1 task, mail"]).await;
    browser.reads("@task-row @task-state", "CANCELED").await;
    browser.open("/ui/tasks?state=DEAD").await;
    browser.click("@task-row:nth-child(1) @row-replay").await;
    browser.confirm(&["1 task is due at once"]).await;
    browser.count("@task-row", 2).await;

    // All that match, and not only those of the page.
    browser.open("/ui/tasks?tag=monthly").await;
    browser.count("@task-row", 100).await;
    browser.click("@retry-all").await;
    browser.reads("@bulk-count", "130").await;
    browser.click("@bulk-start").await;
    browser.until("$('@job')?.dataset.state === 'done'").await;
    browser.click("dialog @dialog-cancel").await;
    browser.gone("dialog").await;
    let now = place.get("/v1/session").await.of(200)["now"].as_str().unwrap().to_owned();
    let late = |task: &&Value| task["scheduled_for"].as_str().unwrap() > now.as_str();
    assert_eq!(tasks(&place, "tag=monthly").await.iter().filter(late).count(), 0, "all of them are due");
    browser.click("@cancel-all").await;
    browser.reads("@bulk-start", "Cancel 130 tasks").await;
    assert_eq!(tasks(&place, "tag=monthly&state=CANCELED").await.len(), 0, "a preview changes nothing");
    browser.click("@bulk-start").await;
    browser.until("$('@job')?.dataset.state === 'done'").await;
    assert_eq!(tasks(&place, "tag=monthly&state=CANCELED").await.len(), 130);
    browser.click("dialog @dialog-cancel").await;
    browser.gone("dialog").await;
    browser.reads("@count-CANCELED", "130").await;
    browser.close(&[]).await;
    place.stop().await;
}

#[tokio::test]
async fn a_schedule_tells_its_next_times_in_words_and_what_became_of_its_runs() {
    let place = scene::place().await;
    let put = json!({ "type": "remind", "payload": "{\"to\": \"all\"}", "cron": "0 9 * * mon", "time_zone": "Europe/Berlin" });
    place.send(place.request(Method::PUT, "/v1/schedules/reminders", Some(&put))).await.of(200);
    let browser = Browser::start(&place).await;
    browser.open("/ui/schedules").await;
    browser.click("@schedule-link").await;
    browser.until("location.pathname === '/ui/schedules/reminders'").await;
    browser.count("@next-time", 5).await;
    browser.until("$$('@next-time').every((one) => /^Monday, \\d+ [A-Z][a-z]+ \\d{4} at 09:00 Europe\\/Berlin$/.test(one.innerText))").await;
    browser.see("@no-runs").await;
    browser.click("@schedule-trigger").await;
    browser.count("@run-row", 1).await;
    let made = tasks(&place, "schedule=reminders").await[0]["id"].as_str().unwrap().to_owned();
    let claim = json!({ "ids": [made], "worker": "press-1", "lease": "1m" });
    let claimed = place.post("/v1/tasks/claim-by-id", claim).await.of(200);
    let lease = &claimed["answers"][0]["claimed"]["lease"];
    let finish = json!({ "lease": lease, "outcome": "dead", "reason": "permanent", "error": "exit code 65 (refuses the task)\nno paper" });
    place.post("/v1/tasks/finish", json!({ "finish": [finish] })).await.of(200);
    browser.reads("@run-row @task-state", "DEAD").await;
    browser.reads("@run-row", "no paper").await;
    browser.shot("schedule").await;
    place.post("/v1/schedules/reminders/pause", json!({})).await.of(200);
    browser.reads("@schedule-next", "It is paused").await;
    browser.count("@next-time", 5).await;
    browser.click("@run-row a").await;
    browser.reads("@page-task", "no paper").await;
    browser.close(&[]).await;
    place.stop().await;
}

#[tokio::test]
async fn a_schedule_is_made_changed_paused_triggered_and_deleted() {
    let place = scene::place().await;
    let browser = Browser::start(&place).await;
    browser.open("/ui/schedules").await;
    browser.see("@empty-schedules").await;
    browser.click("@new-schedule").await;
    browser.fill("@schedule-name", "reminders").await;
    browser.fill("@schedule-type", "remind").await;
    browser.fill("@schedule-payload", "{\"to\": \"all\"}").await;
    browser.fill("@schedule-cron", "61 * * * *").await;
    browser.click("@schedule-save").await;
    browser.reads("dialog @problem", "invalid_input").await;
    browser.fill("@schedule-cron", "0 9 * * mon-fri").await;
    browser.fill("@schedule-time-zone", "Europe/Berlin").await;
    browser.fill("@schedule-tags", "daily").await;
    browser.shot("dialog-schedule").await;
    browser.click("@schedule-save").await;
    browser.gone("dialog").await;
    let shown = async || place.get("/v1/schedules/reminders").await.of(200);
    let made = shown().await;
    assert_eq!((&made["cron"], &made["time_zone"]), (&json!("0 9 * * mon-fri"), &json!("Europe/Berlin")));
    assert_eq!((&made["payload"], &made["tags"]), (&json!("{\"to\": \"all\"}"), &json!(["daily"])));

    browser.click("@schedule-pause").await;
    browser.see("@schedule-resume").await;
    assert_eq!(shown().await["paused"], true);
    browser.click("@schedule-resume").await;
    browser.see("@schedule-pause").await;
    assert_eq!(shown().await["paused"], false);
    browser.click("@schedule-trigger").await;
    browser.see("@triggered-task").await;
    let made = tasks(&place, "schedule=reminders").await;
    assert_eq!((made.len(), &made[0]["type"], &made[0]["state"]), (1, &json!("remind"), &json!("PENDING")));
    browser.click("@triggered-task").await;
    browser.reads("@page-task", made[0]["id"].as_str().unwrap()).await;
    browser.back().await;

    browser.click("@schedule-edit").await;
    browser.fill("@schedule-cron", "").await;
    browser.fill("@schedule-every", "45m").await;
    browser.click("@schedule-save").await;
    browser.gone("dialog").await;
    let edited = shown().await;
    assert_eq!((&edited["every"], &edited["payload"]), (&json!("45m"), &json!("{\"to\": \"all\"}")));

    browser.click("@schedule-delete").await;
    browser.confirm(&["1 schedule is removed", "1 of them", "[Delete 1 schedule]"]).await;
    browser.see("@empty-schedules").await;
    assert_eq!(place.get("/v1/schedules").await.of(200)["schedules"], json!([]));
    assert_eq!(tasks(&place, "schedule=reminders").await.len(), 1, "what it made stays");
    let log = scene::audit(&place).await;
    assert!(log.iter().any(|(action, target, _)| action == "delete_schedule" && target == "reminders"), "{log:?}");

    // What another process makes is shown without being asked for.
    let put = json!({ "type": "report", "payload": "", "every": "1h" });
    place.send(place.request(Method::PUT, "/v1/schedules/hourly", Some(&put))).await.of(200);
    browser.reads("@schedule-row", "hourly").await;
    browser.close(&[("/v1/schedules/reminders", 400)]).await;
    place.stop().await;
}
