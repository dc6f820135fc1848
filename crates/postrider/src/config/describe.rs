//! The effective values of all keys.

use super::choice::Choice;
use super::draft::Draft;
use super::error::Problem;
use super::keys;
use super::origin::Origin;
use super::store::Store;
use super::store_settings::ProviderKind;
use super::store_url::StoreUrl;

/// A key with its effective value.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Row {
    /// The key.
    pub key: &'static str,
    /// Its value, secrets masked; `None` when it has none.
    pub value: Option<String>,
    /// Where the value comes from.
    pub origin: Origin,
    /// What the key is for.
    pub meaning: &'static str,
    /// Why the value has no effect, when it belongs to a store that is not in use.
    pub without_effect: Option<String>,
}

/// A key in a provider's section affects only that provider, for messages or for tasks.
fn without_effect(key: &str, store: &Store, state: Option<ProviderKind>) -> Option<String> {
    let is_used = |kind: ProviderKind| kind.can_be_used() && [store.kind, state].contains(&Some(kind));
    let kind = ProviderKind::of_section(key).filter(|kind| !is_used(*kind))?;
    let name = kind.name().unwrap_or_default();
    Some(if kind.can_be_used() && kind == ProviderKind::Http {
        "takes effect when messages are kept by a server".to_owned()
    } else if kind.can_be_used() && kind.keeps_state() {
        format!("takes effect when messages or tasks are kept in {name}")
    } else if kind.can_be_used() {
        format!("takes effect when messages are kept in {name}")
    } else {
        format!("takes effect when messages are kept in {name}, which this program cannot do")
    })
}

/// Every key with its effective value. For `provider` and `url` that is the chosen store, whichever key named it.
pub(super) fn rows(draft: &Draft, store: &Store, state_url: &Result<StoreUrl, Problem>) -> Vec<Row> {
    let mut draft = draft.clone();
    let row = |key: &'static keys::Key| {
        let (value, origin) = match key.name {
            keys::PROVIDER => (store.kind_name().map(Into::into), store.kind_origin.clone()),
            keys::URL => (Some(store.url.to_string()), store.url_origin.clone()),
            keys::STATE_URL => (state_url.as_ref().ok().map(ToString::to_string), draft.origin(key.name)),
            _ => (key.value(&mut draft), draft.origin(key.name)),
        };
        let without_effect = without_effect(key.name, store, state_url.as_ref().ok().and_then(ProviderKind::of));
        Row { key: key.name, value, origin, meaning: key.meaning, without_effect }
    };
    keys::all().map(row).collect()
}
