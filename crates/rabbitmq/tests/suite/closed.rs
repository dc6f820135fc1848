//! Storms while `rabbitmqctl` closes all connections in a loop.

use std::sync::Mutex;

use postrider_conformance::{Settings, StormSettings, storm_under_faults};
use postrider_rabbitmq::RabbitmqStore;

use crate::{is_long, manage, options, prefix, setting, url};

/// A virtual host that only this test is connected to.
struct Vhost(String);

impl Vhost {
    async fn make() -> Self {
        let name = prefix();
        manage("PUT", &format!("/api/vhosts/{name}")).await;
        Self(name)
    }

    fn url(&self) -> String {
        let mut url = url::Url::parse(&url()).unwrap();
        url.set_path(&self.0);
        url.into()
    }

    /// Closes every connection to it, and returns how many there were.
    async fn close_all_connections(&self) -> usize {
        let mut tool = tokio::process::Command::new(setting("POSTRIDER_RABBITMQCTL"));
        tool.args(["close_all_connections", "--vhost", &self.0, "an operator said so"]).kill_on_drop(true);
        let said = tool.output().await.unwrap();
        let text = String::from_utf8_lossy(&said.stdout);
        let count = text.lines().find_map(|line| line.strip_prefix("Closed ")?.split(' ').next()?.parse().ok());
        count.unwrap_or_else(|| panic!("{said:?}"))
    }

    async fn remove(self) {
        manage("DELETE", &format!("/api/vhosts/{}", self.0)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn connections_that_an_operator_closes_in_a_loop_lose_nothing() {
    let vhost = Vhost::make().await;
    let (messages, least) = if is_long() { (10_000, 20) } else { (400, 2) };
    let settings = Settings { storm: StormSettings::small(messages), prefix: prefix(), ..Settings::default() };
    let closed = Mutex::new(Vec::new());
    let store = RabbitmqStore::new(&vhost.url(), options()).unwrap();
    let open = move || {
        let store = store.clone();
        async move { store.connect().await }
    };
    // On a busy machine `rabbitmqctl` may take longer to start than a storm takes to end.
    for storms in 1.. {
        let closing = async {
            loop {
                let count = vhost.close_all_connections().await;
                closed.lock().unwrap().push(count);
            }
        };
        let report = storm_under_faults(&open, &settings, closing).await.unwrap();
        report.ensure_clean().unwrap();
        let verdict = &report.verdict;
        let closed = closed.lock().unwrap();
        if is_long() {
            eprintln!("{} rounds closed {} connections; {verdict}", closed.len(), closed.iter().sum::<usize>());
        }
        if closed.iter().filter(|count| **count > 0).count() >= least {
            break;
        }
        assert!(storms < 20, "{closed:?}: {verdict}");
    }
    vhost.remove().await;
}
