use std::num::NonZeroU32;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use postrider_core::RetryStrategy;

use super::reference::EXAMPLE;
use super::*;

mod refused;

/// A folder of its own for a test, removed at its end.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(0);
        let name = format!("postrider-config-{}-{}", std::process::id(), NUMBER.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    fn write(&self, name: &str, text: impl AsRef<[u8]>) -> PathBuf {
        let path = self.0.join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
        path
    }

    /// A text that is the same in every run.
    fn without(&self, text: impl ToString) -> String {
        text.to_string().replace(&format!("{}/", self.0.display()), "")
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn defaults() -> Sources {
    Sources::none().data_folder("/home/ann/.local/share/postrider")
}

fn load(toml: &str) -> Result<Config, ConfigError> {
    let folder = Folder::new();
    Config::load(&defaults().file(folder.write("postrider.toml", toml)))
}

#[test]
fn without_any_source_everything_has_its_default() {
    let config = Config::load(&defaults()).unwrap();
    assert_eq!(config.url().as_str(), "sqlite:/home/ann/.local/share/postrider/postrider.db");
    assert_eq!(config.state_url().unwrap(), config.url());
    assert_eq!(config.provider(), Some(ProviderKind::Sqlite));
    assert_eq!(*config.common(), CommonConfig::default());
    let options = config.common().messaging.receive_options();
    assert_eq!((options.max, options.visibility, options.max_receive_count), (10, Duration::from_secs(30), 3));
}

#[test]
fn every_section_is_read() {
    let config = load(
        r#"
        [common.messaging]
        provider = "rabbitmq"
        default_visibility_timeout_seconds = 0.5
        default_batch_size = 20
        max_batch_size = 200
        create_queues = false
        auto_migrate = false
        max_message_bytes = 65_536
        [common.messaging.pgmq]
        url = "pgmq+postgres://not/chosen"
        schema = "beside"
        pool_size = 5
        archive = "failed"
        archive_retention = "3h"
        enable_pg_notify = false
        notify_throttle_seconds = 0.1
        poll_interval_seconds = 0.75
        long_delay = "5m"
        connection_timeout_seconds = 4
        statement_timeout_seconds = 9
        [common.messaging.rabbitmq]
        url = "amqp://rider:secret@broker:5672/"
        vhost = "mail"
        queue_type = "classic"
        partitions = 3
        prefetch_count = 30
        heartbeat_seconds = 10
        connection_timeout_seconds = 5
        consumer_timeout_seconds = 600
        management_url = "https://watch:secret@broker:15671"
        ca_file = "/authority.pem"
        [common.messaging.sqs]
        url = "sqs://not-chosen"
        parallel_calls = 4
        connection_timeout_seconds = 6
        call_timeout_seconds = 7.5
        [common.messaging.http]
        url = "https://not/chosen"
        token = "prt_0_secret"
        ca_file = "/server.pem"
        connection_timeout_seconds = 1.5
        [common.messaging.postgres]
        url = "postgres://not/chosen"
        schema = "mail"
        pool_size = 3
        archive = "failed"
        archive_retention = "1h"
        poll_only = true
        poll_interval_seconds = 0.25
        connection_timeout_seconds = 2
        statement_timeout_seconds = 7
        [common.messaging.mysql]
        url = "mysql://not/chosen"
        pool_size = 4
        archive = "none"
        archive_retention = "2h"
        poll_interval_seconds = 0.5
        connection_timeout_seconds = 3
        statement_timeout_seconds = 8
        [common.messaging.sqlite]
        path = "/not/chosen.db"
        synchronous = "normal"
        archive = "none"
        archive_retention = "1d12h"
        share_file = true
        lock_timeout_seconds = 0.1
        wal_limit_bytes = 65536
        [common.messaging.spool]
        path = "/not/chosen"
        files = "any"
        ordering_key = ["workflowRunId", "channel,channelProfileId,conversationId"]
        grace_period = "5s"
        watch = "poll"
        poll_interval = "250ms"
        lock_timeout = "1m"
        [common.messaging.dead_letter]
        enabled = true
        max_receive_count = 7
        queue_suffix = "_dlq"
        [common.messaging.circuit_breaker]
        failure_threshold = 9
        success_threshold = 4
        timeout_seconds = 2.5
        [common.queues]
        worker_queue_prefix = "w"
        orchestration_queues = { task_requests = "a", step_results = "b", task_finalizations = "c" }
        [common.retry]
        strategy = "linear"
        increment = "2s"
        limits.max_attempts = 4
        [state]
        url = "sqlite:/state.db"
        [server]
        listen = "[::1]:80"
        tls_certificate = "/server.pem"
        tls_key = "/server.key"
        max_request_bytes = 2048
        max_connections = 7
        requests_per_second = 0.5
        head_timeout = "1s"
        body_timeout = "2s"
        write_timeout = "3s"
        graceful_timeout = "0s"
        sample_interval = "4s"
        otlp_endpoint = "http://127.0.0.1:4318"
        "#,
    )
    .unwrap();
    assert_eq!(config.url().as_str(), "amqp://rider:secret@broker:5672/");
    assert_eq!(config.state_url().unwrap().as_str(), "sqlite:/state.db");
    let CommonConfig { messaging, queues, retry } = config.common();
    let expected = MessagingConfig {
        default_visibility_timeout: Duration::from_millis(500),
        default_batch_size: 20,
        max_batch_size: 200,
        create_queues: false,
        auto_migrate: false,
        max_message_bytes: 65_536,
        dead_letter: DeadLetterConfig { max_receive_count: 7 },
        circuit_breaker: crate::BreakerSettings {
            failure_threshold: 9,
            success_threshold: 4,
            timeout: Duration::from_millis(2500),
        },
        sqlite: SqliteConfig {
            synchronous: Synchronous::Normal,
            archive: ArchivePolicy::None,
            archive_retention: Duration::from_secs(36 * 3600),
            share_file: true,
            lock_timeout: Duration::from_millis(100),
            wal_limit_bytes: 65536,
        },
        spool: SpoolConfig {
            files: SpoolFiles::Any,
            ordering_key: vec!["workflowRunId".into(), "channel,channelProfileId,conversationId".into()],
            grace_period: Duration::from_secs(5),
            watch: SpoolWatch::Poll,
            poll_interval: Duration::from_millis(250),
            lock_timeout: Duration::from_secs(60),
        },
        mysql: MysqlConfig {
            pool_size: 4,
            archive: ArchivePolicy::None,
            archive_retention: Duration::from_secs(2 * 3600),
            poll_interval: Duration::from_millis(500),
            connection_timeout: Duration::from_secs(3),
            statement_timeout: Duration::from_secs(8),
        },
        postgres: PostgresConfig {
            schema: "mail".into(),
            pool_size: 3,
            archive: ArchivePolicy::Failed,
            archive_retention: Duration::from_secs(3600),
            poll_only: true,
            poll_interval: Duration::from_millis(250),
            connection_timeout: Duration::from_secs(2),
            statement_timeout: Duration::from_secs(7),
        },
        pgmq: PgmqConfig {
            schema: "beside".into(),
            pool_size: 5,
            archive: ArchivePolicy::Failed,
            archive_retention: Duration::from_secs(3 * 3600),
            enable_pg_notify: false,
            notify_throttle: Duration::from_millis(100),
            poll_interval: Duration::from_millis(750),
            long_delay: Duration::from_secs(300),
            connection_timeout: Duration::from_secs(4),
            statement_timeout: Duration::from_secs(9),
        },
        rabbitmq: RabbitMqConfig {
            vhost: Some("mail".into()),
            queue_type: RabbitMqQueueType::Classic,
            partitions: 3,
            prefetch_count: 30,
            heartbeat: Duration::from_secs(10),
            connection_timeout: Duration::from_secs(5),
            consumer_timeout: Duration::from_secs(600),
            management_url: Some(StoreUrl::new("https://watch:secret@broker:15671")),
            ca_file: Some("/authority.pem".into()),
        },
        sqs: SqsConfig {
            parallel_calls: 4,
            connection_timeout: Duration::from_secs(6),
            call_timeout: Duration::from_millis(7500),
        },
        http: HttpConfig {
            token: Some(Secret::new("prt_0_secret")),
            ca_file: Some("/server.pem".into()),
            connection_timeout: Duration::from_millis(1500),
        },
    };
    assert_eq!(*messaging, expected);
    assert_eq!((&*queues.worker_queue_prefix, &*queues.orchestration_queues.step_results), ("w", "b"));
    let seconds = Duration::from_secs;
    let linear = RetryStrategy::linear(seconds(1), seconds(2), seconds(300));
    assert_eq!(*retry, linear.with_max_attempts(4));
    let server = ServerConfig {
        listen: "[::1]:80".parse().unwrap(),
        tls_certificate: Some("/server.pem".into()),
        tls_key: Some("/server.key".into()),
        max_request_bytes: 2048,
        max_connections: 7,
        requests_per_second: Some(0.5),
        head_timeout: seconds(1),
        body_timeout: seconds(2),
        write_timeout: seconds(3),
        graceful_timeout: Duration::ZERO,
        sample_interval: seconds(4),
        otlp_endpoint: Some(StoreUrl::new("http://127.0.0.1:4318")),
    };
    assert_eq!(*config.server(), server);
}

#[test]
fn no_limit_of_requests_is_a_zero_or_nothing() {
    let rate = |text: &str| load(text).unwrap().server().requests_per_second;
    assert_eq!((rate(""), rate("[server]\nrequests_per_second = 0")), (None, None));
    assert_eq!(rate("[server]\nrequests_per_second = 20"), Some(20.0));
    assert_eq!(*Config::load(&defaults()).unwrap().server(), ServerConfig::default());
}

#[test]
fn a_server_is_named_by_its_key_or_is_on_this_machine_and_keeps_its_own_tasks() {
    let local = load("[common.messaging]\nprovider = 'http'").unwrap();
    assert_eq!(local.url().as_str(), "http://127.0.0.1:8025");
    let named = load("[common.messaging]\nhttp.url = 'https://host/mail'").unwrap();
    assert_eq!((named.url().as_str(), named.provider()), ("https://host/mail", Some(ProviderKind::Http)));
    assert_eq!(named.state_url().unwrap().as_str(), "https://host/mail");
    assert!(named.keeps_state_with_messages());
    let elsewhere = load("[common.messaging]\nurl = 'http://host'\n[state]\nurl = 'sqlite:/s.db'").unwrap();
    assert!(!elsewhere.keeps_state_with_messages());
    let torn = load("[common.messaging]\nurl = 'sqlite:/a.db'\n[state]\nurl = 'http://host'").unwrap();
    let refused = torn.state_endpoint().unwrap_err().to_string();
    assert!(refused.contains("the tasks of a server go with its messages"), "{refused}");
}

#[test]
fn a_token_is_given_by_its_short_variable_and_never_shown() {
    let variables = [("POSTRIDER_TOKEN", "prt_0_secret"), ("POSTRIDER_URL", "http://host:8025")];
    let config = Config::load(&defaults().environment(variables)).unwrap();
    assert_eq!(config.common().messaging.http.token.as_ref().unwrap().reveal(), "prt_0_secret");
    let row = config.describe().iter().find(|row| row.key == keys::HTTP_TOKEN).unwrap();
    assert_eq!((row.value.as_deref(), row.origin.to_string().as_str()), (Some("***"), "POSTRIDER_TOKEN"));
    assert!(!format!("{config:?} {:?}", config.endpoint()).contains("secret"));
    // Nor when something is wrong with it, or it was given to a key that is no token's.
    let twice = [("POSTRIDER_TOKEN", "a secret"), ("POSTRIDER__COMMON__MESSAGING__HTTP__TOKEN", "another secret")];
    let error = Config::load(&defaults().environment(twice)).unwrap_err();
    assert!(error.to_string().contains("common.messaging.http.token = *** (POSTRIDER_TOKEN)"), "{error}");
    let wrong = [
        "[common.messaging.http]\ntoken = ['secret']",
        "[common.messaging]\nhttp = 'prt_0_secret'",
        "[common.messaging.http]\nconnection_timeout_seconds = 'prt_0_secret'",
    ];
    for text in wrong {
        let error = load(text).unwrap_err();
        assert!(error.to_string().contains("= ***: "), "{error}");
        assert!(!format!("{error} {error:?}").contains("secret"), "{error}");
    }
}

#[test]
fn a_virtual_host_is_named_by_the_url_or_by_its_key() {
    let toml = |url: &str| format!("[common.messaging]\nprovider = 'rabbitmq'\nrabbitmq.url = '{url}'\n");
    let vhost = |text: &str, variables: &[(&str, &str)]| {
        let folder = Folder::new();
        let file = folder.write("postrider.toml", text);
        let config = Config::load(&defaults().file(file).environment(variables.iter().copied()))?;
        let rows = config.describe().to_vec();
        let row = rows.into_iter().find(|row| row.key == keys::RABBITMQ_VHOST).unwrap();
        assert_eq!(row.value, config.common().messaging.rabbitmq.vhost);
        Ok::<_, ConfigError>(row.value.map(|value| format!("{value} ({})", folder.without(&row.origin))))
    };
    let named = |text: &str| vhost(text, &[]).unwrap().unwrap_or_default();
    assert_eq!(named(&toml("amqp://host")), "");
    assert_eq!(named(&toml("amqp://host/%2f")), "/ (postrider.toml:3:10)");
    assert_eq!(named(&(toml("amqp://a:b/c@host/") + "rabbitmq.vhost = 'mail'")), "mail (postrider.toml:4:10)");
    assert_eq!(named(&(toml("amqp://host/mail") + "rabbitmq.vhost = 'mail'")), "mail (postrider.toml:3:10)");
    let both = toml("amqp://host") + "rabbitmq.vhost = 'mail'";
    let above = vhost(&both, &[("POSTRIDER_URL", "amqp://host/other")]).unwrap();
    assert_eq!(above.as_deref(), Some("other (POSTRIDER_URL)"), "a URL from a higher source decides");
    let disagree = toml("amqp://rider:secret@host/other") + "rabbitmq.vhost = 'mail'";
    let text = vhost(&disagree, &[]).unwrap_err().to_string();
    assert!(text.contains("the URL names the virtual host 'other'; leave one out"), "{text}");
    assert!(text.contains("rabbitmq.vhost = 'mail'") && !text.contains("secret"), "{text}");
    vhost(&toml("amqp://host/a"), &[("POSTRIDER__COMMON__MESSAGING__RABBITMQ__VHOST", "b")]).unwrap_err();
}

#[test]
fn a_list_is_written_into_a_variable_as_into_the_file() {
    let fields = |value: &str| {
        let variable = "POSTRIDER__COMMON__MESSAGING__SPOOL__ORDERING_KEY";
        let config = Config::load(&defaults().environment([(variable, value)]))?;
        let rows = config.describe();
        let shown = rows.iter().find(|row| row.key == "common.messaging.spool.ordering_key").unwrap().value.clone();
        Ok::<_, ConfigError>((config.common().messaging.spool.ordering_key.clone(), shown))
    };
    let two = r#"["run", "channel,conversation"]"#;
    let (read, shown) = fields(two).unwrap();
    assert_eq!((read, shown.as_deref()), (vec!["run".into(), "channel,conversation".into()], Some(two)));
    assert_eq!(fields("channel,conversation").unwrap().0, ["channel,conversation"]);
    assert_eq!(fields("[]").unwrap(), (vec![], None));
    let refused = fields("[run").unwrap_err().to_string();
    assert!(refused.contains("use a list of fields, like"), "{refused}");
    assert_eq!(
        load("[common.messaging.spool]\nordering_key = 'run'").unwrap().common().messaging.spool.ordering_key,
        ["run"]
    );
}

#[test]
fn a_folder_is_named_by_its_key_or_is_in_the_users_data_folder() {
    let url = |text: &str| load(text).unwrap().url().as_str().to_owned();
    assert_eq!(url("[common.messaging.spool]\npath = 'here/mail'"), "spool:here/mail");
    assert_eq!(url("[common.messaging]\nprovider = 'spool'"), "spool:/home/ann/.local/share/postrider/spool");
    let homeless = Sources::none().flag("--provider", keys::PROVIDER, "spool");
    assert_eq!(
        Config::load(&homeless).unwrap_err().to_string(),
        "--provider: common.messaging.provider = 'spool': there is no home folder to keep it in; name the folder in \
         common.messaging.spool.path, or in url"
    );
}

#[test]
fn every_key_can_be_set_by_its_variable() {
    for key in keys::all() {
        let value = match key.kind.name().as_str() {
            "`true` or `false`" => "false",
            "only `true`" => "true",
            "only `_dlq`" => "_dlq",
            "URL" => "sqlite:/x.db",
            "path" => "/x.db",
            "text" => "x",
            "address and port" => "[::1]:80",
            "list of fields" => "run",
            duration if duration.starts_with("duration") => "90s",
            _ => match key.name {
                keys::PROVIDER => "sqlite",
                retry::STRATEGY => "no_retry",
                "common.messaging.sqlite.synchronous" => "normal",
                "common.messaging.spool.files" => "any",
                "common.messaging.spool.watch" => "poll",
                "common.messaging.rabbitmq.queue_type" => "classic",
                "tasks.mode" => "queue",
                name if name.ends_with(".archive") => "none",
                "common.messaging.sqlite.wal_limit_bytes" | "server.max_request_bytes" => "70000",
                _ => "4",
            },
        };
        let mut draft = draft::Draft::default();
        let mut problems = Vec::new();
        let variables = [(environment::variable(key.name).into(), value.into())];
        draft.lay_over(environment::read(&variables, &mut problems), &mut problems);
        assert_eq!(problems, [], "{}", key.name);
        assert!(matches!(draft.origin(key.name), Origin::Environment { .. }), "{}", key.name);
    }
}

#[test]
fn how_tasks_go_is_one_line_and_names_that_no_queue_can_have_are_refused() {
    use postrider_core::task::{DEFAULT_TASK_QUEUE_PREFIX, Post, TaskMode, TaskRoutes};
    let load = |key: &'static str, value: &str| Config::load(&defaults().flag("--set", key, value));
    let config = Config::load(&defaults()).unwrap();
    assert_eq!(*config.task_routes(), TaskRoutes::default());
    let queue = load("tasks.mode", "queue").unwrap();
    assert_eq!(*queue.task_routes(), TaskRoutes { mode: TaskMode::Queue, ..TaskRoutes::default() });
    assert_eq!((queue.task_routes().post, &*queue.tasks().queue_prefix), (Post::Here, DEFAULT_TASK_QUEUE_PREFIX));
    let events = load("tasks.dead_events", "dead_tasks").unwrap();
    assert_eq!(events.task_routes().dead_events.as_ref().unwrap().as_str(), "dead_tasks");
    for (key, value) in [
        ("tasks.mode", "push"),
        ("tasks.dead_events", "two words"),
        ("tasks.dead_events", "dead_dlq"),
        ("tasks.queue_prefix", "a b"),
        ("tasks.queue_prefix", "a_prefix_that_is_too_long_"),
        ("tasks.lease", "1ms"),
    ] {
        let refused = load(key, value).unwrap_err().to_string();
        assert!(refused.contains(key) && refused.contains(value), "{refused}");
    }
}

#[test]
fn tasks_are_kept_with_the_messages_only_where_that_is_one_database() {
    let load = |url: &str, state: Option<&str>| {
        let sources = defaults().flag("--url", keys::URL, url);
        let sources = match state {
            Some(state) => sources.flag("--state", keys::STATE_URL, state),
            None => sources,
        };
        Config::load(&sources).unwrap()
    };
    assert!(load("sqlite:/a.db", None).keeps_state_with_messages());
    assert!(load("postgres://host/a", None).keeps_state_with_messages());
    assert!(load("sqlite:/a.db", Some("sqlite:/a.db")).keeps_state_with_messages());
    for (url, state) in [
        ("sqlite:/a.db", Some("sqlite:/b.db")),
        ("amqp://host", None),
        ("pgmq+postgres://host/a", None),
        ("postgres://host/a", Some("sqlite:/b.db")),
    ] {
        assert!(!load(url, state).keeps_state_with_messages(), "{url}");
    }
    let refused = load("sqlite:/a.db", Some("amqp://host")).state_endpoint().unwrap_err().to_string();
    assert!(refused.contains("state.url") && refused.contains("SQLite or PostgreSQL"), "{refused}");
}

#[test]
fn a_higher_source_wins() {
    let folder = Folder::new();
    let file = folder.write(
        "postrider.toml",
        "[common.messaging]\ndefault_batch_size = 1\nmax_batch_size = 20\ncreate_queues = false\n",
    );
    let sources = defaults()
        .file(file)
        .environment([
            ("POSTRIDER__COMMON__MESSAGING__DEFAULT_BATCH_SIZE", "2"),
            ("POSTRIDER__COMMON__MESSAGING__MAX_BATCH_SIZE", "30"),
            ("POSTRIDER__COMMON__MESSAGING__AUTO_MIGRATE", ""),
            ("POSTRIDER_POSTGRES_URL", "postgres://other"),
        ])
        .flag("--batch", "common.messaging.default_batch_size", "3");
    let config = Config::load(&sources).unwrap();
    let messaging = &config.common().messaging;
    assert_eq!((messaging.default_batch_size, messaging.max_batch_size), (3, 30));
    assert_eq!((messaging.create_queues, messaging.auto_migrate), (false, true));
    let origin = |key| {
        let row = config.describe().iter().find(|row| row.key == key).unwrap();
        folder.without(&row.origin)
    };
    assert_eq!(origin("common.messaging.default_batch_size"), "--batch");
    assert_eq!(origin("common.messaging.max_batch_size"), "POSTRIDER__COMMON__MESSAGING__MAX_BATCH_SIZE");
    assert_eq!(origin("common.messaging.create_queues"), "postrider.toml:4:1");
    assert_eq!(origin("common.messaging.auto_migrate"), "default");
}

#[test]
fn the_first_file_that_is_there_is_read_and_no_other() {
    let folder = Folder::new();
    let folders = || ["none", "a", "b"].map(|name| folder.0.join(name));
    let url = || Config::load(&defaults().first_file_in(folders())).unwrap().url().as_str().to_owned();
    assert_eq!(url(), "sqlite:/home/ann/.local/share/postrider/postrider.db");
    folder.write("b/postrider.toml", "[common.messaging]\nurl = 'memory:'\n");
    assert_eq!(url(), "memory:");
    folder.write("a/postrider.toml", "");
    assert_eq!(url(), "sqlite:/home/ann/.local/share/postrider/postrider.db");
}

#[test]
fn an_address_in_one_section_names_the_store_and_among_several_the_provider_does() {
    let url = |text: &str| load(text).unwrap().url().as_str().to_owned();
    let (postgres, mysql) = ("postgres.url = 'postgres://a@host/mail'", "mysql.url = 'mysql://b@host/mail'");
    assert_eq!(url(&format!("[common.messaging]\n{postgres}\n")), "postgres://a@host/mail");
    let both = format!("[common.messaging]\nprovider = 'mysql'\n{postgres}\n{mysql}\n");
    assert_eq!(url(&both), "mysql://b@host/mail");
    let neither = format!("[common.messaging]\nurl = 'memory:'\n{postgres}\n{mysql}\n");
    assert_eq!(url(&neither), "memory:");
}

#[test]
fn the_highest_source_that_names_a_store_decides() {
    let url = |toml: &str, variables: &[(&str, &str)], flags: &[(&str, &str)]| {
        let folder = Folder::new();
        let mut sources = defaults()
            .file(folder.write("postrider.toml", toml))
            .environment(variables.iter().map(|(name, value)| (name.to_string(), value.to_string())));
        for (key, value) in flags {
            sources = sources.flag("--set", *key, *value);
        }
        let config = Config::load(&sources).unwrap();
        let row = |key| config.describe().iter().find(|row| row.key == key).unwrap();
        let (provider, store) = (row(keys::PROVIDER), row(keys::URL));
        format!(
            "{} ({}), {} ({})",
            provider.value.as_deref().unwrap_or("-"),
            folder.without(&provider.origin),
            config.url().as_str(),
            folder.without(&store.origin)
        )
    };
    let rabbit = "[common.messaging]\nprovider = 'rabbitmq'\nrabbitmq.url = 'amqp://file'\nsqlite.path = '/file.db'";
    let path = "POSTRIDER__COMMON__MESSAGING__SQLITE__PATH";
    let provider = "POSTRIDER__COMMON__MESSAGING__PROVIDER";
    let two = "postrider.toml:2:1";
    assert_eq!(url(rabbit, &[], &[]), format!("rabbitmq ({two}), amqp://file (postrider.toml:3:10)"));
    assert_eq!(url(rabbit, &[("POSTRIDER_URL", "memory:")], &[]), "memory (POSTRIDER_URL), memory: (POSTRIDER_URL)");
    assert_eq!(
        url(rabbit, &[(provider, "sqlite")], &[]),
        format!("sqlite ({provider}), sqlite:/file.db (postrider.toml:4:8)")
    );
    assert_eq!(
        url(rabbit, &[("POSTRIDER_URL", "amqp://b")], &[]),
        "rabbitmq (POSTRIDER_URL), amqp://b (POSTRIDER_URL)"
    );
    assert_eq!(
        url(rabbit, &[("POSTRIDER_URL", "amqp://b")], &[(keys::URL, "sqlite:/flag.db")]),
        "sqlite (--set), sqlite:/flag.db (--set)"
    );
    let sqlite = "[common.messaging]\nurl = 'sqlite:/file.db'";
    assert_eq!(url(sqlite, &[(path, "/env.db")], &[]), format!("sqlite ({two}), sqlite:/env.db ({path})"));
    assert_eq!(
        url(sqlite, &[(provider, "sqlite")], &[]),
        format!("sqlite ({provider}), sqlite:/file.db ({two})"),
        "a provider without an address leaves the URL of the same store alone"
    );
    assert_eq!(
        url(sqlite, &[], &[(keys::PROVIDER, "rabbitmq")]),
        "rabbitmq (--set), amqp://guest:guest@localhost:5672/ (default)"
    );
    assert_eq!(url("", &[(path, "mail.db")], &[]), format!("sqlite (default), sqlite:mail.db ({path})"));
    assert_eq!(url("", &[("POSTRIDER_URL", "kafka://x")], &[]), "- (POSTRIDER_URL), kafka://x (POSTRIDER_URL)");
    let same = "[common.messaging]\nprovider = 'sqlite'\nurl = 'sqlite:/a.db'\nsqlite.path = '/a.db'";
    assert_eq!(url(same, &[], &[]), format!("sqlite ({two}), sqlite:/a.db (postrider.toml:3:1)"));
}

#[test]
fn state_is_kept_with_the_messages_or_in_the_embedded_file() {
    let state = |sources: Sources| Config::load(&sources).unwrap().state_url().map(|url| url.as_str().to_owned());
    let url = |url: &str| defaults().flag("--url", keys::URL, url);
    let embedded = "sqlite:/home/ann/.local/share/postrider/postrider.db";
    assert_eq!(state(url("sqlite:/mail.db")).unwrap(), "sqlite:/mail.db");
    assert_eq!(state(url("pgmq+postgres://host/mail")).unwrap(), "postgres://host/mail");
    for broker in ["amqp://host", "sqs://eu-central-1/app-", "sqs+http://127.0.0.1:4566/", "spool:/mail"] {
        assert_eq!(state(url(broker)).unwrap(), embedded);
    }
    assert_eq!(state(url("amqp://host").flag("--state", keys::STATE_URL, "sqlite:/s.db")).unwrap(), "sqlite:/s.db");
    let homeless = Sources::none().flag("--url", keys::URL, "amqp://host");
    assert_eq!(
        state(homeless).unwrap_err().to_string(),
        "there is no home folder to keep the embedded file in; set HOME or XDG_DATA_HOME, or name another store with \
         state.url"
    );
    assert_eq!(
        Config::load(&Sources::none()).unwrap_err().to_string(),
        "there is no home folder to keep the embedded file in; set HOME or XDG_DATA_HOME, or name another store with \
         common.messaging.url"
    );
}

#[test]
fn a_source_that_names_a_strategy_begins_anew() {
    let folder = Folder::new();
    let file = folder
        .write("postrider.toml", "[common.retry]\nstrategy = 'linear'\nincrement = '2s'\nlimits.max_attempts = 9\n");
    let load = |variables: &[(&str, &str)]| {
        let variables = variables.iter().map(|(name, value)| (name.to_string(), value.to_string()));
        let config = Config::load(&defaults().file(&file).environment(variables)).unwrap();
        let origin = |name: &str| {
            let key = format!("common.retry.{name}");
            config.describe().iter().find(|row| row.key == key).unwrap().origin.to_string()
        };
        (config.common().retry.clone(), folder.without(origin("increment")), origin("limits.max_attempts"))
    };
    let linear = RetryStrategy::linear(Duration::from_secs(1), Duration::from_secs(2), Duration::from_secs(300));
    let variable = "POSTRIDER__COMMON__RETRY__LIMITS__MAX_ATTEMPTS";
    assert_eq!(load(&[(variable, "2")]), (linear.with_max_attempts(2), "postrider.toml:3:1".into(), variable.into()));
    let named = [("POSTRIDER__COMMON__RETRY__STRATEGY", "constant"), ("POSTRIDER__COMMON__RETRY__DELAY", "3s")];
    let constant = RetryStrategy::constant(Duration::from_secs(3)).with_max_attempts(3);
    assert_eq!(load(&named), (constant, "default".into(), "default".into()));
}

#[test]
fn fields_without_a_strategy_change_the_default_one() {
    let config = load("[common.retry]\ninitial_delay = '2s'").unwrap();
    let expected = RetryStrategy::exponential_with_jitter(Duration::from_secs(2), 2.0, Duration::from_secs(300))
        .with_max_attempts(3);
    assert_eq!(config.common().retry, expected);
    let config = load("[common.retry]\nlimits.max_total_delay = '1h'").unwrap();
    let expected = RetryStrategy::default().with_max_total_delay(Duration::from_secs(3600));
    assert_eq!(config.common().retry, expected, "the other limit stays");
}

#[test]
fn what_is_in_use_can_be_shown_without_its_secrets() {
    let folder = Folder::new();
    let file = folder.write(
        "postrider.toml",
        "[common.messaging]\nprovider = 'rabbitmq'\nrabbitmq.url = 'amqp://rider:secret@broker/'\n\
         [common.retry]\nstrategy = 'constant'\ndelay = '90s'\n",
    );
    let sources = defaults()
        .file(file)
        .environment([("POSTRIDER__STATE__URL", "postgres://rider:secret@host/state?sslpassword=secret")])
        .flag("--visibility", "common.messaging.default_visibility_timeout_seconds", "0.25");
    let config = Config::load(&sources).unwrap();
    let row = |row: &Row| {
        format!("{} = {} ({})\n", row.key, row.value.as_deref().unwrap_or("-"), folder.without(&row.origin))
    };
    let shown: String = config.describe().iter().map(row).collect();
    assert!(!shown.contains("secret") && !format!("{config:?} {sources:?}").contains("secret"));
    assert!(config.describe().iter().all(|row| !row.meaning.is_empty()));
    insta::assert_snapshot!(shown);
}

#[test]
fn a_value_that_belongs_to_another_store_is_shown_to_have_no_effect() {
    let config = load("[common.messaging]\nrabbitmq.vhost = 'mail'\n").unwrap();
    let of = |config: &Config, key: &str| {
        config.describe().iter().find(|row| row.key == key).and_then(|row| row.without_effect.clone())
    };
    let rabbitmq = match cfg!(feature = "rabbitmq") {
        true => "takes effect when messages are kept in rabbitmq",
        false => "takes effect when messages are kept in rabbitmq, which this program cannot do",
    };
    assert_eq!(of(&config, "common.messaging.rabbitmq.vhost").as_deref(), Some(rabbitmq));
    if cfg!(feature = "http") {
        let http = of(&config, keys::HTTP_TOKEN);
        assert_eq!(http.as_deref(), Some("takes effect when messages are kept by a server"));
    }
    assert_eq!(of(&config, "common.messaging.max_message_bytes"), None);
    assert_eq!(of(&config, "common.messaging.dead_letter.enabled"), None);
    let memory = load("[common.messaging]\nprovider = 'memory'\n").unwrap();
    let archive = "common.messaging.sqlite.archive";
    if cfg!(feature = "sqlite") {
        assert_eq!(of(&config, archive), None);
        assert_eq!(of(&memory, archive), None, "tasks are in the embedded file");
        let server = load("[common.messaging]\nurl = 'postgres://host/mail'\n").unwrap();
        assert_eq!(of(&server, archive).as_deref(), Some("takes effect when messages or tasks are kept in sqlite"));
    }
}

#[cfg(not(feature = "rabbitmq"))]
#[test]
fn a_provider_that_is_not_here_is_refused_with_those_that_are() {
    let config = load("[common.messaging]\nurl = 'amqp://host'\n").unwrap();
    let text = config.endpoint().unwrap_err().to_string();
    assert!(text.contains("this program has no provider for '") && text.contains("use memory:"), "{text}");
}

#[test]
fn one_receive_may_not_ask_for_more_than_is_configured() {
    let messaging = MessagingConfig::default();
    assert_eq!(messaging.receive_options_for(100).unwrap().max, 100);
    let text = messaging.receive_options_for(101).unwrap_err().to_string();
    assert!(text.contains("common.messaging.max_batch_size, 100"), "{text}");
}

#[test]
fn the_example_of_the_page_can_be_read() {
    let config = load(EXAMPLE).unwrap();
    assert_eq!(config.url().as_str(), "sqlite:/var/lib/postrider/mail.db");
    assert_eq!(config.common().retry.max_attempts(), NonZeroU32::new(5));
}

#[test]
fn a_strategy_without_limits_has_those_of_the_default_one() {
    let attempts = |text: &str| {
        let config = load(text).unwrap();
        let row = config.describe().iter().find(|row| row.key == "common.retry.limits.max_attempts").cloned();
        (config.common().retry.max_attempts().map(std::num::NonZeroU32::get), row.and_then(|row| row.value))
    };
    let constant = "[common.retry]\nstrategy = 'constant'\ndelay = '5s'\n";
    assert_eq!(attempts(constant), (Some(3), Some("3".into())));
    assert_eq!(attempts(&format!("{constant}limits.max_attempts = 7")), (Some(7), Some("7".into())));
    let forever = (None, Some("forever".into()));
    assert_eq!(attempts(&format!("{constant}limits.max_attempts = 'forever'")), forever);
    assert_eq!(attempts(&format!("{constant}limits.max_total_delay = '1h'")), forever, "a limit of time is one too");
    assert_eq!(attempts("[common.retry]\nlimits.max_attempts = 'forever'"), forever);
    assert_eq!(attempts("[common.retry]\nstrategy = 'no_retry'"), (Some(1), None));
}

#[cfg(not(feature = "rabbitmq"))]
#[test]
fn a_provider_that_this_program_does_not_have_is_told_as_such() {
    let error = load("[common.messaging]\nprovider = 'rabbitmq'").and_then(|config| config.endpoint().map(drop));
    let text = error.unwrap_err().to_string();
    assert!(text.contains("postrider.toml:2:1: common.messaging.provider = "), "{text}");
    let others = ": this program cannot use it yet; use memory or sqlite or postgres or mysql or pgmq or sqs or http";
    assert!(text.ends_with(others), "{text}");
}
