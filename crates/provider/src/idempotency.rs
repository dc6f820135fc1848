//! Idempotency records of work, for handlers whose work must not be done twice.

use std::time::Duration;

use postrider_core::idempotency::check_lease;
use postrider_core::{
    Begun, Deadline, IdempotencyKey, IdempotencyStore, IdempotencyToken, MessagingError, Standing, async_trait,
};

use crate::service::Provider;
use crate::store::Store;
use crate::undone::Undone;

/// A change to an idempotency record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RecordChange {
    /// Extends the lease on the work to *now + duration*.
    Extend(Duration),
    /// The work is done.
    Complete,
    /// The work is abandoned.
    Abandon,
}

impl RecordChange {
    /// The operation's name in errors.
    pub fn name(self) -> &'static str {
        match self {
            Self::Extend(_) => "extend",
            Self::Complete => "complete",
            Self::Abandon => "abandon",
        }
    }
}

/// A store that also keeps idempotency records.
pub trait Records: Store {
    /// Begins work, unless it is done or another worker holds its lease.
    fn begin_work(
        &self,
        key: &IdempotencyKey,
        lease: Duration,
        deadline: Deadline,
    ) -> impl Future<Output = Result<Begun, Undone>> + Send;

    /// Changes the record that the token names.
    fn change_work(
        &self,
        token: &IdempotencyToken,
        change: RecordChange,
        deadline: Deadline,
    ) -> impl Future<Output = Result<Standing, Undone>> + Send;

    /// Removes records that are older than `older_than`, and returns their number.
    fn forget_work(&self, older_than: Duration, deadline: Deadline)
    -> impl Future<Output = Result<u64, Undone>> + Send;
}

impl<S: Records> Provider<S> {
    async fn change(
        &self,
        token: &IdempotencyToken,
        change: RecordChange,
        deadline: Deadline,
    ) -> Result<Standing, MessagingError> {
        Provider::begin(self, change.name(), deadline)?;
        let (store, token) = (self.store().clone(), token.clone());
        let work = async move { store.change_work(&token, change, deadline).await };
        self.carry_out(change.name(), Vec::new(), deadline, work).await
    }
}

#[async_trait]
impl<S: Records> IdempotencyStore for Provider<S> {
    async fn begin(&self, key: &IdempotencyKey, lease: Duration, deadline: Deadline) -> Result<Begun, MessagingError> {
        Provider::begin(self, "begin", deadline)?;
        check_lease(lease)?;
        let (store, key) = (self.store().clone(), key.clone());
        let begin = async move { store.begin_work(&key, lease, deadline).await };
        self.carry_out("begin", Vec::new(), deadline, begin).await
    }

    async fn extend(
        &self,
        token: &IdempotencyToken,
        lease: Duration,
        deadline: Deadline,
    ) -> Result<Standing, MessagingError> {
        check_lease(lease)?;
        self.change(token, RecordChange::Extend(lease), deadline).await
    }

    async fn complete(&self, token: &IdempotencyToken, deadline: Deadline) -> Result<Standing, MessagingError> {
        self.change(token, RecordChange::Complete, deadline).await
    }

    async fn abandon(&self, token: &IdempotencyToken, deadline: Deadline) -> Result<Standing, MessagingError> {
        self.change(token, RecordChange::Abandon, deadline).await
    }

    async fn forget(&self, older_than: Duration, deadline: Deadline) -> Result<u64, MessagingError> {
        Provider::begin(self, "forget", deadline)?;
        let store = self.store().clone();
        let forget = async move { store.forget_work(older_than, deadline).await };
        self.carry_out("forget", Vec::new(), deadline, forget).await
    }
}
