//! What is shown of long output.

use proptest::prelude::*;

use super::*;

fn shown(input: &[u8], chunk: usize) -> OutputExcerpt {
    let mut capture = Capture::default();
    input.chunks(chunk.max(1)).for_each(|chunk| capture.push(chunk));
    capture.render()
}

#[test]
fn output_within_the_caps_is_shown_as_it_is() {
    let lines = "line\n".repeat(MAX_LINES);
    assert_eq!(shown(lines.as_bytes(), 7), OutputExcerpt { text: lines, truncated: false });
    let long = "x".repeat(MAX_BYTES);
    assert_eq!(shown(long.as_bytes(), 999), OutputExcerpt { text: long, truncated: false });
    assert_eq!(shown(b"", 1), OutputExcerpt { text: String::new(), truncated: false });
}

#[test]
fn long_output_keeps_both_ends_and_says_what_is_missing() {
    let lines: String = (1..=5000).map(|number| format!("{number}\n")).collect();
    let shown = shown(lines.as_bytes(), 4096);
    assert!(shown.truncated);
    let text: Vec<&str> = shown.text.lines().collect();
    assert_eq!((text[0], text[HEAD_LINES - 1], text.last()), ("1", "800", Some(&"5000")));
    assert_eq!(text.len(), MAX_LINES + 1);
    assert!(text[HEAD_LINES].starts_with("[... 3000 lines ("), "{}", text[HEAD_LINES]);
}

#[test]
fn the_whole_goes_to_a_log_and_memory_stays_bounded() {
    let folder = tempfile::tempdir().unwrap();
    let mut capture = Capture::with_log(Log::new(folder.path(), Keeps::LongOutput));
    capture.push(b"begin\n");
    assert_eq!(capture.log_path(), None);
    let chunk = [b'x'; 100_000];
    for _ in 0..200 {
        capture.push(&chunk);
        assert!(capture.head.len() + capture.tail.len() <= HEAD_BYTES + 2 * MAX_BYTES);
    }
    capture.push(b"end");
    let shown = capture.render();
    let log = capture.log_path().unwrap();
    assert_eq!(std::fs::metadata(log).unwrap().len(), 20_000_009);
    assert!(shown.text.starts_with("begin\n[... ") && shown.text.ends_with("xend"));
    assert!(shown.text.contains(&log.display().to_string()));
}

#[test]
fn a_log_that_is_full_or_cannot_be_written_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let mut log = Log::new(folder.path(), Keeps::Everything);
    log.written = MAX_LOG - 2;
    let mut capture = Capture::with_log(log);
    capture.push(&vec![b'x'; MAX_BYTES + 1]);
    assert!(capture.render().text.contains("is incomplete: it ends after 256.0 MB"));
    assert_eq!(std::fs::metadata(capture.log_path().unwrap()).unwrap().len(), 2);
    std::fs::write(folder.path().join("file"), "").unwrap();
    let mut capture = Capture::with_log(Log::new(&folder.path().join("file/below"), Keeps::LongOutput));
    capture.push(&vec![b'x'; MAX_BYTES + 1]);
    assert!(capture.render().text.contains("the log is incomplete: "));
}

#[test]
fn what_was_taken_is_not_shown_again_but_stays_in_the_log() {
    let folder = tempfile::tempdir().unwrap();
    let mut capture = Capture::with_log(Log::new(folder.path(), Keeps::Everything));
    capture.push(b"one\n");
    assert_eq!(capture.take().text, "one\n");
    capture.push(b"two\n");
    assert_eq!(capture.take().text, "two\n");
    assert!(capture.is_empty());
    assert_eq!(std::fs::read(capture.log_path().unwrap()).unwrap(), b"one\ntwo\n");
}

fn pieces() -> impl Strategy<Value = Vec<u8>> {
    let piece = prop_oneof![
        4 => "[a-z]{0,30}\n".prop_map(String::into_bytes),
        2 => "[äß€😀]{0,300}".prop_map(String::into_bytes),
        2 => Just(vec![b'\n'; 300]),
        1 => Just(vec![b'x'; 20_001]),
        1 => proptest::collection::vec(any::<u8>(), 0..200),
    ];
    proptest::collection::vec(piece, 0..40).prop_map(|pieces| pieces.concat())
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn truncation_never_loses_the_tail(input in pieces(), chunk in 1_usize..70_000) {
        let shown = shown(&input, chunk);
        let whole = String::from_utf8_lossy(&input);
        let lines = whole.lines().count();
        prop_assert_eq!(shown.truncated, input.len() > MAX_BYTES || newlines(&input) > MAX_LINES || lines > MAX_LINES);
        if !shown.truncated {
            prop_assert_eq!(shown.text.as_str(), whole.as_ref());
            return Ok(());
        }
        // At least half of what there is room for, so that a last line is never missing.
        let wanted = input.len().min(500);
        let end = String::from_utf8_lossy(&input[input.len() - wanted..]).into_owned();
        let end: String = end.chars().skip_while(|letter| *letter == '\u{fffd}').collect();
        let tail_lines: Vec<&str> = end.lines().rev().take(100).collect();
        let shown_lines: Vec<&str> = shown.text.lines().rev().take(tail_lines.len()).collect();
        let (first, rest) = tail_lines.split_last().unwrap();
        prop_assert_eq!(&shown_lines[..rest.len()], rest);
        prop_assert!(shown_lines[rest.len()].ends_with(first));
        prop_assert!(shown.text.lines().count() <= MAX_LINES + 2);
    }
}
