//! A chromedriver for each browser, driven over HTTP, and killed when the test ends.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpStream};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, Stdio};
use std::time::Duration;

use axum::body::Bytes;
use axum::http::{Method, Request};
use http_body_util::{BodyExt, Full};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::{Value, json};

use crate::test_server::TIMEOUT;

const INSTALL: &str =
    "the dashboard is tested in a browser; install it with: apt-get install -y chromium chromium-driver";

/// Returns the path of a program.
fn program(name: &str) -> PathBuf {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&folders).map(|folder| folder.join(name)).find(|path| path.is_file());
    found.unwrap_or_else(|| panic!("program '{name}' not found:  {INSTALL}"))
}

/// A refused command.
#[derive(Debug)]
pub(crate) struct Refused {
    pub(crate) error: String,
    pub(crate) message: String,
}

/// The process, and the browser that it drives.
#[derive(Debug)]
pub(crate) struct Driver {
    address: SocketAddr,
    session: String,
    browser: Option<u64>,
    client: Client<HttpConnector, Full<Bytes>>,
    process: Child,
    /// Open for as long as the process may write to it.
    _output: BufReader<ChildStdout>,
    /// TestStore of the browser; removed with it.
    _folder: tempfile::TempDir,
}

impl Driver {
    /// Starts both.
    pub(crate) async fn start(width: u32, height: u32) -> Self {
        let (chromedriver, chromium) = (program("chromedriver"), program("chromium"));
        let folder = tempfile::tempdir().unwrap();
        let mut process = Command::new(chromedriver)
            .arg("--port=0")
            .env("TMPDIR", folder.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let mut output = BufReader::new(process.stdout.take().unwrap());
        let listening = tokio::task::spawn_blocking(move || (port(&mut output), output));
        let (port, output) = match tokio::time::timeout(TIMEOUT, listening).await {
            Ok(Ok((Some(port), output))) => (port, output),
            _ => {
                // Killing it also ends the thread that reads its output.
                kill(u64::from(process.id()));
                panic!("chromedriver does not report its port:  {INSTALL}");
            }
        };
        let client = Client::builder(TokioExecutor::new()).build_http();
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let profile = format!("--user-data-dir={}", folder.path().join("profile").display());
        let session = String::new();
        // From here on the process is killed on drop, even if no browser starts.
        let mut driver = Self { address, session, browser: None, client, process, _output: output, _folder: folder };
        let size = format!("--window-size={width},{height}");
        let args = [
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
            "--no-first-run",
            &profile,
            &size,
        ];
        let wanted = json!({ "capabilities": { "alwaysMatch": {
            "browserName": "chrome",
            "goog:chromeOptions": { "binary": chromium, "args": args },
            "goog:loggingPrefs": { "browser": "ALL" },
        } } });
        let begun = driver.call(Method::POST, "/session", &wanted).await;
        let begun = begun.unwrap_or_else(|refused| panic!("{}\n{INSTALL}", refused.message));
        driver.session = begun["sessionId"].as_str().unwrap().to_owned();
        driver.browser = begun["capabilities"]["goog:processID"].as_u64();
        driver
    }

    /// Sends a command to the browser.
    pub(crate) async fn command(&self, method: Method, path: &str, body: &Value) -> Result<Value, Refused> {
        self.call(method, &format!("/session/{}{path}", self.session), body).await
    }

    async fn call(&self, method: Method, path: &str, body: &Value) -> Result<Value, Refused> {
        let body = if method == Method::POST { Bytes::from(body.to_string()) } else { Bytes::new() };
        let request = Request::builder().method(method).uri(format!("http://{}{path}", self.address));
        let request = request.header("content-type", "application/json").body(Full::new(body)).unwrap();
        let asked = async { self.client.request(request).await.unwrap().into_body().collect().await.unwrap() };
        let answer = tokio::time::timeout(TIMEOUT, asked).await.expect("the driver answers").to_bytes();
        let answer: Value = serde_json::from_slice(&answer).unwrap();
        let value = &answer["value"];
        match value["error"].as_str() {
            Some(error) if value["stacktrace"].is_string() => {
                let message = value["message"].as_str().unwrap_or_default();
                let message = message.lines().next().unwrap_or_default().to_owned();
                Err(Refused { error: error.to_owned(), message })
            }
            _ => Ok(value.clone()),
        }
    }
}

/// Reads the port from the driver's output: `ChromeDriver was started successfully on port 34337.`
fn port(output: &mut impl BufRead) -> Option<u16> {
    let mut lines = output.lines().map_while(Result::ok);
    let said = lines.find_map(|line| line.rsplit_once("successfully on port ").map(|(_, port)| port.to_owned()))?;
    said.trim_end_matches('.').parse().ok()
}

fn kill(id: u64) {
    let ended = Command::new("kill").args(["-KILL", &id.to_string()]).stderr(Stdio::null()).status();
    if let Err(error) = ended {
        eprintln!("process {id} may still run: {error}");
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        // A killed driver leaves its browser running, so the session is ended first. A blocking socket is used, as a
        // failed test must not wait on its runtime.
        if !self.session.is_empty() {
            let ended = TcpStream::connect(self.address).and_then(|mut socket| {
                socket.set_read_timeout(Some(Duration::from_secs(5)))?;
                let (session, host) = (&self.session, self.address);
                write!(socket, "DELETE /session/{session} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n")?;
                socket.read(&mut [0; 512])
            });
            if ended.is_err()
                && let Some(browser) = self.browser
            {
                kill(browser);
            }
        }
        kill(u64::from(self.process.id()));
        if let Err(error) = self.process.wait() {
            eprintln!("chromedriver was not waited for: {error}");
        }
    }
}
