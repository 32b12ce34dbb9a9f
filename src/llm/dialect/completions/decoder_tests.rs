//! Pieces of answers that genai does not read, or reads in another way.

use serde_json::json;

use super::*;
use crate::llm::dialect::answer_reader::StreamDecoder;

/// Returns the events of an answer whose pieces have this data.
fn decode(pieces: &[String]) -> Vec<Result<AnswerEvent, ProviderError>> {
    let body: String = pieces.iter().map(|piece| format!("data: {piece}\n\n")).collect();
    let mut decoder = StreamDecoder::new(Box::new(PieceDecoder::new(false)));
    let mut events = AnswerQueue::new();
    decoder.feed(body.as_bytes(), &mut events);
    decoder.finish(&mut events);
    events.into_iter().filter(|event| !matches!(event, Ok(AnswerEvent::Progress { .. }))).collect()
}

fn piece(delta: &Value) -> String {
    json!({"choices": [{"index": 0, "delta": delta}]}).to_string()
}

/// Returns the id, the name and the arguments of each call.
fn calls(pieces: &[Value]) -> Vec<(String, String, Value)> {
    let pieces: Vec<_> = pieces.iter().map(|call| piece(&json!({"tool_calls": [call]}))).collect();
    let events = decode(&[&pieces[..], &[DONE.to_owned()]].concat());
    let [Ok(AnswerEvent::End(end))] = events.as_slice() else { panic!("{events:?}") };
    let calls = end.calls.iter();
    calls.map(|call| (call.call_id.clone(), call.fn_name.clone(), call.fn_arguments.clone())).collect()
}

fn expected(calls: &[(&str, &str, Value)]) -> Vec<(String, String, Value)> {
    calls.iter().map(|(id, name, arguments)| ((*id).to_owned(), (*name).to_owned(), arguments.clone())).collect()
}

#[test]
fn calls_without_an_index_are_separate_calls() {
    let call = |id: &str, name: &str, path: &str| json!({"id": id, "function": {"name": name, "arguments": json!({"path": path}).to_string()}});
    let given = [call("a", "read", "x"), call("b", "write", "y"), call("", "read", "z"), call("", "read", "z")];
    let all = [
        ("a", "read", json!({"path": "x"})),
        ("b", "write", json!({"path": "y"})),
        ("call_2", "read", json!({"path": "z"})),
        ("call_3", "read", json!({"path": "z"})),
    ];
    assert_eq!(calls(&given), expected(&all));
}

#[test]
fn a_piece_without_index_and_name_continues_the_last_call() {
    let more = |arguments: &str| json!({"function": {"arguments": arguments}});
    let begin = json!({"id": "a", "function": {"name": "read", "arguments": "{\"pa"}});
    let repeated = json!({"id": "a", "function": {"name": "read", "arguments": "\"x\"}"}});
    let all = [("a", "read", json!({"path": "x"}))];
    assert_eq!(calls(&[more("lost"), begin, more("th\":"), repeated]), expected(&all));
}

#[test]
fn calls_with_the_same_index_are_separate_calls() {
    let call = |index: u64, id: &str, arguments: &str| json!({"index": index, "id": id, "function": {"name": "read", "arguments": arguments}});
    let more = json!({"index": 0, "function": {"arguments": "2}"}});
    let given = [call(0, "a", "{\"n\":1}"), call(1, "c", "{}"), call(0, "b", "{\"n\":"), more, call(1, "c", "")];
    let all = [("a", "read", json!({"n": 1})), ("b", "read", json!({"n": 2})), ("c", "read", json!({}))];
    assert_eq!(calls(&given), expected(&all));
}

fn last_piece(reason: &str) -> String {
    json!({"choices": [{"index": 0, "delta": {"content": "so"}, "finish_reason": reason}]}).to_string()
}

#[test]
fn a_reason_that_is_a_defect_makes_an_answer_incomplete() {
    for reason in DEFECTS {
        let events = decode(&[last_piece(reason), DONE.to_owned()]);
        let [Ok(AnswerEvent::Text(_)), Err(ProviderError::BrokenOff(found))] = events.as_slice() else {
            panic!("{events:?}")
        };
        assert_eq!(found, reason);
    }
}

#[test]
fn an_answer_with_a_reason_to_end_needs_no_done() {
    let call = json!({"index": 0, "id": "a", "function": {"name": "read", "arguments": "{}"}});
    let usage = json!({"choices": [], "usage": {"prompt_tokens": 7, "completion_tokens": 2}}).to_string();
    let events = decode(&[piece(&json!({"tool_calls": [call]})), last_piece("tool_calls"), usage]);
    let [Ok(AnswerEvent::Text(_)), Ok(AnswerEvent::End(end))] = events.as_slice() else { panic!("{events:?}") };
    let usage = crate::conversation::Usage { input: 7, output: 2, cached: 0 };
    assert_eq!((end.calls.len(), end.usage), (1, usage));
    for reason in [vec![], vec![last_piece("")]] {
        let events = decode(&[vec![piece(&json!({"content": "so"}))], reason].concat());
        assert!(events.iter().all(|event| matches!(event, Ok(AnswerEvent::Text(_)))), "{events:?}");
    }
}

/// The state decides about a pause and about a lost connection.
#[test]
fn a_reason_with_each_piece_does_not_complete_an_answer() {
    let state = |pieces: &[(Value, Option<&str>)]| {
        let mut decoder = PieceDecoder::new(false);
        let pieces =
            pieces.iter().map(|(delta, reason)| json!({"choices": [{"delta": delta, "finish_reason": reason}]}));
        pieces.map(|piece| decoder.decode("", &piece.to_string(), &mut AnswerQueue::new()).unwrap()).last().unwrap()
    };
    let call = json!({"tool_calls": [{"index": 0, "id": "a", "function": {"name": "read", "arguments": "{}"}}]});
    let (text, thought, nothing) = (json!({"content": "so"}), json!({"reasoning": "hm"}), json!({"tool_calls": []}));
    assert_eq!(state(&[(text.clone(), None), (nothing.clone(), Some("stop"))]), AnswerState::Complete);
    for part in [&text, &thought, &call] {
        assert_eq!(state(&[(part.clone(), Some("stop"))]), AnswerState::CompleteAtEnd, "{part}");
        let later = [(nothing.clone(), Some("stop")), (part.clone(), None), (nothing.clone(), Some("stop"))];
        assert_eq!(state(&later), AnswerState::CompleteAtEnd, "{part}");
    }
}

#[test]
fn signatures_with_many_small_values_end_the_answer() {
    let values = vec![0; 10_000];
    let detail = |id: usize| json!({"type": "reasoning.encrypted", "id": id.to_string(), "data": values});
    let call =
        |id: usize| json!({"index": id, "id": id.to_string(), "extra_content": values, "function": {"name": "f"}});
    let details: Vec<_> = (0..20).map(|id| piece(&json!({"reasoning_details": [detail(id)]}))).collect();
    let calls: Vec<_> = (0..20).map(|id| piece(&json!({"tool_calls": [call(id)]}))).collect();
    for pieces in [details, calls] {
        assert!(matches!(decode(&pieces).last(), Some(Err(ProviderError::CallsTooLong))));
    }
}

#[test]
fn a_refusal_is_shown_and_ends_the_answer() {
    let refusal = |text: &str| piece(&json!({"content": null, "refusal": text}));
    let events = decode(&[refusal("I can"), refusal("not."), last_piece("stop"), DONE.to_owned()]);
    let text = events.iter().filter_map(|event| match event {
        Ok(AnswerEvent::Text(text)) => Some(text.as_str()),
        _ => None,
    });
    assert_eq!(text.collect::<String>(), "I cannot.so");
    let Some(Ok(AnswerEvent::End(end))) = events.last() else { panic!("{events:?}") };
    assert!(matches!(end.stop, Some(StopReason::ContentFilter(_))), "{end:?}");
}

#[test]
fn an_error_that_is_null_is_no_error() {
    let pieces = [json!({"error": null, "choices": [{"delta": {"content": "so"}}]}).to_string(), DONE.to_owned()];
    let events = decode(&pieces);
    assert!(matches!(events.as_slice(), [Ok(AnswerEvent::Text(_)), Ok(AnswerEvent::End(_))]), "{events:?}");
}
