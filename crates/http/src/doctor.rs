//! Whether a server can be used, and what it says of its own store.

use postrider_core::{BoxFuture, Deadline, Finding, MessagingError};
use postrider_wire::capabilities::Findings;

use crate::options::HttpOptions;
use crate::store::HttpStore;
use crate::transport::{Ask, Transport};

/// What examinations look at. A word that is not among them is told in the text.
const CHECKS: &[&str] = &[
    "archive",
    "broker",
    "clock",
    "connection",
    "credentials",
    "dead letters",
    "disk",
    "durability",
    "files",
    "flags",
    "leases",
    "notifications",
    "permissions",
    "queues",
    "rights",
    "schema",
    "server",
    "settings",
    "tables",
    "tasks",
    "version",
];

impl HttpStore {
    /// Looks at a server from outside, then asks it how its store is.
    pub fn examine(
        url: &str,
        options: HttpOptions,
        deadline: Deadline,
    ) -> BoxFuture<'_, Result<Vec<Finding>, MessagingError>> {
        Box::pin(async move {
            let store = match Self::meet(Transport::new(url, &options)?, options.worker, deadline).await {
                Ok(store) => store,
                Err(error) => return Ok(vec![Finding::failed("connection", &error)]),
            };
            let mut findings = vec![Finding::fine("connection", store.server())];
            let ask = store.shared.transport.look::<Findings>("examine", Ask::get("/v1/doctor"));
            match deadline.limit(ask).await {
                Some(Ok(told)) => findings.extend(told.findings.into_iter().map(|finding| {
                    let known = CHECKS.iter().copied().find(|check| *check == finding.check);
                    let found = match known {
                        Some(_) => finding.found,
                        None => format!("{}: {}", finding.check, finding.found),
                    };
                    Finding {
                        check: known.unwrap_or("server"),
                        severity: finding.severity.into(),
                        found,
                        fix: finding.fix,
                    }
                })),
                Some(Err(error)) => findings.push(Finding::unseen("server", error)),
                None => findings.push(Finding::unseen("server", "it did not answer in time")),
            }
            Ok(findings)
        })
    }
}
