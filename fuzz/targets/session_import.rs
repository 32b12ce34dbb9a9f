//! The import of a store: a file is refused without a trace, or gives a store that exports the same file.

use std::io::Cursor;

use skein::store::{StorePlace, export_store, file_of_rows, import_store};

use super::text_of;

pub(super) fn run(data: &[u8]) {
    check(data);
    // Mutations of a file break its marks. So another file has these rows and right marks.
    if let Some(file) = file_of_rows(text_of(data))
        && let Some(exported) = check(&file)
    {
        assert_eq!(exported, String::from_utf8_lossy(&file));
    }
}

/// Imports a file. Returns what the new store exports. `None` if the file is refused.
fn check(file: &[u8]) -> Option<String> {
    let folder = tempfile::tempdir().expect("a folder");
    let place = StorePlace::files(folder.path());
    let import = import_store("file", || Ok(Cursor::new(file)), &place);
    let mut exported = Vec::new();
    let totals = export_store(&place, &mut exported).expect("the store can be read");
    match import {
        Ok(imported) => {
            assert_eq!(imported, totals);
            Some(String::from_utf8_lossy(&exported).into_owned())
        }
        Err(error) => {
            assert!(totals.counts.iter().all(|(_, count)| *count == 0), "{error}: {totals}");
            None
        }
    }
}
