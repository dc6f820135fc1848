//! `postrider token`

mod place;

use std::time::Duration;

use clap::Subcommand;
use postrider::Timestamp;
use postrider::http::{NewToken as Made, NewTokenRequest, Role, TokenInfo};
use postrider_server::{QueuePattern, role_named};
use serde::Serialize;
use uuid::Uuid;

use crate::args::Global;
use crate::failure::Failure;
use crate::output::{Output, note};
use crate::table::{Column, Table};
use crate::text::one_line;
use crate::values;
use place::Place;

/// Make, list and take back the tokens by which a server knows its callers
///
/// They are kept where state.url says; over --url http://host:port the server is asked, and needs a token with the role
/// 'admin' itself once there is one. The first token closes a server that was open to everybody on its machine, and has
/// the role 'admin'.
#[derive(Debug, clap::Args)]
#[command(after_help = MORE)]
pub(crate) struct Token {
    #[command(subcommand)]
    command: Command,
}

const MORE: &str = "\
Roles:
  read      look at queues, messages, tasks and schedules
  produce   send messages and make tasks
  consume   receive and settle messages, work on tasks
  operate   pause, purge, redrive, replay and schedule; read is included
  admin     everything, tokens included

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

/// Make a token
///
/// Prints it, this once: only a fingerprint of it is kept.
#[derive(Debug, clap::Args)]
struct Create {
    /// What people call it; it stands in the audit log
    name: String,

    /// What it allows: read, produce, consume, operate or admin; several with commas, or given several times
    #[arg(long = "role", required = true, value_name = "ROLE", value_delimiter = ',', value_parser = role)]
    roles: Vec<Role>,

    /// A queue that it is for, or several by what their names begin with, like 'mail.*'; may be given several times. For
    /// tasks, name the queue of their type, like 'task_report' [default: every queue]
    #[arg(long = "queue", value_name = "PATTERN", value_parser = pattern)]
    queues: Vec<QueuePattern>,

    /// It is good for this long, like 12h or 30d [default: until it is revoked]
    #[arg(long, value_name = "DURATION", value_parser = values::duration, allow_hyphen_values = true)]
    expires_in: Option<Duration>,
}

/// List tokens, without their secrets
#[derive(Debug, clap::Args)]
struct List {}

/// Take a token back
///
/// It is worth nothing within a second.
#[derive(Debug, clap::Args)]
struct Revoke {
    /// Its id, as 'token list' shows it
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
    let place = Place::of(&global.config_for(None)?).await?;
    let out = Output::new(global.json);
    let done = match command.command {
        Command::Create(command) => create(&place, out, command).await,
        Command::List(List {}) => list(&place, out).await,
        Command::Revoke(Revoke { id }) => revoke(&place, out, id).await,
    };
    let closed = place.close().await;
    done.and(closed)
}

async fn create(place: &Place, out: Output, command: Create) -> Result<(), Failure> {
    let Create { name, roles, queues, expires_in } = command;
    let queues = Some(queues).filter(|queues| !queues.is_empty());
    let queues = queues.map(|queues| queues.iter().map(ToString::to_string).collect());
    let made: Made = place.create(NewTokenRequest { name, roles, queues, expires_in }).await?;
    let id = made.info.id;
    let told = out.row(&made, &made.token);
    told.map_err(|failure| {
        failure.after(format_args!("a token was made; 'postrider token revoke {id}' takes it back"))
    })?;
    if !out.is_json() {
        note("this is the token; it is shown this once. Give it to programs as POSTRIDER_TOKEN");
    }
    Ok(())
}

async fn list(place: &Place, out: Output) -> Result<(), Failure> {
    let tokens = place.list().await?;
    if out.is_json() {
        return out.rows(tokens.iter().map(|token| (token, "")));
    }
    out.text(&table(&tokens))
}

async fn revoke(place: &Place, out: Output, id: Uuid) -> Result<(), Failure> {
    // Asked before: afterwards nobody may be left who is answered.
    let tokens = place.list().await?;
    let is_admin = |token: &&TokenInfo| token.roles.contains(&Role::Admin);
    let is_last_admin = tokens.iter().filter(is_admin).all(|token| token.id == id);
    if !place.revoke(id).await? {
        return Err(Failure::failed(format!(
            "there is no token {id}; 'postrider token list' shows those that there are"
        )));
    }
    out.row(&Revoked { id, outcome: "revoked" }, format_args!("{id} was revoked"))?;
    if is_last_admin {
        note(
            "no token with the role 'admin' is left, so the server lets nobody make or revoke tokens; \
             'postrider token create NAME --role admin' on the server's own store, without --url http://…, makes one",
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
    fn roles_are_called_here_as_they_are_called_there() {
        for role in [Role::Read, Role::Produce, Role::Consume, Role::Operate, Role::Admin] {
            assert_eq!(role_named(role_name(role)).unwrap(), role);
        }
    }
}
