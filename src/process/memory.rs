//! Limits the memory that the allocator keeps for later, and gives it back to the system.

/// Makes the allocator use at most this many arenas. Without a limit, glibc makes up to eight for each processor: almost
/// every thread has its own, and free memory of one thread is of no use to another. Must be called before the program
/// starts threads, because their arenas stay. Does nothing if the allocator is not that of glibc.
pub fn limit_arenas(arenas: usize) {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        let arenas = libc::c_int::try_from(arenas).unwrap_or(libc::c_int::MAX);
        // It takes no pointer, and glibc always accepts this parameter.
        #[expect(unsafe_code, reason = "no safe wrapper")]
        let _is_set = unsafe { libc::mallopt(libc::M_ARENA_MAX, arenas) };
    }
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    let _ = arenas;
}

/// Gives back the memory that the program has freed and the allocator keeps. It locks the allocator for some
/// milliseconds. Does nothing if the allocator is not that of glibc.
pub fn release_free_memory() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        // It takes no pointer and moves no allocation.
        #[expect(unsafe_code, reason = "no safe wrapper")]
        let _is_smaller = unsafe { libc::malloc_trim(0) };
    }
}
