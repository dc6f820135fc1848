//! The command line.

use std::path::PathBuf;

use clap::{Parser, Subcommand};

use crate::archive::Archive;
use crate::bench::Bench;
use crate::completions::Completions;
use crate::config::Config;
use crate::demo::Demo;
use crate::dlq::Dlq;
use crate::doctor::Doctor;
use crate::log::LogFormat;
use crate::message::Message;
use crate::migrate::Migrate;
use crate::peek::Peek;
use crate::purge::Purge;
use crate::queues::{Pause, Queues, Resume, Stats};
use crate::receive::Receive;
use crate::schedule::Schedule;
use crate::send::Send;
use crate::serve::Serve;
use crate::settle::{Ack, Extend, Refuse, Release};
use crate::task::Task;
use crate::token::Token;
use crate::verify::Verify;
use crate::work::Work;

/// One durable message lifecycle, on whatever queue you already run.
#[derive(Debug, Parser)]
#[command(name = "postrider", version, after_help = EXAMPLES, max_term_width = 100)]
pub(crate) struct Args {
    #[command(flatten)]
    pub(crate) global: Global,

    #[command(subcommand)]
    pub(crate) command: Command,
}

const EXAMPLES: &str = "\
Examples:
  postrider send orders '{\"id\": 7}'       send a message
  postrider receive orders --ack          receive and acknowledge it
  postrider stats                         count the messages of each queue
  postrider verify memory:                check the sixteen rules on a store in memory
  postrider serve                         serve the store over HTTP, with a dashboard

URLs:
  memory:                                 a store in this process, lost when the process ends
  sqlite:/path/file.db                    a file, created if missing
  spool:/path                             a folder; 'mv' into QUEUE/incoming sends a message
  postgres://user@host/database           a schema of a PostgreSQL database, created if missing
  mysql://user@host/database              tables of a MariaDB or MySQL database
  pgmq+postgres://user@host/database      queues of PGMQ in a PostgreSQL database
  amqp://user@host/vhost                  queues of a RabbitMQ broker; amqps:// with TLS
  sqs://region/prefix                     queues of Amazon SQS whose names begin with the prefix
  sqs+http://host:port/prefix             the same, on a server that speaks the SQS protocol
  http://host:port                        the store of a 'postrider serve'; https:// with TLS.
                                          POSTRIDER_TOKEN is the token, if the server requires one
Without a URL: the one that 'postrider config' shows; by default, a file in your data folder.

Exit codes: 0 done, 1 failed, 2 wrong usage.";

const EVERY_COMMAND: &str = "Options of every command";

/// Options of every command.
#[derive(Debug, clap::Args)]
pub(crate) struct Global {
    /// The store [env: POSTRIDER_URL]
    #[arg(long, global = true, value_name = "URL", help_heading = EVERY_COMMAND)]
    pub(crate) url: Option<String>,

    /// The configuration file; without it, 'postrider.toml' in this folder or in the user's configuration folder [env:
    /// POSTRIDER_CONFIG]
    #[arg(long, global = true, value_name = "FILE", help_heading = EVERY_COMMAND)]
    pub(crate) config: Option<PathBuf>,

    /// Print one JSON object per line
    #[arg(long, global = true, help_heading = EVERY_COMMAND)]
    pub(crate) json: bool,

    /// Format of the log that 'work', 'task worker', 'task keeper' and 'serve' write to stderr: text or json. RUST_LOG
    /// filters it, for example debug or postrider_subscriber=debug,warn
    #[arg(long, global = true, value_name = "FORMAT", default_value = "text", hide_possible_values = true,
        help_heading = EVERY_COMMAND)]
    pub(crate) log_format: LogFormat,
}

#[derive(Debug, Subcommand)]
pub(crate) enum Command {
    Send(Send),
    Receive(Receive),
    Ack(Ack),
    Nack(Refuse),
    Release(Release),
    Extend(Extend),
    Work(Work),
    Queues(Queues),
    Stats(Stats),
    Peek(Peek),
    Purge(Purge),
    Message(Message),
    Pause(Pause),
    Resume(Resume),
    Dlq(Dlq),
    Archive(Archive),
    Task(Task),
    Schedule(Schedule),
    Serve(Serve),
    Token(Token),
    Config(Config),
    Migrate(Migrate),
    Demo(Demo),
    Verify(Verify),
    Doctor(Doctor),
    Bench(Bench),
    Completions(Completions),
}
