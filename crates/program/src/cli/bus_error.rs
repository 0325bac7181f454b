//! A mapped file that another program cuts short: reading beyond its new end raises SIGBUS, which would end the program without a
//! word.

/// Replaces the end without a word by an error message.
pub fn explain() {
    #[cfg(target_os = "linux")]
    linux::install();
}

/// Whether the message is written. While a thread asks, it also ends the program.
pub fn arrived() -> bool {
    #[cfg(target_os = "linux")]
    return linux::arrived();
    #[cfg(not(target_os = "linux"))]
    false
}

/// Names the base model in the message.
pub fn name(file: &str) {
    #[cfg(target_os = "linux")]
    let _ = linux::FILE.set(file.into());
    #[cfg(not(target_os = "linux"))]
    let _ = file;
}

/// The cause of a failed write, where it is the mapped file that was to be copied: the system reads it then, and raises no SIGBUS.
pub fn cause(error: &std::io::Error) -> Option<String> {
    #[cfg(target_os = "linux")]
    if error.raw_os_error() == Some(libc::EFAULT) {
        return Some(format!("{}{}", linux::file(), linux::CAUSE));
    }
    #[cfg(not(target_os = "linux"))]
    let _ = error;
    None
}

#[cfg(target_os = "linux")]
mod linux {
    use std::sync::OnceLock;
    use std::sync::atomic::{AtomicBool, Ordering};

    static ARRIVED: AtomicBool = AtomicBool::new(false);
    /// Whether a thread asks, which will end the program.
    static WATCHED: AtomicBool = AtomicBool::new(false);
    pub static FILE: OnceLock<String> = OnceLock::new();
    /// Continues the name of the file.
    pub const CAUSE: &str = " became shorter while it was in use; restore it, and run the same command again";

    pub fn file() -> &'static str {
        FILE.get().map_or("a file", String::as_str)
    }

    pub fn arrived() -> bool {
        WATCHED.store(true, Ordering::Relaxed);
        ARRIVED.load(Ordering::Relaxed)
    }

    pub fn install() {
        // SAFETY: zeros are a valid action without flags; the handler has the signature that SA_SIGINFO asks for.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = handle as *const () as usize;
            action.sa_flags = libc::SA_SIGINFO;
            libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut());
        }
    }

    /// Only calls functions that are safe in a signal handler.
    extern "C" fn handle(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
        // SAFETY: the system passes a valid `info`; the pointers and lengths are those of texts.
        unsafe {
            if (*info).si_code != libc::BUS_ADRERR {
                // Another cause: the system's own handling follows, as the access is repeated.
                libc::signal(libc::SIGBUS, libc::SIG_DFL);
                return;
            }
            if !ARRIVED.swap(true, Ordering::Relaxed) {
                for part in ["error: ", file(), CAUSE, "\n"] {
                    libc::write(2, part.as_ptr().cast(), part.len());
                }
                if !WATCHED.load(Ordering::Relaxed) {
                    libc::_exit(1);
                }
            }
            // This thread cannot go on.
            loop {
                libc::pause();
            }
        }
    }
}
