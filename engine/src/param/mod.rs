//! Parameters: all values in one f32 buffer, all gradients in another, and the packed copies that products read.
//!
//! ```text
//! values     | query.weight | key.weight | value.weight | query.bias | ...      f32 master copy
//! gradients  | query.weight | key.weight | value.weight | query.bias | ...      f32, same places
//!              └──── read as one [3H, H] matrix ───────┘
//! ```
//!
//! Parameters are stored in the order in which they were added, without gaps, so a contiguous range of one width is one
//! matrix, one all-reduce takes all gradients, and an optimizer is one pass over flat memory.
//!
//! The weight of a GEMM is packed into panels for the forward product and for the backward product. Panels keep the
//! version of the values that they were packed from; an optimizer step raises the version, and the next use packs again
//! in place. So a weight is packed once a step, however many layers share it.
//!
//! Inference in 8-bit integers has copies of its own (`quantized.rs`), as has a GPU (`on_gpu.rs`); each write of values
//! increments `version`.

mod builder;
mod clip;
#[cfg(test)]
mod gpu_tests;
mod gradients;
mod on_gpu;
mod quantized;

pub use builder::{Init, ParamBuilder, ParamInfo, ParamScope};
pub use clip::GradientNorm;
pub use gradients::Gradients;

use crate::{
    device::Device,
    dtype::DType,
    error::{EngineError, Result},
    io::{Data, Safetensors, TensorOut, save_safetensors},
    memory::Arena,
    shape::Shape,
    tensor::Tensor,
};
use kernels::{
    Cpu,
    gemm::{Layout, PackedB, Precision},
};
use on_gpu::OnGpu;
use quantized::Quantized;
use std::{
    collections::HashMap,
    ops::Range,
    path::Path,
    sync::{Arc, Mutex, PoisonError},
};

/// Names a parameter of a [`ParamStore`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct ParamId(u32);

impl ParamId {
    /// Position in the order of adding.
    pub fn index(self) -> usize {
        self.0 as usize
    }
}

/// The product that a weight [N, K] is packed for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Side {
    /// y = x·Wᵀ.
    Forward,
    /// y = x·Wᵀ in f32, with W rounded to bf16.
    Rounded,
    /// dx = dy·W.
    Backward,
}

/// The parameters of a model.
#[derive(Debug)]
pub struct ParamStore {
    infos: Vec<ParamInfo>,
    ids: HashMap<String, ParamId>,
    /// On the processor.
    values: Tensor,
    /// The version of them; behind `version` while a GPU holds newer ones.
    host_version: u64,
    version: u64,
    packs: Mutex<Vec<Pack>>,
    quantized: Mutex<Vec<Quantized>>,
    on_gpu: Mutex<Option<OnGpu>>,
}

#[derive(Debug)]
struct Pack {
    range: Range<usize>,
    side: Side,
    version: u64,
    panels: Arc<PackedB>,
}

impl ParamStore {
    /// Number of parameters (tensors).
    pub fn count(&self) -> usize {
        self.infos.len()
    }

    /// Number of values in all parameters.
    pub fn len(&self) -> usize {
        self.values.len()
    }

    /// True if there is not one value.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All ids, in the order of the buffers.
    pub fn ids(&self) -> impl ExactSizeIterator<Item = ParamId> + use<> {
        (0..self.infos.len() as u32).map(ParamId)
    }

    /// The parameter called `name`.
    pub fn find(&self, name: &str) -> Option<ParamId> {
        self.ids.get(name).copied()
    }

    /// Name, shape and place of a parameter. Panics for an id of another store that has more parameters.
    pub fn info(&self, id: ParamId) -> &ParamInfo {
        &self.infos[id.index()]
    }

    /// Name of a parameter.
    pub fn name(&self, id: ParamId) -> &str {
        &self.info(id).name
    }

    /// Shape of a parameter.
    pub fn shape(&self, id: ParamId) -> &Shape {
        &self.info(id).shape
    }

    /// Values of a parameter.
    pub fn values(&self, id: ParamId) -> &[f32] {
        &self.all_values()[self.info(id).range.clone()]
    }

    /// All values, parameter after parameter. Panics while a GPU has newer ones: see [`ParamStore::download`].
    #[track_caller]
    pub fn all_values(&self) -> &[f32] {
        assert_eq!(self.host_version, self.version, "the GPU has newer values; download them first");
        self.values.slice()
    }

    /// All values, mutable; packed copies are renewed at their next use.
    ///
    /// # Errors
    /// A parameter is still held as a tensor, by a [`crate::Var`] of an earlier step for instance.
    pub fn all_values_mut(&mut self) -> Result<&mut [f32]> {
        if !self.values.is_unique() {
            return Err(params_borrowed_error());
        }
        assert_eq!(self.host_version, self.version, "the GPU has newer values; download them first");
        self.version += 1;
        self.host_version = self.version;
        Ok(self.values.slice_mut())
    }

    /// Values of a parameter, mutable.
    ///
    /// # Errors
    /// As [`ParamStore::all_values_mut`].
    pub fn values_mut(&mut self, id: ParamId) -> Result<&mut [f32]> {
        let range = self.info(id).range.clone();
        Ok(&mut self.all_values_mut()?[range])
    }

    /// Draws the initial values of the parameters that `wanted` selects, as their [`Init`] says.
    ///
    /// A value depends on the seed, the parameter's name and its place in it: the order of adding, other parameters and
    /// the number of threads do not matter.
    ///
    /// # Errors
    /// As [`ParamStore::all_values_mut`].
    pub fn draw(&mut self, cpu: &Cpu, seed: u64, wanted: impl Fn(&ParamInfo) -> bool) -> Result<()> {
        self.all_values_mut()?;
        let values = self.values.slice_mut::<f32>();
        for info in self.infos.iter().filter(|info| wanted(info)) {
            builder::initialize(cpu, seed, info, &mut values[info.range.clone()]);
        }
        Ok(())
    }

    /// Reads the values of the parameters that `wanted` selects from the tensors of their names; F16 and BF16 are converted.
    ///
    /// # Errors
    /// A tensor is missing, has another shape or is not of a float type; or as [`ParamStore::all_values_mut`].
    pub fn load(&mut self, file: &Safetensors, wanted: impl Fn(&ParamInfo) -> bool) -> Result<()> {
        self.all_values_mut()?;
        let values = self.values.slice_mut::<f32>();
        for info in self.infos.iter().filter(|info| wanted(info)) {
            file.read_f32(&info.name, &info.shape, &mut values[info.range.clone()])?;
        }
        Ok(())
    }

    /// Writes the values to a safetensors file, whole or not at all, as f32 tensors that [`ParamStore::load`] and
    /// [`ParamBuilder::load`] read.
    ///
    /// # Errors
    /// The file cannot be written, or a GPU has newer values: see [`ParamStore::download`].
    pub fn save(&self, path: impl AsRef<Path>) -> Result<()> {
        let tensor = |info: &ParamInfo| TensorOut {
            name: info.name.clone(),
            shape: info.shape.to_vec(),
            data: Data::F32(&self.all_values()[info.range.clone()]),
        };
        if self.host_version != self.version {
            return Err(EngineError::file(path.as_ref(), "the GPU has newer values; download them first"));
        }
        save_safetensors(path, &self.infos.iter().map(tensor).collect::<Vec<_>>(), &[])
    }

    /// Number of changes of the values.
    pub fn version(&self) -> u64 {
        self.version
    }

    /// A parameter as a tensor on the processor; it shares the store's memory.
    ///
    /// # Errors
    /// A GPU has newer values: see [`ParamStore::download`].
    pub fn tensor(&self, id: ParamId) -> Result<Tensor> {
        let info = self.info(id);
        if self.host_version != self.version {
            return Err(EngineError::parameter(&info.name, "the GPU has newer values; download them first"));
        }
        Ok(self.values.part(info.range.clone(), info.shape))
    }

    /// A parameter as a tensor in f32 on `device`, as it is now; it shares the memory of the values there.
    ///
    /// # Errors
    /// There is not enough memory, the device failed, or another GPU has newer values.
    pub fn tensor_on(&self, device: &Device, id: ParamId) -> Result<Tensor> {
        match device {
            Device::Cpu(_) => self.tensor(id),
            Device::Cuda(gpu) => {
                let info = self.info(id);
                Ok(self.on_gpu(gpu)?.part(info.range.clone(), info.shape))
            }
        }
    }

    /// A buffer on `device` for the gradients of all parameters, all zero.
    ///
    /// # Errors
    /// There is not enough memory, or the device failed.
    pub fn gradients(&self, device: &Device) -> Result<Gradients> {
        let mut flat = Tensor::new(&Arena::on(device), [self.len()], DType::F32)?;
        flat.zero()?;
        Gradients::new(flat, device.clone(), self.infos.iter().map(|info| info.range.clone()).collect())
    }

    /// The range of contiguous parameters that have `cols` columns each, or one dimension if `cols` is `None`:
    /// rows of one matrix, or parts of one vector.
    ///
    /// # Errors
    /// They are not contiguous or differ in width.
    pub fn contiguous_range(
        &self,
        operation: &'static str,
        ids: &[ParamId],
        cols: Option<usize>,
    ) -> Result<Range<usize>> {
        let mut range: Option<Range<usize>> = None;
        for &id in ids {
            let info = self.info(id);
            let fits = match cols {
                Some(cols) => info.shape.len() == 2 && info.shape[1] == cols,
                None => info.shape.len() == 1,
            };
            if !fits {
                let expected = cols.map_or("one dimension".into(), |cols| format!("shape [rows, {cols}]"));
                let problem = format!("{operation} needs {expected}, and it is {:?}", info.shape);
                return Err(EngineError::parameter(&info.name, problem));
            }
            range = match range {
                None => Some(info.range.clone()),
                Some(before) if before.end == info.range.start => Some(before.start..info.range.end),
                Some(_) => {
                    let names: Vec<_> = ids.iter().map(|&id| self.name(id)).collect();
                    let problem =
                        format!("{operation} reads {names:?} as one matrix; add them one directly after another");
                    return Err(EngineError::parameter(&info.name, problem));
                }
            };
        }
        range.ok_or_else(|| EngineError::shape(operation, "no parameters were given"))
    }

    /// The panels of the matrix [n, k] at `range` of the values for products in `precision`, packed at most once a version.
    pub(crate) fn packed(
        &self,
        cpu: &Cpu,
        precision: Precision,
        range: Range<usize>,
        k: usize,
        side: Side,
    ) -> Arc<PackedB> {
        let n = range.len().checked_div(k).unwrap_or(0);
        let (depth, columns, layout) = match side {
            Side::Forward | Side::Rounded => (k, n, Layout::Transposed),
            Side::Backward => (n, k, Layout::Normal),
        };
        let mut packs = self.packs.lock().unwrap_or_else(PoisonError::into_inner);
        let usable = |pack: &Pack| {
            let fits = pack.panels.check(cpu.isa().kind(), precision, depth, columns).is_ok();
            pack.range == range && pack.side == side && fits
        };
        let at = packs.iter().position(usable).unwrap_or_else(|| {
            let panels = match side {
                Side::Rounded => PackedB::rounded(cpu.isa(), depth, columns),
                Side::Forward | Side::Backward => PackedB::with_precision(cpu.isa(), precision, depth, columns),
            };
            packs.push(Pack { range: range.clone(), side, version: 0, panels: Arc::new(panels) });
            packs.len() - 1
        });
        let pack = &mut packs[at];
        if pack.version != self.version {
            // Panels that an earlier step still holds are left to it.
            Arc::make_mut(&mut pack.panels).pack(cpu, layout, k, &self.all_values()[range]);
            pack.version = self.version;
        }
        pack.panels.clone()
    }

    /// Bytes that all panels hold.
    pub fn packed_bytes(&self) -> usize {
        let packs = self.packs.lock().unwrap_or_else(PoisonError::into_inner);
        packs.iter().map(|pack| pack.panels.bytes()).sum()
    }
}

/// Error for a change of values that are still referred to.
fn params_borrowed_error() -> EngineError {
    let problem = "cannot change while a tensor or variable of an earlier step still refers to it; drop it first";
    EngineError::parameter("(all)", problem)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::shared_tests::*;

    #[test]
    fn truncated_normal_has_its_moments_and_its_bounds() {
        let (store, [id]) = parameters(7, [("w", &[400, 250], Init::TruncatedNormal(0.02))]);
        let w = store.values(id);
        assert!(w.iter().all(|x| x.abs() <= 0.04));
        let n = w.len() as f64;
        let mean = w.iter().map(|&x| f64::from(x)).sum::<f64>() / n;
        let deviation = (w.iter().map(|&x| f64::from(x).powi(2)).sum::<f64>() / n).sqrt();
        // Four standard errors: 0.0176/√n for the mean, and under 0.0176/√n for the deviation.
        let error = 4.0 * 0.0176 / n.sqrt();
        assert!(mean.abs() < error, "mean {mean}, bound {error}");
        assert!((deviation - 0.02 * 0.879_626).abs() < error, "deviation {deviation}, bound {error}");
    }

    #[test]
    fn first_values_depend_on_seed_and_name_alone() {
        let build = |threads, seed, names: &[&str]| {
            let mut builder = ParamBuilder::new();
            for name in names {
                builder.add(*name, [300, 200], Init::TruncatedNormal(1.0)).unwrap();
            }
            builder.build(&cpu(threads), seed).unwrap()
        };
        let a = build(1, 3, &["x", "y"]);
        let values = |store: &ParamStore, name: &str| store.values(store.find(name).unwrap()).to_vec();
        for threads in [2, 5] {
            let b = build(threads, 3, &["new", "y", "x"]);
            assert_eq!(values(&a, "x"), values(&b, "x"), "{threads} threads");
            assert_eq!(values(&a, "y"), values(&b, "y"), "{threads} threads");
        }
        assert_ne!(values(&a, "x"), values(&a, "y"));
        assert_ne!(values(&a, "x"), values(&build(1, 4, &["x"]), "x"));
    }

    #[test]
    fn a_weight_is_packed_once_a_version_and_in_place() {
        let cpu = cpu(1);
        let (mut store, [id]) = parameters(1, [("w", &[5, 3], Init::TruncatedNormal(1.0))]);
        let range = store.info(id).range.clone();
        let packed = |store: &ParamStore| store.packed(&cpu, Precision::F32, range.clone(), 3, Side::Forward);
        let first = Arc::as_ptr(&packed(&store));
        assert_eq!(first, Arc::as_ptr(&packed(&store)));
        let bytes = store.packed_bytes();
        let multiply = |store: &ParamStore| {
            let panels = packed(store);
            let mut y = [f32::NAN; 5];
            let spec = kernels::gemm::Gemm::nt(1, 5, 3);
            kernels::gemm::gemm_packed(&cpu, &spec, &[1f32, 0., 0.], &panels, &mut y, kernels::gemm::Epilogue::NONE);
            y
        };
        let column = |store: &ParamStore| std::array::from_fn::<f32, 5, _>(|row| store.values(id)[row * 3]);
        assert_eq!(multiply(&store), column(&store));
        store.values_mut(id).unwrap()[0] = 42.0;
        assert_eq!(multiply(&store)[0], 42.0);
        assert_eq!(first, Arc::as_ptr(&packed(&store)), "packed in place");
        assert_eq!(store.packed_bytes(), bytes);
    }

    #[test]
    fn what_is_not_drawn_stays_as_it_was() {
        let build = || {
            let mut builder = ParamBuilder::new();
            for name in ["loaded", "drawn", "gain"] {
                builder.add(name, [40, 50], if name == "gain" { Init::Ones } else { Init::Uniform(1.0) }).unwrap();
            }
            builder
        };
        let whole = build().build(&cpu(2), 3).unwrap();
        let mut store = build().allocate().unwrap();
        assert!(store.all_values().iter().all(|x| x.to_bits() == 0));
        let [loaded, drawn, gain] = ["loaded", "drawn", "gain"].map(|name| store.find(name).unwrap());
        store.values_mut(loaded).unwrap().fill(7.0);
        let before = store.version();
        store.draw(&cpu(2), 3, |info| info.name != "loaded").unwrap();
        assert!(store.version() > before, "packed copies would be stale");
        assert!(store.values(loaded).iter().all(|&x| x == 7.0));
        assert_eq!([store.values(drawn), store.values(gain)], [whole.values(drawn), whole.values(gain)]);
    }

    #[test]
    fn errors_name_the_parameter() {
        let mut builder = ParamBuilder::new();
        let a = builder.add("a.weight", [2, 3], Init::Zeros).unwrap();
        let b = builder.add("b.weight", [2, 4], Init::Zeros).unwrap();
        let c = builder.add("c.weight", [2, 3], Init::Zeros).unwrap();
        let twice = builder.add("a.weight", [1], Init::Ones);
        let mut store = builder.build(&cpu(1), 0).unwrap();
        let held = store.tensor(a).unwrap();
        refused(twice, "parameter a.weight: added twice");
        let expected = "parameter b.weight: linear needs shape [rows, 3]";
        refused(store.contiguous_range("linear", &[a, b], Some(3)), expected);
        refused(store.contiguous_range("linear", &[a, c], Some(3)), "parameter c.weight: linear reads");
        refused(store.values_mut(a), "still refers to it");
        drop(held);
        assert!(store.values_mut(a).is_ok());
    }
}
