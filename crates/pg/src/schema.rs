//! The schema of a provider's tables.

use postrider_core::MessagingError;
use postrider_sql::stripes::fnv1a;

/// The name of a schema.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schema(String);

impl Schema {
    /// Returns the schema with this name.
    pub fn new(name: &str) -> Self {
        Self(name.to_owned())
    }

    /// Refuses an invalid name.
    pub fn check(name: &str) -> Result<(), MessagingError> {
        // The server truncates longer names silently, and names that begin with pg_ are its own.
        let is_name = (1..=63).contains(&name.len())
            && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
            && !name.starts_with("pg_");
        if !is_name {
            let shown = name.escape_debug();
            return Err(MessagingError::invalid(
                "schema",
                format!("'{shown}': use 1 to 63 letters, digits and '_', not beginning with 'pg_'"),
            ));
        }
        Ok(())
    }

    /// Returns the name.
    pub fn name(&self) -> &str {
        &self.0
    }

    /// Returns a statement with the name of the schema and of its channel.
    pub fn render(&self, statement: &str) -> String {
        statement.replace("{schema}", &self.quoted()).replace("{channel}", &self.channel())
    }

    /// Returns the quoted name.
    pub fn quoted(&self) -> String {
        format!("\"{}\"", self.0.replace('"', "\"\""))
    }

    /// Returns the class of the schema's advisory locks, so that two schemas of a database do not share locks.
    pub fn lock_class(&self) -> i32 {
        let hash = fnv1a(self.0.as_bytes().iter().chain(b"postrider"));
        // The upper half: a class is 32 bits.
        ((hash >> 32) as u32).cast_signed()
    }

    /// Returns the notification channel. A channel's name has at most 63 bytes.
    pub fn channel(&self) -> String {
        format!("postrider_{:016x}", fnv1a(self.0.as_bytes()))
    }
}
