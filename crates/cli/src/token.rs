//! `postrider token`

mod location;

use std::time::Duration;

use clap::Subcommand;
use postrider::Timestamp;
use postrider::http::{NewToken, NewTokenRequest, Role, TokenInfo};
use postrider_server::{QueuePattern, role_named};
use serde::Serialize;
use uuid::Uuid;

use crate::args::Global;
use crate::failure::Failure;
use crate::output::{Output, note};
use crate::table::{Column, Table};
use crate::text::one_line;
use crate::values;
use location::TokenLocation;

/// Create, list and revoke the access tokens of a server
///
/// Tokens are stored where state.url says. With --url http://host:port the server changes them, and requires a token with
/// the role 'admin' once one exists. The first token must have the role 'admin'; from then on every client needs a token.
#[derive(Debug, clap::Args)]
#[command(after_help = MORE)]
pub(crate) struct Token {
    #[command(subcommand)]
    command: Command,
}

const MORE: &str = "\
Roles:
  read      list and show queues, messages, tasks and schedules
  produce   send messages and create tasks
  consume   receive and settle messages, run tasks
  operate   pause, purge, redrive, replay and schedule; includes read
  admin     everything, including tokens

Examples:
  postrider token create anna --role admin
  postrider token create ci --role produce --queue orders --queue 'mail.*' --expires-in 30d
  postrider token list
  POSTRIDER_TOKEN=prt_… postrider --url https://host stats";

#[derive(Debug, Subcommand)]
enum Command {
    Create(Create),
    List(List),
    Revoke(Revoke),
}

/// Create a token and print it
///
/// The token is shown only once; the store keeps only a hash of it.
#[derive(Debug, clap::Args)]
struct Create {
    /// Name of the token in the audit log
    name: String,

    /// Role of the token: read, produce, consume, operate or admin; repeatable, or several separated by commas
    #[arg(long = "role", required = true, value_name = "ROLE", value_delimiter = ',', value_parser = role)]
    roles: Vec<Role>,

    /// Queue that the token gives access to, or a prefix of names like 'mail.*'; repeatable. For tasks, the queue of their
    /// type, like 'task_report' [default: every queue]
    #[arg(long = "queue", value_name = "PATTERN", value_parser = pattern)]
    queues: Vec<QueuePattern>,

    /// Lifetime of the token, like 12h or 30d [default: until it is revoked]
    #[arg(long, value_name = "DURATION", value_parser = values::duration, allow_hyphen_values = true)]
    expires_in: Option<Duration>,
}

/// List tokens, without their secrets
#[derive(Debug, clap::Args)]
struct List {}

/// Revoke a token
///
/// The server refuses it within one second.
#[derive(Debug, clap::Args)]
struct Revoke {
    /// The token's id, as 'token list' shows it
    #[arg(value_parser = values::token_id)]
    id: Uuid,
}

/// The line of `--json` of `revoke`.
#[derive(Serialize)]
struct Revoked {
    id: Uuid,
    outcome: &'static str,
}

pub(crate) async fn run(global: &Global, command: Token) -> Result<(), Failure> {
    let location = TokenLocation::of(&global.config_for(None)?).await?;
    let out = Output::new(global.json);
    let done = match command.command {
        Command::Create(command) => create(&location, out, command).await,
        Command::List(List {}) => list(&location, out).await,
        Command::Revoke(Revoke { id }) => revoke(&location, out, id).await,
    };
    let closed = location.close().await;
    done.and(closed)
}

async fn create(location: &TokenLocation, out: Output, command: Create) -> Result<(), Failure> {
    let Create { name, roles, queues, expires_in } = command;
    let queues = Some(queues).filter(|queues| !queues.is_empty());
    let queues = queues.map(|queues| queues.iter().map(ToString::to_string).collect());
    let created: NewToken = location.create(NewTokenRequest { name, roles, queues, expires_in }).await?;
    let id = created.info.id;
    let printed = out.row(&created, &created.token);
    printed.map_err(|failure| {
        failure.after(format_args!("a token was created; 'postrider token revoke {id}' revokes it"))
    })?;
    if !out.is_json() {
        note("this is the token; it is shown only once. Pass it to programs as POSTRIDER_TOKEN");
    }
    Ok(())
}

async fn list(location: &TokenLocation, out: Output) -> Result<(), Failure> {
    let tokens = location.list().await?;
    if out.is_json() {
        return out.rows(tokens.iter().map(|token| (token, "")));
    }
    out.text(&table(&tokens))
}

async fn revoke(location: &TokenLocation, out: Output, id: Uuid) -> Result<(), Failure> {
    // Listed before the revocation, which may remove the right to list.
    let tokens = location.list().await?;
    let is_admin = |token: &&TokenInfo| token.roles.contains(&Role::Admin);
    let is_last_admin = tokens.iter().filter(is_admin).all(|token| token.id == id);
    if !location.revoke(id).await? {
        return Err(Failure::failed(format!("there is no token {id}; 'postrider token list' lists the tokens")));
    }
    out.row(&Revoked { id, outcome: "revoked" }, format_args!("{id} was revoked"))?;
    if is_last_admin {
        note(
            "no token with the role 'admin' is left, so no client can create or revoke tokens over HTTP; \
             'postrider token create NAME --role admin' on the server's own store, without --url http://…, creates one",
        );
    }
    Ok(())
}

fn table(tokens: &[TokenInfo]) -> String {
    let names = ["ID", "NAME", "ROLES", "QUEUES", "CREATED", "EXPIRES", "LAST USED"];
    let mut table = Table::new(names.map(Column::Text));
    let time = |time: Option<Timestamp>| time.map_or_else(|| "-".to_owned(), |time| time.to_string());
    for token in tokens {
        table.push([
            token.id.to_string(),
            one_line(&token.name),
            token.roles.iter().map(|role| role_name(*role)).collect::<Vec<_>>().join(","),
            token.queues.as_ref().map_or_else(|| "all".into(), |queues| queues.join(",")),
            token.created_at.to_string(),
            time(token.expires_at),
            time(token.last_used_at),
        ]);
    }
    table.render()
}

fn role_name(role: Role) -> &'static str {
    match role {
        Role::Read => "read",
        Role::Produce => "produce",
        Role::Consume => "consume",
        Role::Operate => "operate",
        Role::Admin => "admin",
    }
}

fn role(text: &str) -> Result<Role, String> {
    role_named(text).map_err(values::why)
}

fn pattern(text: &str) -> Result<QueuePattern, String> {
    text.parse().map_err(values::why)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn role_names_are_those_of_the_server() {
        for role in [Role::Read, Role::Produce, Role::Consume, Role::Operate, Role::Admin] {
            assert_eq!(role_named(role_name(role)).unwrap(), role);
        }
    }
}
