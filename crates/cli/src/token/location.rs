//! Access to tokens: in the state database, or over a server.

use postrider::config::ProviderKind;
use postrider::http::HttpTokens;
use postrider::http::{NewToken, NewTokenRequest, TokenInfo};
use postrider::{Config, Deadline, MessagingProvider, MessagingService, StateStorage};
use postrider_server::Tokens;
use uuid::Uuid;

use crate::failure::Failure;
use crate::session::NewFile;
use crate::text::one_line;

enum Client {
    /// Of the state database.
    State(Tokens),
    Server(HttpTokens),
}

/// The tokens of the configured system, and the connection to them.
pub(super) struct TokenLocation {
    client: Client,
    connection: MessagingProvider,
}

impl TokenLocation {
    /// Connects to the tokens of the configured system.
    pub(super) async fn of(config: &Config) -> Result<Self, Failure> {
        if config.provider() == Some(ProviderKind::Http) {
            let connection = config.endpoint()?.connect().await?;
            if let MessagingProvider::Http(server) = &connection {
                return Ok(Self { client: Client::Server(HttpTokens::new(server.clone())), connection });
            }
        }
        let file = NewFile::at(config.state_url()?);
        let (state, connection) = StateStorage::connect(config).await?;
        file.announce();
        Ok(Self { client: Client::State(Tokens::new(state)), connection })
    }

    pub(super) async fn create(&self, request: NewTokenRequest) -> Result<NewToken, Failure> {
        match &self.client {
            Client::State(tokens) => {
                let (info, token) = tokens.create(request.try_into()?, &user(), Deadline::default()).await?;
                Ok(NewToken { token, info })
            }
            Client::Server(tokens) => Ok(tokens.create(&request, Deadline::default()).await?),
        }
    }

    /// Every token, oldest first.
    pub(super) async fn list(&self) -> Result<Vec<TokenInfo>, Failure> {
        Ok(match &self.client {
            Client::State(tokens) => tokens.list(Deadline::default()).await?,
            Client::Server(tokens) => tokens.list(Deadline::default()).await?,
        })
    }

    /// Revokes a token; returns whether it existed.
    pub(super) async fn revoke(&self, id: Uuid) -> Result<bool, Failure> {
        Ok(match &self.client {
            Client::State(tokens) => tokens.revoke(id, &user(), Deadline::default()).await?,
            Client::Server(tokens) => tokens.revoke(id, Deadline::default()).await?,
        })
    }

    pub(super) async fn close(self) -> Result<(), Failure> {
        Ok(self.connection.close(Deadline::default()).await?)
    }
}

/// The user for the audit log: access to the state database needs no token.
fn user() -> String {
    let name = ["USER", "LOGNAME"].into_iter().find_map(|name| std::env::var(name).ok());
    let name = name.map(|name| one_line(&name)).filter(|name| !name.is_empty());
    let name = name.unwrap_or_else(|| rustix::process::getuid().as_raw().to_string());
    format!("user {name} on the state")
}
