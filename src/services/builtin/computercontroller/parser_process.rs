//! The child process that parses documents: reads one job and one file from its stdin, answers on its stdout, and ends.
//!
//! Invariant: the process has no environment, opens no file and limits itself before it reads the first byte.

use std::io::{self, Read, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};

use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::document::{
    DocumentContent, DocumentEdit, DocumentError, DocumentImage, ReadRequest, SheetSpec, TableRequest, TextBlock,
    read_document, read_table, update_document, write_document,
};

/// The argument with which `skein` runs as the parser.
pub const DOCUMENT_PARSER_ARGUMENT: &str = "document-parser";
/// What one parser may use.
pub(super) const MAX_MEMORY: u64 = 1 << 30;
pub(super) const MAX_SECONDS: u64 = 60;
/// The largest message without the bytes that follow it.
const MAX_MESSAGE: u32 = 64 << 20;

/// What the parser shall do. The bytes of the file follow.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::services::builtin) enum ParserJob {
    Read {
        name: String,
        request: ReadRequest,
    },
    /// Reads one table of a workbook.
    Table {
        name: String,
        request: TableRequest,
    },
    /// The bytes of the images precede those of the file, in the order of the blocks.
    Write {
        name: String,
        blocks: Option<Vec<TextBlock>>,
        sheets: Option<Vec<SheetSpec>>,
        images: Vec<usize>,
    },
    Update {
        name: String,
        edits: Vec<DocumentEdit>,
        images: Vec<usize>,
    },
}

/// What the parser did.
#[derive(Debug)]
pub(in crate::services::builtin) enum ParserReply {
    Content(DocumentContent),
    Table(Vec<Vec<String>>),
    File {
        bytes: Vec<u8>,
        lines: Vec<String>,
    },
    Refused(DocumentError),
    /// The parser has a fault.
    Panicked,
}

/// A reply without its bytes, which follow in the order of the sizes.
#[derive(Debug, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum ReplyHead {
    Content { text: String, images: Vec<ImageHead> },
    Table { rows: Vec<Vec<String>> },
    File { size: usize, lines: Vec<String> },
    Refused { error: DocumentError },
    Panicked,
}

#[derive(Debug, Serialize, Deserialize)]
struct ImageHead {
    name: String,
    mime: String,
    size: usize,
}

/// Runs the parser: one job from `input`, one reply to `output`.
pub fn run_document_parser(mut input: impl Read, mut output: impl Write) -> io::Result<()> {
    crate::process::confine(MAX_MEMORY, MAX_SECONDS)?;
    // A fault is part of the reply; the text of the panic would contain parts of the document.
    std::panic::set_hook(Box::new(|_| {}));
    let job: ParserJob = read_message(&mut input)?;
    let mut bytes = Vec::new();
    input.read_to_end(&mut bytes)?;
    let reply = catch_unwind(AssertUnwindSafe(|| job.run(&bytes))).unwrap_or(ParserReply::Panicked);
    write_reply(&mut output, reply)?;
    output.flush()
}

impl ParserJob {
    fn run(self, bytes: &[u8]) -> ParserReply {
        match self {
            ParserJob::Read { name, request } => match read_document(bytes, &name, &request) {
                Ok(content) => ParserReply::Content(content),
                Err(error) => ParserReply::Refused(error),
            },
            ParserJob::Table { name, request } => match read_table(bytes, &name, &request) {
                Ok(rows) => ParserReply::Table(rows),
                Err(error) => ParserReply::Refused(error),
            },
            ParserJob::Write { name, mut blocks, sheets, images } => {
                attach_images(blocks.iter_mut().flatten(), &images, bytes);
                match write_document(&name, blocks.as_deref(), sheets.as_deref()) {
                    Ok(bytes) => ParserReply::File { bytes, lines: Vec::new() },
                    Err(error) => ParserReply::Refused(error),
                }
            }
            ParserJob::Update { name, mut edits, images } => {
                let bytes = attach_images(blocks_of(&mut edits), &images, bytes);
                match update_document(bytes, &name, &edits) {
                    Ok((bytes, lines)) => ParserReply::File { bytes, lines },
                    Err(error) => ParserReply::Refused(error),
                }
            }
        }
    }

    /// Returns the job as the first part of the parser's input.
    pub(super) fn to_message(&self) -> io::Result<Vec<u8>> {
        let mut message = Vec::new();
        write_message(&mut message, self)?;
        Ok(message)
    }
}

/// Returns the blocks that edits add.
fn blocks_of(edits: &mut [DocumentEdit]) -> impl Iterator<Item = &mut TextBlock> {
    edits.iter_mut().filter_map(|edit| edit.append.as_mut()).flatten()
}

/// Gives each block with an image its bytes. Returns the bytes behind the images. A block without bytes is an error of
/// the document.
fn attach_images<'a, 'b>(
    blocks: impl Iterator<Item = &'a mut TextBlock>,
    sizes: &[usize],
    mut bytes: &'b [u8],
) -> &'b [u8] {
    for (block, size) in blocks.filter(|block| block.image_file.is_some()).zip(sizes) {
        if let Some((image, rest)) = bytes.split_at_checked(*size) {
            block.image_bytes = Some(image.to_vec());
            bytes = rest;
        }
    }
    bytes
}

impl ParserReply {
    /// Reads a whole reply. Fails if it is not exactly one.
    pub(super) fn parse(mut bytes: &[u8]) -> io::Result<Self> {
        let head: ReplyHead = read_message(&mut bytes)?;
        let mut take = |size: usize| {
            let (taken, rest) = bytes.split_at_checked(size).ok_or(io::ErrorKind::UnexpectedEof)?;
            bytes = rest;
            Ok::<_, io::Error>(taken.to_vec())
        };
        let reply = match head {
            ReplyHead::Content { text, images } => {
                let images: io::Result<Vec<DocumentImage>> = images
                    .into_iter()
                    .map(|image| Ok(DocumentImage { name: image.name, mime: image.mime, bytes: take(image.size)? }))
                    .collect();
                ParserReply::Content(DocumentContent { text, images: images? })
            }
            ReplyHead::Table { rows } => ParserReply::Table(rows),
            ReplyHead::File { size, lines } => ParserReply::File { bytes: take(size)?, lines },
            ReplyHead::Refused { error } => ParserReply::Refused(error),
            ReplyHead::Panicked => ParserReply::Panicked,
        };
        if bytes.is_empty() { Ok(reply) } else { Err(io::ErrorKind::InvalidData.into()) }
    }
}

fn write_reply(output: &mut impl Write, reply: ParserReply) -> io::Result<()> {
    match reply {
        ParserReply::Content(DocumentContent { text, images }) => {
            let heads = images
                .iter()
                .map(|image| ImageHead { name: image.name.clone(), mime: image.mime.clone(), size: image.bytes.len() })
                .collect();
            write_message(output, &ReplyHead::Content { text, images: heads })?;
            images.iter().try_for_each(|image| output.write_all(&image.bytes))
        }
        ParserReply::Table(rows) => write_message(output, &ReplyHead::Table { rows }),
        ParserReply::File { bytes, lines } => {
            write_message(output, &ReplyHead::File { size: bytes.len(), lines })?;
            output.write_all(&bytes)
        }
        ParserReply::Refused(error) => write_message(output, &ReplyHead::Refused { error }),
        ParserReply::Panicked => write_message(output, &ReplyHead::Panicked),
    }
}

/// A message is its length in four bytes, and JSON.
fn write_message(output: &mut impl Write, message: &impl Serialize) -> io::Result<()> {
    let json = serde_json::to_vec(message)?;
    let length = u32::try_from(json.len()).ok().filter(|length| *length <= MAX_MESSAGE);
    output.write_all(&length.ok_or(io::ErrorKind::InvalidInput)?.to_be_bytes())?;
    output.write_all(&json)
}

fn read_message<T: DeserializeOwned>(input: &mut impl Read) -> io::Result<T> {
    let mut length = [0; 4];
    input.read_exact(&mut length)?;
    let length = u32::from_be_bytes(length);
    if length > MAX_MESSAGE {
        return Err(io::ErrorKind::InvalidData.into());
    }
    let mut json = Vec::new();
    input.take(length.into()).read_to_end(&mut json)?;
    Ok(serde_json::from_slice(&json)?)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn round_trip(reply: ParserReply) -> ParserReply {
        let mut bytes = Vec::new();
        write_reply(&mut bytes, reply).unwrap();
        ParserReply::parse(&bytes).unwrap()
    }

    #[test]
    fn replies_survive_the_pipe() {
        let image = DocumentImage { name: "a".into(), mime: "image/png".into(), bytes: vec![1, 2, 3] };
        let content = DocumentContent { text: "text".into(), images: vec![image.clone(), image] };
        let ParserReply::Content(again) = round_trip(ParserReply::Content(content.clone())) else { panic!("content") };
        assert_eq!(again, content);
        let rows = vec![vec!["a".to_owned(), String::new()]];
        assert!(matches!(round_trip(ParserReply::Table(rows.clone())), ParserReply::Table(again) if again == rows));
        let file = ParserReply::File { bytes: vec![0; 5], lines: vec!["one".into()] };
        assert!(matches!(round_trip(file), ParserReply::File { bytes, .. } if bytes == [0; 5]));
        let refused = round_trip(ParserReply::Refused(DocumentError::Encrypted));
        assert!(matches!(refused, ParserReply::Refused(DocumentError::Encrypted)));
    }

    #[test]
    fn images_reach_their_blocks_and_the_file_follows() {
        let block = |file: Option<&str>| TextBlock { image_file: file.map(Into::into), ..TextBlock::default() };
        let mut edits = vec![
            DocumentEdit { append: Some(vec![block(Some("a")), block(None)]), ..DocumentEdit::default() },
            DocumentEdit::default(),
            DocumentEdit { append: Some(vec![block(Some("b"))]), ..DocumentEdit::default() },
        ];
        assert_eq!(attach_images(blocks_of(&mut edits), &[2, 3], b"aabbbfile"), b"file");
        let images: Vec<_> = blocks_of(&mut edits).map(|block| block.image_bytes.clone()).collect();
        assert_eq!(images, [Some(b"aa".to_vec()), None, Some(b"bbb".to_vec())]);
    }

    #[test]
    fn a_cut_reply_is_an_error() {
        let mut bytes = Vec::new();
        write_reply(&mut bytes, ParserReply::File { bytes: vec![7; 9], lines: Vec::new() }).unwrap();
        for length in 0..bytes.len() {
            assert!(ParserReply::parse(&bytes[..length]).is_err(), "{length}");
        }
        bytes.push(0);
        assert!(ParserReply::parse(&bytes).is_err(), "bytes behind the reply");
    }

    proptest! {
        #[test]
        fn any_reply_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            drop(ParserReply::parse(&bytes));
        }
    }
}
