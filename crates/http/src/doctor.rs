//! `doctor`: checks of a server and of its store.

use postrider_core::{BoxFuture, Deadline, Finding, MessagingError};
use postrider_wire::capabilities::Findings;

use crate::options::HttpOptions;
use crate::store::HttpStore;
use crate::transport::{Request, Transport};

/// Names of checks. An unknown name is put into the text of the finding.
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
    /// Checks the connection to a server, then reads its checks of its store.
    pub fn examine(
        url: &str,
        options: HttpOptions,
        deadline: Deadline,
    ) -> BoxFuture<'_, Result<Vec<Finding>, MessagingError>> {
        Box::pin(async move {
            let store = match Self::open_with(Transport::new(url, &options)?, options.worker, deadline).await {
                Ok(store) => store,
                Err(error) => return Ok(vec![Finding::failed("connection", &error)]),
            };
            let mut findings = vec![Finding::fine("connection", store.server())];
            let request = store.shared.transport.call::<Findings>("examine", Request::get("/v1/doctor"));
            match deadline.limit(request).await {
                Some(Ok(answer)) => findings.extend(answer.findings.into_iter().map(|finding| {
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
