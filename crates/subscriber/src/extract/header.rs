//! One header, by name and as a value.

use super::FromDelivery;
use crate::delivery::Delivery;
use crate::error::{BoxError, HandlerError};

/// A value of one header.
pub trait FromHeader: Sized {
    /// The header's name.
    const NAME: &'static str;

    /// Parses the value of the header.
    fn from_header(text: &str) -> Result<Self, BoxError>;
}

/// The value of one header. `Option<Header<T>>` when a message may lack it.
///
/// A message without the header, or with an invalid value, is dead-lettered: neither will change.
///
/// ```
/// use postrider_subscriber::{BoxError, FromHeader, Header, handler};
///
/// struct Tenant(String);
///
/// impl FromHeader for Tenant {
///     const NAME: &'static str = "tenant";
///     fn from_header(text: &str) -> Result<Self, BoxError> {
///         Ok(Self(text.to_owned()))
///     }
/// }
///
/// let service = handler(async |Header(tenant): Header<Tenant>| println!("for {}", tenant.0));
/// # fn is_service<S: tower_service::Service<postrider_subscriber::Delivery>>(_: S) {}
/// # is_service(service);
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header<T>(pub T);

fn read<T: FromHeader>(delivery: &Delivery) -> Result<Option<Header<T>>, HandlerError> {
    let Some(text) = delivery.envelope.headers.get(T::NAME) else { return Ok(None) };
    let unusable = |error| HandlerError::permanent(format!("header '{}' cannot be used: {error}", T::NAME));
    T::from_header(text).map(|value| Some(Header(value))).map_err(unusable)
}

impl<S, T: FromHeader> FromDelivery<S> for Header<T> {
    fn from_delivery(delivery: &mut Delivery, _: &S) -> Result<Self, HandlerError> {
        let missing = || HandlerError::permanent(format!("the message has no header '{}'", T::NAME));
        read(delivery)?.ok_or_else(missing)
    }
}

impl<S, T: FromHeader> FromDelivery<S> for Option<Header<T>> {
    fn from_delivery(delivery: &mut Delivery, _: &S) -> Result<Self, HandlerError> {
        read(delivery)
    }
}
