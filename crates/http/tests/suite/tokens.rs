//! The tokens of a server.

use postrider_core::MessagingError;
use postrider_http::HttpTokens;
use postrider_wire::token::{NewTokenRequest, Role};
use postrider_wire::{Code, Problem};
use serde_json::json;
use uuid::Uuid;

use crate::fake::{Fake, Reply};
use crate::soon;

#[tokio::test]
async fn tokens_are_created_listed_and_revoked() {
    let (id, gone) = (Uuid::new_v4(), Uuid::new_v4());
    let info = json!({"id": id, "name": "ci", "roles": ["read"], "queues": null, "created_at": "2026-01-01T00:00:00Z",
        "expires_at": null, "last_used_at": null});
    let own = format!("/v1/tokens/{id}");
    let fake = Fake::start(move |seen| match (seen.method.as_str(), seen.path.as_str()) {
        ("POST", "/v1/tokens") => {
            let mut created = info.clone();
            created["token"] = "prt_secret".into();
            Reply::Json(201, created)
        }
        ("GET", "/v1/tokens") => Reply::ok(json!({ "tokens": [info] })),
        ("DELETE", path) if path == own => Reply::Bytes(b"HTTP/1.1 204 No Content\r\n\r\n".to_vec()),
        _ => Reply::problem(&Problem::new(Code::NotFound, "there is no such token")),
    })
    .await;
    let tokens = HttpTokens::new(fake.connect().await);
    let new = NewTokenRequest { name: "ci".into(), roles: vec![Role::Read], queues: None, expires_in: None };
    let created = tokens.create(&new, soon()).await.unwrap();
    assert_eq!((created.token.as_str(), created.info.id), ("prt_secret", id));
    assert_eq!(fake.seen().await.body, json!({"name": "ci", "roles": ["read"]}));
    assert_eq!(tokens.list(soon()).await.unwrap(), [created.info]);
    assert!(tokens.revoke(id, soon()).await.unwrap());
    assert!(!tokens.revoke(gone, soon()).await.unwrap());
}

#[tokio::test]
async fn token_requests_are_not_repeated() {
    let fake = Fake::start(|_| Reply::Cut).await;
    let tokens = HttpTokens::new(fake.connect().await);
    let new = NewTokenRequest { name: "ci".into(), roles: vec![Role::Read], queues: None, expires_in: None };
    let lost = [tokens.create(&new, soon()).await.map(drop), tokens.revoke(Uuid::new_v4(), soon()).await.map(drop)];
    for error in lost.map(Result::unwrap_err) {
        assert!(matches!(error, MessagingError::OutcomeUnknown { .. }), "{error:?}");
        assert!(!error.to_string().contains("message"), "{error}");
    }
    assert_eq!(fake.rest().await.len(), 2);
}
