//! Processes that an MPI launcher started.

mod library;

use std::ffi::c_int;
use std::rc::Rc;

use super::link::{Link, LinkError};
use library::{Functions, Handle};

/// MPI cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum MpiError {
    /// There is no library.
    #[error(
        "this program was started by an MPI launcher, but no MPI library was found (tried {tried}). Install Open MPI 4 or 5, or MPICH 5, \
         load its module, or name the library in RULLAMA_MPI; to train on one GPU, start without the launcher"
    )]
    Missing {
        /// The names that were tried.
        tried: String,
    },
    /// The library that the user names cannot be loaded.
    #[error("RULLAMA_MPI names {name}, which cannot be loaded: {reason}")]
    Named {
        /// Its name.
        name: String,
        /// The loader's reason.
        reason: String,
    },
    /// The library has another interface.
    #[error(
        "{name} is neither Open MPI 4 or 5 nor a library with the standard ABI of MPI 5.0 (MPICH 5: libmpi_abi.so.1); load a module with \
         one of these, or name such a library in RULLAMA_MPI"
    )]
    OtherAbi {
        /// Its name.
        name: String,
    },
    /// The library does not belong to the launcher.
    #[error(
        "the launcher started {started} processes, but {library} knows of {found}: it belongs to another launcher. Start with the \
         mpirun or srun of that library, or name the launcher's own library in RULLAMA_MPI"
    )]
    OtherLauncher {
        /// Processes by the launcher.
        started: usize,
        /// Processes by the library.
        found: usize,
        /// The library's version.
        library: String,
    },
    /// Slurm started several tasks that do not know of each other.
    #[error(
        "srun started {0} tasks without MPI, and each would train on its own; add --mpi=pmix (`srun --mpi=list` shows what there is)"
    )]
    Slurm(usize),
    /// A function of the library failed.
    #[error("{0}")]
    Failed(String),
}

/// A launcher, by the variables that it sets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Launcher {
    /// Processes that it started, where it says so.
    pub started: Option<usize>,
    /// Whether it is Open MPI's.
    pub is_open_mpi: bool,
}

/// The launcher that started this process; `None` for a process on its own. `variable` looks up the environment.
pub fn launcher(variable: impl Fn(&str) -> Option<String>) -> Result<Option<Launcher>, MpiError> {
    let number = |name: &str| variable(name).and_then(|text| text.parse::<usize>().ok());
    let tasks = number("SLURM_STEP_NUM_TASKS");
    let is_open_mpi =
        variable("OMPI_COMM_WORLD_RANK").is_some() || variable("OMPI_COMM_WORLD_SIZE").is_some();
    if let Some(started) = number("OMPI_COMM_WORLD_SIZE").or(number("PMI_SIZE")) {
        return Ok(Some(Launcher { started: Some(started), is_open_mpi }));
    }
    // Slurm's PMIx plug-in.
    if ["PMIX_RANK", "PMI_RANK"].iter().any(|name| variable(name).is_some()) {
        return Ok(Some(Launcher { started: tasks, is_open_mpi: true }));
    }
    match tasks {
        Some(tasks) if tasks > 1 => Err(MpiError::Slurm(tasks)),
        _ => Ok(None),
    }
}

/// A communicator of an MPI library.
pub struct Mpi {
    functions: Rc<Functions>,
    communicator: Handle,
    rank: usize,
    size: usize,
}

impl Mpi {
    /// Connects to the other processes. Only the thread that calls it may use the result.
    pub fn connect(launcher: Launcher) -> Result<Mpi, MpiError> {
        let functions = Rc::new(Functions::load(launcher.is_open_mpi)?);
        let mut given = 0;
        // SAFETY: the first call of MPI in this process; without arguments to pass on.
        let result = unsafe {
            (functions.init)(std::ptr::null_mut(), std::ptr::null_mut(), functions.funneled, &mut given)
        };
        if result != 0 || given < functions.funneled {
            let version = &functions.version;
            return Err(MpiError::Failed(format!(
                "{version} could not start (MPI_Init_thread returned {result}, thread level {given})"
            )));
        }
        let world = functions.world;
        let mpi = Mpi::of(functions, world).map_err(|error| MpiError::Failed(error.to_string()))?;
        match launcher.started {
            Some(started) if started != mpi.size => Err(MpiError::OtherLauncher {
                started,
                found: mpi.size,
                library: mpi.functions.version.clone(),
            }),
            _ => Ok(mpi),
        }
    }

    /// The library's name and version.
    pub fn version(&self) -> &str {
        &self.functions.version
    }

    fn of(functions: Rc<Functions>, communicator: Handle) -> Result<Mpi, LinkError> {
        let (mut rank, mut size) = (0, 0);
        // SAFETY: the communicator is valid, and both numbers are written.
        unsafe {
            check("MPI_Comm_rank", (functions.rank)(communicator, &mut rank))?;
            check("MPI_Comm_size", (functions.size)(communicator, &mut size))?;
        }
        Ok(Mpi { functions, communicator, rank: rank as usize, size: size as usize })
    }
}

/// The error of a function that returned something else than `MPI_SUCCESS`.
fn check(function: &str, result: c_int) -> Result<(), LinkError> {
    if result == 0 { Ok(()) } else { Err(LinkError(format!("{function} failed with error {result}"))) }
}

/// A number of bytes for MPI.
fn count(bytes: usize) -> c_int {
    c_int::try_from(bytes).expect("messages are split into parts of at most 1 GiB")
}

impl Link for Mpi {
    fn rank(&self) -> usize {
        self.rank
    }

    fn size(&self) -> usize {
        self.size
    }

    fn barrier(&self) -> Result<(), LinkError> {
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        // SAFETY: the communicator is valid.
        let result = unsafe { (self.functions.barrier)(self.communicator) };
        std::sync::atomic::fence(std::sync::atomic::Ordering::SeqCst);
        check("MPI_Barrier", result)
    }

    fn all_gather(&self, own: &[u8], all: &mut [u8]) -> Result<(), LinkError> {
        assert_eq!(all.len(), own.len() * self.size, "room for every rank");
        let (n, byte) = (count(own.len()), self.functions.byte);
        // SAFETY: both buffers have the lengths that are passed.
        let result = unsafe {
            let (from, to) = (own.as_ptr().cast(), all.as_mut_ptr().cast());
            (self.functions.all_gather)(from, n, byte, to, n, byte, self.communicator)
        };
        check("MPI_Allgather", result)
    }

    fn all_to_all(&self, from: &[u8], to: &mut [u8]) -> Result<(), LinkError> {
        assert!(from.len() == to.len() && from.len().is_multiple_of(self.size), "a part for every rank");
        let (n, byte) = (count(from.len() / self.size), self.functions.byte);
        // SAFETY: both buffers have the lengths that are passed.
        let result = unsafe {
            let (from, to) = (from.as_ptr().cast(), to.as_mut_ptr().cast());
            (self.functions.all_to_all)(from, n, byte, to, n, byte, self.communicator)
        };
        check("MPI_Alltoall", result)
    }

    fn broadcast(&self, bytes: &mut [u8]) -> Result<(), LinkError> {
        let (n, byte) = (count(bytes.len()), self.functions.byte);
        // SAFETY: the buffer has the length that is passed.
        let result =
            unsafe { (self.functions.broadcast)(bytes.as_mut_ptr().cast(), n, byte, 0, self.communicator) };
        check("MPI_Bcast", result)
    }

    fn split(&self, group: usize) -> Result<Box<dyn Link>, LinkError> {
        let mut part: Handle = 0;
        let (group, key) = (group as c_int, self.rank as c_int);
        // SAFETY: the communicator is valid, and the handle is written.
        check("MPI_Comm_split", unsafe { (self.functions.split)(self.communicator, group, key, &mut part) })?;
        Ok(Box::new(Mpi::of(self.functions.clone(), part)?))
    }

    fn on_this_host(&self) -> Result<Box<dyn Link>, LinkError> {
        let mut part: Handle = 0;
        let Functions { split_type, shared, no_info, .. } = *self.functions;
        // SAFETY: the communicator is valid, and the handle is written.
        let result = unsafe { split_type(self.communicator, shared, self.rank as c_int, no_info, &mut part) };
        check("MPI_Comm_split_type", result)?;
        Ok(Box::new(Mpi::of(self.functions.clone(), part)?))
    }

    fn leave(&self) {
        // SAFETY: the last call of MPI in this process.
        unsafe { (self.functions.finalize)() };
    }

    fn abort(&self) -> ! {
        // SAFETY: the communicator is valid.
        unsafe { (self.functions.abort)(self.communicator, 1) };
        std::process::exit(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(variables: &[(&str, &str)]) -> Result<Option<Launcher>, String> {
        let look_up =
            |name: &str| variables.iter().find(|(key, _)| *key == name).map(|(_, value)| value.to_string());
        launcher(look_up).map_err(|error| error.to_string())
    }

    #[test]
    fn launchers_are_recognized() {
        let launcher = |started, is_open_mpi| Ok(Some(Launcher { started, is_open_mpi }));
        assert_eq!(found(&[]), Ok(None));
        assert_eq!(found(&[("OMPI_COMM_WORLD_SIZE", "4"), ("PMIX_RANK", "1")]), launcher(Some(4), true));
        assert_eq!(found(&[("PMI_SIZE", "2"), ("PMI_RANK", "0")]), launcher(Some(2), false));
        assert_eq!(found(&[("PMIX_RANK", "3"), ("SLURM_STEP_NUM_TASKS", "8")]), launcher(Some(8), true));
        // A batch script, and one task of srun.
        assert_eq!(found(&[("SLURM_JOB_ID", "7"), ("SLURM_NTASKS", "8")]), Ok(None));
        assert_eq!(found(&[("SLURM_STEP_NUM_TASKS", "1")]), Ok(None));
        let error = found(&[("SLURM_STEP_NUM_TASKS", "8")]).expect_err("eight runs of one recipe");
        assert!(error.starts_with("srun started 8 tasks without MPI"), "{error}");
    }
}
