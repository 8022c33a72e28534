//! Arguments of the kernels on a GPU. Each kernel has a struct that declares its parameters, documents them and packs their
//! values: the emitter, the cases and the engine use the same one, so no list of arguments is written twice.

use ptx::{
    BytesParam, Entry, F32, Global, Param, PointerParam, Ptr, Reg, TensorMap, Type, U32,
    sim::{self},
};

/// An address in device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Address(pub u64);

impl Address {
    /// The address `bytes` further on.
    pub fn plus(self, bytes: usize) -> Self {
        Self(self.0 + bytes as u64)
    }

    /// The address of element `index` of elements of so many bytes.
    pub fn element(self, index: usize, bytes: usize) -> Self {
        self.plus(index * bytes)
    }
}

/// One packed argument.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Value {
    /// `.u64`: an address.
    Address(Address),
    /// `.u32`
    U32(u32),
    /// `.f32`
    F32(f32),
    /// `.align 64 .b8 [128]`
    TensorMap(TensorMap),
}

impl From<Value> for sim::Argument {
    fn from(value: Value) -> Self {
        match value {
            Value::Address(address) => Self::U64(address.0),
            Value::U32(value) => Self::U32(value),
            Value::F32(value) => Self::F32(value),
            Value::TensorMap(map) => Self::TensorMap(map.into()),
        }
    }
}

/// The arguments of a kernel.
pub trait Arguments {
    /// Appends their values in the order of the parameters.
    fn push_all(&self, values: &mut Vec<Value>);

    /// Their values in the order of the parameters.
    fn pack(&self) -> Vec<Value> {
        let mut values = Vec::new();
        self.push_all(&mut values);
        values
    }
}

impl Arguments for &[Value] {
    fn push_all(&self, values: &mut Vec<Value>) {
        values.extend_from_slice(self);
    }
}

/// A field of a struct of arguments: one parameter, or several.
pub(crate) trait Argument {
    /// The declared parameters.
    type Param;
    /// Declares the parameters in `k`; `has` says which optional fields the kernel has, by name.
    fn declare(k: &Entry, name: &str, has: &dyn Fn(&str) -> bool) -> Self::Param;
    /// Appends the values.
    fn push(&self, values: &mut Vec<Value>);
}

impl Argument for Address {
    type Param = PointerParam;
    fn declare(k: &Entry, name: &str, _: &dyn Fn(&str) -> bool) -> PointerParam {
        k.pointer_param(name)
    }
    fn push(&self, values: &mut Vec<Value>) {
        values.push(Value::Address(*self));
    }
}

/// A size, a count or a stride.
impl Argument for usize {
    type Param = Param<U32>;
    fn declare(k: &Entry, name: &str, _: &dyn Fn(&str) -> bool) -> Param<U32> {
        k.param(name)
    }
    fn push(&self, values: &mut Vec<Value>) {
        values.push(Value::U32(u32::try_from(*self).expect("tensors on a GPU have fewer than 2^32 elements")));
    }
}

impl Argument for f32 {
    type Param = Param<F32>;
    fn declare(k: &Entry, name: &str, _: &dyn Fn(&str) -> bool) -> Param<F32> {
        k.param(name)
    }
    fn push(&self, values: &mut Vec<Value>) {
        values.push(Value::F32(*self));
    }
}

impl Argument for TensorMap {
    type Param = BytesParam;
    fn declare(k: &Entry, name: &str, _: &dyn Fn(&str) -> bool) -> BytesParam {
        k.tensor_map_param(name)
    }
    fn push(&self, values: &mut Vec<Value>) {
        values.push(Value::TensorMap(*self));
    }
}

impl<T: Argument> Argument for Option<T> {
    type Param = Option<T::Param>;
    fn declare(k: &Entry, name: &str, has: &dyn Fn(&str) -> bool) -> Self::Param {
        has(name).then(|| T::declare(k, name, has))
    }
    fn push(&self, values: &mut Vec<Value>) {
        if let Some(argument) = self {
            argument.push(values);
        }
    }
}

/// A declared parameter that is loaded into registers.
pub(crate) trait Load {
    /// The register.
    type Loaded;
    /// Emits the load: one instruction, or two for an address.
    #[track_caller]
    fn load(&self, k: &Entry) -> Self::Loaded;
}

impl Load for PointerParam {
    type Loaded = Ptr<Global>;
    #[track_caller]
    fn load(&self, k: &Entry) -> Ptr<Global> {
        k.cvta_to_global(k.ld_param_pointer(self.clone()))
    }
}

impl<T: Type> Load for Param<T> {
    type Loaded = Reg<T>;
    #[track_caller]
    fn load(&self, k: &Entry) -> Reg<T> {
        k.ld_param(self.clone())
    }
}

impl<T: Load> Load for Option<T> {
    type Loaded = Option<T::Loaded>;
    #[track_caller]
    fn load(&self, k: &Entry) -> Self::Loaded {
        self.as_ref().map(|param| param.load(k))
    }
}

/// Defines a struct of arguments and the struct of its declared parameters, in their order. The arguments can be a field of
/// others.
macro_rules! arguments {
    (
        $(#[$doc:meta])*
        $name:ident, declared as $params:ident { $($(#[$of_field:meta])* $field:ident: $type:ty,)* }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug)]
        pub struct $name { $($(#[$of_field])* pub $field: $type,)* }

        /// The declared parameters.
        pub(crate) struct $params { $(pub(crate) $field: <$type as $crate::arguments::Argument>::Param,)* }

        impl $name {
            /// Declares the parameters in `k`; `has` says which optional ones the kernel has, by name.
            #[allow(dead_code, reason = "arguments that are a field of others are declared with them")]
            pub(crate) fn declare(k: &ptx::Entry, has: &dyn Fn(&str) -> bool) -> $params {
                <Self as $crate::arguments::Argument>::declare(k, "", has)
            }
        }

        impl $crate::arguments::Argument for $name {
            type Param = $params;
            fn declare(k: &ptx::Entry, _: &str, has: &dyn Fn(&str) -> bool) -> $params {
                $params {
                    $($field: <$type as $crate::arguments::Argument>::declare(k, stringify!($field), has),)*
                }
            }
            fn push(&self, values: &mut Vec<$crate::arguments::Value>) {
                $($crate::arguments::Argument::push(&self.$field, values);)*
            }
        }

        impl $crate::arguments::Arguments for $name {
            fn push_all(&self, values: &mut Vec<$crate::arguments::Value>) {
                $crate::arguments::Argument::push(self, values);
            }
        }
    };
}
pub(crate) use arguments;

/// For kernels whose parameters are all there.
pub(crate) fn all(_: &str) -> bool {
    true
}
