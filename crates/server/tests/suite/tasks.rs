//! Tasks and schedules over HTTP.

use axum::http::Method;
use postrider_server::Role;
use serde_json::{Value, json};

use crate::test_server::{TestServer, eventually};

async fn state(server: &TestServer, id: &Value) -> Value {
    server.get(&format!("/v1/tasks/{}", id.as_str().unwrap())).await.of(200)
}

#[tokio::test]
async fn a_worker_claims_reports_progress_and_finishes() {
    let server = TestServer::new().await;
    let new = json!({ "type": "mail", "payload": "{\"to\":\"anna\"}", "idempotency_key": "k", "tags": ["a"] });
    let made = server.post("/v1/tasks", new.clone()).await.of(201);
    assert_eq!(
        server.post("/v1/tasks", new).await.of(200),
        json!({ "id": made["id"], "state": "PENDING", "is_new": false })
    );
    let claim = json!({ "types": ["mail"], "worker": "w1", "lease": "1m" });
    let claimed = server.post("/v1/tasks/claim", claim.clone()).await.of(200);
    let task = &claimed["tasks"][0];
    assert_eq!(
        (&task["id"], &task["attempt_count"], &task["payload"]),
        (&made["id"], &json!(1), &json!("{\"to\":\"anna\"}"))
    );
    let beat = json!({ "heartbeats": [{ "lease": task["lease"], "progress": { "fraction": 0.5, "text": "half" } }],
                       "extend": "1m" });
    assert_eq!(server.post("/v1/tasks/heartbeat", beat).await.of(200)["standings"], json!([{ "held": true }]));
    assert_eq!(state(&server, &made["id"]).await["progress"]["text"], "half");
    let workers = server.get("/v1/workers").await.of(200);
    assert_eq!((&workers["workers"][0]["name"], &workers["workers"][0]["kind"]), (&json!("w1"), &json!("task")));

    let finish = json!({ "finish": [{ "lease": task["lease"], "outcome": "succeeded", "result": "sent" }] });
    assert_eq!(server.post("/v1/tasks/finish", finish.clone()).await.of(200)["finished"], json!([{ "held": true }]));
    let again = server.post("/v1/tasks/finish", finish).await.of(200);
    assert_eq!(again["finished"][0]["held"], false, "a lease is used once");
    let done = state(&server, &made["id"]).await;
    assert_eq!((&done["state"], &done["result"]), (&json!("SUCCEEDED"), &json!("sent")));
    assert_eq!(done["attempts"][0]["outcome"], "succeeded");
    assert_eq!(server.post("/v1/tasks/claim", claim).await.of(200)["tasks"], json!([]));
    let metrics = String::from_utf8(server.get("/metrics").await.body.to_vec()).unwrap();
    for line in [
        "postrider_tasks{type=\"mail\",state=\"SUCCEEDED\"} 1",
        "postrider_tasks{type=\"mail\",state=\"PROCESSING\"} 0",
        "postrider_tasks_created_total{type=\"mail\"} 1",
        "postrider_tasks_claimed_total{type=\"mail\"} 1",
        "postrider_task_attempts_total{type=\"mail\",outcome=\"succeeded\"} 1",
        "postrider_task_lag_seconds_count{type=\"mail\"} 1",
        "postrider_task_attempt_duration_seconds_count{type=\"mail\"} 1",
    ] {
        assert!(metrics.contains(line), "{line} is not in\n{metrics}");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_retry_after_the_last_attempt_makes_the_task_dead() {
    let server = TestServer::new().await;
    let claim = json!({ "types": ["mail"], "worker": "w1", "lease": "1m" });
    for is_with_claim in [false, true] {
        let new = json!({ "type": "mail", "payload": "", "max_attempts": 3 });
        let made = server.post("/v1/tasks", new).await.of(201);
        let mut standings = Vec::new();
        for attempt in 1..=3 {
            let task = eventually(async || {
                let claimed = server.post("/v1/tasks/claim", claim.clone()).await.of(200);
                claimed["tasks"].get(0).cloned()
            })
            .await;
            assert_eq!((&task["id"], &task["attempt_count"]), (&made["id"], &json!(attempt)));
            let end = json!([{ "lease": task["lease"], "outcome": "retry", "error": "no stamp", "after": "0s" }]);
            let finished = if is_with_claim {
                // It claims nothing, not even the task that it finishes.
                let other = json!({ "types": ["other"], "worker": "w1", "lease": "1m", "finish": end });
                server.post("/v1/tasks/claim", other).await
            } else {
                server.post("/v1/tasks/finish", json!({ "finish": end })).await
            };
            standings.push(finished.of(200)["finished"][0].clone());
        }
        assert_eq!(
            standings,
            [json!({ "held": true }), json!({ "held": true }), json!({ "held": true, "state": "DEAD" })]
        );
        assert_eq!(server.post("/v1/tasks/claim", claim.clone()).await.of(200)["tasks"], json!([]));
        let dead = state(&server, &made["id"]).await;
        assert_eq!((&dead["state"], &dead["dead_reason"]), (&json!("DEAD"), &json!("max_attempts")));
    }
    let metrics = String::from_utf8(server.get("/metrics").await.body.to_vec()).unwrap();
    for (outcome, count) in [("retried", 4), ("dead", 2)] {
        let line = format!("postrider_task_attempts_total{{type=\"mail\",outcome=\"{outcome}\"}} {count}\n");
        assert!(metrics.contains(&line), "{line} is not in\n{metrics}");
    }
    server.stop().await;
}

#[tokio::test]
async fn a_waiting_worker_is_listed_and_a_working_one_is_not_idle() {
    let server = TestServer::new().await;
    for worker in ["host:7:a", "host:7:b"] {
        let claim = json!({ "types": ["mail"], "worker": worker, "lease": "1m" });
        assert_eq!(server.post("/v1/tasks/claim", claim).await.of(200)["tasks"], json!([]));
    }
    server.post("/v1/tasks", json!({ "type": "mail", "payload": "" })).await.of(201);
    let claim = json!({ "types": ["mail"], "worker": "host:7:a", "lease": "1m" });
    server.post("/v1/tasks/claim", claim).await.of(200);
    let workers = server.get("/v1/workers").await.of(200);
    let found: Vec<_> = workers["workers"]
        .as_array()
        .unwrap()
        .iter()
        .map(|worker| {
            (worker["name"].clone(), worker["kind"].clone(), worker["in_flight"].clone(), worker["queues"].clone())
        })
        .collect();
    let one = |name: &str, held: u64| (json!(name), json!("task"), json!(held), json!(["task_mail"]));
    assert_eq!(found, [one("host:7:a", 1), one("host:7:b", 0)]);
    assert_eq!(workers["workers"][0]["idle_seconds"], 0.0, "it works");
    server.stop().await;
}

#[tokio::test]
async fn a_lease_that_the_server_did_not_issue_is_refused() {
    let server = TestServer::new().await;
    server.post("/v1/tasks", json!({ "type": "mail", "payload": "" })).await.of(201);
    let claimed =
        server.post("/v1/tasks/claim", json!({ "types": ["mail"], "worker": "w", "lease": "1m" })).await.of(200);
    let mut lease = claimed["tasks"][0]["lease"].as_str().unwrap().to_owned();
    let last = if lease.ends_with('A') { 'B' } else { 'A' };
    lease.pop();
    lease.push(last);
    for made_up in [lease.as_str(), "", "prl1.AAAA", "1.2"] {
        let finish = json!({ "finish": [{ "lease": made_up, "outcome": "succeeded" }] });
        let row = &server.post("/v1/tasks/finish", finish).await.of(200)["finished"][0];
        assert_eq!((&row["held"], &row["problem"]["code"]), (&json!(false), &json!("invalid_input")));
    }
    server.stop().await;
}

#[tokio::test]
async fn a_refused_lease_does_not_affect_the_others_of_its_request() {
    let server = TestServer::new().await;
    server.token(&[Role::Admin], None).await;
    let both = server.token(&[Role::Produce, Role::Consume], None).await;
    let mail_only = server.token(&[Role::Consume], Some(&["task_mail"])).await;
    let post = async |token: &str, path: &str, body: Value| {
        let mut request = server.request(Method::POST, path, Some(&body));
        request.headers_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
        server.send(request).await.of(200)
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
    server.stop().await;
}

#[tokio::test]
async fn a_waiting_claim_is_answered_when_a_task_is_due() {
    let server = TestServer::new().await;
    let claim = json!({ "types": ["mail"], "worker": "w", "lease": "1m", "wait": "30s" });
    let (claimed, made) = tokio::join!(server.post("/v1/tasks/claim", claim), async {
        // The claim runs once the server has counted its connection.
        eventually(async || {
            let text = String::from_utf8(server.get("/metrics").await.body.to_vec()).unwrap();
            text.contains("postrider_http_connections 2").then_some(())
        })
        .await;
        server.post("/v1/tasks", json!({ "type": "mail", "payload": "" })).await.of(201)
    });
    assert_eq!(claimed.of(200)["tasks"][0]["id"], made["id"]);
    server.stop().await;
}

#[tokio::test]
async fn dead_tasks_are_edited_and_replayed_and_others_canceled() {
    let server = TestServer::new().await;
    for payload in ["a", "b", "c"] {
        server.post("/v1/tasks", json!({ "type": "mail", "payload": payload })).await.of(201);
    }
    let claimed = server
        .post("/v1/tasks/claim", json!({ "types": ["mail"], "worker": "w", "lease": "1m", "max": 2 }))
        .await
        .of(200);
    let finish: Vec<Value> = claimed["tasks"]
        .as_array()
        .unwrap()
        .iter()
        .map(|task| json!({ "lease": task["lease"], "outcome": "dead", "reason": "permanent", "error": "no stamp" }))
        .collect();
    server.post("/v1/tasks/finish", json!({ "finish": finish })).await.of(200);
    let dead = server.get("/v1/tasks?state=DEAD&type=mail&error=stamp").await.of(200);
    assert_eq!(dead["tasks"].as_array().unwrap().len(), 2);
    let id = dead["tasks"][0]["id"].as_str().unwrap().to_owned();
    let edited = server
        .send(server.request(Method::PUT, &format!("/v1/tasks/{id}/payload"), Some(&json!({ "payload": "z" }))))
        .await;
    assert_eq!(edited.of(200)["revision"], 1);
    let shown = server.get(&format!("/v1/tasks/{id}")).await.of(200);
    assert_eq!((&shown["payload"], shown["revisions"].as_array().unwrap().len()), (&json!("z"), 1));

    let preview = server.post("/v1/tasks/replay", json!({ "type": ["mail"], "dry_run": true })).await.of(200);
    assert_eq!((preview["replayed"].as_array().unwrap().len(), &preview["dry_run"]), (2, &json!(true)));
    let replayed = server.post(&format!("/v1/tasks/{id}/replay"), json!({})).await.of(200);
    assert_eq!((&replayed["state"], &replayed["replay_count"]), (&json!("PENDING"), &json!(1)));
    let job = server.post("/v1/tasks/replay-job", json!({ "reason": "permanent", "rate": 50.0 })).await.of(202);
    let path = format!("/v1/jobs/{}", job["id"].as_str().unwrap());
    let ended =
        eventually(async || Some(server.get(&path).await.of(200)).filter(|job| job["state"] != "running")).await;
    assert_eq!((&ended["state"], &ended["done"]), (&json!("done"), &json!(1)));
    let canceled = server.post(&format!("/v1/tasks/{id}/cancel"), json!({})).await.of(200);
    assert_eq!((&canceled["state"], &canceled["left"]), (&json!("CANCELED"), &json!("PENDING")));
    assert_eq!(server.post(&format!("/v1/tasks/{id}/cancel"), json!({})).await.code(), "task_conflict");
    server.stop().await;
}

#[tokio::test]
async fn the_caller_that_started_a_replay_sees_and_cancels_it() {
    let server = TestServer::new().await;
    for kind in ["mail", "mail", "sms"] {
        server.post("/v1/tasks", json!({ "type": kind, "payload": "" })).await.of(201);
    }
    let claim = json!({ "types": ["mail", "sms"], "worker": "w", "lease": "1m", "max": 3 });
    let claimed = server.post("/v1/tasks/claim", claim).await.of(200);
    let dead =
        claimed["tasks"].as_array().unwrap().iter().map(|task| json!({ "lease": task["lease"], "outcome": "dead" }));
    server.post("/v1/tasks/finish", json!({ "finish": dead.collect::<Vec<_>>() })).await.of(200);
    let (mail, sms) = (["task_mail"], ["task_sms"]);
    let own = server.token(&[Role::Operate], Some(&mail)).await;
    let other = server.token(&[Role::Operate], Some(&sms)).await;
    let all = server.token(&[Role::Admin], None).await;
    let ask = async |token: &str, method: Method, path: &str, body: Option<&Value>| {
        let mut request = server.request(method, path, body);
        request.headers_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
        server.send(request).await
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
    server.stop().await;
}

#[tokio::test]
async fn schedules_are_created_shown_paused_triggered_and_deleted() {
    let server = TestServer::new().await;
    let put = json!({ "type": "report", "payload": "{}", "cron": "0 7 * * *", "time_zone": "Europe/Berlin" });
    let made = server.send(server.request(Method::PUT, "/v1/schedules/daily", Some(&put))).await.of(200);
    assert_eq!((&made["cron"], &made["paused"]), (&json!("0 7 * * *"), &json!(false)));
    assert!(made["next_run_at"].is_string());
    assert_eq!(server.post("/v1/schedules/daily/pause", json!({})).await.of(200)["paused"], true);
    let triggered = server.post("/v1/schedules/daily/trigger", json!({})).await.of(201);
    assert_eq!(state(&server, &triggered["id"]).await["schedule"], "daily");
    assert_eq!(server.post("/v1/schedules/daily/resume", json!({})).await.of(200)["paused"], false);
    assert_eq!(server.get("/v1/schedules").await.of(200)["schedules"].as_array().unwrap().len(), 1);
    let wrong = json!({ "type": "report", "payload": "", "cron": "61 * * * *" });
    let refused = server.send(server.request(Method::PUT, "/v1/schedules/daily", Some(&wrong))).await;
    assert_eq!(refused.code(), "invalid_input");
    server.send(server.request(Method::DELETE, "/v1/schedules/daily", None)).await.of(204);
    assert_eq!(server.get("/v1/schedules/daily").await.code(), "not_found");
    server.stop().await;
}

#[tokio::test]
async fn the_server_runs_the_chores_of_tasks() {
    let server = TestServer::new().await;
    let new = json!({ "type": "late", "payload": "", "deadline": "1970-01-02T00:00:00Z" });
    let late = server.post("/v1/tasks", new).await.of(201);
    let put = json!({ "type": "tick", "payload": "", "every": "1s" });
    server.send(server.request(Method::PUT, "/v1/schedules/often", Some(&put))).await.of(200);
    let made = eventually(async || {
        let listed = server.get("/v1/tasks?type=tick").await.of(200);
        listed["tasks"].as_array().unwrap().first().cloned()
    })
    .await;
    assert_eq!(made["schedule"], "often");
    let dead = eventually(async || {
        let listed = server.get("/v1/tasks?type=late&state=DEAD").await.of(200);
        listed["tasks"].as_array().unwrap().first().cloned()
    })
    .await;
    assert_eq!((&dead["id"], &dead["dead_reason"]), (&late["id"], &json!("deadline")));
    // No request created them: they are in the store's count, and not in the counters of requests.
    let metrics = String::from_utf8(server.get("/metrics").await.body.to_vec()).unwrap();
    let value = |line: &str| metrics.lines().find_map(|found| found.strip_prefix(line)?.trim().parse::<u64>().ok());
    assert!(value("postrider_tasks{type=\"tick\",state=\"PENDING\"}").is_some_and(|count| count > 0), "{metrics}");
    assert_eq!(value("postrider_tasks_created_total{type=\"tick\"}").unwrap_or(0), 0);
    assert_eq!(value("postrider_tasks{type=\"late\",state=\"DEAD\"}"), Some(1));
    assert_eq!(value("postrider_task_attempts_total{type=\"late\",outcome=\"dead\"}").unwrap_or(0), 0);
    server.stop().await;
}

#[tokio::test]
async fn many_are_counted_by_state_and_changed_by_a_filter() {
    let server = TestServer::new().await;
    for number in 0..40 {
        let task_type = if number % 4 == 0 { "mail" } else { "report" };
        let new = json!({ "type": task_type, "payload": "", "in": "1h", "tags": ["monthly"] });
        server.post("/v1/tasks", new).await.of(201);
    }
    let mut ids = Vec::new();
    for _ in 0..3 {
        ids.push(server.post("/v1/tasks", json!({ "type": "mail", "payload": "" })).await.of(201)["id"].clone());
    }
    let claim = json!({ "types": ["mail"], "worker": "w", "lease": "10m", "max": 2 });
    let claimed = server.post("/v1/tasks/claim", claim).await.of(200);
    let finish = json!({ "finish": [{ "lease": claimed["tasks"][0]["lease"], "outcome": "succeeded" }] });
    server.post("/v1/tasks/finish", finish).await.of(200);
    let counts = server.get("/v1/tasks/counts").await.of(200);
    let of = |state: &str| counts["counts"][state].as_u64().unwrap();
    assert_eq!((of("PENDING"), of("PROCESSING"), of("SUCCEEDED"), of("DEAD")), (41, 1, 1, 0), "{counts}");
    assert_eq!((&counts["looked_at"], &counts["complete"]), (&json!(43), &json!(true)));
    assert_eq!((&counts["took"]["count"], &counts["waited"]["count"]), (&json!(1), &json!(1)));
    let row = |task_type: &str, state: &str, count: u64| json!({ "type": task_type, "state": state, "count": count, "approximate": false });
    let by_type = |counts: &Value| {
        let rows = counts["by_type"].as_array().unwrap().iter().filter(|row| row["count"] != 0);
        rows.cloned().collect::<Vec<_>>()
    };
    let [pending, running, done] =
        [("PENDING", 11), ("PROCESSING", 1), ("SUCCEEDED", 1)].map(|(state, count)| row("mail", state, count));
    assert_eq!(by_type(&counts), [pending, running, done, row("report", "PENDING", 30)]);
    let counts = server.get("/v1/tasks/counts?type=mail&tag=monthly").await.of(200);
    assert_eq!((&counts["counts"]["PENDING"], &counts["looked_at"]), (&json!(10), &json!(10)));
    assert_eq!(by_type(&counts), [row("mail", "PENDING", 10)]);

    // A token limited to a queue counts and changes only its tasks.
    server.token(&[Role::Admin], None).await;
    let token = server.token(&[Role::Operate], Some(&["task_mail"])).await;
    let ask = async |method: Method, path: &str, body: Option<Value>| {
        let mut request = server.request(method, path, body.as_ref());
        request.headers_mut().insert("authorization", format!("Bearer {token}").parse().unwrap());
        server.send(request).await
    };
    let counts = ask(Method::GET, "/v1/tasks/counts", None).await.of(200);
    assert_eq!(counts["looked_at"], 13);
    let asked = json!({ "tag": ["monthly"], "dry_run": true });
    let chosen = ask(Method::POST, "/v1/tasks/retry-job", Some(asked)).await.of(200);
    assert_eq!((chosen["tasks"].as_array().unwrap().len(), &chosen["dry_run"]), (10, &json!(true)));
    let chosen = ask(Method::POST, "/v1/tasks/cancel-job", Some(json!({ "dry_run": true }))).await.of(200);
    assert_eq!((chosen["tasks"].as_array().unwrap().len(), &chosen["processing"]), (12, &json!(1)));
    let named = json!({ "ids": ids, "dry_run": true });
    let chosen = ask(Method::POST, "/v1/tasks/retry-job", Some(named)).await.of(200);
    assert_eq!((chosen["tasks"].as_array().unwrap().len(), chosen["skipped"].as_array().unwrap().len()), (1, 2));

    let job = ask(Method::POST, "/v1/tasks/cancel-job", Some(json!({ "tag": ["monthly"] }))).await.of(202);
    let path = format!("/v1/jobs/{}", job["id"].as_str().unwrap());
    let ended =
        eventually(async || Some(ask(Method::GET, &path, None).await.of(200)).filter(|job| job["state"] != "running"))
            .await;
    assert_eq!((&ended["kind"], &ended["done"], &ended["skipped"]), (&json!("cancel"), &json!(10), &json!(0)));
    let counts = ask(Method::GET, "/v1/tasks/counts", None).await.of(200);
    assert_eq!((&counts["counts"]["CANCELED"], &counts["counts"]["PROCESSING"]), (&json!(10), &json!(1)));
    server.stop().await;
}

#[tokio::test]
async fn a_schedule_lists_its_next_ticks() {
    let server = TestServer::new().await;
    let put = json!({ "type": "remind", "payload": "", "cron": "30 9 * * *", "time_zone": "Europe/Berlin" });
    let made = server.send(server.request(Method::PUT, "/v1/schedules/daily", Some(&put))).await.of(200);
    let found = server.get("/v1/schedules/daily/times").await.of(200);
    let times: Vec<_> = found["times"].as_array().unwrap().iter().map(|time| time.as_str().unwrap()).collect();
    assert_eq!((times.len(), times[0]), (5, made["next_run_at"].as_str().unwrap()));
    assert!(times.is_sorted() && times.iter().all(|time| time.contains(":30:00")), "{times:?}");
    assert_eq!((&found["time_zone"], &found["paused"]), (&json!("Europe/Berlin"), &json!(false)));
    server.post("/v1/schedules/daily/pause", json!({})).await.of(200);
    let found = server.get("/v1/schedules/daily/times?limit=2").await.of(200);
    assert_eq!((found["times"].as_array().unwrap().len(), &found["paused"]), (2, &json!(true)));
    assert_eq!(server.get("/v1/schedules/weekly/times").await.code(), "not_found");
    server.stop().await;
}
