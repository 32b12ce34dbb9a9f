//! One program with all targets of the fuzzer, so that they are built once. `SKEIN_FUZZ_TARGET` names the target.

#![no_main]

#[path = "targets/table.rs"]
mod targets;

use std::sync::LazyLock;

use targets::{FuzzTarget, TARGETS};

static TARGET: LazyLock<FuzzTarget> = LazyLock::new(|| {
    let name = std::env::var("SKEIN_FUZZ_TARGET").unwrap_or_default();
    let target = TARGETS.iter().find(|(known, _)| *known == name);
    let names = TARGETS.map(|(name, _)| name).join(", ");
    target.unwrap_or_else(|| panic!("SKEIN_FUZZ_TARGET is `{name}`; set it to one of {names}")).1
});

libfuzzer_sys::fuzz_target!(init: LazyLock::force(&TARGET), |data: &[u8]| (*TARGET)(data));
