//! Labels on systems other than Linux: Skein does not look for them.

use super::{LabelError, LabelledElement};

/// Fails: only Linux has AT-SPI.
pub async fn find_label(_bus: &str, _label: &str) -> Result<Vec<LabelledElement>, LabelError> {
    Err(LabelError::NoBus("Skein looks for labels only on Linux".to_owned()))
}
