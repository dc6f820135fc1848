//! Values that layers and the subscriber attach to a message, found by their type.

use std::any::{Any, TypeId, type_name};
use std::fmt;

/// At most one value of each type.
///
/// A list and not a map: there are few values, and most messages have none, which costs nothing.
#[derive(Default)]
pub struct Extensions(Vec<Entry>);

struct Entry {
    kind: TypeId,
    name: &'static str,
    value: Box<dyn Any + Send + Sync>,
}

impl Extensions {
    /// No values.
    pub const fn new() -> Self {
        Self(Vec::new())
    }

    /// Adds a value, and returns the previous one of its type.
    pub fn insert<T: Send + Sync + 'static>(&mut self, value: T) -> Option<T> {
        let earlier = self.remove();
        self.0.push(Entry { kind: TypeId::of::<T>(), name: type_name::<T>(), value: Box::new(value) });
        earlier
    }

    /// The value of this type.
    pub fn get<T: 'static>(&self) -> Option<&T> {
        let entry = self.0.iter().find(|entry| entry.kind == TypeId::of::<T>())?;
        entry.value.downcast_ref()
    }

    /// The value of this type, to change it.
    pub fn get_mut<T: 'static>(&mut self) -> Option<&mut T> {
        let entry = self.0.iter_mut().find(|entry| entry.kind == TypeId::of::<T>())?;
        entry.value.downcast_mut()
    }

    /// Removes the value of this type, and returns it.
    pub fn remove<T: 'static>(&mut self) -> Option<T> {
        let index = self.0.iter().position(|entry| entry.kind == TypeId::of::<T>())?;
        self.0.swap_remove(index).value.downcast().ok().map(|value| *value)
    }
}

impl fmt::Debug for Extensions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.0.iter().map(|entry| entry.name)).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn there_is_one_value_of_each_type() {
        let mut extensions = Extensions::new();
        assert_eq!(extensions.insert(1_u8), None);
        assert_eq!(extensions.insert("one"), None);
        assert_eq!(extensions.insert(2_u8), Some(1));
        assert_eq!((extensions.get::<u8>(), extensions.get::<u16>()), (Some(&2), None));
        if let Some(value) = extensions.get_mut::<u8>() {
            *value = 3;
        }
        assert_eq!((extensions.remove::<u8>(), extensions.remove::<u8>()), (Some(3), None));
        assert_eq!(format!("{extensions:?}"), r#"{"&str"}"#);
    }
}
