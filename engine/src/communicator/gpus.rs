//! GPUs of several ranks: whether they exchange over NCCL, and control messages of ranks that have nothing else.

use super::{
    Communicator, Failure, GpuRanks, TIMEOUT, Transport,
    nccl::{self, Link, Message, Nccl, UniqueId},
};
use crate::{
    device::{Device, Gpu, gpu::DeviceBlock},
    error::{EngineError, Result},
};
use std::{
    fmt,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

/// Maximum number of bytes of a control message; longer ones are sent in pieces.
const MESSAGE: usize = 1 << 20;
/// Name of the initialization in errors.
const START: &str = "the start of NCCL";

/// Way of gradients between ranks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GradientPath {
    /// Between CPUs, over MPI.
    Cpus,
    /// From GPU to GPU, over this version of NCCL.
    Nccl(String),
    /// Between GPUs through the host, over MPI, and why not over NCCL.
    Host(String),
}

impl fmt::Display for GradientPath {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpus => write!(f, "gradients over MPI"),
            Self::Nccl(version) => write!(f, "gradients over NCCL {version}"),
            Self::Host(reason) => write!(f, "gradients over MPI through the host, not over NCCL: {reason}"),
        }
    }
}

/// NCCL as a rank has it, in a message to the others.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Support {
    NoGpu,
    /// Version in NCCL's own encoding.
    Version(i32),
    /// Why it cannot be used.
    No(String),
}

impl Support {
    fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::NoGpu => Vec::new(),
            Self::Version(version) => [&[0][..], &version.to_le_bytes()].concat(),
            Self::No(reason) => [&[1], reason.as_bytes()].concat(),
        }
    }

    fn of_bytes(bytes: &[u8]) -> Self {
        match bytes {
            [] => Self::NoGpu,
            &[0, a, b, c, d] => Self::Version(i32::from_le_bytes([a, b, c, d])),
            [_, reason @ ..] => Self::No(String::from_utf8_lossy(reason).into_owned()),
        }
    }

    /// The way that ranks with `all` take.
    fn path(all: &[Self]) -> GradientPath {
        let version = |rank: usize| match all[rank] {
            Self::Version(version) => Some(version),
            _ => None,
        };
        if all.iter().all(|one| *one == Self::NoGpu) {
            return GradientPath::Cpus;
        }
        for (rank, one) in all.iter().enumerate() {
            match one {
                Self::NoGpu => return GradientPath::Host(format!("rank {rank} has no GPU")),
                Self::No(reason) => return GradientPath::Host(reason.clone()),
                Self::Version(_) if version(rank) == version(0) => {}
                Self::Version(other) => {
                    let [first, other] = [version(0).unwrap_or_default(), *other].map(nccl::version_text);
                    return GradientPath::Host(format!("rank 0 has version {first}, rank {rank} has {other}"));
                }
            }
        }
        GradientPath::Nccl(version(0).map(nccl::version_text).unwrap_or_default())
    }
}

/// NCCL for this rank, or why there is none.
fn find(gpu: &Gpu, named: Option<&str>) -> Result<Nccl, String> {
    match named {
        Some("off") => Err("ALBERT_NCCL is off".to_owned()),
        None if gpu.driver().is_simulated() => Err("the GPU is simulated".to_owned()),
        _ => Nccl::open(gpu, named),
    }
}

impl Communicator {
    /// Connects the GPUs of all ranks over NCCL if each has one and can open the library; otherwise their gradients go through
    /// the host. `named` is the file of the library, or `off`; by default it is opened by its usual name, but not for a
    /// simulated GPU. All ranks call it once.
    ///
    /// # Errors
    /// The library of that name cannot be used, NCCL fails, or a rank is gone or late.
    pub fn connect_gpus(&mut self, device: &Device, named: Option<&str>) -> Result<GradientPath> {
        let found = device.gpu().map(|gpu| (gpu, find(gpu, named)));
        let support = match &found {
            None => Support::NoGpu,
            Some((_, Ok(nccl))) => Support::Version(nccl.version),
            Some((_, Err(reason))) => Support::No(reason.clone()),
        };
        let all = self.gather("versions of NCCL", &support.to_bytes())?;
        let all: Vec<Support> = all.iter().map(|bytes| Support::of_bytes(bytes)).collect();
        let path = Support::path(&all);
        match (&path, found, named) {
            (GradientPath::Nccl(_), Some((gpu, Ok(nccl))), _) => self.link_gpu(gpu, nccl)?,
            (GradientPath::Host(reason), _, Some(file)) if file != "off" => {
                return Err(EngineError::Launch(format!(
                    "ALBERT_NCCL = {file}: {reason}; set it to the file of libnccl.so.2, or to off for gradients through the \
                     host"
                )));
            }
            _ => {}
        }
        Ok(path)
    }

    /// Connects `gpu` to those of the other ranks, which the transport tells the name of the group.
    fn link_gpu(&mut self, gpu: &Gpu, nccl: Nccl) -> Result<()> {
        let mine = match self.is_first() {
            true => nccl.unique_id().map_err(|failure| self.failed(START, &failure))?.0.to_vec(),
            false => Vec::new(),
        };
        let id = self.gather("the name of the GPUs' group", &mine)?.swap_remove(0);
        let id = UniqueId(id[..].try_into().expect("rank 0 sends a name"));
        let link = Link::new(nccl, gpu, (self.rank(), self.size()), id, self.timeout());
        self.link = Some(Arc::new(link.map_err(|failure| self.failed(START, &failure))?));
        Ok(())
    }
}

impl GpuRanks {
    /// Connects the ranks over their GPUs. `named` is the file of the library, by default its usual name.
    ///
    /// # Errors
    /// `device` is not a GPU, the library cannot be used, NCCL fails, or a rank is late.
    pub fn connect(self, device: &Device, named: Option<&str>) -> Result<(Communicator, GradientPath)> {
        let Self { rank, size, .. } = self;
        let refused = |problem: String| {
            EngineError::Launch(format!(
                "torchrun started {size} processes, which exchange over NCCL: {problem}, or start them with `mpirun -n {size}`"
            ))
        };
        let gpu = device.gpu().ok_or_else(|| refused("pass --device cuda".to_owned()))?;
        let nccl = find(gpu, named);
        let nccl = nccl.map_err(|reason| refused(format!("{reason}; set ALBERT_NCCL to the file of libnccl.so.2")))?;
        let path = GradientPath::Nccl(nccl::version_text(nccl.version));
        let failed = |failure: Failure| failure.of_rank(rank, START, TIMEOUT);
        // The same name in every rank, because NCCL_COMM_ID is set.
        let id = nccl.unique_id().map_err(failed)?;
        let link = Arc::new(Link::new(nccl, gpu, (rank, size), id, TIMEOUT).map_err(failed)?);
        let buffers = Mutex::new([gpu.allocate(MESSAGE)?, gpu.allocate(MESSAGE)?]);
        let transport = OverGpus { link: Arc::clone(&link), buffers };
        let mut communicator = Communicator::over(Arc::new(transport));
        communicator.link = Some(link);
        Ok((communicator, path))
    }
}

/// Control messages of ranks without MPI, through buffers on their GPUs.
struct OverGpus {
    link: Arc<Link>,
    /// For what is sent, and for what is received.
    buffers: Mutex<[DeviceBlock; 2]>,
}

impl fmt::Debug for OverGpus {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.link.fmt(f)
    }
}

impl Transport for OverGpus {
    fn rank(&self) -> usize {
        self.link.rank
    }

    fn size(&self) -> usize {
        self.link.size
    }

    fn exchange(
        &self,
        (to, send): (usize, &[u8]),
        (from, receive): (usize, &mut [u8]),
        timeout: Duration,
    ) -> Result<(), Failure> {
        let buffers = self.buffers.lock().unwrap_or_else(PoisonError::into_inner);
        let [outgoing, incoming] = &*buffers;
        let failed = |error: EngineError| Failure::Device(error.to_string());
        // The n-th piece of a rank meets the n-th of another, whatever they send and receive besides.
        let (mut sent, mut received) = (send.chunks(MESSAGE), receive.chunks_mut(MESSAGE));
        loop {
            let (sent, received) = (sent.next(), received.next());
            if sent.is_none() && received.is_none() {
                return Ok(());
            }
            let (sent, received) = (sent.unwrap_or_default(), received.unwrap_or_default());
            outgoing.write(0, sent).map_err(failed)?;
            let send = Message { rank: to, address: outgoing.at(0), bytes: sent.len() };
            let receive = Message { rank: from, address: incoming.at(0), bytes: received.len() };
            self.link.exchange(send, receive, timeout)?;
            incoming.read(0, received).map_err(failed)?;
        }
    }

    // The link does both.
    fn abort(&self) {}

    fn finish(&self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_agree_on_the_way_of_gradients() {
        let (new, old) = (Support::Version(22_703), Support::Version(22_602));
        let no = Support::No("libnccl.so.2: not found".to_owned());
        for support in [&new, &no, &Support::NoGpu] {
            assert_eq!(Support::of_bytes(&support.to_bytes()), *support);
        }
        let text = |all: &[&Support]| {
            let all: Vec<Support> = all.iter().map(|one| (*one).clone()).collect();
            Support::path(&all).to_string()
        };
        let host = "gradients over MPI through the host, not over NCCL: ";
        assert_eq!(text(&[&new, &new]), "gradients over NCCL 2.27.3");
        assert_eq!(text(&[&new, &no]), format!("{host}libnccl.so.2: not found"));
        assert_eq!(text(&[&new, &Support::NoGpu]), format!("{host}rank 1 has no GPU"));
        assert_eq!(text(&[&new, &new, &old]), format!("{host}rank 0 has version 2.27.3, rank 2 has 2.26.2"));
        assert_eq!(text(&[&Support::NoGpu, &Support::NoGpu]), "gradients over MPI");
    }
}
