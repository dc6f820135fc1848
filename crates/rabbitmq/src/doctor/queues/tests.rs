use serde_json::{Value, json};

use super::*;

fn queue(name: &str, arguments: Value, policy: Value) -> QueueInfo {
    let has_dead_letter_exchange = !name.ends_with("_dlq");
    let mut queue = json!({
        "name": name,
        "type": "quorum",
        "arguments": if has_dead_letter_exchange { json!({"x-dead-letter-exchange": ""}) } else { json!({}) },
        "policy": "house",
        "effective_policy_definition": policy,
    });
    for (key, value) in arguments.as_object().unwrap() {
        queue["arguments"][key] = value.clone();
    }
    serde_json::from_value(queue).unwrap()
}

fn found_in(queue: &QueueInfo) -> Vec<(Severity, String)> {
    let (_, role) = role(&queue.name).unwrap();
    let findings = check_queue(queue, role, &RabbitmqOptions::default());
    findings.into_iter().map(|finding| (finding.severity, finding.found)).collect()
}

#[test]
fn a_name_gives_the_role_of_a_queue() {
    let orders = QueueName::new("orders").unwrap();
    for (name, expected) in [
        ("orders", Some(Role::Ready)),
        ("orders_dlq", Some(Role::DeadLetters)),
        ("orders:key:3", Some(Role::Partition(3))),
        ("orders:delay:160ms", Some(Role::Delay(4))),
        ("orders:delay:161ms", None),
        ("orders:else", None),
        ("postrider:flags", None),
    ] {
        assert_eq!(role(name), expected.map(|role| (orders.clone(), role)), "{name}");
    }
}

#[test]
fn a_policy_that_drops_messages_is_worse_without_a_dead_letter_exchange() {
    for (policy, words) in [
        (json!({"message-ttl": 5000}), "messages older than 5s "),
        (json!({"max-length": 7}), "beyond 7 messages the oldest messages "),
        (json!({"max-length-bytes": 7}), "beyond 7 bytes the oldest messages "),
        (json!({"delivery-limit": 3}), "after 3 returns messages "),
    ] {
        for (name, severity, consequence) in
            [("orders", Severity::Warning, "go to the dead letters"), ("orders_dlq", Severity::Problem, "are lost")]
        {
            let found_in = found_in(&queue(name, json!({}), policy.clone()));
            let [(found, text)] = &found_in[..] else { panic!("{found_in:?}") };
            assert_eq!(*found, severity, "{text}");
            assert!(
                text.contains(&format!("'{name}': {words}{consequence}")) && text.contains("(policy 'house')"),
                "{text}"
            );
        }
    }
}

#[test]
fn the_smaller_number_counts_and_ours_is_no_finding() {
    let backstop = json!({"x-delivery-limit": BROKER_DELIVERY_LIMIT});
    assert_eq!(found_in(&queue("orders", backstop.clone(), json!({}))), []);
    assert_eq!(found_in(&queue("orders", backstop, json!({"delivery-limit": 2}))).len(), 1);
    let full = json!({"x-overflow": "reject-publish"});
    let [(severity, text)] = &found_in(&queue("orders", full, json!({"max-length": 7, "overflow": "drop-head"})))[..]
    else {
        panic!("one finding");
    };
    assert_eq!((*severity, text.contains("refuses messages beyond 7")), (Severity::Note, true));
    let waits = json!({"x-message-ttl": 160});
    assert_eq!(found_in(&queue("orders:delay:160ms", waits.clone(), json!({"message-ttl": 1000}))), []);
    assert_eq!(found_in(&queue("orders:delay:160ms", waits, json!({"message-ttl": 100}))).len(), 1);
    assert_eq!(found_in(&queue("orders", json!({}), json!({"expires": 1000})))[0].0, Severity::Problem);
    assert_eq!(found_in(&queue("orders", json!({}), json!({"consumer-timeout": 1000})))[0].0, Severity::Problem);
}

#[test]
fn queues_of_other_users_are_not_checked() {
    let options = RabbitmqOptions::default();
    let queues = [queue("theirs", json!({}), json!({"max-length": 1}))];
    let findings = Topology { queues: &queues, bindings: &[], exchanges: &[], options: &options }.check();
    assert_eq!(findings.iter().map(|finding| finding.severity).collect::<Vec<_>>(), [Severity::Fine]);
}

#[test]
fn a_delay_route_with_a_missing_binding_is_a_problem() {
    let options = RabbitmqOptions::default();
    let queues = ["orders", "orders_dlq", "orders:delay:20ms"].map(|name| queue(name, json!({}), json!({})));
    let binding = |source: &str, destination: &str, routing_key: String| Binding {
        source: source.to_owned(),
        destination: destination.to_owned(),
        routing_key,
    };
    let bindings = [
        binding("postrider:delay:1", "orders:delay:20ms", pattern(1, "1", "#.orders")),
        binding("postrider:delay:1", "postrider:delay:0", pattern(1, "0", "#")),
        binding("postrider:delay:0", "postrider:delay:out", pattern(0, "0", "#")),
        binding("postrider:delay:out", "orders", "#.orders".to_owned()),
    ];
    let exchanges = ["postrider:delay:1", "postrider:delay:0", "postrider:delay:out"].map(str::to_owned);
    let check = |bindings: &[Binding], exchanges: &[String]| {
        let findings = Topology { queues: &queues, bindings, exchanges, options: &options }.check();
        findings.iter().filter(|finding| finding.severity == Severity::Problem).count()
    };
    assert_eq!(check(&bindings, &exchanges), 0);
    for gap in 0..bindings.len() {
        let mut left = bindings.to_vec();
        left.remove(gap);
        assert_eq!(check(&left, &exchanges), 1, "without {:?}", bindings[gap]);
    }
    assert_eq!(check(&bindings, &exchanges[..2]), 1);
}

#[test]
fn partitions_must_match_the_option() {
    let orders = QueueName::new("orders").unwrap();
    let found = |indexes: &[u32]| {
        let findings = check_partitions(&orders, &indexes.iter().copied().collect(), 4);
        findings.into_iter().map(|finding| finding.severity).collect::<Vec<_>>()
    };
    assert_eq!(found(&[0, 1, 2, 3]), []);
    assert_eq!(found(&[0, 1, 2, 3, 4]), [Severity::Problem]);
    assert_eq!(found(&[0, 1]), [Severity::Warning]);
}
