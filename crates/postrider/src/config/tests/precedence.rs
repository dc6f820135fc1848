//! Which of several sources decides.

use super::*;

#[test]
fn a_token_is_given_by_its_short_variable_and_never_shown() {
    let variables = [("POSTRIDER_TOKEN", "prt_0_secret"), ("POSTRIDER_URL", "http://host:8025")];
    let config = Config::load(&defaults().environment(variables)).unwrap();
    assert_eq!(config.common().messaging.http.token.as_ref().unwrap().reveal(), "prt_0_secret");
    let row = config.describe().iter().find(|row| row.key == keys::HTTP_TOKEN).unwrap();
    assert_eq!((row.value.as_deref(), row.origin.to_string().as_str()), (Some("***"), "POSTRIDER_TOKEN"));
    assert!(!format!("{config:?} {:?}", config.endpoint()).contains("secret"));
    // Nor in an error, or as the value of another key.
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
                "common.messaging.sqlite.wal_limit_bytes"
                | "server.max_request_bytes"
                | "server.max_bytes_in_flight" => "70000",
                _ => "4",
            },
        };
        let mut draft = draft::Draft::default();
        let mut problems = Vec::new();
        let variables = [(environment::variable(key.name).into(), value.into())];
        draft.apply_layer(environment::read(&variables, &mut problems), &mut problems);
        assert_eq!(problems, [], "{}", key.name);
        assert!(matches!(draft.origin(key.name), Origin::Environment { .. }), "{}", key.name);
    }
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
fn only_the_first_existing_file_is_read() {
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
