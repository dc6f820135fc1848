//! Where tokens are: in the state of a system, or behind a server that has it.

use postrider::config::ProviderKind;
use postrider::http::HttpTokens;
use postrider::http::{NewToken as Made, NewTokenRequest, TokenInfo};
use postrider::{Config, Deadline, MessagingProvider, MessagingService, StateStorage};
use postrider_server::Tokens;
use uuid::Uuid;

use crate::failure::Failure;
use crate::session::NewFile;
use crate::text::one_line;

/// Whoever keeps tokens.
enum Keeper {
    /// The state itself.
    State(Tokens),
    /// A server.
    Server(HttpTokens),
}

/// The tokens of a system, and what they are reached by.
pub(super) struct Place {
    keeper: Keeper,
    reached_by: MessagingProvider,
}

impl Place {
    /// That of the tokens of a system.
    pub(super) async fn of(config: &Config) -> Result<Self, Failure> {
        if config.provider() == Some(ProviderKind::Http) {
            let reached_by = config.endpoint()?.connect().await?;
            if let MessagingProvider::Http(server) = &reached_by {
                return Ok(Self { keeper: Keeper::Server(HttpTokens::new(server.clone())), reached_by });
            }
        }
        let file = NewFile::at(config.state_url()?);
        let (state, reached_by) = StateStorage::connect(config).await?;
        file.tell();
        Ok(Self { keeper: Keeper::State(Tokens::new(state)), reached_by })
    }

    pub(super) async fn create(&self, asked: NewTokenRequest) -> Result<Made, Failure> {
        match &self.keeper {
            Keeper::State(tokens) => {
                let (info, token) = tokens.create(asked.try_into()?, &user(), Deadline::default()).await?;
                Ok(Made { token, info })
            }
            Keeper::Server(tokens) => Ok(tokens.create(&asked, Deadline::default()).await?),
        }
    }

    /// Every token, oldest first.
    pub(super) async fn list(&self) -> Result<Vec<TokenInfo>, Failure> {
        Ok(match &self.keeper {
            Keeper::State(tokens) => tokens.list(Deadline::default()).await?,
            Keeper::Server(tokens) => tokens.list(Deadline::default()).await?,
        })
    }

    /// Takes one back; answers whether it was there.
    pub(super) async fn revoke(&self, id: Uuid) -> Result<bool, Failure> {
        Ok(match &self.keeper {
            Keeper::State(tokens) => tokens.revoke(id, &user(), Deadline::default()).await?,
            Keeper::Server(tokens) => tokens.revoke(id, Deadline::default()).await?,
        })
    }

    pub(super) async fn close(self) -> Result<(), Failure> {
        Ok(self.reached_by.close(Deadline::default()).await?)
    }
}

/// Whom the audit log names: whoever has the state has it without a token.
fn user() -> String {
    let name = ["USER", "LOGNAME"].into_iter().find_map(|name| std::env::var(name).ok());
    let name = name.map(|name| one_line(&name)).filter(|name| !name.is_empty());
    let name = name.unwrap_or_else(|| rustix::process::getuid().as_raw().to_string());
    format!("user {name} on the state")
}
