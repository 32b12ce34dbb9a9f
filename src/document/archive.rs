//! Reads and rewrites the ZIP archives of office documents, within limits.
//!
//! Office documents use two methods, stored and deflated. Entries that do not change are copied as they are stored.
//!
//! Invariant: no entry is inflated beyond its limit. The sizes in headers are not trusted.

use std::collections::HashMap;
use std::io::{Read as _, Write as _};

use flate2::Compression;
use flate2::read::DeflateDecoder;
use flate2::write::DeflateEncoder;

use super::error::DocumentError;

/// The largest entry and the largest sum of entries that one call inflates.
const MAX_ENTRY: u64 = 128 << 20;
const MAX_TOTAL: u64 = 256 << 20;
const MAX_ENTRIES: usize = 20_000;

const LOCAL: u32 = 0x0403_4b50;
const CENTRAL: u32 = 0x0201_4b50;
const END: u32 = 0x0605_4b50;
const STORED: u16 = 0;
const DEFLATED: u16 = 8;
/// 1980-01-01, the first day that the format knows. New entries say nothing about when they were made.
const DATE: u16 = 0x21;

/// An archive with the changes that were made to it.
#[derive(Debug)]
pub(super) struct OfficeArchive<'a> {
    bytes: &'a [u8],
    entries: Vec<ArchiveEntry>,
    by_name: HashMap<String, usize>,
    inflated: u64,
    /// New contents by name; `None` removes the entry.
    changes: Vec<(String, Option<Vec<u8>>)>,
}

#[derive(Debug, Clone)]
struct ArchiveEntry {
    name: Vec<u8>,
    flags: u16,
    method: u16,
    time: u16,
    date: u16,
    crc: u32,
    compressed: u32,
    size: u32,
    external: u32,
    made_by: u16,
    /// Where the entry's data starts in the archive.
    data: usize,
}

impl<'a> OfficeArchive<'a> {
    pub(super) fn new(bytes: &'a [u8]) -> Result<Self, DocumentError> {
        let (count, mut at) = find_directory(bytes)?;
        if count > MAX_ENTRIES {
            return Err(DocumentError::too_large(format!(
                "the archive has {count} entries, the limit is {MAX_ENTRIES}"
            )));
        }
        let mut archive =
            Self { bytes, entries: Vec::new(), by_name: HashMap::new(), inflated: 0, changes: Vec::new() };
        for _ in 0..count {
            let (entry, next) = read_entry(bytes, at)?;
            let name = String::from_utf8_lossy(&entry.name).into_owned();
            if archive.by_name.insert(name.clone(), archive.entries.len()).is_some() {
                return Err(DocumentError::damage(format!("the archive has two entries `{name}`")));
            }
            archive.entries.push(entry);
            at = next;
        }
        Ok(archive)
    }

    /// Creates an archive without entries.
    pub(super) fn empty() -> Self {
        Self { bytes: &[], entries: Vec::new(), by_name: HashMap::new(), inflated: 0, changes: Vec::new() }
    }

    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        let mut names: Vec<(&str, usize)> = self.by_name.iter().map(|(name, at)| (name.as_str(), *at)).collect();
        names.sort_by_key(|(_, at)| *at);
        names.into_iter().map(|(name, _)| name)
    }

    pub(super) fn contains(&self, name: &str) -> bool {
        match self.changes.iter().rev().find(|(changed, _)| changed == name) {
            Some((_, contents)) => contents.is_some(),
            None => self.by_name.contains_key(name),
        }
    }

    /// Returns the contents of an entry, with changes. `None` if there is no such entry.
    pub(super) fn read(&mut self, name: &str) -> Result<Option<Vec<u8>>, DocumentError> {
        if let Some((_, contents)) = self.changes.iter().rev().find(|(changed, _)| changed == name) {
            return Ok(contents.clone());
        }
        let Some(entry) = self.by_name.get(name).and_then(|at| self.entries.get(*at)).cloned() else {
            return Ok(None);
        };
        self.inflate(&entry).map(Some)
    }

    /// Like [`Self::read`]. Fails if there is no such entry.
    pub(super) fn require(&mut self, name: &str) -> Result<Vec<u8>, DocumentError> {
        self.read(name)?.ok_or_else(|| DocumentError::damage(format!("the part `{name}` is missing")))
    }

    /// Sets the contents of an entry, or adds it at the end.
    pub(super) fn write(&mut self, name: &str, contents: impl Into<Vec<u8>>) {
        self.changes.retain(|(changed, _)| changed != name);
        self.changes.push((name.to_owned(), Some(contents.into())));
    }

    pub(super) fn remove(&mut self, name: &str) {
        self.changes.retain(|(changed, _)| changed != name);
        if self.by_name.contains_key(name) {
            self.changes.push((name.to_owned(), None));
        }
    }

    /// Returns the archive with its changes. Other entries keep their stored bytes and their order.
    pub(super) fn finish(self) -> Result<Vec<u8>, DocumentError> {
        let mut writer = ArchiveWriter::default();
        for entry in &self.entries {
            let name = String::from_utf8_lossy(&entry.name);
            match self.changes.iter().find(|(changed, _)| *changed == name) {
                None => writer.copy(entry, self.entry_data(entry)?)?,
                Some((_, None)) => {}
                Some((_, Some(contents))) => writer.add(entry.name.clone(), contents)?,
            }
        }
        for (name, contents) in &self.changes {
            if let (Some(contents), false) = (contents, self.by_name.contains_key(name)) {
                writer.add(name.clone().into_bytes(), contents)?;
            }
        }
        writer.finish()
    }

    fn entry_data(&self, entry: &ArchiveEntry) -> Result<&'a [u8], DocumentError> {
        let end = entry.data.checked_add(entry.compressed as usize);
        end.and_then(|end| self.bytes.get(entry.data..end))
            .ok_or_else(|| DocumentError::damage(format!("the entry `{}` is cut off", show(&entry.name))))
    }

    fn inflate(&mut self, entry: &ArchiveEntry) -> Result<Vec<u8>, DocumentError> {
        if entry.flags & 1 != 0 {
            return Err(DocumentError::Encrypted);
        }
        let stored = self.entry_data(entry)?;
        let limit = MAX_ENTRY.min(MAX_TOTAL - self.inflated);
        let mut contents = Vec::new();
        match entry.method {
            STORED => contents.extend_from_slice(stored),
            DEFLATED => {
                // The size in the header may be a lie, so that the limit applies to what comes out.
                let mut decoder = DeflateDecoder::new(stored).take(limit + 1);
                decoder.read_to_end(&mut contents).map_err(|error| {
                    DocumentError::damage(format!("the entry `{}` cannot be inflated: {error}", show(&entry.name)))
                })?;
            }
            method => {
                let name = show(&entry.name);
                return Err(DocumentError::no_support(format!("the entry `{name}` is compressed by method {method}")));
            }
        }
        if contents.len() as u64 > limit {
            return Err(DocumentError::too_large(format!(
                "the entry `{}` is larger than {} MB when it is inflated; it may be a ZIP bomb",
                show(&entry.name),
                limit >> 20
            )));
        }
        self.inflated += contents.len() as u64;
        let mut crc = flate2::Crc::new();
        crc.update(&contents);
        if crc.sum() != entry.crc {
            return Err(DocumentError::damage(format!("the entry `{}` has a wrong checksum", show(&entry.name))));
        }
        Ok(contents)
    }
}

fn show(name: &[u8]) -> String {
    String::from_utf8_lossy(name).chars().filter(|letter| !letter.is_control()).take(100).collect()
}

/// Returns the number of entries and the offset of the central directory.
fn find_directory(bytes: &[u8]) -> Result<(usize, usize), DocumentError> {
    let damaged = || DocumentError::damage("it is not a whole ZIP archive, which this format is");
    let last = bytes.len().checked_sub(22).ok_or_else(damaged)?;
    // A comment of at most 64 kB may follow.
    let first = last.saturating_sub(0xffff);
    let at = (first..=last).rev().find(|at| u32_at(bytes, *at) == Some(END)).ok_or_else(damaged)?;
    let count = u16_at(bytes, at + 10).ok_or_else(damaged)?;
    let offset = u32_at(bytes, at + 16).ok_or_else(damaged)?;
    if count == u16::MAX || offset == u32::MAX {
        return Err(DocumentError::no_support("the archive is in the ZIP64 format"));
    }
    Ok((count.into(), offset as usize))
}

fn read_entry(bytes: &[u8], at: usize) -> Result<(ArchiveEntry, usize), DocumentError> {
    let damaged = || DocumentError::damage("the directory of the archive is wrong");
    let half = |offset: usize| u16_at(bytes, at + offset).ok_or_else(damaged);
    let word = |offset: usize| u32_at(bytes, at + offset).ok_or_else(damaged);
    if word(0)? != CENTRAL {
        return Err(damaged());
    }
    let (name_len, extra_len, comment_len) = (half(28)? as usize, half(30)? as usize, half(32)? as usize);
    let name = bytes.get(at + 46..at + 46 + name_len).ok_or_else(damaged)?.to_vec();
    let local = word(42)? as usize;
    if u32_at(bytes, local) != Some(LOCAL) {
        return Err(damaged());
    }
    let local_name = u16_at(bytes, local + 26).ok_or_else(damaged)? as usize;
    let local_extra = u16_at(bytes, local + 28).ok_or_else(damaged)? as usize;
    let entry = ArchiveEntry {
        name,
        made_by: half(4)?,
        flags: half(8)?,
        method: half(10)?,
        time: half(12)?,
        date: half(14)?,
        crc: word(16)?,
        compressed: word(20)?,
        size: word(24)?,
        external: word(38)?,
        data: local + 30 + local_name + local_extra,
    };
    Ok((entry, at + 46 + name_len + extra_len + comment_len))
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    bytes.get(at..at.checked_add(2)?)?.try_into().ok().map(u16::from_le_bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    bytes.get(at..at.checked_add(4)?)?.try_into().ok().map(u32::from_le_bytes)
}

#[derive(Default)]
struct ArchiveWriter {
    out: Vec<u8>,
    directory: Vec<u8>,
    count: u16,
}

impl ArchiveWriter {
    /// Adds new contents. They are deflated, unless that makes them larger.
    fn add(&mut self, name: Vec<u8>, contents: &[u8]) -> Result<(), DocumentError> {
        let write = |error: std::io::Error| DocumentError::damage(format!("the archive cannot be written: {error}"));
        let mut crc = flate2::Crc::new();
        crc.update(contents);
        let mut encoder = DeflateEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(contents).map_err(write)?;
        let deflated = encoder.finish().map_err(write)?;
        let (method, stored) =
            if deflated.len() < contents.len() { (DEFLATED, deflated.as_slice()) } else { (STORED, contents) };
        let length = |bytes: &[u8]| {
            u32::try_from(bytes.len()).map_err(|_| DocumentError::too_large("a part is larger than 4 GB"))
        };
        let entry = ArchiveEntry {
            name,
            // Names are UTF-8.
            flags: 1 << 11,
            method,
            time: 0,
            date: DATE,
            crc: crc.sum(),
            compressed: length(stored)?,
            size: length(contents)?,
            external: 0,
            made_by: 20,
            data: 0,
        };
        self.copy(&entry, stored)
    }

    fn copy(&mut self, entry: &ArchiveEntry, stored: &[u8]) -> Result<(), DocumentError> {
        let large = || DocumentError::too_large("the archive is larger than 4 GB");
        let offset = u32::try_from(self.out.len()).map_err(|_| large())?;
        let name_len = u16::try_from(entry.name.len()).map_err(|_| DocumentError::damage("a name is too long"))?;
        // The sizes are in the header, so that no data descriptor follows.
        let flags = entry.flags & !(1 << 3);
        let mut common = Vec::new();
        for half in [20, flags, entry.method, entry.time, entry.date] {
            common.extend(half.to_le_bytes());
        }
        for word in [entry.crc, entry.compressed, entry.size] {
            common.extend(word.to_le_bytes());
        }
        common.extend(name_len.to_le_bytes());
        common.extend(0u16.to_le_bytes());
        self.out.extend(LOCAL.to_le_bytes());
        self.out.extend(&common);
        self.out.extend(&entry.name);
        self.out.extend(stored);
        self.directory.extend(CENTRAL.to_le_bytes());
        self.directory.extend(entry.made_by.to_le_bytes());
        self.directory.extend(&common);
        // No comment, first disk, no internal attributes.
        self.directory.extend([0; 6]);
        self.directory.extend(entry.external.to_le_bytes());
        self.directory.extend(offset.to_le_bytes());
        self.directory.extend(&entry.name);
        self.count = self.count.checked_add(1).ok_or_else(large)?;
        Ok(())
    }

    fn finish(mut self) -> Result<Vec<u8>, DocumentError> {
        let large = |_| DocumentError::too_large("the archive is larger than 4 GB");
        let offset = u32::try_from(self.out.len()).map_err(large)?;
        let size = u32::try_from(self.directory.len()).map_err(large)?;
        self.out.extend(&self.directory);
        self.out.extend(END.to_le_bytes());
        self.out.extend([0; 4]);
        self.out.extend(self.count.to_le_bytes());
        self.out.extend(self.count.to_le_bytes());
        self.out.extend(size.to_le_bytes());
        self.out.extend(offset.to_le_bytes());
        self.out.extend([0; 2]);
        Ok(self.out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Deflated zeros of 160 MB. Each block refers to the zeros before it, so that one can be repeated.
    fn deflated_zeros() -> Vec<u8> {
        let mut encoder = flate2::Compress::new(Compression::best(), false);
        let zeros = vec![0; 1 << 20];
        let mut block = Vec::with_capacity(1 << 16);
        encoder.compress_vec(&zeros, &mut block, flate2::FlushCompress::Sync).unwrap();
        let mut stored = block.repeat(160);
        stored.extend([0x03, 0x00]);
        stored
    }

    #[test]
    fn a_bomb_is_refused_at_the_limit() {
        let stored = deflated_zeros();
        let entry = ArchiveEntry {
            name: b"bomb.xml".to_vec(),
            flags: 0,
            method: DEFLATED,
            time: 0,
            date: DATE,
            crc: 0,
            compressed: u32::try_from(stored.len()).unwrap(),
            // The header claims that it is small.
            size: 10,
            external: 0,
            made_by: 20,
            data: 0,
        };
        let mut writer = ArchiveWriter::default();
        writer.copy(&entry, &stored).unwrap();
        let bytes = writer.finish().unwrap();
        assert!(bytes.len() < 1 << 20);
        let error = OfficeArchive::new(&bytes).unwrap().read("bomb.xml").unwrap_err().to_string();
        assert_eq!(
            error,
            "the file is beyond the limits: the entry `bomb.xml` is larger than 128 MB when it is inflated; it may be a ZIP bomb"
        );
    }

    #[test]
    fn an_unchanged_archive_keeps_the_entry_data() {
        let mut archive = OfficeArchive::empty();
        archive.write("a.xml", "text ".repeat(100));
        archive.write("b.xml", "other");
        let bytes = archive.finish().unwrap();
        let mut changed = OfficeArchive::new(&bytes).unwrap();
        changed.write("b.xml", "new");
        changed.write("c.xml", "added");
        let again = changed.finish().unwrap();
        let (before, mut after) = (OfficeArchive::new(&bytes).unwrap(), OfficeArchive::new(&again).unwrap());
        assert_eq!(before.entry_data(&before.entries[0]).unwrap(), after.entry_data(&after.entries[0]).unwrap());
        assert_eq!(after.names().collect::<Vec<_>>(), ["a.xml", "b.xml", "c.xml"]);
        assert_eq!(after.require("b.xml").unwrap(), b"new");
        after.remove("a.xml");
        assert!(!after.contains("a.xml"));
        assert_eq!(
            OfficeArchive::new(&OfficeArchive::new(&bytes).unwrap().finish().unwrap()).unwrap().entries.len(),
            2
        );
    }
}
