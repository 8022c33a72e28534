//! NVIDIA's own assembler takes every instruction form that ours writes: `.ci/ptx-gate.sh` shows it for the forms of the
//! programs and runs these tests for all others. Where it is not at hand (`.tools`, filled by that script, or the path), they
//! say SKIPPED.

use super::*;
use std::path::{Path, PathBuf};
use std::process::Command;

/// ptxas in `.tools` of this workspace or of one that holds it, or on the path.
fn ptxas() -> Option<PathBuf> {
    let mut folders = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
    let lib = folders.find_map(|folder| std::fs::read_dir(folder.join(".tools/lib")).ok());
    let wheels = lib.into_iter().flatten().flatten();
    let installed = wheels.map(|python| python.path().join("site-packages/nvidia/cu13/bin/ptxas"));
    let path = std::env::var_os("PATH").unwrap_or_default();
    let on_path = std::env::split_paths(&path).map(|folder| folder.join("ptxas"));
    installed.chain(on_path.collect::<Vec<_>>()).find(|candidate| candidate.is_file())
}

/// Assembles an entry with the body `body` for every architecture that takes its target.
#[track_caller]
fn accepted(what: &str, sm: Sm, body: impl FnOnce(&Entry)) {
    let mut module = Module::new(sm);
    module.entry("kernel", [128, 1, 1], body);
    let Some(ptxas) = ptxas() else {
        println!("SKIPPED {what}: no ptxas in .tools or on the path");
        return;
    };
    let folder = std::env::temp_dir().join(format!("ptxas-{}-{what}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder for the text");
    let (text, cubin) = (folder.join("text.ptx"), folder.join("cubin"));
    std::fs::write(&text, module.text()).expect("the text can be written");
    for architecture in module.sm().runs_on() {
        let mut command = Command::new(&ptxas);
        command.args(["--gpu-name", architecture]).arg(&text).arg("--output-file").arg(&cubin);
        let output = command.output().expect("ptxas runs");
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{what} for {architecture}:\n{said}\n{}", module.listing());
    }
    std::fs::remove_dir_all(&folder).expect("the folder can be removed");
}

#[test]
fn ptxas_takes_forms_of_sm_80_that_no_program_has() {
    accepted("ampere", Sm::Sm80, |k| {
        let (from, out) = (k.load_pointer("from"), k.load_pointer("out"));
        let (n, x) = (k.load_param::<U32>("n"), k.load_param::<F32>("x"));
        let (fixed, dynamic) = (k.shared_array("partial", 512, 16), k.dynamic_shared(128));
        let wide = k.cvt_f64(x);
        let sum = k.add(k.cvt_f32_f64(k.fma(wide, 2.0f64, wide)), k.rsqrt_approx(x));
        let bits = k.max_u32(k.not(n), 7u32);
        let negative = k.setp(Compare::Lt, k.reinterpret::<U32, S32>(bits), 0);
        let halves = k.split(k.cvt_f16x2(sum, x));
        let joined: Reg<B32> = k.join(halves[1], halves[0]);
        k.unless(negative, || k.st(out.at(0), [k.prmt(joined, 0x3F80u32, 0x5410)]));
        k.st(out.at(8), [k.cvt_f16(sum)]);
        let some = k.named_barrier("the first two warps");
        k.if_else(negative, || k.bar_sync_some(some, 128), || k.bar_arrive(some, 128));
        let p = k.and(k.any(negative), k.not(k.all(negative)));
        let bits = k.add(k.ballot(p), k.shfl(n, Lane::Below(1)));
        let bits = k.add(bits, k.shfl(bits, Lane::Above(2)));
        let other = k.cvta_to_shared(k.cvta_shared(fixed));
        let [y] = k.ld::<F32, 1>(k.index(other, n, 4).at(0));
        k.st(k.flip(k.offset(dynamic, 16u32), 32u32).at(0), [y]);
        k.fence(Fence::Block);
        k.fence(Fence::Device);
        k.repeat_while(|| k.lt(k.atom_inc(out.at(4096), 7u32), bits));
        k.st_release(out.at(4100), k.ld_acquire(out.at(4104)));
        k.cp_async(dynamic.at(0), from.at(0));
        k.cp_async_small(dynamic.at(16), from.at(8192), 4, k.min_u32(n, 4u32));
        let sum = k.registers::<F32>("acc", 4);
        let sum = [sum[0], sum[1], sum[2], sum[3]];
        sum.iter().for_each(|&s| k.assign(s, 0.0f32));
        let [b0, b1] = k.ldmatrix_trans::<Bf16x2, 2>(dynamic.at(0));
        k.mma(sum, k.ldmatrix::<Bf16x2, 4>(dynamic.at(0)), [b0, b1]);
        k.mma_tf32(sum, k.ldmatrix::<B32, 4>(dynamic.at(0)), k.ldmatrix::<B32, 2>(dynamic.at(0)));
        k.st(out.at(16), sum);
    });
}

#[test]
fn ptxas_takes_forms_of_sm_90a_that_no_program_has() {
    accepted("hopper", Sm::Sm90a, |k| {
        let map = k.tensor_map_param("map");
        let out = k.load_pointer("out");
        let (base, barriers) = (k.dynamic_shared(1024), k.shared_array("full", 64, 8));
        let map = k.address_of_param(&map);
        k.prefetch_tensor_map(map);
        k.wait_for_earlier_kernels();
        k.launch_dependents();
        let full = barriers.at(0);
        k.mbarrier_init(full, 1);
        let zero = k.mov::<S32>(0);
        k.tensor_load(base.at(8192), map, [zero, zero, zero], full);
        k.bulk_load(base.at(16384), out.at(0), 1024, full);
        k.mbarrier_wait(full, 0);
        let registers = k.ldmatrix::<Bf16x2, 4>(base.at(0));
        k.stmatrix_trans(base.at(0), [registers[0], registers[1]]);
        k.if_(k.elect(), || {
            k.tensor_store(map, [zero, zero], base.at(0));
            k.bulk_commit();
            k.bulk_wait_read(0);
            k.bulk_wait(0);
        });
    });
}

#[test]
fn ptxas_takes_clusters() {
    accepted("clusters", Sm::Sm90a, |k| {
        k.cluster(2);
        let map = k.tensor_map_param("map");
        let (base, barriers) = (k.dynamic_shared(1024), k.shared_array("full", 64, 8));
        let (map, rank, zero) = (k.address_of_param(&map), k.special(Special::ClusterRank), k.mov::<S32>(0));
        k.mbarrier_init(barriers.at(8), 1);
        k.fence(Fence::MbarrierInit);
        k.cluster_sync();
        k.tensor_multicast(base.at(1024), map, [zero, zero], barriers.at(8), 3);
        k.mbarrier_arrive_at(barriers.at(8), k.xor(rank, 1u32));
        k.mbarrier_wait(barriers.at(8), 0u32);
        k.cluster_sync();
    });
}
