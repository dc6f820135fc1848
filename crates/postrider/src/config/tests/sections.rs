//! Every section, read whole.

use super::*;

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
max_bytes_in_flight = 4096
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
    let linear = RetryStrategy::linear(seconds(1), seconds(2), seconds(3600));
    assert_eq!(*retry, linear.with_max_attempts(4));
    let server = ServerConfig {
        listen: "[::1]:80".parse().unwrap(),
        tls_certificate: Some("/server.pem".into()),
        tls_key: Some("/server.key".into()),
        max_request_bytes: 2048,
        max_bytes_in_flight: 4096,
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
