//! Loads, stores, addresses and special registers.

use super::{
    Entry, Feature, Generic, Global, Operand, Param, PointerParam, Ptr, Reg, Shared, Space, Type, U32, U64, Version,
    types::Word as _,
};

/// An address operand: a pointer and a constant offset in bytes.
#[derive(Clone, Copy, Debug)]
pub struct Address<S: Space> {
    pub(super) pointer: Ptr<S>,
    pub(super) bytes: i32,
}

impl<S: Space> Ptr<S> {
    /// The address `bytes` after this pointer.
    pub fn at(self, bytes: i32) -> Address<S> {
        Address { pointer: self, bytes }
    }
}

impl<S: Space> Address<S> {
    /// The address `bytes` after this one.
    pub fn plus(self, bytes: i32) -> Self {
        Self { bytes: self.bytes + bytes, ..self }
    }
}

impl<S: Space> std::fmt::Display for Address<S> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.bytes {
            0 => write!(f, "[{}]", self.pointer.register),
            bytes => write!(f, "[{}{bytes:+}]", self.pointer.register),
        }
    }
}

/// L1 policy of a read-only load.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cache {
    /// Allocate: other threads read the line again.
    Keep,
    /// Do not allocate: every byte is read once.
    Stream,
}

named! {
    /// A special register.
    pub enum Special {
        /// The thread's position in its block.
        TidX "%tid.x",
        /// Threads in a block.
        NtidX "%ntid.x",
        /// The block's column in the grid.
        CtaidX "%ctaid.x",
        /// The block's row in the grid.
        CtaidY "%ctaid.y",
        /// The block's layer in the grid.
        CtaidZ "%ctaid.z",
        /// Columns of blocks in the grid.
        NctaidX "%nctaid.x",
        /// Rows of blocks in the grid.
        NctaidY "%nctaid.y",
        /// Layers of blocks in the grid.
        NctaidZ "%nctaid.z",
        /// The thread's position in its warp.
        LaneId "%laneid",
        /// The block's position in its cluster.
        ClusterRank "%cluster_ctarank",
    }
}

/// The vector suffix of a load or store of `count` values.
const fn vector(count: usize) -> &'static str {
    match count {
        1 => "",
        2 => ".v2",
        4 => ".v4",
        _ => panic!("a load moves 1, 2 or 4 values"),
    }
}

/// Registers as a load or store lists them: `%f0`, or `{%f0, %f1}`.
fn list<T: Type, const N: usize>(registers: &[Reg<T>; N]) -> String {
    if N == 1 { registers[0].to_string() } else { braced(registers) }
}

/// Registers in braces: `{%f0, %f1}`.
pub(super) fn braced<T: Type>(registers: &[Reg<T>]) -> String {
    let names: Vec<String> = registers.iter().map(ToString::to_string).collect();
    format!("{{{}}}", names.join(", "))
}

impl Entry {
    /// The value of a special register.
    #[track_caller]
    pub fn special(&self, register: Special) -> Reg<U32> {
        self.define(format_args!("mov.u32"), &[register.name().to_string()])
    }

    /// The value of a parameter.
    #[track_caller]
    pub fn ld_param<T: Type>(&self, param: Param<T>) -> Reg<T> {
        self.define(format_args!("ld.param{}", T::SUFFIX), &[format!("[{}]", param.name)])
    }

    /// The address that a parameter holds.
    #[track_caller]
    pub fn ld_param_pointer(&self, param: PointerParam) -> Ptr<Generic> {
        let pointer = self.fresh_pointer();
        self.write(format!("ld.param.u64 {}, [{}]", pointer.register, param.name));
        pointer
    }

    /// A generic address that is known to point to device memory, as an address of that space.
    #[track_caller]
    pub fn cvta_to_global(&self, pointer: Ptr<Generic>) -> Ptr<Global> {
        Ptr::new(self.define(format_args!("cvta.to.global.u64"), &[pointer.register.text()]))
    }

    /// An address in shared memory as one of any space.
    #[track_caller]
    pub fn cvta_shared(&self, pointer: Ptr<Shared>) -> Ptr<Generic> {
        let wide: Reg<U64> = self.cvt_u64(pointer.register);
        Ptr::new(self.define(format_args!("cvta.shared.u64"), &[wide.text()]))
    }

    /// A generic address that is known to point to shared memory, as an address of that space. Two instructions.
    #[track_caller]
    pub fn cvta_to_shared(&self, pointer: Ptr<Generic>) -> Ptr<Shared> {
        let wide: Reg<U64> = self.define(format_args!("cvta.to.shared.u64"), &[pointer.register.text()]);
        Ptr::new(self.cvt_u32_u64(wide))
    }

    /// The address of element `i` of elements of `size` bytes: one `mad.wide`, in shared memory one `mad.lo`.
    #[track_caller]
    pub fn index<S: Space>(&self, pointer: Ptr<S>, i: Reg<U32>, size: impl Operand<U32>) -> Ptr<S> {
        Ptr::new(self.define(format_args!("{}", S::Word::INDEX), &[i.text(), size.text(), pointer.register.text()]))
    }

    /// The address `bytes` after `pointer`.
    #[track_caller]
    pub fn offset<S: Space>(&self, pointer: Ptr<S>, bytes: impl Operand<S::Word>) -> Ptr<S> {
        Ptr::new(self.add(pointer.register, bytes))
    }

    /// The address with `bits` flipped: a step within a swizzled tile.
    #[track_caller]
    pub fn flip(&self, pointer: Ptr<Shared>, bits: impl Operand<U32>) -> Ptr<Shared> {
        Ptr::new(self.xor(pointer.register, bits))
    }

    /// Advances `pointer` by `bytes`, in its own register.
    #[track_caller]
    pub fn advance<S: Space>(&self, pointer: Ptr<S>, bytes: impl Operand<S::Word>) {
        self.add_into(pointer.register, pointer.register, bytes);
    }

    /// A copy of the pointer in a register of its own, to be moved by [`Entry::advance`].
    #[track_caller]
    pub fn mov_pointer<S: Space>(&self, pointer: Ptr<S>) -> Ptr<S> {
        Ptr::new(self.mov(pointer.register))
    }

    /// The address of a pointer as an integer.
    pub fn address_of<S: Space>(&self, pointer: Ptr<S>) -> Reg<S::Word> {
        pointer.register
    }

    /// A pointer of an integer address.
    pub fn pointer<S: Space>(&self, address: Reg<S::Word>) -> Ptr<S> {
        Ptr::new(address)
    }

    /// Loads `N` adjacent values (1, 2 or 4, at most 16 bytes); the address is a multiple of their size.
    #[track_caller]
    pub fn ld<T: Type, const N: usize>(&self, address: Address<impl Space>) -> [Reg<T>; N] {
        self.load("", address)
    }

    /// Loads like [`Entry::ld`] from memory that no thread writes while the kernel runs.
    #[track_caller]
    pub fn ld_nc<T: Type, const N: usize>(&self, address: Address<Global>, cache: Cache) -> [Reg<T>; N] {
        match cache {
            Cache::Keep => self.load(".nc", address),
            Cache::Stream => {
                self.needs("ld.L1::no_allocate", Version(7, 4), Feature::CacheHints);
                self.load(".nc.L1::no_allocate", address)
            }
        }
    }

    #[track_caller]
    fn load<S: Space, T: Type, const N: usize>(&self, how: &str, address: Address<S>) -> [Reg<T>; N] {
        let values = std::array::from_fn(|_| self.fresh());
        self.load_into(how, address, values);
        values
    }

    /// [`Entry::ld`] into existing registers, which keep their values where a guard does not hold.
    #[track_caller]
    pub fn ld_into<T: Type, const N: usize>(&self, address: Address<impl Space>, values: [Reg<T>; N]) {
        self.load_into("", address, values);
    }

    #[track_caller]
    fn load_into<S: Space, T: Type, const N: usize>(&self, how: &str, address: Address<S>, values: [Reg<T>; N]) {
        const { assert!(N as u32 * T::BYTES <= 16, "a load moves at most 16 bytes") };
        self.write(format!("ld{}{how}{}{} {}, {address}", S::SUFFIX, vector(N), T::SUFFIX, list(&values)));
    }

    /// Stores `N` adjacent values (1, 2 or 4, at most 16 bytes); the address is a multiple of their size.
    #[track_caller]
    pub fn st<S: Space, T: Type, const N: usize>(&self, address: Address<S>, values: [Reg<T>; N]) {
        const { assert!(N as u32 * T::BYTES <= 16, "a store moves at most 16 bytes") };
        self.write(format!("st{}{}{} {address}, {}", S::SUFFIX, vector(N), T::SUFFIX, list(&values)));
    }
}
