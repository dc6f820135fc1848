//! Tasks and schedules over HTTP, for people and for workers.

use axum::http::Method;
use postrider_server::Role;
use serde_json::{Value, json};

use crate::place::{Place, eventually};

async fn state(place: &Place, id: &Value) -> Value {
    place.get(&format!("/v1/tasks/{}", id.as_str().unwrap())).await.of(200)
}

#[tokio::test]
async fn a_worker_claims_tells_of_progress_and_finishes() {
    let place = Place::new().await;
    let new = json!({ "type": "mail", "payload": "{\"to\":\"anna\"}", "idempotency_key": "k", "tags": ["a"] });
    let made = place.post("/v1/tasks", new.clone()).await.of(201);
    assert_eq!(
        place.post("/v1/tasks", new).await.of(200),
        json!({ "id": made["id"], "state": "PENDING", "is_new": false })
    );
    let claim = json!({ "types": ["mail"], "worker": "w1", "lease": "1m" });
    let claimed = place.post("/v1/tasks/claim", claim.clone()).await.of(200);
    let task = &claimed["tasks"][0];
    assert_eq!(
        (&task["id"], &task["attempt_count"], &task["payload"]),
        (&made["id"], &json!(1), &json!("{\"to\":\"anna\"}"))
    );
    let beat = json!({ "heartbeats": [{ "lease": task["lease"], "progress": { "fraction": 0.5, "text": "half" } }],
                       "extend": "1m" });
    assert_eq!(place.post("/v1/tasks/heartbeat", beat).await.of(200)["standings"], json!([{ "held": true }]));
    assert_eq!(state(&place, &made["id"]).await["progress"]["text"], "half");
    let workers = place.get("/v1/workers").await.of(200);
    assert_eq!((&workers["workers"][0]["name"], &workers["workers"][0]["kind"]), (&json!("w1"), &json!("task")));

    let finish = json!({ "finish": [{ "lease": task["lease"], "outcome": "succeeded", "result": "sent" }] });
    assert_eq!(place.post("/v1/tasks/finish", finish.clone()).await.of(200)["finished"], json!([{ "held": true }]));
    let again = place.post("/v1/tasks/finish", finish).await.of(200);
    assert_eq!(again["finished"][0]["held"], false, "a lease is used once");
    let done = state(&place, &made["id"]).await;
    assert_eq!((&done["state"], &done["result"]), (&json!("SUCCEEDED"), &json!("sent")));
    assert_eq!(done["attempts"][0]["outcome"], "succeeded");
    assert_eq!(place.post("/v1/tasks/claim", claim).await.of(200)["tasks"], json!([]));
    place.stop().await;
}

#[tokio::test]
async fn a_lease_that_the_server_did_not_issue_is_worth_nothing() {
    let place = Place::new().await;
    place.post("/v1/tasks", json!({ "type": "mail", "payload": "" })).await.of(201);
    let claimed =
        place.post("/v1/tasks/claim", json!({ "types": ["mail"], "worker": "w", "lease": "1m" })).await.of(200);
    let mut lease = claimed["tasks"][0]["lease"].as_str().unwrap().to_owned();
    let last = if lease.ends_with('A') { 'B' } else { 'A' };
    lease.pop();
    lease.push(last);
    for made_up in [lease.as_str(), "", "prl1.AAAA", "1.2"] {
        let finish = json!({ "finish": [{ "lease": made_up, "outcome": "succeeded" }] });
        let row = &place.post("/v1/tasks/finish", finish).await.of(200)["finished"][0];
        assert_eq!((&row["held"], &row["problem"]["code"]), (&json!(false), &json!("invalid_input")));
    }
    place.stop().await;
}

#[tokio::test]
async fn a_lease_that_is_refused_leaves_the_others_of_its_request_alone() {
    let place = Place::new().await;
    place.token(&[Role::Admin], None).await;
    let both = place.token(&[Role::Produce, Role::Consume], None).await;
    let mail_only = place.token(&[Role::Consume], Some(&["task_mail"])).await;
    let post = async |token: &str, path: &str, body: Value| {
        let mut request = place.request(Method::POST, path, Some(&body));
        request.headers_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
        place.send(request).await.of(200)
    };
    let new = |kind: &str| json!({ "type": kind, "payload": "" });
    post(&both, "/v1/tasks/batch", json!({ "tasks": [new("mail"), new("mail"), new("sms")] })).await;
    let claim = json!({ "types": ["mail", "sms"], "worker": "w", "lease": "1m", "max": 3 });
    let claimed = post(&both, "/v1/tasks/claim", claim).await;
    let leases = |kind: &str| {
        let tasks = claimed["tasks"].as_array().unwrap().iter().filter(|task| task["type"] == kind);
        tasks.map(|task| task["lease"].clone()).collect::<Vec<_>>()
    };
    let ([first, second], [sms]) = (&leases("mail")[..], &leases("sms")[..]) else { panic!("{claimed}") };

    let refused = |rows: &Value| {
        let rows = rows.as_array().unwrap().iter();
        rows.map(|row| (row["held"] == true, row.get("problem").is_some())).collect::<Vec<_>>()
    };
    let (held, odd) = ((true, false), (false, true));
    let beats = json!({ "extend": "1m", "heartbeats": [{ "lease": sms }, { "lease": first }, { "lease": second,
                        "progress": { "fraction": 7.0 } }] });
    let beat = post(&mail_only, "/v1/tasks/heartbeat", beats).await;
    assert_eq!(refused(&beat["standings"]), [odd, held, odd]);
    let looked = post(&mail_only, "/v1/tasks/standings", json!({ "leases": ["x", first, sms, second] })).await;
    assert_eq!(refused(&looked["standings"]), [odd, held, odd, held]);
    let large = "x".repeat(1024 * 1024 + 1);
    let finish = json!([{ "lease": first, "outcome": "succeeded", "result": large }, { "lease": sms, "outcome": "dead" },
                        { "lease": first, "outcome": "released", "after": "5s" },
                        { "lease": first, "outcome": "succeeded", "result": "done" }]);
    let ended = post(&mail_only, "/v1/tasks/finish", json!({ "finish": finish })).await;
    assert_eq!(refused(&ended["finished"]), [odd, odd, odd, held]);
    let finish = json!([{ "lease": "x", "outcome": "dead" }, { "lease": second, "outcome": "released" }]);
    let claim = json!({ "types": ["mail"], "worker": "w", "lease": "1m", "finish": finish });
    let ended = post(&mail_only, "/v1/tasks/claim", claim).await;
    assert_eq!(refused(&ended["finished"]), [odd, held]);
    assert_eq!(ended["tasks"].as_array().unwrap().len(), 1, "the one that was released");
    place.stop().await;
}

#[tokio::test]
async fn a_waiting_claim_is_answered_when_a_task_comes() {
    let place = Place::new().await;
    let claim = json!({ "types": ["mail"], "worker": "w", "lease": "1m", "wait": "30s" });
    let (claimed, made) = tokio::join!(place.post("/v1/tasks/claim", claim), async {
        // The claim is under way when the server has counted its connection beside this one.
        eventually(async || {
            let text = String::from_utf8(place.get("/metrics").await.body.to_vec()).unwrap();
            text.contains("postrider_http_connections 2").then_some(())
        })
        .await;
        place.post("/v1/tasks", json!({ "type": "mail", "payload": "" })).await.of(201)
    });
    assert_eq!(claimed.of(200)["tasks"][0]["id"], made["id"]);
    place.stop().await;
}

#[tokio::test]
async fn dead_tasks_are_edited_and_brought_back_and_others_called_off() {
    let place = Place::new().await;
    for payload in ["a", "b", "c"] {
        place.post("/v1/tasks", json!({ "type": "mail", "payload": payload })).await.of(201);
    }
    let claimed = place
        .post("/v1/tasks/claim", json!({ "types": ["mail"], "worker": "w", "lease": "1m", "max": 2 }))
        .await
        .of(200);
    let finish: Vec<Value> = claimed["tasks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|task| json!({ "lease": task["lease"], "outcome": "dead", "reason": "permanent", "error": "no stamp" }))
        .collect();
    place.post("/v1/tasks/finish", json!({ "finish": finish })).await.of(200);
    let dead = place.get("/v1/tasks?state=DEAD&type=mail&error=stamp").await.of(200);
    assert_eq!(dead["tasks"].as_array().unwrap().len(), 2);
    let id = dead["tasks"][0]["id"].as_str().unwrap().to_owned();
    let edited = place
        .send(place.request(Method::PUT, &format!("/v1/tasks/{id}/payload"), Some(&json!({ "payload": "z" }))))
        .await;
    assert_eq!(edited.of(200)["revision"], 1);
    let shown = place.get(&format!("/v1/tasks/{id}")).await.of(200);
    assert_eq!((&shown["payload"], shown["revisions"].as_array().unwrap().len()), (&json!("z"), 1));

    let preview = place.post("/v1/tasks/replay", json!({ "type": ["mail"], "dry_run": true })).await.of(200);
    assert_eq!(preview["replayed"].as_array().unwrap().len(), 2);
    let replayed = place.post(&format!("/v1/tasks/{id}/replay"), json!({})).await.of(200);
    assert_eq!((&replayed["state"], &replayed["replay_count"]), (&json!("PENDING"), &json!(1)));
    let job = place.post("/v1/tasks/replay-job", json!({ "reason": "permanent", "rate": 50.0 })).await.of(202);
    let path = format!("/v1/jobs/{}", job["id"].as_str().unwrap());
    let ended = eventually(async || Some(place.get(&path).await.of(200)).filter(|job| job["state"] != "running")).await;
    assert_eq!((&ended["state"], &ended["done"]), (&json!("done"), &json!(1)));
    let canceled = place.post(&format!("/v1/tasks/{id}/cancel"), json!({})).await.of(200);
    assert_eq!((&canceled["state"], &canceled["left"]), (&json!("CANCELED"), &json!("PENDING")));
    assert_eq!(place.post(&format!("/v1/tasks/{id}/cancel"), json!({})).await.code(), "task_conflict");
    place.stop().await;
}

#[tokio::test]
async fn whoever_began_a_replay_sees_it_and_ends_it() {
    let place = Place::new().await;
    for kind in ["mail", "mail", "sms"] {
        place.post("/v1/tasks", json!({ "type": kind, "payload": "" })).await.of(201);
    }
    let claim = json!({ "types": ["mail", "sms"], "worker": "w", "lease": "1m", "max": 3 });
    let claimed = place.post("/v1/tasks/claim", claim).await.of(200);
    let dead =
        claimed["tasks"].as_array().unwrap().iter().map(|task| json!({ "lease": task["lease"], "outcome": "dead" }));
    place.post("/v1/tasks/finish", json!({ "finish": dead.collect::<Vec<_>>() })).await.of(200);
    let (mail, sms) = (["task_mail"], ["task_sms"]);
    let own = place.token(&[Role::Operate], Some(&mail)).await;
    let other = place.token(&[Role::Operate], Some(&sms)).await;
    let all = place.token(&[Role::Admin], None).await;
    let ask = async |token: &str, method: Method, path: &str, body: Option<&Value>| {
        let mut request = place.request(method, path, body);
        request.headers_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
        place.send(request).await
    };
    let slow = json!({ "type": ["mail"], "rate": 0.01 });
    let job = ask(&own, Method::POST, "/v1/tasks/replay-job", Some(&slow)).await.of(202);
    let path = format!("/v1/jobs/{}", job["id"].as_str().unwrap());
    for (token, sees) in [(&own, true), (&other, false), (&all, true)] {
        let status = if sees { 200 } else { 404 };
        assert_eq!(ask(token, Method::GET, &path, None).await.status, status);
        let listed = ask(token, Method::GET, "/v1/jobs", None).await.of(200);
        assert_eq!(listed["jobs"].as_array().unwrap().len(), usize::from(sees));
    }
    assert_eq!(ask(&other, Method::DELETE, &path, None).await.code(), "not_found");
    assert_eq!(ask(&own, Method::DELETE, &path, None).await.of(200)["state"], "canceled");
    place.stop().await;
}

#[tokio::test]
async fn schedules_are_made_shown_paused_triggered_and_removed() {
    let place = Place::new().await;
    let put = json!({ "type": "report", "payload": "{}", "cron": "0 7 * * *", "time_zone": "Europe/Berlin" });
    let made = place.send(place.request(Method::PUT, "/v1/schedules/daily", Some(&put))).await.of(200);
    assert_eq!((&made["cron"], &made["paused"]), (&json!("0 7 * * *"), &json!(false)));
    assert!(made["next_run_at"].is_string());
    assert_eq!(place.post("/v1/schedules/daily/pause", json!({})).await.of(200)["paused"], true);
    let triggered = place.post("/v1/schedules/daily/trigger", json!({})).await.of(201);
    assert_eq!(state(&place, &triggered["id"]).await["schedule"], "daily");
    assert_eq!(place.post("/v1/schedules/daily/resume", json!({})).await.of(200)["paused"], false);
    assert_eq!(place.get("/v1/schedules").await.of(200)["schedules"].as_array().unwrap().len(), 1);
    let wrong = json!({ "type": "report", "payload": "", "cron": "61 * * * *" });
    let refused = place.send(place.request(Method::PUT, "/v1/schedules/daily", Some(&wrong))).await;
    assert_eq!(refused.code(), "invalid_input");
    place.send(place.request(Method::DELETE, "/v1/schedules/daily", None)).await.of(204);
    assert_eq!(place.get("/v1/schedules/daily").await.code(), "not_found");
    place.stop().await;
}

#[tokio::test]
async fn the_server_does_the_chores_of_tasks() {
    let place = Place::new().await;
    let put = json!({ "type": "tick", "payload": "", "every": "1s" });
    place.send(place.request(Method::PUT, "/v1/schedules/often", Some(&put))).await.of(200);
    let made = eventually(async || {
        let listed = place.get("/v1/tasks?type=tick").await.of(200);
        listed["tasks"].as_array().unwrap().first().cloned()
    })
    .await;
    assert_eq!(made["schedule"], "often");
    place.stop().await;
}
