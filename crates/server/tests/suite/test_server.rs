//! A server for each test, and an HTTP client.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use axum::http::{HeaderMap, Method, Request, StatusCode};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use postrider::postgres::tokio_postgres::{self, NoTls};
use postrider::tasks::Shutdown;
use postrider::{Config, Deadline, Sources, StateStorage, SystemContext};
use postrider_server::{NewToken, Role, ServeError, Server, ServerOptions, Tokens};
use serde_json::Value;
use tokio::task::JoinHandle;

/// Time-out of everything that a test waits for.
pub(crate) const TIMEOUT: Duration = Duration::from_secs(30);

/// The store of a test server: its own file or schema.
#[derive(Debug, Clone)]
pub(crate) struct TestStore {
    url: String,
    schema: Option<String>,
    folder: Option<Arc<tempfile::TempDir>>,
}

impl TestStore {
    pub(crate) fn sqlite() -> Self {
        Self::sqlite_in(tempfile::tempdir().unwrap())
    }

    pub(crate) fn sqlite_in(folder: tempfile::TempDir) -> Self {
        let url = format!("sqlite:{}", folder.path().join("queues.db").display());
        Self { url, schema: None, folder: Some(Arc::new(folder)) }
    }

    /// A schema of the PostgreSQL server for tests. It is not removed.
    pub(crate) fn postgres() -> Self {
        let url = std::env::var("POSTRIDER_POSTGRES_URL").unwrap_or_else(|_| {
            panic!("no PostgreSQL: run `scripts/services up postgres` and `eval \"$(scripts/services env)\"` first")
        });
        let schema = format!("served_{:08x}", rand::random::<u32>());
        Self { url, schema: Some(schema), folder: None }
    }

    /// Makes the store reject rows of a table with this payload.
    pub(crate) async fn refuse(&self, table: &str, payload: &str) -> RejectingStore {
        let (client, connection) = tokio_postgres::connect(&self.url, NoTls).await.unwrap();
        tokio::spawn(connection);
        let table = format!("{}.{table}", self.schema.as_deref().unwrap());
        let check = format!("alter table {table} add constraint refusing check (payload <> '{payload}'::bytea)");
        client.batch_execute(&check).await.unwrap();
        RejectingStore { client, table }
    }

    /// Blocks every change of a kind, like `update of task`, until it is unblocked.
    pub(crate) async fn block(&self, change: &str) -> BlockedChange {
        let (client, connection) = tokio_postgres::connect(&self.url, NoTls).await.unwrap();
        tokio::spawn(connection);
        let (schema, key) = (self.schema.as_deref().unwrap(), rand::random_range(1..i32::MAX));
        let (verb, table) = change.split_once(" of ").unwrap();
        let sql = format!(
            "select pg_advisory_lock({key}); \
             create function {schema}.hold_{key}() returns trigger language plpgsql as \
               $$begin perform pg_advisory_xact_lock_shared({key}); return new; end$$; \
             create trigger hold_{key} before {verb} on {schema}.{table} for each row \
               execute function {schema}.hold_{key}()"
        );
        client.batch_execute(&sql).await.unwrap();
        BlockedChange { client, key }
    }
}

/// A store that rejects some rows.
pub(crate) struct RejectingStore {
    client: tokio_postgres::Client,
    table: String,
}

impl RejectingStore {
    pub(crate) async fn end(self) {
        self.client.batch_execute(&format!("alter table {} drop constraint refusing", self.table)).await.unwrap();
    }
}

/// A blocked kind of change.
pub(crate) struct BlockedChange {
    client: tokio_postgres::Client,
    key: i32,
}

impl BlockedChange {
    /// Waits until a change is blocked.
    pub(crate) async fn wait_until_blocked(&self) {
        let query =
            "select count(*) from pg_locks where locktype = 'advisory' and not granted and objid = $1::int4::oid";
        eventually(async || {
            let row = self.client.query_one(query, &[&self.key]).await.unwrap();
            (row.get::<_, i64>(0) > 0).then_some(())
        })
        .await;
    }

    pub(crate) async fn unblock(self) {
        self.client.batch_execute(&format!("select pg_advisory_unlock({})", self.key)).await.unwrap();
    }
}

/// A running server on its own store.
pub(crate) struct TestServer {
    pub(crate) address: SocketAddr,
    pub(crate) context: SystemContext,
    pub(crate) state: StateStorage,
    /// Removed with the server.
    _folder: Option<Arc<tempfile::TempDir>>,
    shutdown: Shutdown,
    running: JoinHandle<Result<(), ServeError>>,
    client: Client<HttpConnector, Full<Bytes>>,
}

/// A complete answer.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: StatusCode,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Asserts the status. Returns the JSON of the body.
    #[track_caller]
    pub(crate) fn of(self, status: u16) -> Value {
        assert_eq!(self.status.as_u16(), status, "{}", String::from_utf8_lossy(&self.body));
        if self.body.is_empty() { Value::Null } else { self.json() }
    }

    /// Returns the code of a problem.
    #[track_caller]
    pub(crate) fn code(self) -> String {
        assert_eq!(self.headers["content-type"], "application/problem+json", "{self:?}");
        self.json()["code"].as_str().unwrap().to_owned()
    }
}

impl TestServer {
    pub(crate) async fn new() -> Self {
        Self::with(ServerOptions::default()).await
    }

    pub(crate) async fn with(options: ServerOptions) -> Self {
        Self::on(&TestStore::sqlite(), options).await
    }

    /// A server on a free port.
    pub(crate) async fn on(files: &TestStore, options: ServerOptions) -> Self {
        Self::listening(files, ServerOptions { listen: SocketAddr::from(([127, 0, 0, 1], 0)), ..options }).await
    }

    /// A server at the address of the options.
    pub(crate) async fn listening(files: &TestStore, options: ServerOptions) -> Self {
        let mut sources = Sources::none().flag("--url", "common.messaging.url", &files.url);
        if let Some(schema) = &files.schema {
            sources = sources.flag("--schema", "common.messaging.postgres.schema", schema);
        }
        let context = SystemContext::from_config(Config::load(&sources).unwrap()).await.unwrap();
        let state = StateStorage::new(context.messaging_provider.inner()).unwrap();
        let bound = Server::bind(context.clone(), state.clone(), options).await.unwrap();
        let (address, shutdown) = (bound.address(), Shutdown::new());
        let running = tokio::spawn(bound.run(shutdown.clone()));
        let client = Client::builder(TokioExecutor::new()).build_http();
        Self { address, context, state, _folder: files.folder.clone(), shutdown, running, client }
    }

    /// Creates a token, and before it one of an admin, which must be the first.
    pub(crate) async fn token(&self, roles: &[Role], queues: Option<&[&str]>) -> String {
        let queues = queues.map(|queues| queues.iter().map(|queue| queue.parse().unwrap()).collect());
        let new = NewToken { name: format!("{roles:?}"), roles: roles.to_vec(), queues, expires_in: None };
        let tokens = Tokens::new(self.state.clone());
        if tokens.list(Deadline::default()).await.unwrap().is_empty() {
            let admin = NewToken { name: "first".into(), roles: vec![Role::Admin], queues: None, expires_in: None };
            tokens.create(admin, "test", Deadline::default()).await.unwrap();
        }
        tokens.create(new, "test", Deadline::default()).await.unwrap().1
    }

    pub(crate) async fn send(&self, request: Request<Full<Bytes>>) -> Answer {
        let answer = tokio::time::timeout(TIMEOUT, self.client.request(request)).await.expect("in time").unwrap();
        let (parts, body) = answer.into_parts();
        let body = tokio::time::timeout(TIMEOUT, body.collect()).await.expect("in time").unwrap().to_bytes();
        Answer { status: parts.status, headers: parts.headers, body }
    }

    pub(crate) fn request(&self, method: Method, path: &str, body: Option<&Value>) -> Request<Full<Bytes>> {
        let request = Request::builder().method(method).uri(format!("http://{}{path}", self.address));
        match body {
            Some(body) => request
                .header("content-type", "application/json")
                .body(Full::new(Bytes::from(body.to_string())))
                .unwrap(),
            None => request.body(Full::new(Bytes::new())).unwrap(),
        }
    }

    pub(crate) async fn get(&self, path: &str) -> Answer {
        self.send(self.request(Method::GET, path, None)).await
    }

    pub(crate) async fn post(&self, path: &str, body: Value) -> Answer {
        self.send(self.request(Method::POST, path, Some(&body))).await
    }

    /// Waits until the client of this test has the only connection.
    pub(crate) async fn wait_until_idle(&self) {
        eventually(async || {
            let text = String::from_utf8(self.get("/metrics").await.body.to_vec()).unwrap();
            text.contains("postrider_http_connections 1\n").then_some(())
        })
        .await;
    }

    /// Requests the stop of the server.
    pub(crate) fn request_stop(&self) {
        self.shutdown.request();
    }

    /// Stops the server, within the time-out.
    pub(crate) async fn stop(self) {
        self.shutdown.request();
        tokio::time::timeout(TIMEOUT, self.running).await.expect("the server ends").unwrap().unwrap();
    }
}

/// Polls until there is a value.
pub(crate) async fn eventually<T>(mut look: impl AsyncFnMut() -> Option<T>) -> T {
    let until = tokio::time::Instant::now() + TIMEOUT;
    loop {
        if let Some(found) = look().await {
            return found;
        }
        assert!(tokio::time::Instant::now() < until, "timed out");
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}
