//! A configuration that is being read.

use std::collections::BTreeMap;
use std::path::PathBuf;

use postrider_core::masked_url::MASK;
use serde_json::{Map, Value};

use super::error::{Problem, Setting};
use super::keys::{self, Key};
use super::origin::Origin;
use super::retry;
use super::server::ServerConfig;
use super::settings::{CommonConfig, TasksConfig};
use super::store_settings::ProviderKind;
use super::store_url::StoreUrl;
use super::value::Written;

/// The values read so far, each from the highest source read so far.
#[derive(Debug, Clone, Default)]
pub(super) struct Draft {
    pub(super) store: StoreKeys,
    /// The fields of the retry strategy, which are checked together.
    pub(super) retry: Map<String, Value>,
    pub(super) common: CommonConfig,
    pub(super) tasks: TasksConfig,
    pub(super) server: ServerConfig,
    given: BTreeMap<&'static str, Setting>,
}

/// The keys from which the stores are chosen.
#[derive(Debug, Clone, Default)]
pub(super) struct StoreKeys {
    pub(super) provider: Option<ProviderKind>,
    pub(super) url: Option<StoreUrl>,
    pub(super) sqlite_path: Option<PathBuf>,
    pub(super) spool_path: Option<PathBuf>,
    pub(super) postgres_url: Option<StoreUrl>,
    pub(super) mysql_url: Option<StoreUrl>,
    pub(super) pgmq_url: Option<StoreUrl>,
    pub(super) rabbitmq_url: Option<StoreUrl>,
    pub(super) sqs_url: Option<StoreUrl>,
    pub(super) http_url: Option<StoreUrl>,
    pub(super) state_url: Option<StoreUrl>,
}

/// A value of a key in a source.
#[derive(Debug, Clone)]
pub(super) struct Given {
    pub(super) key: &'static Key,
    pub(super) value: Written,
    pub(super) origin: Origin,
}

impl Given {
    fn setting(&self) -> Setting {
        let value = if self.key.is_secret() { MASK.to_owned() } else { self.value.shown() };
        Setting { key: self.key.name.into(), value, origin: self.origin.clone() }
    }
}

impl Draft {
    /// Applies the values of one source over those of lower sources.
    pub(super) fn apply_layer(&mut self, layer: Vec<Given>, problems: &mut Vec<Problem>) {
        // The fields of a lower source belong to the strategy that it named.
        if layer.iter().any(|given| given.key.name == retry::STRATEGY) {
            self.retry.clear();
            self.given.retain(|name, _| !retry::is_field(name));
        }
        let mut seen: BTreeMap<&str, Given> = BTreeMap::new();
        for given in layer {
            if let Some(earlier) = seen.get(given.key.name).filter(|earlier| earlier.value != given.value) {
                problems.push(Problem::conflict(earlier.setting(), given.setting(), "name it once"));
                continue;
            }
            match given.key.set(self, &given.value) {
                Ok(()) => drop(self.given.insert(given.key.name, given.setting())),
                Err(why) => {
                    let Setting { key, value, origin } = given.setting();
                    problems.push(Problem::Refused { key, value, origin, why });
                }
            }
            seen.insert(given.key.name, given);
        }
    }

    /// Where the key's value comes from.
    pub(super) fn origin(&self, key: &str) -> Origin {
        self.given.get(key).map_or(Origin::Default, |setting| setting.origin.clone())
    }

    /// The value that a source gives to the key, if any.
    pub(super) fn given(&self, key: &str) -> Option<&Setting> {
        self.given.get(key)
    }

    /// The value of a key, given or default.
    pub(super) fn setting(&self, key: &str) -> Setting {
        self.given(key).cloned().unwrap_or_else(|| {
            let value = keys::find(key).and_then(|key| key.value(&mut self.clone()));
            Setting { key: key.into(), value: value.unwrap_or_else(|| "nothing".into()), origin: Origin::Default }
        })
    }

    /// Sets where a key has its value from.
    pub(super) fn set_origin(&mut self, key: &'static str, origin: &Origin) {
        let setting = Setting { origin: origin.clone(), ..self.setting(key) };
        self.given.insert(key, setting);
    }

    /// A problem with the value of a key, given or default.
    pub(super) fn refuse(&self, key: &str, why: impl Into<String>) -> Problem {
        let Setting { key, value, origin } = self.setting(key);
        Problem::Refused { key, value, origin, why: why.into() }
    }
}
