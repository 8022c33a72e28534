//! Devices: CPU, GPU, simulated GPU.

#[cfg(feature = "cuda")]
pub mod cuda;
#[cfg(feature = "cuda")]
mod cuda_arguments;
#[cfg(feature = "cuda")]
mod cuda_pinned;
#[cfg(feature = "cuda")]
mod cuda_session;
pub mod driver;
pub(crate) mod gpu;
pub mod simulated;
mod timeline;

pub use driver::{Driver, DriverError, GpuInfo};
pub use gpu::{Gpu, PtxKernel};
use simulated::SimulatedDriver;

use crate::{
    error::{EngineError, Result as EngineResult},
    profile::Peak,
};
use kernels::{Cpu, tiles::TileKind};

/// Device of tensors and kernels. A closed enum: a match on it covers all devices.
#[derive(Clone, Debug)]
pub enum Device {
    /// The CPU, with its instruction set and threads.
    Cpu(Cpu),
    /// A GPU, real or simulated.
    Cuda(Gpu),
}

impl Device {
    /// The CPU, as `ALBERT_ISA` and `ALBERT_THREADS` configure it (see [`Cpu::detect`]).
    ///
    /// # Errors
    /// `ALBERT_ISA` or `ALBERT_THREADS` is unusable.
    pub fn cpu() -> EngineResult<Self> {
        Ok(Self::Cpu(Cpu::detect()?))
    }

    /// The device called `name`: `cpu`, `cuda` (the first GPU), `cuda:N`, or `cuda-sim`, a simulated GPU (`cuda-sim:90`
    /// for a Hopper). `cpu` is the processor to use, or the host of the GPU.
    ///
    /// # Errors
    /// The device does not exist or cannot be used.
    pub fn named(name: &str, cpu: Cpu) -> EngineResult<Self> {
        let unknown = |problem: &str| EngineError::Setting {
            setting: "device",
            value: name.to_owned(),
            problem: format!("{problem}; cpu, cuda, cuda:N, cuda-sim or cuda-sim:90 was expected"),
        };
        let (kind, which) = name.split_once(':').map_or((name, None), |(kind, which)| (kind, Some(which)));
        match (kind, which) {
            ("cpu", None) => Ok(Self::Cpu(cpu)),
            ("cuda", which) => {
                let ordinal = which.map_or(Ok(0), str::parse).map_err(|_| unknown("no number of a GPU"))?;
                Self::cuda(ordinal, cpu)
            }
            ("cuda-sim", None | Some("80")) => Self::on(SimulatedDriver::new((8, 0)), cpu),
            ("cuda-sim", Some("90")) => Self::on(SimulatedDriver::new((9, 0)), cpu),
            _ => Err(unknown("no such device")),
        }
    }

    /// GPU number `ordinal`, from 0, with `cpu` as its host.
    ///
    /// # Errors
    /// There is no driver or no such GPU, or it is too old.
    #[cfg_attr(not(feature = "cuda"), expect(unused_variables, reason = "built without GPUs"))]
    pub fn cuda(ordinal: usize, cpu: Cpu) -> EngineResult<Self> {
        #[cfg(feature = "cuda")]
        {
            Self::on(cuda::CudaDriver::open(ordinal)?, cpu)
        }
        #[cfg(not(feature = "cuda"))]
        {
            Err(DriverError::NotBuilt.into())
        }
    }

    fn on(driver: impl Driver + 'static, cpu: Cpu) -> EngineResult<Self> {
        Ok(Self::Cuda(Gpu::new(driver, cpu)?))
    }

    /// The CPU: the device itself, or the host of the GPU.
    pub fn processor(&self) -> &Cpu {
        match self {
            Self::Cpu(cpu) => cpu,
            Self::Cuda(gpu) => gpu.host(),
        }
    }

    /// True if it has a unit that multiplies bf16 faster than f32: AMX, or tensor cores.
    pub fn multiplies_bf16_faster(&self) -> bool {
        match self {
            Self::Cpu(cpu) => cpu.tiles().kind() == TileKind::Amx,
            Self::Cuda(_) => true,
        }
    }

    /// Peak of the device: measured on a CPU, in half a second; as the driver reports of a GPU (`GpuInfo::peak`), if it
    /// does.
    pub fn peak(&self) -> Option<Peak> {
        match self {
            Self::Cpu(cpu) => Some(Peak::measured(cpu)),
            Self::Cuda(gpu) => gpu.info().peak(),
        }
    }

    /// The GPU, if it is one.
    pub fn gpu(&self) -> Option<&Gpu> {
        match self {
            Self::Cpu(_) => None,
            Self::Cuda(gpu) => Some(gpu),
        }
    }
}

/// The GPUs of this machine, in the driver's order.
///
/// # Errors
/// Why there is none: no library, no device, or a program built without CUDA.
pub fn gpus() -> Result<Vec<GpuInfo>, DriverError> {
    #[cfg(feature = "cuda")]
    {
        (0..cuda::device_count()?).map(|ordinal| Ok(cuda::CudaDriver::open(ordinal)?.info().clone())).collect()
    }
    #[cfg(not(feature = "cuda"))]
    {
        Err(DriverError::NotBuilt)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_without_a_gpu_gets_a_reason_not_a_panic() {
        if let Err(error) = gpus().map(|gpus| assert!(!gpus.is_empty())) {
            println!("SKIPPED: {error}");
            assert!(error.to_string().contains("CUDA"), "{error}");
        }
    }

    /// Copies a vector through a kernel on the first GPU.
    #[cfg(feature = "cuda")]
    #[test]
    fn a_kernel_runs_and_a_wrong_one_says_why() {
        use driver::Value;
        use ptx::Launch;
        let opened = cuda::CudaDriver::open(0).inspect_err(|error| println!("SKIPPED: {error}"));
        let Ok(driver) = opened else { return };
        let ptx = "
            .version 7.0
            .target sm_80
            .address_size 64
            .visible .entry negate(.param .u64 p, .param .u32 n) {
                .reg .pred %p; .reg .b32 %r<5>; .reg .b64 %d<4>; .reg .f32 %f<3>;
                ld.param.u64 %d1, [p]; ld.param.u32 %r1, [n];
                mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x;
                mad.lo.u32 %r2, %r2, %r3, %r4;
                setp.ge.u32 %p, %r2, %r1;
                @%p ret;
                mul.wide.u32 %d2, %r2, 4; add.u64 %d3, %d1, %d2;
                ld.global.f32 %f1, [%d3]; neg.f32 %f2, %f1; st.global.f32 [%d3], %f2;
                ret;
            }";
        let refused = driver.load("not PTX", "negate").unwrap_err();
        assert!(matches!(refused, DriverError::Ptx { .. }), "{refused}");
        let function = driver.load(ptx, "negate").unwrap();
        let x: Vec<f32> = (0..1000).map(|i| i as f32 + 0.5).collect();
        let memory = driver.allocate(4000).unwrap();
        driver.copy_in(memory, bytemuck::cast_slice(&x)).unwrap();
        let shape = Launch { grid: [4, 1, 1], block: [256, 1, 1], shared_bytes: 0 };
        driver.launch(function, shape, &[Value::Address(memory), Value::U32(1000)]).unwrap();
        let mut y = vec![0f32; 1000];
        driver.copy_out(bytemuck::cast_slice_mut(&mut y), memory).unwrap();
        driver.free(memory).unwrap();
        assert!(x.iter().zip(&y).all(|(x, y)| *y == -x), "{:?}", &y[..4]);
    }
}
