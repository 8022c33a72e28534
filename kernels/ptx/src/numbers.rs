//! Loads and stores of contiguous elements of any storage type, through f32 registers.
//!
//! Arithmetic is f32; the storage type is a value, so that one kernel source serves all types. A bf16 is the upper half
//! of the f32 with the same value: widening is a shift and exact on every target (`cvt.f32.bf16` needs sm_90).

use super::{Address, B16, B32, Bf16x2, Cache, Entry, F16x2, F32, Global, Pred, Reg, U32};

/// Storage type of elements in device memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Storage {
    /// IEEE binary32.
    F32,
    /// The upper half of a binary32.
    Bf16,
    /// IEEE binary16.
    F16,
}

impl Storage {
    /// Bytes of an element.
    pub const fn bytes(self) -> u32 {
        match self {
            Storage::F32 => 4,
            Storage::Bf16 | Storage::F16 => 2,
        }
    }

    /// The type in kernel names.
    pub const fn name(self) -> &'static str {
        match self {
            Storage::F32 => "f32",
            Storage::Bf16 => "bf16",
            Storage::F16 => "f16",
        }
    }

    /// Elements in 16 bytes.
    pub const fn vector(self) -> u32 {
        16 / self.bytes()
    }
}

/// Sharing of elements that are loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Read {
    /// Not written during the launch, and read once.
    Once,
    /// Not written during the launch, and also read by other threads.
    Again,
    /// Possibly written by this thread.
    Mutable,
}

impl Entry {
    /// Loads `count` contiguous elements, a power of two, as f32; the address is a multiple of their bytes, or of 16.
    #[track_caller]
    pub fn load_elements(&self, storage: Storage, at: Address<Global>, count: u32, read: Read) -> Vec<Reg<F32>> {
        let mut values = Vec::with_capacity(count as usize);
        let step = count.min(storage.vector());
        for first in (0..count).step_by(step as usize) {
            let at = at.plus((first * storage.bytes()) as i32);
            match (storage, step) {
                (Storage::F32, 4) => values.extend(self.load_words::<F32, 4>(at, read)),
                (Storage::F32, 2) => values.extend(self.load_words::<F32, 2>(at, read)),
                (Storage::F32, 1) => values.extend(self.load_words::<F32, 1>(at, read)),
                (_, 8) => self.widen_all(storage, &self.load_words::<B32, 4>(at, read), &mut values),
                (_, 4) => self.widen_all(storage, &self.load_words::<B32, 2>(at, read), &mut values),
                (_, 2) => self.widen_all(storage, &self.load_words::<B32, 1>(at, read), &mut values),
                (_, 1) => {
                    let [half] = self.load_words::<B16, 1>(at, read);
                    values.push(self.widen(storage, half));
                }
                _ => panic!("load of {count} elements; expected a power of two"),
            }
        }
        values
    }

    /// [`Entry::load_elements`] where the condition holds, zeros where it does not: straight-line code, so that several
    /// loads overlap.
    #[track_caller]
    pub fn load_numbers_if(
        &self,
        storage: Storage,
        at: Address<Global>,
        count: u32,
        condition: Reg<Pred>,
    ) -> Vec<Reg<F32>> {
        let mut values = Vec::with_capacity(count as usize);
        let words = (count * storage.bytes()).div_ceil(16);
        for i in 0..words {
            let zeros: [Reg<B32>; 4] = std::array::from_fn(|_| self.mov(0u32));
            self.when(condition, || self.ld_into(at.plus(16 * i as i32), zeros));
            match storage {
                Storage::F32 => values.extend(zeros.map(|bits| self.reinterpret::<B32, F32>(bits))),
                _ => self.widen_all(storage, &zeros, &mut values),
            }
        }
        assert_eq!(values.len(), count as usize, "conditional loads move whole vectors of 16 bytes");
        values
    }

    #[track_caller]
    fn load_words<T: super::Type, const N: usize>(&self, at: Address<Global>, read: Read) -> [Reg<T>; N] {
        match read {
            Read::Once => self.ld_nc(at, Cache::Stream),
            Read::Again => self.ld_nc(at, Cache::Keep),
            Read::Mutable => self.ld(at),
        }
    }

    #[track_caller]
    fn widen_all(&self, storage: Storage, pairs: &[Reg<B32>], values: &mut Vec<Reg<F32>>) {
        for &pair in pairs {
            match storage {
                Storage::Bf16 => values.extend(self.widen_bf16x2(self.reinterpret(pair))),
                _ => values.extend(self.split(pair).map(|half| self.cvt_f32_f16(half))),
            }
        }
    }

    /// The f32 of a stored 16-bit element.
    #[track_caller]
    pub fn widen(&self, storage: Storage, half: Reg<B16>) -> Reg<F32> {
        match storage {
            Storage::Bf16 => self.widen_bf16(half),
            Storage::F16 => self.cvt_f32_f16(half),
            Storage::F32 => panic!("an f32 has no 16-bit form"),
        }
    }

    /// Rounds f32 values to the storage type and stores them contiguously; their count and the address as for
    /// [`Entry::load_elements`].
    #[track_caller]
    pub fn store_elements(&self, storage: Storage, at: Address<Global>, values: &[Reg<F32>]) {
        let step = values.len().min(storage.vector() as usize);
        for (i, run) in values.chunks(step).enumerate() {
            let at = at.plus((i * step) as i32 * storage.bytes() as i32);
            match (storage, run) {
                (Storage::F32, &[a, b, c, d]) => self.st(at, [a, b, c, d]),
                (Storage::F32, &[a, b]) => self.st(at, [a, b]),
                (Storage::F32, &[a]) => self.st(at, [a]),
                (_, &[a, b, c, d, e, f, g, h]) => {
                    self.st(at, [(a, b), (c, d), (e, f), (g, h)].map(|(a, b)| self.narrow(storage, a, b)));
                }
                (_, &[a, b, c, d]) => self.st(at, [(a, b), (c, d)].map(|(a, b)| self.narrow(storage, a, b))),
                (_, &[a, b]) => self.st(at, [self.narrow(storage, a, b)]),
                (Storage::Bf16, &[a]) => self.st(at, [self.cvt_bf16(a)]),
                (Storage::F16, &[a]) => self.st(at, [self.cvt_f16(a)]),
                _ => panic!("store of {} elements; expected a power of two", values.len()),
            }
        }
    }

    /// Two floats rounded and packed to 32 bits, `low` at the lower address.
    #[track_caller]
    pub fn narrow(&self, storage: Storage, low: Reg<F32>, high: Reg<F32>) -> Reg<B32> {
        match storage {
            Storage::Bf16 => {
                let pair: Reg<Bf16x2> = self.cvt_bf16x2(low, high);
                self.reinterpret(pair)
            }
            Storage::F16 => {
                let pair: Reg<F16x2> = self.cvt_f16x2(low, high);
                self.reinterpret(pair)
            }
            Storage::F32 => panic!("two f32 have 64 bits"),
        }
    }

    /// `value` rounded to the storage type.
    #[track_caller]
    pub fn rounded(&self, storage: Storage, value: Reg<F32>) -> Reg<F32> {
        match storage {
            Storage::F32 => value,
            Storage::Bf16 => self.widen_bf16(self.cvt_bf16(value)),
            Storage::F16 => self.cvt_f32_f16(self.cvt_f16(value)),
        }
    }

    /// Loads elements `first .. first + count` of a row of `end` elements, one at a time; those past the end are 0 and
    /// are not read.
    #[track_caller]
    pub fn load_numbers_below(
        &self,
        storage: Storage,
        at: Address<Global>,
        count: u32,
        [first, end]: [Reg<U32>; 2],
        read: Read,
    ) -> Vec<Reg<F32>> {
        let number = |i: u32| {
            let at = at.plus((i * storage.bytes()) as i32);
            let exists = self.lt(self.add(first, i), end);
            self.load_number_if(storage, at, exists, read)
        };
        (0..count).map(number).collect()
    }

    /// Loads one element where the condition holds; zero where it does not.
    #[track_caller]
    pub fn load_number_if(&self, storage: Storage, at: Address<Global>, condition: Reg<Pred>, read: Read) -> Reg<F32> {
        let how = if read == Read::Mutable { "" } else { ".nc" };
        let bits = self.mov::<B32>(0u32);
        let width = if storage == Storage::F32 { "b32" } else { "u16" };
        self.when(condition, || self.write(format!("ld.global{how}.{width} {bits}, {at}")));
        match storage {
            Storage::F32 => self.reinterpret(bits),
            Storage::Bf16 => self.reinterpret(self.shl(bits, 16)),
            Storage::F16 => self.cvt_f32_f16(self.split(bits)[0]),
        }
    }

    /// [`Entry::store_elements`] one at a time, without those past the end of the row.
    #[track_caller]
    pub fn store_numbers_below(
        &self,
        storage: Storage,
        at: Address<Global>,
        values: &[Reg<F32>],
        first: Reg<U32>,
        end: Reg<U32>,
    ) {
        for (i, &value) in values.iter().enumerate() {
            let at = at.plus(i as i32 * storage.bytes() as i32);
            let exists = self.lt(self.add(first, i as u32), end);
            self.when(exists, || self.store_elements(storage, at, &[value]));
        }
    }
}
