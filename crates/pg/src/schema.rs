//! The schema that holds a provider's tables.

use postrider_core::MessagingError;
use postrider_sql::stripes::fnv1a;

/// The name of the schema that holds the tables.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Schema(String);

impl Schema {
    /// A schema of that name.
    pub fn new(name: &str) -> Self {
        Self(name.to_owned())
    }

    /// Refuses a name that is none.
    pub fn check(name: &str) -> Result<(), MessagingError> {
        // Longer names are cut by the server without a word, and names that begin with pg_ are its own.
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

    /// The name.
    pub fn name(&self) -> &str {
        &self.0
    }

    /// A statement with this schema in it.
    pub fn render(&self, statement: &str) -> String {
        statement.replace("{schema}", &self.quoted()).replace("{channel}", &self.channel())
    }

    /// The name as SQL has it.
    pub fn quoted(&self) -> String {
        format!("\"{}\"", self.0.replace('"', "\"\""))
    }

    /// What advisory locks of this schema begin with, so that two schemas of a database do not wait for each other.
    pub fn lock_class(&self) -> i32 {
        let hash = fnv1a(self.0.as_bytes().iter().chain(b"postrider"));
        // The upper half: a class is 32 bits.
        ((hash >> 32) as u32).cast_signed()
    }

    /// The channel that wake-ups are sent on. A channel's name may have 63 bytes.
    pub fn channel(&self) -> String {
        format!("postrider_{:016x}", fnv1a(self.0.as_bytes()))
    }
}
