//! Values chosen by name.

use postrider_core::ArchivePolicy;
use postrider_core::task::TaskMode;

use super::store_settings::{ProviderKind, RabbitMqQueueType, SpoolFiles, SpoolWatch, Synchronous};

/// A value chosen by name.
pub(super) trait Named: Copy + PartialEq + std::fmt::Debug + 'static {
    const NAMES: &'static [(&'static str, Self)];
}

/// A field with a value chosen by name.
pub(super) trait Choice {
    fn names(&self) -> Vec<&'static str>;

    /// The name of the present value; `None` when there is none.
    fn name(&self) -> Option<&'static str>;

    /// Sets the value of that name; `false` when there is none.
    fn choose(&mut self, name: &str) -> bool;
}

impl<T: Named> Choice for T {
    fn names(&self) -> Vec<&'static str> {
        T::NAMES.iter().map(|(name, _)| *name).collect()
    }

    fn name(&self) -> Option<&'static str> {
        T::NAMES.iter().find(|(_, value)| value == self).map(|(name, _)| *name)
    }

    fn choose(&mut self, name: &str) -> bool {
        let named = T::NAMES.iter().find(|(known, _)| *known == name);
        named.is_some_and(|(_, value)| {
            *self = *value;
            true
        })
    }
}

impl<T: Named> Choice for Option<T> {
    fn names(&self) -> Vec<&'static str> {
        T::NAMES.iter().map(|(name, _)| *name).collect()
    }

    fn name(&self) -> Option<&'static str> {
        self.as_ref().and_then(Choice::name)
    }

    fn choose(&mut self, name: &str) -> bool {
        let named = T::NAMES.iter().find(|(known, _)| *known == name);
        *self = named.map(|(_, value)| *value).or(*self);
        named.is_some()
    }
}

impl Named for Synchronous {
    const NAMES: &'static [(&'static str, Self)] = &[("full", Self::Full), ("normal", Self::Normal)];
}

impl Named for SpoolFiles {
    const NAMES: &'static [(&'static str, Self)] = &[("json", Self::Json), ("any", Self::Any)];
}

impl Named for SpoolWatch {
    const NAMES: &'static [(&'static str, Self)] = &[("auto", Self::Auto), ("poll", Self::Poll)];
}

impl Named for RabbitMqQueueType {
    const NAMES: &'static [(&'static str, Self)] = &[("quorum", Self::Quorum), ("classic", Self::Classic)];
}

impl Named for TaskMode {
    const NAMES: &'static [(&'static str, Self)] = &[("polling", Self::Polling), ("queue", Self::Queue)];
}

impl Named for ArchivePolicy {
    const NAMES: &'static [(&'static str, Self)] =
        &[("all", Self::All), ("failed", Self::Failed), ("none", Self::None)];
}

impl Named for ProviderKind {
    const NAMES: &'static [(&'static str, Self)] = &[
        ("memory", Self::Memory),
        ("sqlite", Self::Sqlite),
        ("spool", Self::Spool),
        ("postgres", Self::Postgres),
        ("mysql", Self::Mysql),
        ("pgmq", Self::Pgmq),
        ("rabbitmq", Self::RabbitMq),
        ("sqs", Self::Sqs),
        ("http", Self::Http),
    ];
}
