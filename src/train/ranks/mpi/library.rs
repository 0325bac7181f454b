//! The MPI library, found when the program runs: Open MPI 4 and 5, or any with the standard ABI of MPI 5.0.

use std::ffi::{c_char, c_int, c_void};
use std::path::{Path, PathBuf};

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};

use super::MpiError;

/// Names another library to load.
pub const VARIABLE: &str = "RULLAMA_MPI";

/// A communicator, datatype or info object: the address of a symbol in Open MPI, a number in the standard ABI.
pub type Handle = usize;

type OnComm = unsafe extern "C" fn(Handle) -> c_int;
type Ask = unsafe extern "C" fn(Handle, *mut c_int) -> c_int;
type Split = unsafe extern "C" fn(Handle, c_int, c_int, *mut Handle) -> c_int;
type SplitType = unsafe extern "C" fn(Handle, c_int, c_int, Handle, *mut Handle) -> c_int;
type Collect =
    unsafe extern "C" fn(*const c_void, c_int, Handle, *mut c_void, c_int, Handle, Handle) -> c_int;
type Broadcast = unsafe extern "C" fn(*mut c_void, c_int, Handle, c_int, Handle) -> c_int;

/// The functions of an MPI library and the constants of its ABI.
pub struct Functions {
    pub init: unsafe extern "C" fn(*mut c_int, *mut c_void, c_int, *mut c_int) -> c_int,
    pub finalize: unsafe extern "C" fn() -> c_int,
    pub abort: unsafe extern "C" fn(Handle, c_int) -> c_int,
    pub rank: Ask,
    pub size: Ask,
    pub split: Split,
    pub split_type: SplitType,
    pub barrier: OnComm,
    pub all_gather: Collect,
    pub all_to_all: Collect,
    pub broadcast: Broadcast,
    pub world: Handle,
    pub byte: Handle,
    pub no_info: Handle,
    /// `MPI_COMM_TYPE_SHARED`.
    pub shared: c_int,
    /// `MPI_THREAD_FUNNELED`.
    pub funneled: c_int,
    /// Name and version.
    pub version: String,
    _library: Library,
}

impl Functions {
    /// Loads the library that fits the launcher: `RULLAMA_MPI`, or the first of the usual names that the system finds.
    pub fn load(from_open_mpi: bool) -> Result<Functions, MpiError> {
        if let Some(name) = std::env::var_os(VARIABLE) {
            let library = open(&name).map_err(|reason| MpiError::Named { name: shown(&name), reason })?;
            return Functions::of(library, &shown(&name));
        }
        let mut tried = Vec::new();
        for name in names(from_open_mpi) {
            match open(name.as_os_str()) {
                Ok(library) => return Functions::of(library, &name.display().to_string()),
                Err(_) => tried.push(name.display().to_string()),
            }
        }
        // Only for the message: what there is instead.
        let older = ["libmpi.so.12", "libmpich.so.12", "libmpi_cray.so.12"];
        match older.into_iter().find(|name| open(name.as_ref()).is_ok()) {
            Some(name) => Err(MpiError::OtherAbi { name: name.into() }),
            None => Err(MpiError::Missing { tried: tried.join(", ") }),
        }
    }

    fn of(library: Library, name: &str) -> Result<Functions, MpiError> {
        let other = || MpiError::OtherAbi { name: name.into() };
        // SAFETY: the address is only compared or passed on.
        let address = |symbol: &str| unsafe {
            library.get::<*mut c_void>(symbol.as_bytes()).map(|found| found.into_raw() as usize).ok()
        };
        let is_open_mpi = address("ompi_mpi_comm_world").is_some();
        if !is_open_mpi && !has_standard_abi(&library) {
            return Err(other());
        }
        let constant = |symbol: &str, number: usize| match is_open_mpi {
            true => address(symbol).ok_or_else(other),
            false => Ok(number),
        };
        // SAFETY: both ABIs declare the functions so; their handles have the size of a pointer.
        unsafe {
            Ok(Functions {
                init: function(&library, "MPI_Init_thread", name)?,
                finalize: function(&library, "MPI_Finalize", name)?,
                abort: function(&library, "MPI_Abort", name)?,
                rank: function(&library, "MPI_Comm_rank", name)?,
                size: function(&library, "MPI_Comm_size", name)?,
                split: function(&library, "MPI_Comm_split", name)?,
                split_type: function(&library, "MPI_Comm_split_type", name)?,
                barrier: function(&library, "MPI_Barrier", name)?,
                all_gather: function(&library, "MPI_Allgather", name)?,
                all_to_all: function(&library, "MPI_Alltoall", name)?,
                broadcast: function(&library, "MPI_Bcast", name)?,
                world: constant("ompi_mpi_comm_world", 0x101)?,
                byte: constant("ompi_mpi_byte", 0x247)?,
                no_info: constant("ompi_mpi_info_null", 0x130)?,
                shared: if is_open_mpi { 0 } else { 221 },
                funneled: if is_open_mpi { 1 } else { 1024 },
                version: version(&library, name)?,
                _library: library,
            })
        }
    }
}

/// Whether the library has the ABI of MPI 5.0. Others have the function too, and answer that they do not.
fn has_standard_abi(library: &Library) -> bool {
    type Ask = unsafe extern "C" fn(*mut c_int, *mut c_int) -> c_int;
    let (mut major, mut minor) = (-1, -1);
    // SAFETY: the standard declares the function so, and allows it before initialization.
    let answered = unsafe {
        library.get::<Ask>(b"MPI_Abi_get_version").is_ok_and(|ask| ask(&mut major, &mut minor) == 0)
    };
    answered && major >= 1
}

/// The function of that name.
///
/// # Safety
/// `F` is its type.
unsafe fn function<F: Copy>(library: &Library, symbol: &str, name: &str) -> Result<F, MpiError> {
    // SAFETY: the caller knows the type.
    let found = unsafe { library.get::<F>(symbol.as_bytes()) };
    found.map(|found| *found).map_err(|_| MpiError::OtherAbi { name: name.into() })
}

/// The first line that the library says about itself.
///
/// # Safety
/// `library` is an MPI library.
unsafe fn version(library: &Library, name: &str) -> Result<String, MpiError> {
    // More than `MPI_MAX_LIBRARY_VERSION_STRING` of every library.
    let (mut text, mut length) = (vec![0u8; 1 << 14], 0);
    // SAFETY: the text has room for the longest version; the call is allowed before initialization.
    unsafe {
        type Version = unsafe extern "C" fn(*mut c_char, *mut c_int) -> c_int;
        let ask: Version = function(library, "MPI_Get_library_version", name)?;
        ask(text.as_mut_ptr().cast(), &mut length);
    }
    let text = String::from_utf8_lossy(&text[..length.clamp(0, 1 << 14) as usize]).into_owned();
    let line = text.lines().next().unwrap_or_default().trim_end_matches('\0');
    Ok(line.split(", package").next().unwrap_or(line).trim().into())
}

/// Libraries to try, the launcher's own kind first.
fn names(from_open_mpi: bool) -> Vec<PathBuf> {
    let (open_mpi, standard) = match cfg!(target_os = "macos") {
        true => ("libmpi.40.dylib", "libmpi_abi.1.dylib"),
        false => ("libmpi.so.40", "libmpi_abi.so.1"),
    };
    let mut names = Vec::new();
    // Where Open MPI's launcher is unpacked or installed elsewhere, it says so.
    let prefix = std::env::var_os("OPAL_PREFIX").filter(|_| from_open_mpi);
    names.extend(prefix.map(|prefix| Path::new(&prefix).join("lib").join(open_mpi)));
    let usual = if from_open_mpi { [open_mpi, standard] } else { [standard, open_mpi] };
    names.extend(usual.map(PathBuf::from));
    if cfg!(target_os = "macos") {
        let folders = ["/opt/homebrew/lib", "/usr/local/lib", "/opt/local/lib/openmpi-mp"];
        names.extend(folders.iter().flat_map(|folder| usual.map(|name| Path::new(folder).join(name))));
    }
    names
}

fn open(name: &std::ffi::OsStr) -> Result<Library, String> {
    // SAFETY: an MPI library does nothing unexpected when it is loaded. Its own plug-ins need its symbols globally.
    unsafe { Library::open(Some(name), RTLD_NOW | RTLD_GLOBAL) }.map_err(|error| error.to_string())
}

fn shown(name: &std::ffi::OsStr) -> String {
    name.to_string_lossy().into_owned()
}
