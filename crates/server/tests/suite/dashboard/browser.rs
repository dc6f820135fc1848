//! A browser driven by a test. In selectors and scripts `@name` stands for `[data-test="name"]`.

use std::cell::RefCell;
use std::path::PathBuf;
use std::time::Duration;

use axum::http::Method;
use data_encoding::BASE64;
use serde_json::{Value, json};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::Instant;

use super::driver::{Driver, Refused};
use crate::test_server::TestServer;

pub(crate) const ENTER: &str = "\u{e007}";
pub(crate) const ESCAPE: &str = "\u{e00c}";
pub(crate) const TAB: &str = "\u{e004}";

/// Time-out of every wait for the page.
const TIMEOUT: Duration = Duration::from_secs(60);

/// Permits for concurrent browsers: each needs a core.
static BROWSERS: Semaphore = Semaphore::const_new(2);

/// WebDriver's JSON key of an element.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// A provoked failure of a request: suffix of the URL, and the status. The browser logs each on its console.
pub(crate) type Provoked<'a> = (&'a str, u16);

/// Stands for the status of a request without an answer.
pub(crate) const NO_ANSWER: u16 = 0;

pub(crate) struct Browser {
    driver: Driver,
    home: String,
    console: RefCell<Vec<String>>,
    _permit: SemaphorePermit<'static>,
}

/// Returns the folder of the screenshots.
pub(crate) fn shots() -> PathBuf {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).with_file_name("dashboard");
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn written_out(text: &str) -> String {
    let mut parts = text.split('@');
    let mut all = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let end = part.find(|c: char| !(c.is_ascii_alphanumeric() || c == '-')).unwrap_or(part.len());
        all.push_str(&format!("[data-test=\"{}\"]{}", &part[..end], &part[end..]));
    }
    all
}

/// Whether a line of the console is about a provoked failure.
fn is_about(line: &str, (path, status): Provoked<'_>) -> bool {
    let words = if status == NO_ANSWER { "net::ERR_".to_owned() } else { format!("a status of {status} ") };
    line.split(' ').next().is_some_and(|address| address.ends_with(path)) && line.contains(&words)
}

/// A selector as a script literal.
fn quoted(css: &str) -> Value {
    json!(written_out(css))
}

impl Browser {
    /// Starts a browser without a page.
    pub(crate) async fn start(server: &TestServer) -> Self {
        let permit = BROWSERS.acquire().await.unwrap();
        let driver = Driver::start(1280, 900).await;
        let browser =
            Self { driver, home: format!("http://{}", server.address), console: RefCell::default(), _permit: permit };
        browser.size(1280, 900).await;
        browser
    }

    /// Closes the browser. Its console must contain exactly the provoked failures.
    #[track_caller]
    pub(crate) fn close(self, provoked: &[Provoked<'_>]) -> impl Future<Output = ()> {
        let caller = std::panic::Location::caller();
        async move {
            self.listen().await;
            let logged = self.console.take();
            let unexpected: Vec<_> =
                logged.iter().filter(|line| !provoked.iter().any(|one| is_about(line, *one))).collect();
            assert!(unexpected.is_empty(), "{caller}: on the console: {unexpected:#?}");
            let missing: Vec<_> =
                provoked.iter().filter(|one| !logged.iter().any(|line| is_about(line, **one))).collect();
            assert!(missing.is_empty(), "{caller}: was not refused: {missing:?}");
        }
    }

    /// Reads the console; the driver returns every line once.
    async fn listen(&self) {
        let log = self.post("/se/log", json!({ "type": "browser" })).await;
        let bad = |entry: &&Value| entry["level"] == "SEVERE" || entry["level"] == "WARNING";
        let lines =
            log.as_array().unwrap().iter().filter(bad).map(|entry| entry["message"].as_str().unwrap().to_owned());
        self.console.borrow_mut().extend(lines);
    }

    /// Waits until a provoked failure is on the console.
    pub(crate) async fn until_logged(&self, provoked: Provoked<'_>) {
        let end = Instant::now() + TIMEOUT;
        while !self.console.borrow().iter().any(|line| is_about(line, provoked)) {
            if Instant::now() > end {
                self.fail(&format!("not on the console: {provoked:?}")).await;
            }
            tokio::time::sleep(Duration::from_millis(15)).await;
            self.listen().await;
        }
    }

    async fn ask(&self, method: Method, path: &str, body: Value) -> Result<Value, Refused> {
        self.driver.command(method, path, &body).await
    }

    async fn post(&self, path: &str, body: Value) -> Value {
        self.ask(Method::POST, path, body).await.unwrap_or_else(|refused| panic!("{path}: {refused:?}"))
    }

    async fn devtools(&self, command: &str, params: Value) {
        self.post("/goog/cdp/execute", json!({ "cmd": command, "params": params })).await;
    }

    /// Sets the size of the window; a small one is mobile.
    pub(crate) async fn size(&self, width: u32, height: u32) {
        let params = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600 });
        self.devtools("Emulation.setDeviceMetricsOverride", params).await;
    }

    /// Hides scrollbars, which differ between machines.
    pub(crate) async fn hide_scrollbars(&self) {
        self.devtools("Emulation.setScrollbarsHidden", json!({ "hidden": true })).await;
    }

    /// Sets the preferred colour scheme of the system: `light` or `dark`.
    pub(crate) async fn prefers(&self, scheme: &str) {
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.devtools("Emulation.setEmulatedMedia", json!({ "features": features })).await;
    }

    /// Opens a URL of the dashboard.
    pub(crate) async fn open(&self, path: &str) {
        self.post("/url", json!({ "url": format!("{}{path}", self.home) })).await;
    }

    pub(crate) async fn back(&self) {
        self.post("/back", json!({})).await;
    }

    async fn run(&self, script: &str, args: Value) -> Result<Value, Refused> {
        let known =
            "const $ = (css) => document.querySelector(css), $$ = (css) => [...document.querySelectorAll(css)];";
        let script = format!("{known} {}", written_out(script));
        self.ask(Method::POST, "/execute/sync", json!({ "script": script, "args": args })).await
    }

    /// Evaluates an expression in the page.
    pub(crate) async fn value(&self, expression: &str) -> Value {
        let found = self.run(&format!("return ({expression})"), json!([])).await;
        found.unwrap_or_else(|refused| panic!("{expression}: {refused:?}"))
    }

    /// Waits until an expression is truthy in the page. Returns its value.
    pub(crate) async fn until(&self, expression: &str) -> Value {
        let end = Instant::now() + TIMEOUT;
        loop {
            // An error may mean that an element does not exist yet.
            let last = self.run(&format!("return ({expression})"), json!([])).await;
            match &last {
                Ok(Value::Null | Value::Bool(false)) | Err(_) => {}
                Ok(Value::String(text)) if text.is_empty() => {}
                Ok(found) => return found.clone(),
            }
            if Instant::now() > end {
                self.fail(&format!("timed out: {expression} ({last:?})")).await;
            }
            tokio::time::sleep(Duration::from_millis(15)).await;
        }
    }

    /// Fails the test with a screenshot and the text of the page.
    async fn fail(&self, why: &str) -> ! {
        let thread = std::thread::current();
        let test = thread.name().unwrap_or("test").replace("::", "-");
        self.shot(&format!("FAILED-{test}")).await;
        let page = self.value("location.pathname + '\\n' + ($('dialog')?.innerText ?? $('#main').innerText)").await;
        panic!("{why}\non {}", page.as_str().unwrap_or_default());
    }

    /// Waits for an element.
    pub(crate) async fn see(&self, css: &str) {
        self.until(&format!("$({}) !== null", quoted(css))).await;
    }

    /// Waits until there is no such element.
    pub(crate) async fn gone(&self, css: &str) {
        self.until(&format!("$({}) === null", quoted(css))).await;
    }

    /// Waits until there are that many elements.
    pub(crate) async fn count(&self, css: &str, many: usize) {
        self.until(&format!("$$({}).length === {many}", quoted(css))).await;
    }

    /// Waits for an element. Returns its text.
    pub(crate) async fn text(&self, css: &str) -> String {
        self.see(css).await;
        self.value(&format!("$({}).innerText", quoted(css))).await.as_str().unwrap().to_owned()
    }

    /// Waits until the text of an element contains this.
    pub(crate) async fn reads(&self, css: &str, part: &str) {
        self.until(&format!("$({})?.innerText.includes({})", quoted(css), json!(part))).await;
    }

    async fn try_on(&self, css: &str, command: &str, body: &Value) -> Result<Value, Refused> {
        let found = json!({ "using": "css selector", "value": written_out(css) });
        let element = self.ask(Method::POST, "/element", found).await?;
        let into_view = "arguments[0].scrollIntoView({ block: 'center' })";
        self.run(into_view, json!([element])).await?;
        let id = element[ELEMENT].as_str().unwrap_or_default();
        self.ask(Method::POST, &format!("/element/{id}/{command}"), body.clone()).await
    }

    /// Applies a command to an element once it is interactable.
    async fn on(&self, css: &str, command: &str, body: Value) {
        let end = Instant::now() + TIMEOUT;
        while let Err(refused) = self.try_on(css, command, &body).await {
            let not_yet = ["no such element", "stale element", "element click intercepted", "element not interactable"];
            if Instant::now() > end || !not_yet.iter().any(|error| refused.error.starts_with(error)) {
                self.fail(&format!("{command} on {css}: {refused:?}")).await;
            }
            tokio::time::sleep(Duration::from_millis(15)).await;
        }
    }

    pub(crate) async fn click(&self, css: &str) {
        self.on(css, "click", json!({})).await;
    }

    /// Replaces the text of a field.
    pub(crate) async fn fill(&self, css: &str, text: &str) {
        self.on(css, "clear", json!({})).await;
        if !text.is_empty() {
            self.on(css, "value", json!({ "text": text })).await;
        }
    }

    /// Presses keys one after the other.
    pub(crate) async fn press(&self, keys: &str) {
        let strokes =
            keys.chars().flat_map(|key| ["keyDown", "keyUp"].map(|kind| json!({ "type": kind, "value": key })));
        let strokes: Vec<Value> = strokes.collect();
        self.post("/actions", json!({ "actions": [{ "type": "key", "id": "keyboard", "actions": strokes }] })).await;
    }

    /// Returns the text of a confirmation dialog, once it has counted.
    pub(crate) async fn question(&self) -> String {
        self.until("$('@confirm-text') && $('@confirm-text').innerText !== 'Counting…' && $('@confirm-button')").await;
        self.value("$('@confirm-text').innerText + ' [' + $('@confirm-button').innerText + ']'")
            .await
            .as_str()
            .unwrap()
            .to_owned()
    }

    /// Confirms a dialog that must contain these words, and waits until it is closed.
    pub(crate) async fn confirm(&self, words: &[&str]) {
        let question = self.question().await;
        for part in words {
            assert!(question.contains(part), "'{part}' is not in: {question}");
        }
        self.until("$('@confirm-button').disabled === false").await;
        self.click("@confirm-button").await;
        self.gone("dialog").await;
    }

    /// Takes a screenshot.
    pub(crate) async fn picture(&self) -> Vec<u8> {
        let picture = self.ask(Method::GET, "/screenshot", Value::Null).await.unwrap();
        BASE64.decode(picture.as_str().unwrap().as_bytes()).unwrap()
    }

    /// Saves a screenshot.
    pub(crate) async fn shot(&self, name: &str) {
        std::fs::write(shots().join(format!("{name}.png")), self.picture().await).unwrap();
    }
}
