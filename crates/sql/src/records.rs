//! Records of work that was done, for handlers whose work must not be done twice.

use std::time::Duration;

use postrider_core::idempotency::check_lease;
use postrider_core::{Begun, Deadline, IdempotencyKey, IdempotencyStore, IdempotencyToken, MessagingError, Standing};

use crate::provider::SqlProvider;
use crate::store::{RecordChange, SqlRecords};

impl<S: SqlRecords> SqlProvider<S> {
    async fn change(
        &self,
        token: &IdempotencyToken,
        change: RecordChange,
        deadline: Deadline,
    ) -> Result<Standing, MessagingError> {
        self.begin(change.name(), deadline)?;
        let (store, token) = (self.store().clone(), token.clone());
        let work = async move { store.change_work(&token, change, deadline).await };
        self.carry_out(change.name(), Vec::new(), deadline, work).await
    }
}

impl<S: SqlRecords> IdempotencyStore for SqlProvider<S> {
    async fn begin(&self, key: &IdempotencyKey, lease: Duration, deadline: Deadline) -> Result<Begun, MessagingError> {
        self.begin("begin", deadline)?;
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
        self.begin("forget", deadline)?;
        let store = self.store().clone();
        let forget = async move { store.forget_work(older_than, deadline).await };
        self.carry_out("forget", Vec::new(), deadline, forget).await
    }
}
