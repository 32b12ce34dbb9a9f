//! Gives free memory back to the system.

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
