//! What the wire promises: order, joined chunks, and lines that cannot hurt.

use std::sync::{Mutex, PoisonError};

use futures::{SinkExt as _, StreamExt as _};

use super::*;

/// Keeps what was written, one entry for each write.
#[derive(Debug, Clone, Default)]
struct Paper(Arc<Mutex<Vec<u8>>>);

impl Write for Paper {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Paper {
    fn lines(&self) -> Vec<serde_json::Value> {
        let bytes = self.0.lock().unwrap().clone();
        String::from_utf8(bytes).unwrap().lines().map(|line| serde_json::from_str(line).unwrap()).collect()
    }
}

fn chunk(session: &str, message: &str, text: &str) -> MessageChunk {
    MessageChunk { session: session.into(), message: message.into(), kind: ChunkKind::Agent, text: text.to_owned() }
}

/// Everything is queued before the writer begins, so that nothing is left to chance.
fn written(items: Vec<OutputItem>) -> Vec<serde_json::Value> {
    let queue: Arc<OutputQueue> = Arc::default();
    items.into_iter().for_each(|item| queue.push(item));
    drop(QueueHandle(Arc::clone(&queue)));
    let paper = Paper::default();
    write_all(&queue, paper.clone()).unwrap();
    paper.lines()
}

#[test]
fn a_chunk_is_what_the_protocol_s_own_type_says() {
    let said = "quote \" back \\ line \n bell \u{7} é 🪢 \u{2028}";
    let mut buffer = Vec::new();
    chunk("s\"1", "m1", said).write(&mut buffer);
    let ours: serde_json::Value = serde_json::from_slice(&buffer).unwrap();
    let block = acp::ContentBlock::Text(acp::TextContent::new(said));
    let update =
        acp::SessionUpdate::AgentMessageChunk(acp::ContentChunk::new(block).message_id(acp::MessageId::new("m1")));
    let theirs = serde_json::to_value(acp::SessionNotification::new("s\"1", update)).unwrap();
    assert_eq!(ours, serde_json::json!({"jsonrpc": "2.0", "method": "session/update", "params": theirs}));
}

#[test]
fn chunks_that_wait_are_joined_and_nothing_overtakes() {
    let said = written(vec![
        OutputItem::Chunk(chunk("a", "1", "one ")),
        OutputItem::Chunk(chunk("a", "1", "two ")),
        OutputItem::Chunk(chunk("b", "1", "other")),
        OutputItem::Chunk(chunk("a", "1", "three")),
        OutputItem::Line(r#"{"id":7}"#.to_owned()),
        OutputItem::Chunk(chunk("a", "2", "four")),
    ]);
    let texts: Vec<_> = said.iter().map(|line| line["params"]["update"]["content"]["text"].as_str()).collect();
    assert_eq!(texts, [Some("one two "), Some("other"), Some("three"), None, Some("four")]);
    assert_eq!(said[3]["id"], 7);
}

#[test]
fn a_chunk_does_not_grow_without_end() {
    let many = (0..100).map(|_| OutputItem::Chunk(chunk("a", "1", &"x".repeat(1000)))).collect();
    let said = written(many);
    let sizes: Vec<_> =
        said.iter().map(|line| line["params"]["update"]["content"]["text"].as_str().unwrap().len()).collect();
    assert!(sizes.len() > 3 && sizes.iter().all(|size| *size <= MAX_CHUNK + 1000), "{sizes:?}");
    assert_eq!(sizes.iter().sum::<usize>(), 100_000);
}

#[tokio::test]
async fn the_sdk_s_lines_and_ours_keep_their_order() {
    let paper = Paper::default();
    let (wire, writer) = ClientWriter::start(paper.clone()).unwrap();
    let mut sink = Box::pin(wire.sink());
    for n in 0..200 {
        wire.send_chunk(chunk("a", "1", &format!("{n} ")));
        sink.send(format!(r#"{{"id":{n}}}"#)).await.unwrap();
    }
    drop((wire, sink));
    writer.join().unwrap();
    let said = paper.lines();
    assert_eq!(said.len(), 400);
    for (n, pair) in said.chunks(2).enumerate() {
        assert_eq!(pair[0]["params"]["update"]["content"]["text"], format!("{n} "));
        assert_eq!(pair[1]["id"], n);
    }
}

#[test]
fn first_chunk_and_whole_lines_are_written_at_once() {
    let paper = Paper::default();
    let (wire, writer) = ClientWriter::start(paper.clone()).unwrap();
    let written = |count: usize| {
        let begun = std::time::Instant::now();
        while paper.lines().len() < count {
            assert!(begun.elapsed().as_secs() < 10, "{count} lines are written");
            std::thread::yield_now();
        }
    };
    wire.send_chunk(chunk("a", "1", "first"));
    written(1);
    // The writer lets pieces gather now: this one need not come alone, and the line takes it along.
    wire.send_chunk(chunk("a", "1", "second"));
    wire.send(OutputItem::Line(r#"{"id":1}"#.to_owned()));
    written(3);
    drop(wire);
    writer.join().unwrap();
    assert_eq!(paper.lines()[2]["id"], 1);
}

#[tokio::test]
async fn a_line_that_cannot_be_read_is_one_bad_line() {
    let input: &[u8] = b"{\"a\":1}\r\n\xff\xfe\n\n{\"b\":2}";
    let read: Vec<_> = lines(input).unwrap().map(Result::unwrap).collect().await;
    assert_eq!(read, ["{\"a\":1}", "a line that is not UTF-8", "", "{\"b\":2}"]);
}

#[tokio::test]
async fn a_line_without_end_is_given_up_and_the_next_is_read() {
    let long = io::repeat(b'x').take(MAX_LINE + 5000);
    let input = long.chain(&b"\n{\"b\":2}\n"[..]);
    let read: Vec<_> = lines(input).unwrap().map(Result::unwrap).collect().await;
    assert_eq!(read, ["a line that is too long", "{\"b\":2}"]);
}

/// Lines without end. Counts those that were read.
struct EndlessInput(Arc<AtomicUsize>);

impl Read for EndlessInput {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.0.fetch_add(1, Ordering::SeqCst);
        buffer[..3].copy_from_slice(b"{}\n");
        Ok(3)
    }
}

async fn until(what: &str, is_true: impl Fn() -> bool) {
    let begun = std::time::Instant::now();
    while !is_true() {
        assert!(begun.elapsed().as_secs() < 10, "{what}");
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn lines_that_wait_make_the_client_wait() {
    let count: Arc<AtomicUsize> = Arc::default();
    let mut taken = Box::pin(lines(EndlessInput(Arc::clone(&count))).unwrap());
    // The reader holds one more line, for which there is no room.
    let mut expected = MAX_WAITING_LINES + 1;
    for more in [0, 1, 5 * MAX_WAITING_LINES] {
        for _ in 0..more {
            assert_eq!(taken.next().await.unwrap().unwrap(), "{}");
        }
        expected += more;
        until("the reader goes on", || count.load(Ordering::SeqCst) >= expected).await;
        // Time in which a reader without a limit would read on.
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert_eq!(count.load(Ordering::SeqCst), expected);
    }
    drop(taken);
    until("the reader ends with the connection", || Arc::strong_count(&count) == 1).await;
}
