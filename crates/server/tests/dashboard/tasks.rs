//! Tasks and schedules by hand.

use axum::http::Method;
use serde_json::{Value, json};

use crate::browser::{Browser, ESCAPE};
use crate::place::Place;
use crate::scene;

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
    assert!(browser.question().await.contains("[Cancel 6 tasks]"));
    browser.press(ESCAPE).await;
    browser.gone("dialog").await;
    assert_eq!(tasks(&place, "state=CANCELED").await.len(), 0);
    browser.click("@selection-cancel").await;
    browser.confirm(&["6 tasks will never be done"]).await;
    assert_eq!(tasks(&place, "state=CANCELED").await.len(), 6);
    let log = scene::audit(&place).await;
    let count = |wanted: &str| log.iter().filter(|(action, ..)| action == wanted).count();
    assert_eq!(
        (count("cancel_task"), count("replay_tasks"), count("replay_task"), count("edit_task")),
        (6, 1, 1, 1),
        "{log:?}"
    );
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
