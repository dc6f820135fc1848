//! The tokens that a server knows its callers by.

use http::Method;
use postrider_core::{Deadline, MessagingError};
use postrider_wire::Code;
use postrider_wire::token::{NewToken, NewTokenRequest, TokenInfo, Tokens};
use serde::de::IgnoredAny;
use uuid::Uuid;

use crate::provider::HttpProvider;
use crate::transport::Ask;

const REVOKE: &str = "revoke the token";

/// The tokens of a server, for whoever may administer it. Clones are the same.
#[derive(Debug, Clone)]
pub struct HttpTokens {
    provider: HttpProvider,
}

impl HttpTokens {
    /// The tokens of the server that a connection leads to.
    pub fn new(provider: HttpProvider) -> Self {
        Self { provider }
    }

    /// Makes a token. Its text is answered here and never again.
    pub async fn create(&self, asked: &NewTokenRequest, deadline: Deadline) -> Result<NewToken, MessagingError> {
        let ask = Ask::post("/v1/tokens", asked)?;
        self.provider.change("make the token", Vec::new(), ask, deadline).await
    }

    /// Every token, oldest first.
    pub async fn list(&self, deadline: Deadline) -> Result<Vec<TokenInfo>, MessagingError> {
        let Tokens { tokens } = self.provider.look("list tokens", Ask::get("/v1/tokens"), deadline).await?;
        Ok(tokens)
    }

    /// Takes a token back; answers whether it was there.
    pub async fn revoke(&self, id: Uuid, deadline: Deadline) -> Result<bool, MessagingError> {
        let ask = Ask::bare(Method::DELETE, format!("/v1/tokens/{id}"));
        let transport = self.provider.transport().clone();
        let work = async move {
            match transport.change(ask).await {
                Ok(IgnoredAny) => Ok(true),
                Err(undone) if undone.code() == Some(Code::NotFound) => Ok(false),
                Err(undone) => Err(undone.into_error(REVOKE, Vec::new())),
            }
        };
        self.provider.carry_out(REVOKE, Vec::new(), deadline, work).await
    }
}
