//! The roles of tokens.

use postrider::MessagingError;
pub use postrider_wire::token::Role;

/// All roles.
const ALL: [Role; 5] = [Role::Read, Role::Produce, Role::Consume, Role::Operate, Role::Admin];

/// Returns the role's name in JSON, texts and flags.
pub fn role_name(role: Role) -> &'static str {
    match role {
        Role::Read => "read",
        Role::Produce => "produce",
        Role::Consume => "consume",
        Role::Operate => "operate",
        Role::Admin => "admin",
    }
}

/// Whether a role includes another.
pub(crate) fn includes(role: Role, wanted: Role) -> bool {
    role == wanted || role == Role::Admin || (role == Role::Operate && wanted == Role::Read)
}

/// Returns the role of that name.
pub fn role_named(name: &str) -> Result<Role, MessagingError> {
    ALL.into_iter().find(|role| role_name(*role) == name).ok_or_else(|| {
        let names = ALL.map(role_name).join(", ");
        MessagingError::invalid("role", format!("unknown role '{}'; use one of {names}", name.escape_debug()))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn admin_includes_every_role_and_operate_includes_read() {
        for wanted in ALL {
            assert!(includes(Role::Admin, wanted) && includes(wanted, wanted));
            assert_eq!(includes(Role::Operate, wanted), matches!(wanted, Role::Operate | Role::Read), "{wanted:?}");
            assert_eq!(role_named(role_name(wanted)).unwrap(), wanted);
        }
        assert!(!includes(Role::Read, Role::Consume) && !includes(Role::Produce, Role::Read));
        assert!(role_named("root").is_err());
    }
}
