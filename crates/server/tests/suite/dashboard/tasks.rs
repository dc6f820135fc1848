//! Actions on tasks and schedules.

use axum::http::Method;
use serde_json::{Value, json};

use super::browser::{Browser, ESCAPE};
use super::fixtures;
use crate::test_server::TestServer;

async fn tasks(server: &TestServer, query: &str) -> Vec<Value> {
    server.get(&format!("/v1/tasks?limit=1000&{query}")).await.of(200)["tasks"].as_array().unwrap().clone()
}

#[tokio::test]
async fn a_task_is_created_run_now_and_canceled() {
    let server = fixtures::server().await;
    let browser = Browser::start(&server).await;
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
    let made = &tasks(&server, "type=invoice.send").await[0];
    let id = made["id"].as_str().unwrap().to_owned();
    assert_eq!((&made["tags"], &made["max_attempts"]), (&json!(["monthly", "north"]), &json!(5)));
    assert_eq!((&made["state"], &made["idempotency_key"]), (&json!("PENDING"), &json!("order-7")));
    let due = made["scheduled_for"].clone();

    browser.click("@task-row a").await;
    browser.until(&format!("location.pathname === '/ui/tasks/{id}'")).await;
    browser.reads("@page-task", "monthly").await;
    browser.click("@retry").await;
    browser.reads("@toasts", "It is due now").await;
    assert_ne!(fixtures::show_task(&server, &id).await["scheduled_for"], due, "it is due");

    // A worker claims it; the page shows its progress, and that a cancellation would interrupt it.
    let claim = json!({ "types": ["invoice.send"], "worker": "press-1", "lease": "1m" });
    let claimed = server.post("/v1/tasks/claim", claim).await.of(200);
    let lease = &claimed["tasks"][0]["lease"];
    let beat = json!({ "heartbeats": [{ "lease": lease, "progress": { "fraction": 0.25, "text": "page 1 of 4" } }],
                       "extend": "1m" });
    server.post("/v1/tasks/heartbeat", beat).await.of(200);
    browser.until("$('@page-task').dataset.state === 'PROCESSING'").await;
    browser.reads("@task-progress", "25 %, page 1 of 4").await;
    browser.click("@cancel").await;
    browser.confirm(&["1 task", "press-1 works on it right now", "[Cancel 1 task]"]).await;
    browser.until("$('@page-task').dataset.state === 'CANCELED'").await;
    assert_eq!(fixtures::show_task(&server, &id).await["state"], "CANCELED");
    let actions: Vec<_> =
        fixtures::audit(&server).await.into_iter().map(|(action, target, _)| (action, target)).collect();
    assert_eq!(actions, [("cancel_task".to_owned(), id.clone()), ("retry_task".to_owned(), id.clone())]);

    let missing = "01900000-0000-7000-8000-000000000000";
    browser.open(&format!("/ui/tasks/{missing}")).await;
    browser.reads("@problem", "task_not_found").await;
    browser.close(&[(&format!("/v1/tasks/{missing}"), 404)]).await;
    server.stop().await;
}

#[tokio::test]
async fn dead_tasks_are_edited_and_replayed_alone_and_together() {
    let server = fixtures::server().await;
    let one = fixtures::dead_task(&server, "invoice.send", "{\"order\": 1}", "printer is on fire").await;
    for order in 2..8 {
        let error = if order < 6 { "timed out" } else { "no paper" };
        fixtures::dead_task(&server, "invoice.send", &format!("{{\"order\": {order}}}"), error).await;
    }
    fixtures::dead_task(&server, "report", "{}", "timed out").await;
    fixtures::task(&server, json!({ "type": "report", "payload": "{}", "in": "1h" })).await;
    let browser = Browser::start(&server).await;
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
    let shown = fixtures::show_task(&server, &one).await;
    assert_eq!((&shown["payload"], &shown["revision"]), (&json!("{\"order\": 99}"), &json!(1)));
    assert_eq!(shown["state"], "DEAD", "saved and not replayed");
    browser.shot("task-edited").await;
    browser.click("@replay").await;
    browser.confirm(&["1 task is due at once", "[Replay 1 task]"]).await;
    browser.until("$('@page-task').dataset.state === 'PENDING'").await;
    let shown = fixtures::show_task(&server, &one).await;
    assert_eq!((&shown["state"], &shown["replay_count"]), (&json!("PENDING"), &json!(1)));

    // Many, by a filter.
    browser.open("/ui/tasks?state=DEAD").await;
    browser.count("@task-row", 7).await;
    browser.fill("@filter-type", "invoice.send").await;
    browser.fill("@filter-error", "timed out").await;
    browser.count("@task-row", 4).await;
    browser.click("@replay-all").await;
    browser.reads("@bulk-count", "4").await;
    assert_eq!(tasks(&server, "state=DEAD").await.len(), 7, "a preview changes nothing");
    browser.fill("@bulk-rate", "50").await;
    browser.click("@bulk-start").await;
    browser.until("$('@job')?.dataset.state === 'done'").await;
    browser.click("dialog @dialog-cancel").await;
    browser.gone("dialog").await;
    browser.see("@empty-filter").await;
    assert_eq!(tasks(&server, "state=DEAD").await.len(), 3);
    assert_eq!(tasks(&server, "state=PENDING&type=invoice.send").await.len(), 5);

    // Some, by selection.
    browser.open("/ui/tasks?state=PENDING").await;
    browser.count("@task-row", 6).await;
    browser.click("@select-all").await;
    browser.reads("@selection", "6 selected").await;
    browser.click("@selection-cancel").await;
    browser.reads("@bulk-start", "Cancel 6 tasks").await;
    browser.press(ESCAPE).await;
    browser.gone("dialog").await;
    assert_eq!(tasks(&server, "state=CANCELED").await.len(), 0);
    browser.click("@selection-cancel").await;
    browser.click("@bulk-start").await;
    browser.until("$('@job')?.dataset.state === 'done'").await;
    browser.click("dialog @dialog-cancel").await;
    browser.gone("dialog").await;
    assert_eq!(tasks(&server, "state=CANCELED").await.len(), 6);
    let log = fixtures::audit(&server).await;
    let count = |wanted: &str| log.iter().filter(|(action, ..)| action == wanted).count();
    assert_eq!(
        (count("cancel_tasks"), count("replay_tasks"), count("replay_task"), count("edit_task")),
        (1, 1, 1, 1),
        "{log:?}"
    );
    browser.close(&[]).await;
    server.stop().await;
}

#[tokio::test]
async fn states_are_counted_links_and_what_matches_is_changed_together() {
    let server = fixtures::server().await;
    for order in 0..3 {
        fixtures::dead_task(&server, "invoice.send", &format!("{{\"order\": {order}}}"), "exit code 1\nTrace\nno ink")
            .await;
    }
    for order in 0..130 {
        let new = json!({ "type": "report", "payload": order.to_string(), "in": "1h", "tags": ["monthly"] });
        fixtures::task(&server, new).await;
    }
    let alone = fixtures::task(&server, json!({ "type": "mail", "payload": "{}", "in": "1h" })).await;
    let browser = Browser::start(&server).await;
    browser.open("/ui/tasks").await;
    browser.reads("@count-all", "134").await;
    browser.reads("@count-DEAD", "3").await;
    browser.reads("@count-PENDING", "131").await;
    browser.count("@task-row", 100).await;
    browser.click("@next-page").await;
    browser.count("@task-row", 34).await;
    browser.see("@tasks-took").await;

    // A tab is a link, and the fields are in the URL, too.
    browser.click("@state-DEAD").await;
    browser.count("@task-row", 3).await;
    assert_eq!(browser.text("@exit-badge").await, "exit 1");
    browser.reads("@error-line", "no ink").await;
    assert!(!browser.text("@error-line").await.contains("Trace"), "the last line is the summary");
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
    let due = fixtures::show_task(&server, &alone).await["scheduled_for"].clone();
    browser.click("@row-retry").await;
    browser.reads("@toasts", "It is due now").await;
    assert_ne!(fixtures::show_task(&server, &alone).await["scheduled_for"], due);
    browser.click("@row-cancel").await;
    browser.confirm(&["1 task, mail"]).await;
    browser.reads("@task-row @task-state", "CANCELED").await;
    browser.open("/ui/tasks?state=DEAD").await;
    browser.click("@task-row:nth-child(1) @row-replay").await;
    browser.confirm(&["1 task is due at once"]).await;
    browser.count("@task-row", 2).await;

    // All that match, not only those of the page.
    browser.open("/ui/tasks?tag=monthly").await;
    browser.count("@task-row", 100).await;
    browser.click("@retry-all").await;
    browser.reads("@bulk-count", "130").await;
    browser.click("@bulk-start").await;
    browser.until("$('@job')?.dataset.state === 'done'").await;
    browser.click("dialog @dialog-cancel").await;
    browser.gone("dialog").await;
    let now = server.get("/v1/session").await.of(200)["now"].as_str().unwrap().to_owned();
    let late = |task: &&Value| task["scheduled_for"].as_str().unwrap() > now.as_str();
    assert_eq!(tasks(&server, "tag=monthly").await.iter().filter(late).count(), 0, "all of them are due");
    browser.click("@cancel-all").await;
    browser.reads("@bulk-start", "Cancel 130 tasks").await;
    assert_eq!(tasks(&server, "tag=monthly&state=CANCELED").await.len(), 0, "a preview changes nothing");
    browser.click("@bulk-start").await;
    browser.until("$('@job')?.dataset.state === 'done'").await;
    assert_eq!(tasks(&server, "tag=monthly&state=CANCELED").await.len(), 130);
    browser.click("dialog @dialog-cancel").await;
    browser.gone("dialog").await;
    browser.reads("@count-CANCELED", "130").await;
    browser.close(&[]).await;
    server.stop().await;
}

#[tokio::test]
async fn a_schedule_shows_its_next_ticks_and_its_runs() {
    let server = fixtures::server().await;
    let put = json!({ "type": "remind", "payload": "{\"to\": \"all\"}", "cron": "0 9 * * mon", "time_zone": "Europe/Berlin" });
    server.send(server.request(Method::PUT, "/v1/schedules/reminders", Some(&put))).await.of(200);
    let browser = Browser::start(&server).await;
    browser.open("/ui/schedules").await;
    browser.click("@schedule-link").await;
    browser.until("location.pathname === '/ui/schedules/reminders'").await;
    browser.count("@next-time", 5).await;
    browser.until("$$('@next-time').every((one) => /^Monday, \\d+ [A-Z][a-z]+ \\d{4} at 09:00 Europe\\/Berlin$/.test(one.innerText))").await;
    browser.see("@no-runs").await;
    browser.click("@schedule-trigger").await;
    browser.count("@run-row", 1).await;
    let made = tasks(&server, "schedule=reminders").await[0]["id"].as_str().unwrap().to_owned();
    let claim = json!({ "ids": [made], "worker": "press-1", "lease": "1m" });
    let claimed = server.post("/v1/tasks/claim-by-id", claim).await.of(200);
    let lease = &claimed["answers"][0]["claimed"]["lease"];
    let finish = json!({ "lease": lease, "outcome": "dead", "reason": "permanent", "error": "exit code 65 (refuses the task)\nno paper" });
    server.post("/v1/tasks/finish", json!({ "finish": [finish] })).await.of(200);
    browser.reads("@run-row @task-state", "DEAD").await;
    browser.reads("@run-row", "no paper").await;
    browser.shot("schedule").await;
    server.post("/v1/schedules/reminders/pause", json!({})).await.of(200);
    browser.reads("@schedule-next", "It is paused").await;
    browser.count("@next-time", 5).await;
    browser.click("@run-row a").await;
    browser.reads("@page-task", "no paper").await;
    browser.close(&[]).await;
    server.stop().await;
}

#[tokio::test]
async fn a_schedule_is_created_changed_paused_triggered_and_deleted() {
    let server = fixtures::server().await;
    let browser = Browser::start(&server).await;
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
    let shown = async || server.get("/v1/schedules/reminders").await.of(200);
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
    let made = tasks(&server, "schedule=reminders").await;
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
    assert_eq!(server.get("/v1/schedules").await.of(200)["schedules"], json!([]));
    assert_eq!(tasks(&server, "schedule=reminders").await.len(), 1, "its tasks stay");
    let log = fixtures::audit(&server).await;
    assert!(log.iter().any(|(action, target, _)| action == "delete_schedule" && target == "reminders"), "{log:?}");

    // A schedule of another process appears without a reload.
    let put = json!({ "type": "report", "payload": "", "every": "1h" });
    server.send(server.request(Method::PUT, "/v1/schedules/hourly", Some(&put))).await.of(200);
    browser.reads("@schedule-row", "hourly").await;
    browser.close(&[("/v1/schedules/reminders", 400)]).await;
    server.stop().await;
}
