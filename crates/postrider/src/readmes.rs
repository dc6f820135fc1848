//! Compiles the examples in the READMEs of the crates. They are here because this crate is linked with every
//! provider.

#[doc = include_str!("../README.md")]
struct Postrider;

#[doc = include_str!("../../conformance/README.md")]
struct Conformance;

#[doc = include_str!("../../core/README.md")]
struct Core;

#[cfg(feature = "http")]
#[doc = include_str!("../../http/README.md")]
struct Http;

#[cfg(feature = "mysql")]
#[doc = include_str!("../../mysql/README.md")]
struct Mysql;

#[cfg(feature = "pgmq")]
#[doc = include_str!("../../pgmq/README.md")]
struct Pgmq;

#[cfg(feature = "postgres")]
#[doc = include_str!("../../postgres/README.md")]
struct Postgres;

#[cfg(feature = "rabbitmq")]
#[doc = include_str!("../../rabbitmq/README.md")]
struct Rabbitmq;

#[cfg(feature = "spool")]
#[doc = include_str!("../../spool/README.md")]
struct Spool;

#[cfg(feature = "sqlite")]
#[doc = include_str!("../../sqlite/README.md")]
struct Sqlite;

#[cfg(feature = "sqs")]
#[doc = include_str!("../../sqs/README.md")]
struct Sqs;

#[cfg(feature = "subscriber")]
#[doc = include_str!("../../subscriber/README.md")]
struct Subscriber;

#[cfg(all(feature = "sqlite", feature = "tasks"))]
#[doc = include_str!("../../tasks/README.md")]
struct Tasks;
