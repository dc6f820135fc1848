//! Error texts of the configuration.

use std::path::Path;

use super::*;

/// Each input with its errors.
fn refusals<'a>(texts: impl IntoIterator<Item = &'a str>) -> String {
    let refusal = |text: &str| {
        let folder = Folder::new();
        let sources = defaults().file(folder.write("postrider.toml", text));
        let error = folder.without(Config::load(&sources).expect_err(text));
        format!("{text}\n=> {error}\n\n")
    };
    texts.into_iter().map(refusal).collect()
}

#[test]
fn a_file_that_cannot_be_read_is_not_passed_over() {
    let folder = Folder::new();
    std::fs::create_dir_all(folder.0.join("a/postrider.toml")).unwrap();
    let text = |sources: &Sources| folder.without(Config::load(sources).unwrap_err());
    let folders = ["a", "b"].map(|name| folder.0.join(name));
    let named = |path: &Path| text(&defaults().file(path));
    let not_utf8 = folder.write("latin.toml", b"[common]\n# \xe9\n");
    let refused = [
        named(&folder.0.join("missing.toml")),
        named(&folder.0.join("latin.toml/postrider.toml")),
        named(&not_utf8),
        text(&defaults().first_file_in(folders)),
    ]
    .join("\n");
    insta::assert_snapshot!(refused);
}

#[test]
fn unknown_keys_are_refused_with_a_suggestion() {
    let refused = refusals([
        "[common.messaging]\ndefault_batchsize = 10",
        "[common.messaging]\nProvider = 'memory'",
        "[common.mesaging]\nprovider = 'memory'\nurl = 'memory:'",
        "[messaging]\nprovider = 'memory'",
        "[common.messaging]\nprefetch_count = 10",
        "[common.messaging.rabbitmq]\nuser = 'rider'",
        "[common.messaging.spool]\nlock_timeout_seconds = 3",
        "[common.messaging.spool]\nfile = 'any'",
        "[weather]\ntoday = 'fine'",
        "'common.messaging.url' = 'memory:'",
        "common.retry.limits.max_atempts = 3",
        "[common.messaging]\nurl = 'memory:'\n  ulr = 'memory:'\n[state]\nbatch = 1",
    ]);
    insta::assert_snapshot!(refused);
}

#[test]
fn values_that_are_not_allowed_are_refused_with_what_is() {
    let refused = refusals([
        "[common.messaging]\ndefault_batch_size = 0",
        "[common.messaging]\ndefault_batch_size = '10'",
        "[common.messaging]\ndefault_batch_size = 99999999999999999999",
        "[common.messaging]\ndefault_batch_size = -0x1",
        "[common.messaging]\ndefault_batch_size = 2.5",
        "[common.messaging]\ndefault_visibility_timeout_seconds = '500ms'",
        "[common.messaging]\ndefault_visibility_timeout_seconds = -1",
        "[common.messaging]\ndefault_visibility_timeout_seconds = inf",
        "[common.messaging]\ncreate_queues = 'true'",
        "[common.messaging]\ncreate_queues = 1",
        "[common.messaging]\nprovider = 'kafka'",
        "[common.messaging]\nprovider = 'amqp://rider:secret@host'",
        "[common.messaging]\nurl = ''",
        "[common.messaging]\nurl = 5",
        "[common.messaging.url]\nhost = 'x'",
        "[common.messaging.dead_letter]\nenabled = false",
        "[common.messaging.dead_letter]\nqueue_suffix = '_dead'",
        "[common.messaging.dead_letter]\nmax_receive_count = 0",
        "[common.messaging.sqlite]\npath = '~/mail.db'",
        "[common.messaging.sqlite]\nsynchronous = 'off'",
        "[common.messaging.sqlite]\narchive_retention = 7",
        "[common.messaging.sqlite]\narchive_retention = '-7d'",
        "[common.messaging.sqlite]\narchive_retention = \"\"\"7d\nand a very long text that is not a duration at all\"\"\"",
        "[common.messaging.spool]\npath = '~/mail'",
        "[common.messaging.spool]\nfiles = 'xml'",
        "[common.messaging.spool]\nordering_key = ['channel,,conversation']",
        "[common.messaging.spool]\nordering_key = ['channel', 7]",
        "[common.messaging.spool]\nordering_key = ''",
        "[common.messaging.spool]\ngrace_period = 2",
        "[common.messaging.spool]\ngrace_period = '2h'",
        "[common.messaging.spool]\nwatch = true",
        "[common.messaging.spool]\npoll_interval = '0s'",
        "[common.messaging.spool]\nlock_timeout = 'never'",
        "[common.messaging.rabbitmq]\nvhost = ''",
        "[common.messaging.rabbitmq]\nprefetch_count = 65536",
        "[common.messaging.http]\ntoken = ''",
        "[server]\nlisten = 'localhost'",
        "[server]\nlisten = 8025",
        "[server]\nmax_request_bytes = 1",
        "[server]\nrequests_per_second = -1",
        "[server]\nhead_timeout = 5",
        "[server]\ntls_certificate = '/server.pem'",
        "[server]\ntls_key = '/server.key'",
        "common.messaging = 'memory:'",
        "[[common.messaging]]\nurl = 'memory:'",
        "[common.messaging]\ndefault_batch_size = 500\n",
        "[common.messaging]\nmax_batch_size = 5\n",
    ]);
    insta::assert_snapshot!(refused);
}

#[test]
fn text_that_is_not_toml_is_refused_without_repeating_it() {
    let texts = [
        "[common.messaging]\nurl = amqp://rider:secret@host",
        "[common.messaging]\nurl = 'amqp://rider:secret@host",
        "[common.messaging\n",
        "[state]\nurl = 'a:'\nurl = 'b:'",
    ];
    let shown = refusals(texts);
    let errors: Vec<_> = shown.lines().filter(|line| line.starts_with("=>")).collect();
    assert!(!errors.concat().contains("secret"));
    let refused = errors.join("\n");
    insta::assert_snapshot!(refused);
}

#[test]
fn provider_and_url_must_agree_in_one_source() {
    let refused = refusals([
        "[common.messaging]\nprovider = 'rabbitmq'\nurl = 'sqlite:/mail.db'",
        "[common.messaging]\nprovider = 'pgmq'\nurl = 'postgres://rider:secret@host/mail'",
        "[common.messaging]\nprovider = 'pgmq'",
        "[common.messaging]\nprovider = 'rabbitmq'\nurl = 'amqp://a:secret@host'\nrabbitmq.url = 'amqp://b:secret@host'",
        "[common.messaging]\nurl = 'sqlite:/a.db'\nsqlite.path = '/b.db'",
        "[common.messaging]\nprovider = 'pgmq'\npgmq.url = 'postgres://rider:secret@host/mail'",
        "[common.messaging]\nprovider = 'postgres'\npostgres.url = 'mysql://rider:secret@host/mail'",
        "[common.messaging]\npostgres.url = 'postgres://a@host/mail'\nmysql.url = 'mysql://b@host/mail'",
    ]);
    insta::assert_snapshot!(refused);
}

#[test]
fn variables_and_flags_are_refused_like_lines() {
    let variables = |variables: &[(&str, &str)]| {
        let variables = variables.iter().map(|(name, value)| (name.to_string(), value.to_string()));
        format!("{}\n", Config::load(&defaults().environment(variables)).unwrap_err())
    };
    let mut text = String::new();
    text += &variables(&[("POSTRIDER__COMMON__MESSAGING__DEFAULT_BATCH_SIZE", "ten")]);
    text += &variables(&[("POSTRIDER__COMMON__MESSAGING__DEFAULT_BATCHSIZE", "10")]);
    text += &variables(&[("POSTRIDER__MESSAGING__PREFETCH_COUNT", "10")]);
    text += &variables(&[("POSTRIDER__WEATHER", "fine")]);
    text += &variables(&[("POSTRIDER__COMMON__MESSAGING__CREATE_QUEUES", "yes")]);
    text += &variables(&[
        ("POSTRIDER_URL", "amqp://a:secret@host"),
        ("POSTRIDER__COMMON__MESSAGING__URL", "amqp://b:secret@host"),
    ]);
    let flags = defaults()
        .flag("--batch", "common.messaging.default_batch_size", "-1")
        .flag("--set", "common.messaging.batch_size", "1")
        .flag("--set", "colour", "red");
    text += &Config::load(&flags).unwrap_err().to_string();
    insta::assert_snapshot!(text);
}

#[cfg(unix)]
#[test]
fn bytes_that_are_no_text_are_refused_or_passed_over() {
    use std::os::unix::ffi::OsStringExt;
    let bytes = || std::ffi::OsString::from_vec(vec![0xff]);
    let foreign = defaults().environment([("LANG".into(), bytes()), (bytes(), bytes())]);
    assert!(Config::load(&foreign).is_ok());
    let ours = defaults().environment([("POSTRIDER_URL", bytes())]);
    assert_eq!(
        Config::load(&ours).unwrap_err().to_string(),
        "POSTRIDER_URL: common.messaging.url = something: it is not UTF-8 text; write it as UTF-8"
    );
}

#[test]
fn no_url_shows_its_password_wherever_it_was_written() {
    const URL: &str = "http://rider:hunter2@collector:4318";
    for name in
        ["common.messaging.url", "common.messaging.rabbitmq.management_url", "server.otlp_endpoint", "state.url"]
    {
        let read = Config::load(&defaults().flag("--set", name, URL));
        let told = match &read {
            Ok(config) => format!(
                "{config:?} {:?} {}",
                config.server(),
                config.describe().iter().map(|row| format!("{row:?}")).collect::<String>()
            ),
            Err(error) => format!("{error} {error:?}"),
        };
        assert!(told.contains("http://rider:***@collector:4318") && !told.contains("hunter2"), "{name}: {told}");
    }
    for toml in [
        format!("[server]\nlisten = '{URL}'"),
        format!("[server]\notlp_endpoint = ['{URL}']"),
        format!("[server]\nmax_connections = [['{URL}'], [\"{URL}\"]]"),
    ] {
        let error = load(&toml).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{toml}: {error}");
    }
}

#[test]
fn a_retry_strategy_that_makes_no_sense_is_refused() {
    let refused = refusals([
        "[common.retry]\nstrategy = 'sometimes'",
        "[common.retry]\nstrategy = 'linear'",
        "[common.retry]\nstrategy = 'constant'\ndelay = '5s'\njitter = '1s'",
        "[common.retry]\nstrategy = 'no_retry'\nlimits.max_attempts = 3",
        "[common.retry]\ndelay = 'soon'",
        "[common.retry]\ndelay = '5s'",
        "[common.retry]\nmultiplier = 0.5",
        "[common.retry]\ninitial_delay = '2h'",
        "[common.retry.limits]\nmax_attempts = 0",
        "[common.retry.limits]\nmax_attempts = 3\nmax_total_delay = '0s'",
        "[common.retry]\nmax_delay = '500ms'",
        "[common.retry]\nstrategy = 'constant'\ndelay = '200 years'",
        "[common.retry]\nstrategy = 'constant'\ndelay = '73000d'",
        "[common.retry]\nlimits = 3",
        "[common.retry]\nstrategy = 'constant_with_jitter'\nmultiplier = 2.0\nincrement = '1s'",
        "[common.retry]\nstrategy = 'linear'\n[common.messaging]\ndefault_batch_size = 0",
    ]);
    insta::assert_snapshot!(refused);
}

#[test]
fn queues_that_cannot_be_named_so_are_refused() {
    let refused = refusals([
        "[common.queues]\nworker_queue_prefix = 'a b'",
        "[common.queues.orchestration_queues]\nstep_results = 'orders_dlq'",
        "[common.queues.orchestration_queues]\nstep_results = 'task_requests'",
    ]);
    insta::assert_snapshot!(refused);
}

#[test]
fn the_error_of_an_unusable_url_names_its_origin() {
    let config = load("[common.messaging]\nurl = 'kafka://rider:secret@host'").unwrap();
    let text = config.endpoint().unwrap_err().to_string();
    assert!(
        text.contains("postrider.toml:2:1: common.messaging.url = kafka://rider:***@host: scheme 'kafka'"),
        "{text}"
    );
}
