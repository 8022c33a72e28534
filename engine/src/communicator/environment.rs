//! Variables of the environment by which launchers of several processes are known.

use crate::error::{EngineError, Result};

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
    /// The launcher that started this process; `None` if it was started alone.
    ///
    /// # Errors
    /// A variable is no number, or the launcher starts processes for GPUs only.
    pub(super) fn find(variable: &dyn Fn(&str) -> Option<String>) -> Result<Option<Self>> {
        let number = |name: &'static str| match variable(name) {
            None => Ok(None),
            Some(text) => match text.trim().parse::<usize>() {
                Ok(number) => Ok(Some(number)),
                Err(_) => Err(EngineError::Launch(format!("{name} = {text}: expected a number of processes"))),
            },
        };
        for (name, family) in SIZES {
            match number(name)? {
                // One task of Slurm, or a shell inside an allocation for one.
                Some(0 | 1) if family.is_none() => {}
                Some(size) => return Ok(Some(Self { variable: name, size: size.max(1), family })),
                None => {}
            }
        }
        match number("WORLD_SIZE")? {
            Some(size @ 2..) => Err(EngineError::Launch(format!(
                "WORLD_SIZE says that torchrun started {size} processes, which can meet on GPUs only; start them with \
                 `mpirun -n {size}`, or unset WORLD_SIZE if this process is alone"
            ))),
            _ => Ok(None),
        }
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

    fn find(variables: &[(&str, &str)]) -> Result<Option<Launcher>> {
        Launcher::find(&|name| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned()))
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
        assert!(message(&[("WORLD_SIZE", "8")]).contains("`mpirun -n 8`"));
        assert_eq!(message(&[("PMI_SIZE", "many")]), "PMI_SIZE = many: expected a number of processes");
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
