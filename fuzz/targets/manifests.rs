//! Manifests and configs: any text gives a plan or diagnostics.

#![no_main]

use std::path::PathBuf;

use skein::manifest::{Layer, Root, load};

libfuzzer_sys::fuzz_target!(|data: &[u8]| {
    let names = ["agents/a.yaml", "services/s.json", "config.yaml"];
    let files = names.map(|name| (PathBuf::from(name), data.to_vec())).into();
    let project = Root::Snapshot { files, shown: ".skein".to_owned() };
    let (manifests, found) = load(&[(Layer::Builtin, Root::Builtin), (Layer::Project, project)]);
    drop(skein::graph::resolve(manifests, found));
});
