//! A browser made of two pipes.

use proptest::prelude::*;
use tokio::io::{AsyncReadExt as _, DuplexStream};

use super::*;

#[derive(Default)]
struct Recorder {
    events: Mutex<Vec<CdpEvent>>,
    ended: Mutex<bool>,
}

impl EventSink for Recorder {
    fn receive(&self, event: CdpEvent) {
        self.events.lock().unwrap().push(event);
    }

    fn end(&self) {
        *self.ended.lock().unwrap() = true;
    }
}

struct FakeBrowser {
    reader: BufReader<DuplexStream>,
    writer: DuplexStream,
}

impl FakeBrowser {
    async fn next(&mut self) -> Value {
        let Some(ReadMessage::Whole(bytes)) = read_message(&mut self.reader).await.unwrap() else {
            panic!("a message")
        };
        serde_json::from_slice(&bytes).unwrap()
    }

    async fn say(&mut self, text: &str) {
        self.writer.write_all(text.as_bytes()).await.unwrap();
        self.writer.write_all(&[0]).await.unwrap();
    }
}

fn connect(limit: Duration) -> (CdpClient, FakeBrowser, Arc<Recorder>) {
    let (ours, theirs) = tokio::io::duplex(1 << 16);
    let (their_output, our_input) = tokio::io::duplex(1 << 16);
    let recorder = Arc::new(Recorder::default());
    let client = CdpClient::start(our_input, ours, Arc::clone(&recorder) as Arc<dyn EventSink>, limit);
    (client, FakeBrowser { reader: BufReader::new(theirs), writer: their_output }, recorder)
}

const LONG: Duration = Duration::from_secs(30);

#[tokio::test]
async fn answers_reach_their_callers_in_any_order() {
    let (client, mut browser, recorder) = connect(LONG);
    let one = client.call(None, "Browser.getVersion", json!({}));
    let two = client.call(Some("page"), "Page.enable", json!({"a": 1}));
    let answers = async {
        assert_eq!(browser.next().await, json!({"id": 1, "method": "Browser.getVersion", "params": {}}));
        let second = browser.next().await;
        assert_eq!(second, json!({"id": 2, "method": "Page.enable", "params": {"a": 1}, "sessionId": "page"}));
        browser.say(r#"{"id":2,"result":{"second":true}}"#).await;
        browser.say(r#"{"method":"Page.loadEventFired","params":{"timestamp":1},"sessionId":"page"}"#).await;
        browser.say(r#"{"id":1,"error":{"code":-32000,"message":"no"}}"#).await;
    };
    let (one, two, ()) = tokio::join!(one, two, answers);
    assert_eq!(two, Ok(json!({"second": true})));
    let refused = CdpError::Refused { method: "Browser.getVersion".into(), message: "no".into() };
    assert_eq!(one, Err(refused));
    let event = CdpEvent {
        method: "Page.loadEventFired".into(),
        params: json!({"timestamp": 1}),
        session: Some("page".into()),
    };
    assert_eq!(*recorder.events.lock().unwrap(), [event]);
}

#[tokio::test]
async fn calls_end_with_the_browser_and_with_their_limit() {
    let (client, mut browser, recorder) = connect(Duration::from_millis(50));
    let silent = client.call(None, "A.b", json!({})).await;
    assert_eq!(silent, Err(CdpError::TimedOut { method: "A.b".into(), limit: Duration::from_millis(50) }));
    browser.next().await;
    let (ended, ()) = tokio::join!(client.call(None, "C.d", json!({})), async { drop(browser) });
    assert_eq!(ended, Err(CdpError::Ended));
    while !*recorder.ended.lock().unwrap() {
        tokio::task::yield_now().await;
    }
    assert_eq!(client.call(None, "E.f", json!({})).await, Err(CdpError::Ended));
}

#[tokio::test]
async fn callers_wait_while_the_browser_reads_nothing() {
    let (client, mut browser, _) = connect(LONG);
    // The test has not waited yet, so the task that writes has taken nothing from the queue.
    for _ in 0..MAX_QUEUE {
        client.send(None, "A.b", json!({}));
    }
    let mut call = Box::pin(client.call(None, "C.d", json!({})));
    assert!(futures::poll!(&mut call).is_pending(), "the call waits for room");
    client.send(None, "E.f", json!({}));
    let answers = async {
        for _ in 0..MAX_QUEUE {
            assert_eq!(browser.next().await["method"], "A.b");
        }
        let called = browser.next().await;
        assert_eq!(called["method"], "C.d");
        browser.say(&json!({"id": called["id"], "result": {}}).to_string()).await;
    };
    let (result, ()) = tokio::join!(call, answers);
    assert_eq!(result, Ok(json!({})));
    client.send(None, "G.h", json!({}));
    assert_eq!(browser.next().await["method"], "G.h", "the message that did not wait was dropped");
}

#[tokio::test]
async fn malformed_messages_are_skipped() {
    let (client, mut browser, _) = connect(LONG);
    let call = client.call(None, "A.b", json!({}));
    let answers = async {
        browser.next().await;
        for noise in ["", "{", "[]", "null", r#"{"id":7}"#, r#"{"id":"1","result":{}}"#, r#"{"params":{}}"#] {
            browser.say(noise).await;
        }
        browser.say(r#"{"id":1,"result":{"ok":true}}"#).await;
    };
    let (result, ()) = tokio::join!(call, answers);
    assert_eq!(result, Ok(json!({"ok": true})));
}

#[tokio::test]
async fn an_answer_over_the_limit_fails_only_its_call() {
    let (client, mut browser, _) = connect(LONG);
    let large = client.call(None, "Page.large", json!({}));
    let answers = async {
        browser.next().await;
        browser.writer.write_all(br#"{"id":1,"result":{"data":""#).await.unwrap();
        let part = vec![b'x'; 1 << 20];
        for _ in 0..=MAX_MESSAGE >> 20 {
            browser.writer.write_all(&part).await.unwrap();
        }
        browser.say("\"}}").await;
    };
    let (result, ()) = tokio::join!(large, answers);
    assert_eq!(result, Err(CdpError::TooLarge { method: "Page.large".into() }));
    let small = client.call(None, "Page.small", json!({}));
    let answers = async {
        browser.next().await;
        browser.say(r#"{"id":2,"result":{}}"#).await;
    };
    assert_eq!(tokio::join!(small, answers).0, Ok(json!({})));
}

proptest! {
    /// Messages come out as they went in, however the pipe splits them.
    #[test]
    fn any_split_gives_the_same_messages(
        messages in prop::collection::vec(prop::collection::vec(1_u8.., 0..40), 1..6),
        capacity in 1_usize..20,
    ) {
        let bytes: Vec<u8> = messages.iter().flat_map(|message| [message.as_slice(), &[0]].concat()).collect();
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let read = runtime.block_on(async {
            let mut reader = BufReader::with_capacity(capacity, bytes.as_slice());
            let mut read = Vec::new();
            while let Some(ReadMessage::Whole(message)) = read_message(&mut reader).await.unwrap() {
                read.push(message);
            }
            let mut rest = Vec::new();
            reader.read_to_end(&mut rest).await.unwrap();
            assert!(rest.is_empty());
            read
        });
        prop_assert_eq!(read, messages);
    }
}
