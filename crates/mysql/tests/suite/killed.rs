//! The server is killed and restarts.

use std::path::Path;

use postrider_conformance::private_server::{SHORT_STORM, storm_on_a_killed_server};
use postrider_mysql::MysqlStore;

use crate::{is_long, options};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_that_is_killed_loses_nothing() {
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/services");
    let open = |url: String| async move { MysqlStore::open(&url, options()).await?.connect() };
    storm_on_a_killed_server(&script, "mysql", SHORT_STORM, is_long(), open).await.unwrap();
}
