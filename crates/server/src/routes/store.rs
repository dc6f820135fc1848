//! The store: capabilities, health, doctor.

use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use postrider::{Deadline, MessagingService};
use postrider_wire::capabilities::{CapabilityTable, Finding, Findings, Health};

use super::{ANY_ROLE, OPERATE};
use crate::access::Caller;
use crate::api::schemas::{list, named, only};
use crate::api::{ApiError, Content, Route, Verb, answer};
use crate::app::App;

pub(super) fn routes() -> Vec<Route> {
    const GROUP: &str = "Store";
    vec![
        Route::new(
            (Verb::Get, "/v1/capabilities"),
            (GROUP, "getCapabilities"),
            ANY_ROLE,
            "The capabilities of the store, native, emulated or refused, and its limits.",
            capabilities,
        )
        .answers(200, "Every feature", Content::Json(named("Capabilities"))),
        Route::new((Verb::Get, "/v1/health"), (GROUP, "getHealth"), ANY_ROLE, "Checks that the store answers.", health)
            .answers(200, "It answers", Content::Json(named("Health"))),
        Route::new(
            (Verb::Get, "/v1/doctor"),
            (GROUP, "examineStore"),
            OPERATE,
            "Checks the store and its server; each finding has its fix.",
            doctor,
        )
        .answers(200, "The findings", Content::Json(only("findings", list(named("Finding"))))),
    ]
}

async fn capabilities(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    answer(&CapabilityTable::new(app.provider.capabilities(), env!("CARGO_PKG_VERSION")))
}

async fn health(State(app): State<Arc<App>>) -> Result<Response, ApiError> {
    app.provider.health_check(Deadline::after(Duration::from_secs(5))).await?;
    answer(&Health { ok: true })
}

async fn doctor(State(app): State<Arc<App>>, caller: Caller) -> Result<Response, ApiError> {
    // Findings name all queues.
    caller.check_everywhere()?;
    let findings = app.endpoint.examine(Deadline::after(Duration::from_secs(30))).await?;
    answer(&Findings { findings: findings.into_iter().map(Finding::from).collect() })
}
