//! A browser as a person uses it. In selectors and scripts `@name` stands for `[data-test="name"]`.

use std::cell::RefCell;
use std::path::PathBuf;
use std::time::Duration;

use axum::http::Method;
use data_encoding::BASE64;
use serde_json::{Value, json};
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::Instant;

use super::driver::{Driver, Refused};
use crate::place::Place;

pub(crate) const ENTER: &str = "\u{e007}";
pub(crate) const ESCAPE: &str = "\u{e00c}";
pub(crate) const TAB: &str = "\u{e004}";

/// How long a page may take to become what it shall be.
const PATIENCE: Duration = Duration::from_secs(60);

/// A browser wants a core for itself; more of them at once only make each other slow.
static SEATS: Semaphore = Semaphore::const_new(2);

/// The name by which WebDriver calls an element in JSON.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// A refusal that a test provokes: the end of the address, and the status. The browser writes each on its console.
pub(crate) type Provoked<'a> = (&'a str, u16);

/// In place of a status where nobody answered.
pub(crate) const NO_ANSWER: u16 = 0;

pub(crate) struct Browser {
    driver: Driver,
    home: String,
    console: RefCell<Vec<String>>,
    _seat: SemaphorePermit<'static>,
}

/// Where screenshots are put.
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

/// Whether a line of the console is about something provoked.
fn is_about(line: &str, (path, status): Provoked<'_>) -> bool {
    let words = if status == NO_ANSWER { "net::ERR_".to_owned() } else { format!("a status of {status} ") };
    line.split(' ').next().is_some_and(|address| address.ends_with(path)) && line.contains(&words)
}

/// A selector as a script writes it.
fn quoted(css: &str) -> Value {
    json!(written_out(css))
}

impl Browser {
    /// A browser with nothing open.
    pub(crate) async fn start(place: &Place) -> Self {
        let seat = SEATS.acquire().await.unwrap();
        let driver = Driver::start(1280, 900).await;
        let browser =
            Self { driver, home: format!("http://{}", place.address), console: RefCell::default(), _seat: seat };
        browser.size(1280, 900).await;
        browser
    }

    /// Ends it. Nothing may be on its console but what was provoked, and all of that.
    #[track_caller]
    pub(crate) fn close(self, provoked: &[Provoked<'_>]) -> impl Future<Output = ()> {
        let caller = std::panic::Location::caller();
        async move {
            self.listen().await;
            let told = self.console.take();
            let unexpected: Vec<_> =
                told.iter().filter(|line| !provoked.iter().any(|one| is_about(line, *one))).collect();
            assert!(unexpected.is_empty(), "{caller}: on the console: {unexpected:#?}");
            let missing: Vec<_> =
                provoked.iter().filter(|one| !told.iter().any(|line| is_about(line, **one))).collect();
            assert!(missing.is_empty(), "{caller}: was not refused: {missing:?}");
        }
    }

    /// Takes what is on the console; the driver tells everything once.
    async fn listen(&self) {
        let log = self.post("/se/log", json!({ "type": "browser" })).await;
        let bad = |entry: &&Value| entry["level"] == "SEVERE" || entry["level"] == "WARNING";
        let lines =
            log.as_array().unwrap().iter().filter(bad).map(|entry| entry["message"].as_str().unwrap().to_owned());
        self.console.borrow_mut().extend(lines);
    }

    /// Waits until something that is provoked is on the console.
    pub(crate) async fn until_told(&self, provoked: Provoked<'_>) {
        let end = Instant::now() + PATIENCE;
        while !self.console.borrow().iter().any(|line| is_about(line, provoked)) {
            if Instant::now() > end {
                self.fail(&format!("it was never told: {provoked:?}")).await;
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

    /// The size of the window; a small one is a telephone's.
    pub(crate) async fn size(&self, width: u32, height: u32) {
        let params = json!({ "width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < 600 });
        self.devtools("Emulation.setDeviceMetricsOverride", params).await;
    }

    /// Without what differs from one machine to the next.
    pub(crate) async fn hide_scrollbars(&self) {
        self.devtools("Emulation.setScrollbarsHidden", json!({ "hidden": true })).await;
    }

    /// What the system prefers: `light` or `dark`.
    pub(crate) async fn prefers(&self, scheme: &str) {
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        self.devtools("Emulation.setEmulatedMedia", json!({ "features": features })).await;
    }

    /// Opens an address of the dashboard, as from a bookmark.
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

    /// What an expression is worth in the page.
    pub(crate) async fn value(&self, expression: &str) -> Value {
        let found = self.run(&format!("return ({expression})"), json!([])).await;
        found.unwrap_or_else(|refused| panic!("{expression}: {refused:?}"))
    }

    /// Waits until an expression is true in the page, and answers its value.
    pub(crate) async fn until(&self, expression: &str) -> Value {
        let end = Instant::now() + PATIENCE;
        loop {
            // What is not there yet cannot be asked for its parts.
            let last = self.run(&format!("return ({expression})"), json!([])).await;
            match &last {
                Ok(Value::Null | Value::Bool(false)) | Err(_) => {}
                Ok(Value::String(text)) if text.is_empty() => {}
                Ok(found) => return found.clone(),
            }
            if Instant::now() > end {
                self.fail(&format!("it never was so: {expression} ({last:?})")).await;
            }
            tokio::time::sleep(Duration::from_millis(15)).await;
        }
    }

    /// Ends the test with what the page looked like.
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

    /// Waits until there are so many.
    pub(crate) async fn count(&self, css: &str, many: usize) {
        self.until(&format!("$$({}).length === {many}", quoted(css))).await;
    }

    /// The text of an element that is or will be there.
    pub(crate) async fn text(&self, css: &str) -> String {
        self.see(css).await;
        self.value(&format!("$({}).innerText", quoted(css))).await.as_str().unwrap().to_owned()
    }

    /// Waits until an element has this in its text.
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

    /// Does something to an element once it is there, is drawn, and nothing lies over it.
    async fn on(&self, css: &str, command: &str, body: Value) {
        let end = Instant::now() + PATIENCE;
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

    /// Puts a text into a field, in place of what it has.
    pub(crate) async fn fill(&self, css: &str, text: &str) {
        self.on(css, "clear", json!({})).await;
        if !text.is_empty() {
            self.on(css, "value", json!({ "text": text })).await;
        }
    }

    /// Presses keys one after the other, wherever the focus is.
    pub(crate) async fn press(&self, keys: &str) {
        let strokes =
            keys.chars().flat_map(|key| ["keyDown", "keyUp"].map(|kind| json!({ "type": kind, "value": key })));
        let strokes: Vec<Value> = strokes.collect();
        self.post("/actions", json!({ "actions": [{ "type": "key", "id": "keyboard", "actions": strokes }] })).await;
    }

    /// What a question before something is lost says, once it has counted.
    pub(crate) async fn question(&self) -> String {
        self.until("$('@confirm-text') && $('@confirm-text').innerText !== 'Counting…' && $('@confirm-button')").await;
        self.value("$('@confirm-text').innerText + ' [' + $('@confirm-button').innerText + ']'")
            .await
            .as_str()
            .unwrap()
            .to_owned()
    }

    /// Says yes to a question that must have these words, and waits until it is done.
    pub(crate) async fn confirm(&self, words: &[&str]) {
        let question = self.question().await;
        for part in words {
            assert!(question.contains(part), "'{part}' is not in: {question}");
        }
        self.until("$('@confirm-button').disabled === false").await;
        self.click("@confirm-button").await;
        self.gone("dialog").await;
    }

    /// The page as a picture.
    pub(crate) async fn picture(&self) -> Vec<u8> {
        let picture = self.ask(Method::GET, "/screenshot", Value::Null).await.unwrap();
        BASE64.decode(picture.as_str().unwrap().as_bytes()).unwrap()
    }

    /// Keeps a picture of the page.
    pub(crate) async fn shot(&self, name: &str) {
        std::fs::write(shots().join(format!("{name}.png")), self.picture().await).unwrap();
    }
}
