//! Where tokens are: in the state of a system, or behind a server that has it.

use postrider::config::ProviderKind;
use postrider::http::wire::token::{NewToken as Made, NewTokenRequest, TokenInfo};
use postrider::{Config, Deadline, MessagingProvider, MessagingService, StateStorage};
use postrider_server::Tokens;
use uuid::Uuid;

use super::remote::Remote;
use crate::failure::Failure;
use crate::session::NewFile;

/// Whoever keeps tokens.
pub(super) enum Place {
    /// The state itself, and what it is reached by.
    State(Tokens, Box<MessagingProvider>),
    /// A server.
    Server(Box<Remote>),
}

impl Place {
    /// That of the tokens of a system.
    pub(super) async fn of(config: &Config) -> Result<Self, Failure> {
        if config.provider() == Some(ProviderKind::Http) {
            return Ok(Self::Server(Box::new(Remote::new(config).await?)));
        }
        let file = NewFile::at(config.state_url()?);
        let (state, kept_in) = StateStorage::connect(config).await?;
        file.tell();
        Ok(Self::State(Tokens::new(state), Box::new(kept_in)))
    }

    pub(super) async fn create(&self, asked: NewTokenRequest) -> Result<Made, Failure> {
        match self {
            Self::State(tokens, _) => {
                let (info, token) = tokens.create(asked.try_into()?, Deadline::default()).await?;
                Ok(Made { token, info })
            }
            Self::Server(server) => server.create(&asked).await,
        }
    }

    /// Every token, oldest first.
    pub(super) async fn list(&self) -> Result<Vec<TokenInfo>, Failure> {
        match self {
            Self::State(tokens, _) => Ok(tokens.list(Deadline::default()).await?),
            Self::Server(server) => server.list().await,
        }
    }

    /// Takes one back; answers whether it was there.
    pub(super) async fn revoke(&self, id: Uuid) -> Result<bool, Failure> {
        match self {
            Self::State(tokens, _) => Ok(tokens.revoke(id, Deadline::default()).await?),
            Self::Server(server) => server.revoke(id).await,
        }
    }

    pub(super) async fn close(self) -> Result<(), Failure> {
        match self {
            Self::State(_, kept_in) => Ok(kept_in.close(Deadline::default()).await?),
            Self::Server(_) => Ok(()),
        }
    }
}
