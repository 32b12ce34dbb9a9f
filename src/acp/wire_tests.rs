//! What the wire promises: order, and joined chunks.

use futures::{FutureExt as _, SinkExt as _};
use tokio::io::{AsyncBufReadExt as _, BufReader, DuplexStream};

use super::*;
use crate::acp::output_item::{ChunkKind, MAX_CHUNK};

fn parse(bytes: &[u8]) -> Vec<Value> {
    bytes.split_inclusive(|byte| *byte == b'\n').map(|line| serde_json::from_slice(line).unwrap()).collect()
}

fn chunk(session: &str, message: &str, text: &str) -> MessageChunk {
    MessageChunk { session: session.into(), message: message.into(), kind: ChunkKind::Agent, text: text.to_owned() }
}

/// Everything is queued before the writer begins, so that nothing is left to chance.
async fn written(items: Vec<OutputItem>) -> Vec<Value> {
    let (wire, mut queue) = ClientWriter::with_reader(None);
    items.into_iter().for_each(|item| wire.send(item));
    drop(wire);
    let mut output = Vec::new();
    write_all(&mut queue, &mut output).await.unwrap();
    parse(&output)
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

#[tokio::test]
async fn chunks_that_wait_are_joined_and_nothing_overtakes() {
    let said = written(vec![
        OutputItem::Chunk(chunk("a", "1", "one ")),
        OutputItem::Chunk(chunk("a", "1", "two ")),
        OutputItem::Chunk(chunk("b", "1", "other")),
        OutputItem::Chunk(chunk("a", "1", "three")),
        OutputItem::Line(r#"{"id":7}"#.to_owned()),
        OutputItem::Chunk(chunk("a", "2", "four")),
    ])
    .await;
    let texts: Vec<_> = said.iter().map(|line| line["params"]["update"]["content"]["text"].as_str()).collect();
    assert_eq!(texts, [Some("one two "), Some("other"), Some("three"), None, Some("four")]);
    assert_eq!(said[3]["id"], 7);
}

#[tokio::test]
async fn a_chunk_does_not_grow_without_end() {
    let many = (0..100).map(|_| OutputItem::Chunk(chunk("a", "1", &"x".repeat(1000)))).collect();
    let said = written(many).await;
    let sizes: Vec<_> =
        said.iter().map(|line| line["params"]["update"]["content"]["text"].as_str().unwrap().len()).collect();
    assert!(sizes.len() > 3 && sizes.iter().all(|size| *size <= MAX_CHUNK + 1000), "{sizes:?}");
    assert_eq!(sizes.iter().sum::<usize>(), 100_000);
}

#[tokio::test]
async fn the_sdk_s_lines_and_ours_keep_their_order() {
    let (wire, mut queue) = ClientWriter::with_reader(None);
    let send = async {
        let mut sink = Box::pin(wire.sink());
        for n in 0..200 {
            wire.send_chunk(chunk("a", "1", &format!("{n} ")));
            sink.send(format!(r#"{{"id":{n}}}"#)).await.unwrap();
            tokio::task::yield_now().await;
        }
        drop((wire, sink));
    };
    let mut output = Vec::new();
    let (sent, done) = tokio::join!(send, write_all(&mut queue, &mut output));
    ((), ()) = (sent, done.unwrap());
    let said = parse(&output);
    assert_eq!(said.len(), 400);
    for (n, pair) in said.chunks(2).enumerate() {
        assert_eq!(pair[0]["params"]["update"]["content"]["text"], format!("{n} "));
        assert_eq!(pair[1]["id"], n);
    }
}

/// Reads this many lines. Time stands still, so they must come at once.
async fn read(output: &mut BufReader<DuplexStream>, count: usize) -> Vec<Value> {
    let mut bytes = Vec::new();
    for _ in 0..count {
        output.read_until(b'\n', &mut bytes).await.unwrap();
    }
    parse(&bytes)
}

#[tokio::test(start_paused = true)]
async fn first_chunk_and_whole_lines_are_written_at_once() {
    let (wire, queue) = ClientWriter::with_reader(None);
    let (ours, theirs) = tokio::io::duplex(1 << 20);
    let mut theirs = BufReader::new(theirs);
    let writer = write_queue(queue, ours);
    let client = async {
        let begun = Instant::now();
        wire.send_chunk(chunk("a", "1", "first"));
        read(&mut theirs, 1).await;
        // The writer lets pieces gather now: this one need not come alone, and the line takes it along.
        wire.send_chunk(chunk("a", "1", "second"));
        tokio::task::yield_now().await;
        wire.send_chunk(chunk("a", "1", " and third"));
        wire.send(OutputItem::Line(r#"{"id":1}"#.to_owned()));
        let said = read(&mut theirs, 2).await;
        assert_eq!(begun.elapsed(), Duration::ZERO);
        assert_eq!(said[0]["params"]["update"]["content"]["text"], "second and third");
        assert_eq!(said[1]["id"], 1);
        // Without a line, the pieces come after a short time.
        wire.send_chunk(chunk("a", "1", "fourth"));
        read(&mut theirs, 1).await;
        wire.send_chunk(chunk("a", "1", "fifth"));
        read(&mut theirs, 1).await;
        assert!(begun.elapsed() >= BATCH_INTERVAL && begun.elapsed() < 2 * BATCH_INTERVAL, "{:?}", begun.elapsed());
        drop(wire);
    };
    tokio::join!(writer, client);
}

/// A pipe with room for so many bytes more. Without a size, its reader is gone.
#[derive(Debug, Clone)]
struct SmallPipe(Arc<Mutex<(Option<usize>, Vec<u8>)>>);

impl SmallPipe {
    fn new(room: Option<usize>) -> Self {
        Self(Arc::new(Mutex::new((room, Vec::new()))))
    }

    fn text(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().1.clone()).unwrap()
    }
}

impl TryWrite for SmallPipe {
    fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        let (room, written) = &mut *self.0.lock().unwrap();
        let room = room.as_mut().ok_or(io::ErrorKind::BrokenPipe)?;
        let count = bytes.len().min(*room);
        *room -= count;
        written.extend_from_slice(&bytes[..count]);
        Ok(count)
    }
}

#[tokio::test]
async fn an_item_is_written_at_once_while_there_is_room() {
    let pipe = SmallPipe::new(Some(12));
    let (wire, mut queue) = ClientWriter::with_reader(Some(Box::new(pipe.clone())));
    let line = |text: &str| wire.send(OutputItem::Line(text.to_owned()));
    line("first");
    assert_eq!((pipe.text().as_str(), wire.backlog()), ("first\n", 0));
    wire.first_output().await;
    line("second");
    line("third");
    assert_eq!((pipe.text().as_str(), wire.backlog()), ("first\nsecond", 11), "the end of a line may have to wait");
    let mut rest = Vec::new();
    queue.next().await.unwrap().iter().for_each(|item| item.write(&mut rest));
    assert_eq!(String::from_utf8(rest).unwrap(), "\nthird\n");
    // The writer still has these, so nothing may overtake them.
    pipe.0.lock().unwrap().0 = Some(100);
    line("fourth");
    assert_eq!(pipe.text(), "first\nsecond");
    assert_eq!(queue.next().await.unwrap().len(), 1);
    assert!(queue.next().now_or_never().is_none());
    line("fifth");
    assert_eq!(pipe.text(), "first\nsecondfifth\n");
    drop(wire);
    assert!(queue.next().await.is_none());
}

#[tokio::test(start_paused = true)]
async fn chunks_after_one_that_was_written_at_once_are_collected() {
    let pipe = SmallPipe::new(Some(1 << 20));
    let (wire, mut queue) = ClientWriter::with_reader(Some(Box::new(pipe.clone())));
    ["one", "two ", "three"].into_iter().for_each(|text| wire.send_chunk(chunk("a", "1", text)));
    assert!(pipe.text().contains(r#""one""#) && !pipe.text().contains("two"), "{}", pipe.text());
    let begun = Instant::now();
    let mut more = Vec::new();
    queue.next().await.unwrap().iter().for_each(|item| item.write(&mut more));
    assert!(begun.elapsed() >= BATCH_INTERVAL);
    assert_eq!(parse(&more)[0]["params"]["update"]["content"]["text"], "two three");
}

#[tokio::test]
async fn output_to_a_client_that_is_gone_is_dropped() {
    let gone = SmallPipe::new(None);
    let (wire, _queue) = ClientWriter::with_reader(Some(Box::new(gone)));
    wire.send(OutputItem::Line(r#"{"id":1}"#.to_owned()));
    assert_eq!(wire.backlog(), 0);

    let (wire, queue) = ClientWriter::with_reader(None);
    let (ours, theirs) = tokio::io::duplex(64);
    drop(theirs);
    wire.send(OutputItem::Line(r#"{"id":1}"#.to_owned()));
    write_queue(queue, ours).await;
    wire.send(OutputItem::Line(r#"{"id":2}"#.to_owned()));
    assert_eq!(wire.backlog(), 0);
}
