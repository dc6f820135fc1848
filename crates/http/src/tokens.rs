//! Administration of a server's tokens.

use http::Method;
use postrider_core::{Deadline, MessagingError};
use postrider_wire::Code;
use postrider_wire::token::{NewToken, NewTokenRequest, TokenInfo, Tokens};
use serde::de::IgnoredAny;
use uuid::Uuid;

use crate::provider::HttpProvider;
use crate::transport::Request;

const REVOKE: &str = "revoke the token";

/// The tokens of a server. Needs the role admin. Clones share the connection.
#[derive(Debug, Clone)]
pub struct HttpTokens {
    provider: HttpProvider,
}

impl HttpTokens {
    /// The tokens of the server of a connection.
    pub fn new(provider: HttpProvider) -> Self {
        Self { provider }
    }

    /// Creates a token. Its secret is returned only here.
    pub async fn create(&self, new: &NewTokenRequest, deadline: Deadline) -> Result<NewToken, MessagingError> {
        let request = Request::post("/v1/tokens", new)?;
        self.provider.call_once("create the token", Vec::new(), request, deadline).await
    }

    /// All tokens, oldest first.
    pub async fn list(&self, deadline: Deadline) -> Result<Vec<TokenInfo>, MessagingError> {
        let Tokens { tokens } = self.provider.call("list tokens", Request::get("/v1/tokens"), deadline).await?;
        Ok(tokens)
    }

    /// Revokes a token; returns whether it existed.
    pub async fn revoke(&self, id: Uuid, deadline: Deadline) -> Result<bool, MessagingError> {
        let request = Request::bare(Method::DELETE, format!("/v1/tokens/{id}"));
        let transport = self.provider.transport().clone();
        let work = async move {
            match transport.call_once(request).await {
                Ok(IgnoredAny) => Ok(true),
                Err(failure) if failure.code() == Some(Code::NotFound) => Ok(false),
                Err(failure) => Err(failure.into_error(REVOKE, Vec::new())),
            }
        };
        self.provider.carry_out(REVOKE, Vec::new(), deadline, work).await
    }
}
