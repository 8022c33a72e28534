//! Variables of the environment by which launchers of several processes are known.

use crate::error::{EngineError, Result};

/// Processes that torchrun started, before they are connected ([`GpuRanks::connect`](Self::connect)).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GpuRanks {
    /// Number of this process.
    pub rank: usize,
    pub(super) size: usize,
    /// Number of this process among those of its host, which is the number of its GPU.
    pub local_rank: usize,
    /// Processes on this host.
    pub local_size: usize,
    /// Host of rank 0, and a port that is free there.
    pub(super) meeting_point: String,
}

impl GpuRanks {
    /// The ranks of torchrun's variables; `None` if they name no other process. A launcher that starts a process per host may
    /// leave out `LOCAL_RANK` and `LOCAL_WORLD_SIZE`.
    ///
    /// # Errors
    /// A variable is missing or has no meaning.
    pub fn find(variable: &dyn Fn(&str) -> Option<String>) -> Result<Option<Self>> {
        let Some(size @ 2..) = number(variable, "WORLD_SIZE")? else { return Ok(None) };
        let missing = |name| {
            EngineError::Launch(format!(
                "WORLD_SIZE is {size}, but {name} is not set; start {size} processes with torchrun, which sets both, or unset \
                 WORLD_SIZE if this process is alone"
            ))
        };
        let rank = number(variable, "RANK")?.ok_or_else(|| missing("RANK"))?;
        let host = variable("MASTER_ADDR").ok_or_else(|| missing("MASTER_ADDR"))?;
        let port = number(variable, "MASTER_PORT")?.ok_or_else(|| missing("MASTER_PORT"))?;
        if rank >= size {
            return Err(EngineError::Launch(format!("RANK = {rank}: expected a number below WORLD_SIZE = {size}")));
        }
        // torchrun's own store has MASTER_PORT.
        let port = if port < 65_535 { port + 1 } else { port - 1 };
        let host = if host.contains(':') { format!("[{host}]") } else { host };
        Ok(Some(Self {
            rank,
            size,
            local_rank: number(variable, "LOCAL_RANK")?.unwrap_or(0),
            local_size: number(variable, "LOCAL_WORLD_SIZE")?.unwrap_or(1),
            meeting_point: format!("{host}:{port}"),
        }))
    }
}

/// The number in a variable, if it is set.
fn number(variable: &dyn Fn(&str) -> Option<String>, name: &str) -> Result<Option<usize>> {
    match variable(name) {
        None => Ok(None),
        Some(text) => match text.trim().parse() {
            Ok(number) => Ok(Some(number)),
            Err(_) => Err(EngineError::Launch(format!("{name} = {text}: expected a number"))),
        },
    }
}

/// Family of MPI libraries: the launcher of one does not connect processes of the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Family {
    OpenMpi,
    /// MPICH, Intel MPI, MVAPICH, Cray MPI.
    Mpich,
}

/// A launcher that started this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Launcher {
    /// Variable that says so.
    pub variable: &'static str,
    /// Processes that it started.
    pub size: usize,
    /// Library that it belongs to, if known.
    pub family: Option<Family>,
}

/// Variables with a number of processes, the most specific first.
const SIZES: [(&str, Option<Family>); 3] =
    [("OMPI_COMM_WORLD_SIZE", Some(Family::OpenMpi)), ("PMI_SIZE", Some(Family::Mpich)), ("SLURM_NTASKS", None)];

impl Launcher {
    /// The launcher with MPI that started this process; `None` if none did.
    ///
    /// # Errors
    /// A variable is not a number.
    pub(super) fn find(variable: &dyn Fn(&str) -> Option<String>) -> Result<Option<Self>> {
        for (name, family) in SIZES {
            match number(variable, name)? {
                // One task of Slurm, or a shell inside an allocation for one.
                Some(0 | 1) if family.is_none() => {}
                Some(size) => return Ok(Some(Self { variable: name, size: size.max(1), family })),
                None => {}
            }
        }
        Ok(None)
    }

    /// Files of MPI libraries, to be tried in order.
    pub(super) fn libraries(&self) -> &'static [&'static str] {
        match self.family {
            Some(Family::OpenMpi) => &["libmpi.so.40", "libmpi_abi.so.1"],
            Some(Family::Mpich) => &["libmpi_abi.so.1", "libmpi.so.12", "libmpich.so.12"],
            None => &["libmpi_abi.so.1", "libmpi.so.40", "libmpi.so.12", "libmpich.so.12"],
        }
    }

    /// The error for a library that knows of `found` processes, with advice.
    pub(super) fn disagrees(&self, library: &str, found: usize) -> EngineError {
        let advice = match self.family {
            None => {
                "start them with `srun --mpi=pmix` (`srun --mpi=list` shows what Slurm has), or with --ntasks=1 if one \
                     process is meant"
                    .to_owned()
            }
            Some(_) => format!(
                "the launcher belongs to another MPI library; start with that of {library}, or set ALBERT_MPI to the launcher's"
            ),
        };
        EngineError::Launch(format!(
            "{} is {}, but {library} knows of {found} process(es): {advice}",
            self.variable, self.size
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn variable(variables: &[(&str, &str)]) -> impl Fn(&str) -> Option<String> {
        |name| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned())
    }

    fn find(variables: &[(&str, &str)]) -> Result<Option<Launcher>> {
        Launcher::find(&variable(variables))
    }

    #[test]
    fn the_library_is_that_of_the_launcher() {
        let of = |variables: &[(&str, &str)]| find(variables).unwrap().map(|launcher| (launcher.size, launcher.family));
        assert_eq!(of(&[]), None);
        assert_eq!(of(&[("OMPI_COMM_WORLD_SIZE", "4"), ("SLURM_NTASKS", "8")]), Some((4, Some(Family::OpenMpi))));
        assert_eq!(of(&[("PMI_SIZE", "1")]), Some((1, Some(Family::Mpich))));
        assert_eq!(of(&[("SLURM_NTASKS", "64")]), Some((64, None)));
        assert_eq!(of(&[("SLURM_NTASKS", "1"), ("WORLD_SIZE", "1")]), None);
    }

    #[test]
    fn variables_that_cannot_be_followed_are_named() {
        let message = |variables: &[(&str, &str)]| find(variables).unwrap_err().to_string();
        assert_eq!(message(&[("PMI_SIZE", "many")]), "PMI_SIZE = many: expected a number");
        let message = |variables: &[_]| GpuRanks::find(&variable(variables)).unwrap_err().to_string();
        assert!(message(&[("WORLD_SIZE", "8")]).starts_with("WORLD_SIZE is 8, but RANK is not set; "));
        let all = [("WORLD_SIZE", "8"), ("RANK", "8"), ("MASTER_ADDR", "a"), ("MASTER_PORT", "29500")];
        assert_eq!(message(&all), "RANK = 8: expected a number below WORLD_SIZE = 8");
    }

    #[test]
    fn ranks_of_torchrun_meet_beside_its_store() {
        let of = |host, port, more: &[_]| {
            let all = [("WORLD_SIZE", "8"), ("RANK", "5"), ("MASTER_ADDR", host), ("MASTER_PORT", port)];
            GpuRanks::find(&variable(&[&all[..], more].concat())).unwrap().unwrap()
        };
        let ranks = of("node-0", "29500", &[("LOCAL_RANK", "1"), ("LOCAL_WORLD_SIZE", "4")]);
        let expected =
            GpuRanks { rank: 5, size: 8, local_rank: 1, local_size: 4, meeting_point: "node-0:29501".to_owned() };
        assert_eq!(ranks, expected);
        assert_eq!(of("node-0", "65535", &[]).meeting_point, "node-0:65534");
        assert_eq!(of("fe80::1", "29500", &[]).meeting_point, "[fe80::1]:29501");
        assert_eq!(GpuRanks::find(&variable(&[("WORLD_SIZE", "1")])).unwrap(), None);
    }

    #[test]
    fn singletons_that_were_not_meant_are_named() {
        let launcher = |variable| find(&[(variable, "4")]).unwrap().unwrap();
        let message = launcher("SLURM_NTASKS").disagrees("libmpi.so.40", 1).to_string();
        assert!(
            message.starts_with("SLURM_NTASKS is 4, but libmpi.so.40 knows of 1 process(es): ")
                && message.contains("--mpi=pmix")
        );
        assert!(launcher("PMI_SIZE").disagrees("libmpi.so.40", 1).to_string().contains("ALBERT_MPI"));
    }
}
