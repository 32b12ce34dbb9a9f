//! Makes named pipes, for the integration tests and the tests of modules. `rustix` cannot make them on macOS.

use std::path::Path;

use nix::sys::stat::Mode;
use nix::unistd::mkfifo;

/// Makes a named pipe that only its owner can open.
pub(crate) fn make_fifo(path: &Path) {
    mkfifo(path, Mode::S_IRUSR | Mode::S_IWUSR).unwrap();
}
