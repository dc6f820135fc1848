//! The choice of the message store and of the state store.

use super::*;

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

#[cfg(not(feature = "rabbitmq"))]
#[test]
fn the_error_of_a_missing_provider_names_the_available_ones() {
    let config = load("[common.messaging]\nurl = 'amqp://host'\n").unwrap();
    let text = config.endpoint().unwrap_err().to_string();
    assert!(text.contains("'amqp:' needs a provider") && text.contains("feature 'rabbitmq'"), "{text}");
}

#[cfg(not(feature = "rabbitmq"))]
#[test]
fn the_error_of_a_missing_provider_names_its_feature() {
    let error = load("[common.messaging]\nprovider = 'rabbitmq'").and_then(|config| config.endpoint().map(drop));
    let text = error.unwrap_err().to_string();
    assert!(text.contains("postrider.toml:2:1: common.messaging.provider = "), "{text}");
    assert!(text.contains("enable the feature 'rabbitmq' of the crate postrider, or use memory"), "{text}");
}
