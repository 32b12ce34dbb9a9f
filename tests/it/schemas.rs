//! The schemas that are checked in say what the types say.

use expect_test::expect_file;
use skein::manifest::{Kind, generate_schema};

/// `UPDATE_EXPECT=1 cargo test schemas` writes them anew.
#[test]
fn the_schemas_are_those_of_the_types() {
    for kind in Kind::ALL {
        let path = format!("{}/schemas/{}", env!("CARGO_MANIFEST_DIR"), kind.file_name());
        expect_file![path].assert_eq(&format!("{:#}\n", generate_schema(kind)));
    }
}
