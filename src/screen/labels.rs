//! Elements of windows with their labels. X11 does not know labels: on Linux, programs describe their windows over
//! AT-SPI. On other systems, labels are unknown.

#[cfg(target_os = "linux")]
mod at_spi;
#[cfg(not(target_os = "linux"))]
#[path = "labels/no_at_spi.rs"]
mod at_spi;

use std::time::Duration;

use super::ScreenArea;

pub use at_spi::find_label;

/// Time for one answer of a program.
const ANSWER_LIMIT: Duration = Duration::from_secs(2);

/// An element on the screen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LabelledElement {
    pub label: String,
    /// As its program says: `push button`.
    pub role: String,
    pub area: ScreenArea,
}

/// Why labels cannot be looked for.
#[derive(Debug, thiserror::Error)]
pub enum LabelError {
    #[error("programs do not describe their windows here, so labels are unknown: {0}. Give `x` and `y` instead")]
    NoBus(String),
    #[error("the accessibility bus gave no answer within {} s. Give `x` and `y` instead", ANSWER_LIMIT.as_secs())]
    Silent,
}
