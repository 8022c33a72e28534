//! Generic functions that are compiled in this crate.
//!
//! A generic function is compiled in every crate that calls it: for a kernel, once for each instruction set and storage
//! type. Such copies were half of the machine code of `engine`. A function defined by [`compiled_here!`] calls its body
//! through a static pointer to the instance for its storage type, and these are compiled with the static.

/// Defines functions that are generic over the storage type `X` and call a private function, which is compiled in this
/// crate.
macro_rules! compiled_here {
    ($(
        $(#[$attribute:meta])*
        $visibility:vis fn $name:ident<X>($($argument:ident: $type:ty),* $(,)?) $(-> $result:ty)? = $body:ident;
    )+) => {$(
        $(#[$attribute])*
        $visibility fn $name<X: $crate::Element>($($argument: $type),*) $(-> $result)? {
            use $crate::simd::{Instances, Signature};
            struct Pointer;
            impl Signature for Pointer {
                type Of<X: $crate::Element> = fn($($type),*) $(-> $result)?;
            }
            #[cfg(not(test))]
            static INSTANCES: Instances<Pointer> = Instances { f32: $body::<f32>, bf16: $body::<half::bf16> };
            // A constant is compiled if it is used: unit tests do without the kernels that they do not call.
            #[cfg(test)]
            const INSTANCES: Instances<Pointer> = Instances { f32: $body::<f32>, bf16: $body::<half::bf16> };
            X::instance(&INSTANCES)($($argument),*)
        }
    )+};
}
pub(crate) use compiled_here;
