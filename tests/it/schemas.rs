//! The schemas that are checked in say what the types say.

use expect_test::expect_file;
use skein::manifest::{DocumentKind, generate_schema};

use crate::support::{files_below, read, repository, table};

/// `UPDATE_EXPECT=1 cargo test schemas` writes them anew.
#[test]
fn the_schemas_are_those_of_the_types() {
    for kind in DocumentKind::ALL {
        let path = format!("{}/schemas/{}", env!("CARGO_MANIFEST_DIR"), kind.file_name());
        expect_file![path].assert_eq(&format!("{:#}\n", generate_schema(kind)));
    }
}

/// They are not held to it when they are loaded.
#[test]
fn what_is_compiled_in_fits_the_schemas() {
    for file in files_below(&repository("manifests")) {
        let services = file.parent().is_some_and(|folder| folder.ends_with("services"));
        let kind = if services { DocumentKind::Service } else { DocumentKind::Agent };
        let value: serde_json::Value = serde_yaml::from_str(&read(&file)).unwrap();
        let validator = jsonschema::validator_for(&serde_json::to_value(generate_schema(kind)).unwrap()).unwrap();
        let wrong: Vec<_> = validator.iter_errors(&value).map(|error| error.to_string()).collect();
        assert!(wrong.is_empty(), "{}: {wrong:?}", file.display());
    }
}

/// A row in the wrong table of docs/manifests.md names a field that its document does not have.
#[test]
fn tables_of_fields_name_fields_of_the_schema() {
    let page = read(repository("docs/manifests.md"));
    for (heading, kind, fields) in [
        ("## Agents\n", DocumentKind::Agent, "/properties"),
        ("A mode:\n", DocumentKind::Agent, "/definitions/Mode/properties"),
        ("## Config\n", DocumentKind::Config, "/properties"),
    ] {
        let schema = generate_schema(kind);
        let known = schema.pointer(fields).unwrap_or_else(|| panic!("{heading}: no {fields}"));
        let (_, section) = page.split_once(heading).unwrap_or_else(|| panic!("no {heading}"));
        for row in table(section, &["field", "meaning"]) {
            let field = row[0].trim_matches('`').split('.').next().unwrap_or_default();
            assert!(known.get(field).is_some(), "{heading} `{field}` is no field of it");
        }
    }
}
