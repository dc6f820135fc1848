//! The URL and the options of a folder of files.

use postrider_core::MessagingError;
use postrider_spool::{Files, OrderingField, SpoolOptions, Watch};

use super::path::PathUrl;
use crate::config::{MessagingConfig, SpoolFiles, SpoolWatch};

/// The URL form.
pub(super) const URL: PathUrl = PathUrl { scheme: "spool", what: "folder", example: "spool:/path" };

/// The options of the settings.
pub(super) fn options(settings: &MessagingConfig) -> Result<SpoolOptions, MessagingError> {
    let spool = &settings.spool;
    let ordering_key: Result<Vec<OrderingField>, _> = spool.ordering_key.iter().map(|field| field.parse()).collect();
    Ok(SpoolOptions {
        create_queues: settings.create_queues,
        limits: settings.limits(),
        files: match spool.files {
            SpoolFiles::Json => Files::Json,
            SpoolFiles::Any => Files::Any,
        },
        ordering_key: ordering_key?,
        grace_period: spool.grace_period,
        watch: match spool.watch {
            SpoolWatch::Auto => Watch::Auto,
            SpoolWatch::Poll => Watch::Poll,
        },
        poll_interval: spool.poll_interval,
        lock_timeout: spool.lock_timeout,
        ..SpoolOptions::default()
    })
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::config::SpoolConfig;

    /// Not every setting shows in the folder, so the options are compared.
    #[test]
    fn every_setting_of_a_folder_is_passed_on() {
        let spool = SpoolConfig {
            files: SpoolFiles::Any,
            ordering_key: vec!["run".into(), "channel,/message/from".into()],
            grace_period: Duration::from_secs(7),
            watch: SpoolWatch::Poll,
            poll_interval: Duration::from_millis(50),
            lock_timeout: Duration::from_millis(250),
        };
        let settings =
            MessagingConfig { create_queues: false, max_message_bytes: 77, spool, ..MessagingConfig::default() };
        let options = super::options(&settings).unwrap();
        assert_eq!((options.files, options.watch), (Files::Any, Watch::Poll));
        let fields: Vec<_> = options.ordering_key.iter().map(ToString::to_string).collect();
        assert_eq!(fields, ["run", "channel,/message/from"]);
        assert_eq!(options.grace_period, Duration::from_secs(7));
        assert_eq!(options.poll_interval, Duration::from_millis(50));
        assert_eq!(options.lock_timeout, Duration::from_millis(250));
        assert_eq!(options.limits.max_body_bytes, 77);
        assert!(!options.create_queues);

        let of = |options: SpoolOptions| {
            let SpoolOptions { create_queues, limits, files, ordering_key, grace_period, watch, .. } = options;
            let times = (grace_period, options.poll_interval, options.lock_timeout);
            format!("{create_queues} {limits:?} {files:?} {ordering_key:?} {watch:?} {times:?}")
        };
        let defaults = super::options(&MessagingConfig::default()).unwrap();
        assert_eq!(of(defaults), of(SpoolOptions::default()), "the defaults of both are the same");
    }

    #[test]
    fn a_field_without_a_name_is_refused() {
        let spool = SpoolConfig { ordering_key: vec!["channel,,run".into()], ..SpoolConfig::default() };
        let refused = super::options(&MessagingConfig { spool, ..MessagingConfig::default() }).unwrap_err();
        assert!(refused.to_string().contains("channel,,run"), "{refused}");
    }
}
