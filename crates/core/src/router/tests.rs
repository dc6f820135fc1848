use proptest::prelude::*;

use super::*;

fn router(prefix: &str) -> DefaultMessageRouter {
    let config = QueuesConfig { worker_queue_prefix: prefix.into(), ..QueuesConfig::default() };
    DefaultMessageRouter::from_config(&config).unwrap()
}

fn refused(result: Result<impl fmt::Debug, MessagingError>) -> &'static str {
    match result {
        Err(MessagingError::InvalidInput { what, .. }) => what,
        other => panic!("{other:?}"),
    }
}

#[test]
fn the_default_names_are_the_documented_ones() {
    let config: QueuesConfig = serde_json::from_str("{}").unwrap();
    let router = MessageRouterKind::from(DefaultMessageRouter::from_config(&config).unwrap());
    assert_eq!(router.step_queue("billing").unwrap().as_str(), "worker_billing_queue");
    assert_eq!(router.domain_event_queue("billing").unwrap().as_str(), "billing_domain_events");
    assert_eq!(router.result_queue().as_str(), "step_results");
    assert_eq!(router.task_request_queue().as_str(), "task_requests");
    assert_eq!(router.task_finalization_queue().as_str(), "task_finalizations");
    assert_eq!(router.extract_namespace(&router.step_queue("billing").unwrap()).as_deref(), Some("billing"));
}

#[test]
fn configured_names_are_used_and_unknown_keys_refused() {
    let text = r#"{"worker_queue_prefix": "w", "orchestration_queues": {"step_results": "results"}}"#;
    let router = DefaultMessageRouter::from_config(&serde_json::from_str(text).unwrap()).unwrap();
    assert_eq!(router.step_queue("a").unwrap().as_str(), "w_a_queue");
    assert_eq!(router.result_queue().as_str(), "results");
    assert_eq!(router.task_request_queue().as_str(), "task_requests");
    assert!(serde_json::from_str::<QueuesConfig>(r#"{"worker_queue_prefx": "w"}"#).is_err());
}

#[test]
fn a_namespace_is_checked() {
    let router = router("worker");
    for bad in ["", "a b", "a/b", "ä", &"n".repeat(80)] {
        assert_eq!(refused(router.step_queue(bad)), "namespace", "{bad:?}");
        assert_eq!(refused(router.domain_event_queue(bad)), "namespace", "{bad:?}");
    }
    let error = router.step_queue("a b").unwrap_err().to_string();
    assert!(error.contains("'worker_a b_queue': ' ' is not allowed"), "{error}");
}

#[test]
fn other_queues_have_no_namespace() {
    let router = router("worker");
    for other in ["worker_queue", "worker__queue", "worker_a", "a_queue", "xworker_a_queue", "step_results"] {
        assert_eq!(router.extract_namespace(&QueueName::new(other).unwrap()), None, "{other}");
    }
    assert_eq!(router.extract_namespace(&router.step_queue("a").unwrap().dead_letters()), None);
}

#[test]
fn a_configuration_with_shared_queues_is_refused_by_key() {
    let with = |prefix: &str, results: &str, requests: &str| {
        let mut config = QueuesConfig { worker_queue_prefix: prefix.into(), ..QueuesConfig::default() };
        config.orchestration_queues.step_results = results.into();
        config.orchestration_queues.task_requests = requests.into();
        DefaultMessageRouter::from_config(&config)
    };
    assert!(with("w", "a", "b").is_ok());
    assert_eq!(refused(with("", "a", "b")), "worker_queue_prefix");
    assert_eq!(refused(with("w w", "a", "b")), "worker_queue_prefix");
    assert_eq!(refused(with(&"w".repeat(80), "a", "b")), "worker_queue_prefix");
    assert_eq!(refused(with("w", "a/b", "b")), "step_results");
    assert_eq!(refused(with("w", "a", "b_dlq")), "task_requests");
    assert_eq!(refused(with("w", "a", "a")), "task_requests");
    assert_eq!(refused(with("w", "w_a_queue", "b")), "step_results");
    assert_eq!(refused(with("w", "a_domain_events", "b")), "step_results");
}

#[test]
fn an_application_can_use_its_own_rule() {
    struct OneQueue;
    impl MessageRouter for OneQueue {
        fn step_queue(&self, namespace: &str) -> Result<QueueName, MessagingError> {
            QueueName::new(format!("steps.{namespace}"))
        }
        fn result_queue(&self) -> QueueName {
            QueueName::new("results").unwrap()
        }
        fn task_request_queue(&self) -> QueueName {
            QueueName::new("requests").unwrap()
        }
        fn task_finalization_queue(&self) -> QueueName {
            QueueName::new("finalizations").unwrap()
        }
        fn domain_event_queue(&self, namespace: &str) -> Result<QueueName, MessagingError> {
            QueueName::new(format!("events.{namespace}"))
        }
        fn extract_namespace(&self, queue: &QueueName) -> Option<String> {
            queue.as_str().strip_prefix("steps.").map(String::from)
        }
    }
    let router = MessageRouterKind::Custom(Arc::new(OneQueue));
    let queue = router.step_queue("a").unwrap();
    assert_eq!(queue.as_str(), "steps.a");
    assert_eq!(router.extract_namespace(&queue).as_deref(), Some("a"));
    assert_eq!(router.domain_event_queue("a").unwrap().as_str(), "events.a");
    let fixed = [router.result_queue(), router.task_request_queue(), router.task_finalization_queue()];
    assert_eq!(fixed.each_ref().map(QueueName::as_str), ["results", "requests", "finalizations"]);
}

proptest! {
    #[test]
    fn extracting_undoes_naming(
        prefix in "(worker|queue|[A-Za-z0-9_.-]{1,10})",
        namespace in "(worker_|_queue|queue|_|[A-Za-z0-9.-]{1,4}){1,6}",
    ) {
        let router = router(&prefix);
        let queue = router.step_queue(&namespace).unwrap();
        prop_assert_eq!(router.extract_namespace(&queue), Some(namespace));
    }

    #[test]
    fn naming_undoes_extracting(name in "(worker|_|queue|[a-z]){1,8}") {
        let router = router("worker");
        let queue = QueueName::new(name).unwrap();
        if let Some(namespace) = router.extract_namespace(&queue) {
            prop_assert_eq!(router.step_queue(&namespace).unwrap(), queue);
        }
    }
}
