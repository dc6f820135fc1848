//! Functions of up to eight arguments.

use super::{Handler, IntoOutcome};
use crate::delivery::Delivery;
use crate::error::HandlerError;
use crate::extract::FromDelivery;

macro_rules! function_of {
    ($($argument:ident $kind:ident),*) => {
        impl<F, Fut, S, $($argument, $kind),*> Handler<($(($argument, $kind),)*), S> for F
        where
            F: Fn($($argument),*) -> Fut + Clone + Send + Sync + 'static,
            Fut: Future<Output: IntoOutcome> + Send + 'static,
            $($argument: FromDelivery<S, $kind>,)*
        {
            type Future = Fut;

            #[allow(unused_variables, unused_mut)] // by a function without arguments
            fn call(&self, mut delivery: Delivery, state: &S) -> Result<Fut, HandlerError> {
                Ok(self($($argument::from_delivery(&mut delivery, state)?),*))
            }
        }
    };
}

function_of!();
function_of!(A1 K1);
function_of!(A1 K1, A2 K2);
function_of!(A1 K1, A2 K2, A3 K3);
function_of!(A1 K1, A2 K2, A3 K3, A4 K4);
function_of!(A1 K1, A2 K2, A3 K3, A4 K4, A5 K5);
function_of!(A1 K1, A2 K2, A3 K3, A4 K4, A5 K5, A6 K6);
function_of!(A1 K1, A2 K2, A3 K3, A4 K4, A5 K5, A6 K6, A7 K7);
function_of!(A1 K1, A2 K2, A3 K3, A4 K4, A5 K5, A6 K6, A7 K7, A8 K8);
