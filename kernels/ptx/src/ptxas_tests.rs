//! NVIDIA's own assembler takes every instruction form that ours writes. Where it is not at hand (`.tools`, filled by
//! `.ci/ptx-gate.sh`, or the path), the tests say SKIPPED.

use super::*;
use std::path::{Path, PathBuf};
use std::process::Command;

/// ptxas in `.tools` of this workspace or of one that holds it, or on the path.
fn ptxas() -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).parent()?;
    let lib = root.join(".tools/lib");
    let wheels = std::fs::read_dir(lib).into_iter().flatten().flatten();
    let installed = wheels.map(|python| python.path().join("site-packages/nvidia/cu13/bin/ptxas"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path).map(|folder| folder.join("ptxas"));
    installed.chain(on_path.collect::<Vec<_>>()).find(|candidate| candidate.is_file())
}

/// Assembles the module for every architecture that takes its target.
#[track_caller]
fn accepted(what: &str, module: &Module) {
    let Some(ptxas) = ptxas() else {
        println!("SKIPPED {what}: no ptxas in .tools or on the path");
        return;
    };
    let folder = std::env::temp_dir().join(format!("ptxas-{}-{what}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder for the text");
    let text = folder.join("text.ptx");
    std::fs::write(&text, module.text()).expect("the text can be written");
    for architecture in module.sm().runs_on() {
        let output = Command::new(&ptxas)
            .arg("--gpu-name")
            .arg(architecture)
            .arg(&text)
            .arg("--output-file")
            .arg(folder.join("cubin"))
            .output()
            .expect("ptxas runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{what} for {architecture}:\n{said}\n{}", module.listing());
    }
    std::fs::remove_dir_all(&folder).expect("the folder can be removed");
}

fn module(sm: Sm, body: impl FnOnce(&Entry)) -> Module {
    let mut module = Module::new(sm);
    module.entry("kernel", [128, 1, 1], body);
    module
}

#[test]
fn ptxas_takes_arithmetic_and_conversions() {
    let built = module(Sm::Sm80, |k| {
        let (out, n, x) = (k.load_pointer("out"), k.load_param::<U32>("n"), k.load_param::<F32>("x"));
        let wide = k.cvt_f64(x);
        let wide = k.fma(wide, 2.0f64, k.mul(wide, wide));
        let mut sum = k.add(k.cvt_f32_f64(wide), k.cvt_f32_u32(n));
        for value in [k.sqrt(sum), k.rsqrt_approx(sum), k.lg2_approx(sum)] {
            sum = k.add(sum, value);
        }
        let mut bits = k.xor(k.mul_hi(n, 77u32), k.mul_lo(n, n));
        bits = k.lop3(bits, k.shr(n, 3), k.not(n), 0x96);
        bits = k.add(bits, k.div_u32(n, k.rem_u32(bits, 5u32)));
        bits = k.min_u32(k.max_u32(bits, 7u32), 9u32);
        let signed = k.max_s32(k.min_s32(k.reinterpret::<U32, S32>(bits), 5), -5);
        let halves = k.split(k.cvt_f16x2(sum, x));
        let joined: Reg<B32> = k.join(halves[1], halves[0]);
        let permuted = k.prmt_by(k.prmt(joined, 0x3F80u32, 0x5410), joined, bits);
        let condition = k.or(k.lt(n, 3u32), k.and(k.setp(Compare::Ne, n, 9u32), k.not(k.setp(Compare::Lt, signed, 0))));
        k.st(out.at(0), [k.selp(sum, k.cvt_f32_f16(halves[0]), condition)]);
        k.st(out.at(4), [permuted]);
        k.st(out.at(8), [k.cvt_f16(sum)]);
        k.unless(condition, || k.st(out.at(16), [k.cvt_u64(bits)]));
        let key = k.philox_key::<10>([n, bits]);
        k.st(out.at(32), k.philox4x32([n, n, bits, bits], &key));
    });
    accepted("arithmetic", &built);
}

#[test]
fn ptxas_takes_shared_memory_warps_and_barriers() {
    let built = module(Sm::Sm80, |k| {
        k.min_ctas_per_sm(2);
        let out = k.load_pointer("out");
        let (fixed, dynamic) = (k.shared_array("partial", 512, 16), k.dynamic_shared(128));
        let thread = k.special(Special::TidX);
        let x = k.variable::<F32>("sum", k.cvt_f32_u32(thread));
        let x = k.fold_lanes(x, 32, Fold::Sum);
        let x = k.fold_lanes(x, 4, Fold::Max);
        k.st(k.index(fixed, thread, 4).at(0), [x]);
        k.bar_sync();
        let some = k.named_barrier("the first two warps");
        k.if_else(k.lt(thread, 64u32), || k.bar_sync_some(some, 128), || k.bar_arrive(some, 128));
        k.warp_sync();
        let p = k.lt(thread, 7u32);
        let p = k.and(k.any(p), k.not(k.all(p)));
        let bits = k.add(k.ballot(p), k.shfl(thread, Lane::Below(1)));
        let bits = k.add(k.shfl(bits, Lane::Number(3)), k.shfl(bits, Lane::Above(2)));
        let other = k.cvta_to_shared(k.cvta_shared(fixed));
        let [y] = k.ld::<F32, 1>(k.index(other, thread, 4).at(0));
        k.st(k.flip(k.offset(dynamic, 16u32), 32u32).at(0), [y]);
        k.st(k.index(out, thread, 4).at(0), [k.add(bits, k.special(Special::LaneId))]);
        k.fence(Fence::Block);
        k.fence(Fence::Device);
        let before = k.atom_inc(out.at(4096), 7u32);
        k.if_(k.setp(Compare::Eq, before, 7u32), || k.st_release(out.at(4100), k.ld_acquire(out.at(4104))));
        let i = k.variable::<U32>("turn", 0u32);
        k.repeat_while(|| {
            k.add_into(i, i, 1u32);
            k.lt(i, 4u32)
        });
    });
    accepted("shared", &built);
}

#[test]
fn ptxas_takes_matrix_instructions_and_asynchronous_copies() {
    let built = module(Sm::Sm80, |k| {
        let (from, out) = (k.load_pointer("from"), k.load_pointer("out"));
        let tile = Tile::of_halves(64, 64);
        let base = k.dynamic_shared(128);
        let thread = k.special(Special::TidX);
        let (row, chunk) = (k.shr(thread, 3), k.and(thread, 7u32));
        let to = tile.chunk_address(k, base, row, chunk);
        let source = k.index(from, thread, 16);
        k.cp_async(to.at(0), source.at(0));
        k.cp_async_zero_fill(tile.step(16, 0).take(k, to), source.at(4096), k.min_u32(thread, 16u32));
        k.cp_async_small(tile.step(32, 0).take(k, to), source.at(8192), 4, k.min_u32(thread, 4u32));
        k.cp_async_commit();
        k.cp_async_wait(0);
        k.bar_sync();
        let sum = k.registers::<F32>("acc", 4);
        let sum = [sum[0], sum[1], sum[2], sum[3]];
        sum.iter().for_each(|&s| k.assign(s, 0.0f32));
        let a = k.ldmatrix::<Bf16x2, 4>(to.at(0));
        let [b0, b1] = k.ldmatrix_trans::<Bf16x2, 2>(tile.step(0, 16).take(k, to));
        k.mma(sum, a, [b0, b1]);
        k.mma(sum, k.ldmatrix::<F16x2, 4>(to.at(0)), k.ldmatrix_trans::<F16x2, 2>(to.at(0)));
        k.mma_tf32(sum, k.ldmatrix::<B32, 4>(to.at(0)), k.ldmatrix::<B32, 2>(to.at(0)));
        k.st(k.index(out, thread, 16).at(0), sum);
    });
    accepted("matrix", &built);
}

#[test]
fn ptxas_takes_phases_bulk_copies_and_warpgroup_products() {
    let built = module(Sm::Sm90a, |k| {
        let map = k.tensor_map_param("map");
        let out = k.load_pointer("out");
        let (base, barriers) = (k.dynamic_shared(1024), k.shared_array("full", 64, 8));
        let map = k.address_of_param(&map);
        let thread = k.special(Special::TidX);
        let full = barriers.at(0);
        k.if_(k.setp(Compare::Eq, thread, 0u32), || {
            k.prefetch_tensor_map(map);
            k.mbarrier_init(full, 1);
            k.fence(Fence::MbarrierInit);
            k.mbarrier_arrive_expect(full, 64 * 64 * 2);
            let zero = k.mov::<S32>(0);
            k.tensor_load(base.at(0), map, [zero, zero], full);
            k.tensor_load(base.at(8192), map, [zero, zero, zero], full);
            k.bulk_load(base.at(16384), out.at(0), 1024, full);
        });
        k.bar_sync();
        k.mbarrier_wait(k.slot(barriers, k.mov(0u32), 8).at(0), 0);
        let sum = k.registers::<F32>("acc", 32);
        sum.iter().for_each(|&s| k.assign(s, 0.0f32));
        let constant = descriptor(16, 1024, DescriptorSwizzle::Bytes128);
        let (a, b) = (k.matrix_descriptor(base, constant), k.matrix_descriptor(k.offset(base, 8192u32), constant));
        let keep = k.condition(true);
        k.wgmma_fence();
        k.wgmma::<Bf16x2>(&sum, (a, Major::K), (b, Major::K), keep);
        k.wgmma::<F16x2>(&sum, (a, Major::Mn), (b, Major::Mn), keep);
        k.wgmma_commit();
        k.wgmma_wait(0);
        let registers = k.ldmatrix::<Bf16x2, 4>(base.at(0));
        k.wgmma_fence();
        k.wgmma_registers(&sum, registers, (b, Major::K), keep);
        k.wgmma_commit();
        k.wgmma_wait(0);
        k.mbarrier_arrive(full);
        k.stmatrix(base.at(0), registers);
        k.stmatrix_trans(base.at(0), [registers[0], registers[1]]);
        k.fence(Fence::AsyncShared);
        k.setmaxnreg_dec(40);
        k.setmaxnreg_inc(232);
        k.if_(k.elect(), || {
            let zero = k.mov::<S32>(0);
            k.tensor_store(map, [zero, zero], base.at(0));
            k.bulk_commit();
            k.bulk_wait_read(0);
            k.bulk_wait(0);
        });
        for (i, four) in sum.chunks(4).enumerate() {
            k.st(k.index(out, thread, 128).at(16 * i as i32), [four[0], four[1], four[2], four[3]]);
        }
    });
    accepted("hopper", &built);
}
