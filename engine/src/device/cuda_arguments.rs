//! Arguments of a launch in the driver's form. A tensor map is encoded once per address and shape: the driver takes 0.17 us for it,
//! and a training step passes hundreds of maps.
#![allow(unsafe_code)]

use super::{
    cuda_session::failed,
    driver::{Address, DriverError, Value},
};
use cudarc::driver::sys;
use ptx::{DescriptorSwizzle, Storage, TensorMap};

/// Sets of the cache, a power of two. A training step of base uses 222 maps, 30 of weights and 192 that depend on the number of
/// tokens, so the cache holds those of about 20 numbers of tokens. With four times as many maps, about a tenth fewer are encoded.
const SETS: usize = 1024;
/// Maps of a set.
const WAYS: usize = 4;

/// An argument as the driver reads it: as many bytes from the beginning as the PTX declares.
#[derive(Clone, Copy, Debug, PartialEq)]
#[repr(C, align(64))]
pub(super) struct Passed([u64; 16]);

impl Passed {
    pub(super) fn new(argument: &Value, maps: &mut TensorMaps) -> Result<Self, DriverError> {
        let word = match argument {
            Value::Address(Address(address)) => *address,
            Value::U32(value) => u64::from(*value),
            Value::F32(value) => u64::from(value.to_bits()),
            Value::TensorMap(map) => return maps.get(map, encode),
        };
        let mut words = [0; 16];
        words[0] = word;
        Ok(Self(words))
    }
}

/// Set-associative cache of encoded tensor maps; the oldest of a set is replaced.
///
/// An encoded map contains the arguments of `cuTensorMapEncodeTiled` and nothing else; the driver does not look at the memory at the
/// address. All arguments that vary are fields of [`TensorMap`], which is the key, so a cached map is always valid, even if the
/// memory was freed and allocated for another tensor in the meantime.
#[derive(Debug)]
pub(super) struct TensorMaps(Box<[Set]>);

/// Maps as they were described and as they were encoded, the newest first.
type Set = [Option<(TensorMap, Passed)>; WAYS];

impl Default for TensorMaps {
    fn default() -> Self {
        Self(vec![[None; WAYS]; SETS].into())
    }
}

impl TensorMaps {
    fn get(
        &mut self,
        map: &TensorMap,
        encode: impl FnOnce(&TensorMap) -> Result<Passed, DriverError>,
    ) -> Result<Passed, DriverError> {
        let ways = &mut self.0[set_of(map)];
        if let Some((_, encoded)) = ways.iter().flatten().find(|(key, _)| key == map) {
            return Ok(*encoded);
        }
        let encoded = encode(map)?;
        ways.rotate_right(1);
        ways[0] = Some((*map, encoded));
        Ok(encoded)
    }
}

/// The set of a map: a multiplicative hash of the fields that differ most.
fn set_of(map: &TensorMap) -> usize {
    let TensorMap { address, sizes: [columns, rows], stride, tile: [_, tile_rows], .. } = *map;
    let words = [address, columns ^ rows << 32, stride ^ u64::from(tile_rows) << 32];
    let hash = words.iter().fold(0u64, |hash, word| (hash.rotate_left(26) ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15));
    (hash >> (u64::BITS - SETS.ilog2())) as usize
}

/// A tensor map in the driver's own form.
fn encode(map: &TensorMap) -> Result<Passed, DriverError> {
    use sys::{CUtensorMapDataType as Type, CUtensorMapSwizzle as Exchange};
    let storage = match map.storage {
        Storage::F32 => Type::CU_TENSOR_MAP_DATA_TYPE_FLOAT32,
        Storage::Bf16 => Type::CU_TENSOR_MAP_DATA_TYPE_BFLOAT16,
        Storage::F16 => Type::CU_TENSOR_MAP_DATA_TYPE_FLOAT16,
    };
    let exchange = match map.swizzle {
        DescriptorSwizzle::None => Exchange::CU_TENSOR_MAP_SWIZZLE_NONE,
        DescriptorSwizzle::Bytes32 => Exchange::CU_TENSOR_MAP_SWIZZLE_32B,
        DescriptorSwizzle::Bytes64 => Exchange::CU_TENSOR_MAP_SWIZZLE_64B,
        DescriptorSwizzle::Bytes128 => Exchange::CU_TENSOR_MAP_SWIZZLE_128B,
    };
    const DENSE: [u32; 2] = [1, 1];
    let mut encoded = Passed([0; 16]);
    // SAFETY: writes the 128 bytes of `encoded`, which are aligned to 64; sizes, strides and box are live arrays of two, one
    // and two numbers, as two dimensions ask for. The address is only noted.
    let status = unsafe {
        sys::cuTensorMapEncodeTiled(
            std::ptr::from_mut(&mut encoded).cast(),
            storage,
            2,
            std::ptr::without_provenance_mut(map.address as usize),
            map.sizes.as_ptr(),
            std::ptr::from_ref(&map.stride),
            map.tile.as_ptr(),
            DENSE.as_ptr(),
            sys::CUtensorMapInterleave::CU_TENSOR_MAP_INTERLEAVE_NONE,
            exchange,
            sys::CUtensorMapL2promotion::CU_TENSOR_MAP_L2_PROMOTION_L2_128B,
            sys::CUtensorMapFloatOOBfill::CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE,
        )
    };
    status.result().map_err(failed("cuTensorMapEncodeTiled"))?;
    Ok(encoded)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// In place of the driver: words that name all fields.
    fn encoded(map: &TensorMap) -> Passed {
        let mut words = [0; 16];
        words[..8].copy_from_slice(&[
            map.address,
            map.storage as u64,
            map.sizes[0],
            map.sizes[1],
            map.stride,
            map.tile[0].into(),
            map.tile[1].into(),
            map.swizzle as u64,
        ]);
        Passed(words)
    }

    #[test]
    fn a_map_is_encoded_once_and_never_taken_for_another_one_at_its_address() {
        let map = TensorMap::matrix(4096, Storage::Bf16, [100, 72], 80, 128).unwrap();
        let others = [
            TensorMap { address: 8192, ..map },
            TensorMap { storage: Storage::F16, ..map },
            TensorMap { sizes: [64, 100], ..map },
            TensorMap { sizes: [72, 99], ..map },
            TensorMap { sizes: [100, 72], ..map },
            TensorMap { stride: 176, ..map },
            TensorMap { tile: [32, 128], ..map },
            TensorMap { tile: [64, 64], ..map },
            TensorMap { swizzle: DescriptorSwizzle::Bytes64, ..map },
        ];
        let (mut maps, mut count) = (TensorMaps::default(), 0);
        for _ in 0..3 {
            for map in others.iter().chain([&map]) {
                let got = maps.get(map, |map| {
                    count += 1;
                    Ok(encoded(map))
                });
                assert_eq!(got.unwrap(), encoded(map), "{map:?}");
            }
        }
        assert_eq!(count, 1 + others.len());
    }

    #[test]
    fn maps_beyond_the_bound_replace_the_oldest_and_are_right() {
        let map = TensorMap::matrix(4096, Storage::Bf16, [100, 72], 80, 128).unwrap();
        let mut maps = TensorMaps::default();
        for step in 0..2 {
            for at in 0..3 * (SETS * WAYS) as u64 {
                let map = TensorMap { address: 4096 + 512 * at, ..map };
                assert_eq!(maps.get(&map, |map| Ok(encoded(map))).unwrap(), encoded(&map), "{step}: {map:?}");
            }
        }
        let last = TensorMap { address: 4096 + 512 * (3 * (SETS * WAYS) as u64 - 1), ..map };
        let kept = maps.get(&last, |_| panic!("the newest map is encoded again"));
        assert_eq!(kept.unwrap(), encoded(&last));
        let refused = || DriverError::Call { call: "cuTensorMapEncodeTiled", reason: String::new() };
        let map = TensorMap { stride: 320, ..map };
        assert!(maps.get(&map, |_| Err(refused())).is_err());
        assert_eq!(maps.get(&map, |map| Ok(encoded(map))).unwrap(), encoded(&map), "a failure was kept");
    }
}
