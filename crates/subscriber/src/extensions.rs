//! Values that layers and the subscriber put beside a message, found by their type.

use std::any::{Any, TypeId, type_name};
use std::fmt;

/// At most one value of each type.
///
/// A list and not a map: there are a handful of values, and most messages have none, which costs nothing.
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

    /// Puts a value in, and answers the one of its type that was there before.
    pub fn insert<T: Send + Sync + 'static>(&mut self, value: T) -> Option<T> {
        let earlier = self.remove();
        self.0.push(Entry { kind: TypeId::of::<T>(), name: type_name::<T>(), value: Box::new(value) });
        earlier
    }

    /// The value of that type.
    pub fn get<T: 'static>(&self) -> Option<&T> {
        let entry = self.0.iter().find(|entry| entry.kind == TypeId::of::<T>())?;
        entry.value.downcast_ref()
    }

    /// The value of that type, to be changed.
    pub fn get_mut<T: 'static>(&mut self) -> Option<&mut T> {
        let entry = self.0.iter_mut().find(|entry| entry.kind == TypeId::of::<T>())?;
        entry.value.downcast_mut()
    }

    /// Takes the value of that type out.
    pub fn remove<T: 'static>(&mut self) -> Option<T> {
        let place = self.0.iter().position(|entry| entry.kind == TypeId::of::<T>())?;
        self.0.swap_remove(place).value.downcast().ok().map(|value| *value)
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
