//! Code that means well, and code that does not, in the real engine. The world behind it is a closure.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};

use serde_json::json;

use super::super::engine::CodeLimits;
use super::super::replies;
use super::*;

/// Short enough for a test, long enough for a slow machine.
const TIME: Duration = Duration::from_millis(400);

fn program(code: &str, limits: CodeLimits) -> CodeProgram {
    let functions = [("notes", "read_all"), ("notes", "add"), ("shop", "buy")];
    let functions = functions.map(|(object, name)| (object.to_owned(), name.to_owned()));
    CodeProgram { code: code.to_owned(), functions: functions.into(), limits }
}

/// The world: `read_all` gives structured notes, `add` says what it was given, `buy` is refused.
async fn world(request: FunctionCall) -> ToolOutcome {
    match request.function {
        0 => ToolOutcome { structured: Some(json!({"notes": ["a", "b"]})), ..ToolOutcome::text("two notes") },
        1 if request.arguments.contains_key("bad") => ToolOutcome::error("that is a bad note"),
        1 => ToolOutcome::text(format!("added {}", serde_json::Value::Object(request.arguments))),
        _ => ToolOutcome { refused: true, ..ToolOutcome::error("the user refused") },
    }
}

async fn reported(code: &str, limits: CodeLimits) -> CodeReport {
    let reads_only = |function| function == 0;
    run(program(code, limits), &AbandonedThreads::default(), &CancellationToken::new(), reads_only, world).await
}

/// With less memory than usual, so that it is used up sooner.
async fn ran(code: &str) -> ToolOutcome {
    let limits = CodeLimits { memory: 16 << 20, ..CodeLimits::default() };
    replies::outcome(&reported(code, limits).await, &limits)
}

/// What code that works gives.
async fn gives(code: &str) -> String {
    let outcome = ran(code).await;
    assert!(!outcome.is_error, "{code}: {}", outcome.all_text());
    outcome.all_text()
}

/// What is said of code that does not.
async fn fails(code: &str) -> String {
    let outcome = ran(code).await;
    assert!(outcome.is_error, "{code}: {}", outcome.all_text());
    outcome.all_text()
}

#[tokio::test]
async fn what_is_returned_comes_back_as_json_or_as_the_text_it_is() {
    for (code, expected) in [
        ("return 1 + 1", "2"),
        ("return 'a\\nb'", "a\nb"),
        ("return {a: [1, null, 'x'], b: undefined}", r#"{"a":[1,null,"x"]}"#),
        ("return new Map([['a', new Set([1, 2])]])", r#"[["a",[1,2]]]"#),
        ("const x = await Promise.resolve(3); return x", "3"),
        ("return (await notes.read_all()).notes.length", "2"),
        ("return await notes.add({text: 'ü'})", r#"added {"text":"ü"}"#),
        ("return notes.add()", "added {}"),
        ("1 + 1", "The code ran to its end and returned nothing; `return` gives a value."),
        ("return '\\ud800'", "\u{FFFD}"),
    ] {
        assert_eq!(gives(code).await, expected, "{code}");
    }
}

#[tokio::test]
async fn what_is_printed_stands_before_what_is_returned() {
    let code =
        "console.log('a', {b: 1}, [2], undefined, null, 3n, () => 1); console.error(new TypeError('x')); return 4";
    assert_eq!(
        gives(code).await,
        "Printed:\na {\"b\":1} [2] undefined null 3n [function ]\nTypeError: x\n\nReturned:\n4"
    );
}

#[tokio::test]
async fn a_failed_or_refused_call_throws_what_the_tool_said() {
    let caught =
        "try { await notes.add({bad: 1}) } catch (e) { return [e instanceof Error, e.message, e.tool, e.refused] }";
    assert_eq!(gives(caught).await, r#"[true,"that is a bad note","notes.add",false]"#);
    assert_eq!(gives("try { await shop.buy() } catch (e) { return e.refused }").await, "true");
    assert_eq!(
        fails("await notes.add();\nawait shop.buy()").await,
        "The code failed: shop.buy: Error: the user refused\nIt had made 2 calls, and what they did stays done."
    );
}

#[tokio::test]
async fn what_is_wrong_in_the_code_is_said_with_its_line() {
    for (code, expected) in [
        ("\n\nnone()", "The code failed: ReferenceError: none is not defined (line 3)"),
        ("let a = 1;\nlet b = ;", "The code failed: SyntaxError: unexpected token in expression: ';' (line 2)"),
        ("throw new Error('no')", "The code failed: Error: no (line 1)"),
        ("notes.gone({})", "The code failed: TypeError: not a function (line 1)"),
        (
            "await notes.add('x')",
            "The code failed: TypeError: notes.add takes one object with its arguments: notes.add({...}) (line 1)",
        ),
    ] {
        assert_eq!(fails(code).await, expected, "{code}");
    }
}

#[tokio::test]
async fn whatever_is_thrown_can_be_told() {
    for (code, expected) in [
        ("throw null", "the code threw null, as the engine does when no memory is left"),
        ("throw undefined", "the code threw undefined"),
        ("throw Symbol('s')", "the code threw Symbol(s)"),
        ("throw {a: 1}", r#"the code threw {"a":1}"#),
        ("throw 10n", "the code threw 10n"),
        ("throw new Proxy({}, {get() { throw 1 }})", "the code threw [something that cannot be shown]"),
        ("throw {toJSON() { throw 1 }, toString() { throw 2 }}", "the code threw [something that cannot be shown]"),
        (
            "const e = new Error('x'); Object.defineProperty(e, 'message', {get() { throw 1 }}); throw e",
            "[something that",
        ),
        (
            "const e = new Error('x'); Object.defineProperty(e, 'stack', {get() { throw 1 }}); throw e",
            "The code failed",
        ),
        ("await Promise.reject('gone')", "the code threw gone"),
        ("throw '\\ud800'", "the code threw \u{FFFD}"),
    ] {
        let said = fails(code).await;
        assert!(said.contains(expected), "{code}: {said}");
    }
}

/// Code can get at the functions of the host through its errors; they do no more for it than its own.
#[tokio::test]
async fn what_code_finds_in_a_stack_is_of_no_use() {
    let code = "
        const found = new Set();
        Error.prepareStackTrace = (_, frames) => { frames.forEach(frame => found.add(frame.getFunction?.())); return 'x' };
        try { await notes.add('x') } catch {}
        try { await notes.add({bad: 1n}) } catch {}
        for (let i = 0; i < 300; i++) { try { await notes.add({i}) } catch (e) { e.stack } }
        const said = [];
        for (const f of [...found].filter(f => !String(f).includes('prepareStackTrace'))) for (const given of [[0, '{}'], [99, '{}'], [1, 'x'], [1, undefined, false, 2], ['return 1']]) {
            try { said.push(typeof (await f(...given))) } catch (e) { said.push(typeof e) }
        }
        return said.length > 0";
    let report = reported(code, CodeLimits::default()).await;
    assert!(report.calls <= 200, "{report:?}");
    assert!(
        matches!(
            report.end,
            CodeEnd::Returned(_) | CodeEnd::Threw(_) | CodeEnd::OutOfMemory(_) | CodeEnd::Stopped(CodeStop::Waiting)
        ),
        "{report:?}"
    );
}

#[tokio::test]
async fn what_cannot_be_written_is_said() {
    for (code, expected) in [
        ("const a = {}; a.a = a; return a", "circular reference"),
        ("return 1n", "BigInt"),
        ("return () => 1", "it is a function"),
        ("return Symbol()", "it is a symbol"),
        ("return {get a() { throw new Error('odd') }}", "odd"),
        ("return new Proxy({}, {ownKeys() { throw new Error('odd') }})", "odd"),
    ] {
        let said = fails(code).await;
        assert!(said.starts_with("The code ran to its end, but what it returned cannot be written as JSON"), "{said}");
        assert!(said.contains(expected), "{code}: {said}");
    }
}

#[tokio::test]
async fn code_without_an_end_is_ended() {
    let limits = CodeLimits { time: TIME, ..CodeLimits::default() };
    for code in [
        "for (;;);",
        "for (;;) { try { for (;;); } catch {} finally { continue } }",
        "async function f() { for (;;) await null } await f()",
        "const f = () => Promise.resolve().then(f); await f()",
        "return /^(a+)+$/.test('a'.repeat(40) + 'b')",
        "return new Array(2 ** 32 - 1).indexOf(1)",
        "return Array.prototype.includes.call({length: 2 ** 53 - 1}, 1)",
        "return {toJSON() { for (;;); }}",
        "console.log({toJSON() { for (;;); }})",
        "for (;;) { try { await notes.add() } catch {} }",
        "const e = new Error('x'); Object.defineProperty(e, 'stack', {get() { for (;;); }}); throw e",
    ] {
        assert_eq!(reported(code, limits).await.end, CodeEnd::Stopped(CodeStop::Time), "{code}");
    }
    let said = replies::outcome(&reported("for (;;);", limits).await, &limits);
    assert!(said.is_error && said.all_text().contains("it ran for more than 0.4 s"), "{said:?}");
}

#[tokio::test]
async fn a_stopped_code_makes_no_more_calls() {
    let report = reported("console.log('x'.repeat(1e5)); await notes.add()", CodeLimits::default()).await;
    assert_eq!((report.calls, report.end), (0, CodeEnd::Stopped(CodeStop::Output)));
    let said = fails("for (let i = 0; i < 10; i++) await notes.add({text: 'x'.repeat(2e6)}); return 1").await;
    assert!(said.contains("the arguments of all calls are more than 16 MiB"), "{said}");
}

/// Each step leaves a rejection behind. The third line exceeds the limit of 50,000 bytes, so there is no fourth step.
#[tokio::test]
async fn code_that_prints_too_much_stops_at_that_line() {
    for print in ["console.log(line)", "try { console.log(line) } catch {} finally { continue }"] {
        let code = format!(
            "const line = 'x'.repeat(20000), kept = []; \
             for (let i = 1; ; i++) {{ kept.push(Promise.reject(new Error('step ' + i))); {print} }}"
        );
        let report = reported(&code, CodeLimits::default()).await;
        assert_eq!(report.end, CodeEnd::Stopped(CodeStop::Output), "{code}");
        assert_eq!(report.unhandled, ["step 1", "step 2", "step 3"], "{code}");
        assert_eq!(report.printed.len(), 50_000, "the line that exceeds the limit is cut");
    }
}

#[tokio::test]
async fn code_that_takes_all_there_is_is_ended() {
    for (code, expected) in [
        ("const f = () => f() + 1; return f()", "Maximum call stack size exceeded"),
        ("let a = []; a[0] = a; for (let i = 0; i < 1e5; i++) a = [a]; return a", "Maximum call stack size exceeded"),
        ("const a = []; for (;;) a.push('x'.repeat(1000) + a.length)", "memory"),
        ("let a = 'x'; for (;;) a += a", "string too long"),
        ("return new Uint8Array(1 << 30).length", "out of memory (line 1), of which code has 16 MiB"),
        ("const a = []; for (;;) a.push(new Promise(() => {}))", "memory"),
        ("for (;;) console.log('x')", "it printed more than 50000 bytes"),
        ("console.log('ü'.repeat(1e6))", "it printed more than 50000 bytes"),
        ("await new Promise(() => {})", "it waits for something that will never happen"),
        (
            "const all = []; for (let i = 0; i < 300; i++) all.push(notes.add()); await Promise.all(all)",
            "may make 200 calls",
        ),
    ] {
        let said = fails(code).await;
        assert!(said.contains(expected), "{code}: {said}");
    }
}

#[tokio::test]
async fn code_continues_after_memory_runs_out() {
    let code = "try { const a = []; for (;;) a.push('x'.repeat(1e5) + a.length) } catch (e) { return e.message }";
    assert_eq!(gives(code).await, "out of memory");
    assert_eq!(gives("globalThis.kept = 1; return typeof kept").await, "number");
    assert_eq!(gives("return typeof kept").await, "undefined");
}

/// Wherever it happens, it is an error like any other, and the program lives.
#[tokio::test]
async fn memory_can_run_out_anywhere() {
    let hungry = [
        "const a = []; for (;;) a.push({a: [a.length], b: 'x' + a.length})",
        "const m = new Map(); for (let i = 0; ; i++) m.set('k' + i, () => m)",
        "const all = []; for (;;) all.push(notes.add({text: 'x'.repeat(1000)}).then(x => x + all.length))",
        "const f = (n) => JSON.stringify({n, d: JSON.parse(JSON.stringify(Array(n).fill({n})))}); for (let i = 1; ; i *= 2) f(i)",
        "class A { #x = [new Error('x')]; get x() { return this.#x } } const a = []; for (;;) a.push(new A().x)",
        "for (let s = 'ab'; ; s += s) s.replace(/(a)(b)/g, (_, a, b) => b + a).split('').map(x => x + x).sort().join('-')",
        "eval('const a = [' + '[1, {a: `b${1}`}, function () { return /x/ }],'.repeat(1e5) + ']')",
    ];
    for at in (0..40).step_by(3) {
        let limits = CodeLimits { memory: (16 << 10) + at * at * 2_500, ..CodeLimits::default() };
        for code in hungry {
            let end = reported(code, limits).await.end;
            assert!(matches!(end, CodeEnd::Threw(_) | CodeEnd::OutOfMemory(_)), "{code}: {end:?}");
        }
    }
}

#[tokio::test]
async fn a_long_answer_comes_whole() {
    assert_eq!(gives("return (await notes.add({text: 'x'.repeat(200000)})).length").await, "200017");
    assert_eq!(gives("return 'x'.repeat(3e5)").await.len(), 300_000);
}

/// Time that is spent on calls, or on whoever must consent, is not the code's.
#[tokio::test(start_paused = true)]
async fn waiting_costs_no_time() {
    let slow = async |_: FunctionCall| {
        tokio::time::sleep(Duration::from_secs(3_600)).await;
        ToolOutcome::text("at last")
    };
    let program = program("return await notes.add()", CodeLimits::default());
    let report = run(program, &AbandonedThreads::default(), &CancellationToken::new(), |_| false, slow).await;
    assert_eq!(report.end, CodeEnd::Returned(Some("at last".to_owned())));
}

#[tokio::test]
async fn calls_that_read_run_side_by_side_and_others_alone() {
    let (now, most) = (AtomicUsize::new(0), AtomicUsize::new(0));
    for (function, expected) in [("notes.read_all", MAX_PARALLEL_CALLS as usize), ("notes.add", 1)] {
        most.store(0, Ordering::SeqCst);
        let busy = async |_: FunctionCall| {
            most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
            tokio::time::sleep(Duration::from_millis(5)).await;
            now.fetch_sub(1, Ordering::SeqCst);
            ToolOutcome::text("done")
        };
        let code = format!("return (await Promise.all(Array.from({{length: 30}}, () => {function}()))).length");
        let program = program(&code, CodeLimits::default());
        let report = run(program, &AbandonedThreads::default(), &CancellationToken::new(), |of| of == 0, busy).await;
        assert_eq!(report.end, CodeEnd::Returned(Some("30".to_owned())));
        assert_eq!(most.load(Ordering::SeqCst), expected, "{function}");
    }
}

#[tokio::test]
async fn unawaited_calls_finish_and_report_failures() {
    let report = reported("notes.add(); notes.add(); return 1", CodeLimits::default()).await;
    assert_eq!((report.end, report.calls), (CodeEnd::Returned(Some("1".to_owned())), 2));
    let said = fails("notes.add({bad: 1}); return 'done'").await;
    assert_eq!(
        said,
        "The code ran to its end, but something failed that it did not wait for; use `await`:\n- that is a bad note\nIt had \
         made 1 call, and what that did stays done.\n\nReturned:\ndone"
    );
    // What is caught later was heard.
    assert_eq!(gives("const p = notes.add({bad: 1}); await notes.add(); try { await p } catch {} return 1").await, "1");
}

/// What was not begun when the code failed is not begun afterwards.
#[tokio::test]
async fn code_that_fails_begins_no_more_calls() {
    let made = AtomicUsize::new(0);
    let failing = async |_: FunctionCall| {
        made.fetch_add(1, Ordering::SeqCst);
        tokio::time::sleep(Duration::from_millis(5)).await;
        ToolOutcome::error("no")
    };
    let code = "await Promise.all(Array.from({length: 100}, () => notes.add()))";
    let program = program(code, CodeLimits::default());
    let report = run(program, &AbandonedThreads::default(), &CancellationToken::new(), |_| false, failing).await;
    assert!(matches!(report.end, CodeEnd::Threw(_)));
    assert!(made.load(Ordering::SeqCst) < 100, "{made:?}");
}

#[tokio::test]
async fn cancelling_stops_the_code_and_the_calls() {
    for code in
        ["for (;;);", "await notes.add()", "for (;;) await null", "for (;;) { try { await notes.add() } catch {} }"]
    {
        let cancel = CancellationToken::new();
        let (begun, ended) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let waiting = async |_: FunctionCall| {
            begun.fetch_add(1, Ordering::SeqCst);
            cancel.cancelled().await;
            ended.fetch_add(1, Ordering::SeqCst);
            ToolOutcome::error("cancelled")
        };
        let abandoned = AbandonedThreads::default();
        let running = run(program(code, CodeLimits::default()), &abandoned, &cancel, |_| false, waiting);
        let (report, ()) = tokio::join!(running, async {
            tokio::time::sleep(Duration::from_millis(50)).await;
            cancel.cancel();
        });
        assert_eq!(report.end, CodeEnd::Stopped(CodeStop::Cancelled), "{code}");
        assert_eq!(begun.load(Ordering::SeqCst), ended.load(Ordering::SeqCst), "{code}");
        assert!(abandoned.threads.lock().unwrap().is_empty(), "{code}");
    }
}

/// The engine does not stop inside of a search: the turn goes on all the same.
#[tokio::test]
async fn code_that_cannot_be_stopped_is_left_alone() {
    let limits = CodeLimits { time: Duration::from_millis(50), ..CodeLimits::default() };
    let code = "const a = 'a'.repeat(4e6); return a.indexOf(a.slice(2e6) + 'b')";
    let abandoned = AbandonedThreads::default();
    let report = run(program(code, limits), &abandoned, &CancellationToken::new(), |_| false, world).await;
    assert_eq!(report.end, CodeEnd::Stopped(CodeStop::Stuck));
    assert!(!abandoned.too_many());
    let (first, second) = (Arc::new(()), Arc::new(()));
    abandoned.add(&first);
    abandoned.add(&second);
    assert!(abandoned.too_many());
}

/// Every name that code can see without being told of it.
#[tokio::test]
async fn code_reaches_only_javascript_and_its_functions() {
    let code = "return Object.getOwnPropertyNames(globalThis).filter(name => !/^[A-Z]/.test(name))";
    let found: BTreeSet<String> = serde_json::from_str(&gives(code).await).unwrap();
    let expected = [
        "console",
        "decodeURI",
        "decodeURIComponent",
        "encodeURI",
        "encodeURIComponent",
        "escape",
        "eval",
        "globalThis",
        "isFinite",
        "isNaN",
        "notes",
        "parseFloat",
        "parseInt",
        "queueMicrotask",
        "shop",
        "undefined",
        "unescape",
    ];
    assert_eq!(found, expected.map(str::to_owned).into());
    let code = "return Object.getOwnPropertyNames(globalThis).filter(name => /^[A-Z]/.test(name))";
    let found: BTreeSet<String> = serde_json::from_str(&gives(code).await).unwrap();
    let expected = [
        "AggregateError",
        "Array",
        "ArrayBuffer",
        "AsyncDisposableStack",
        "BigInt",
        "BigInt64Array",
        "BigUint64Array",
        "Boolean",
        "DataView",
        "Date",
        "DisposableStack",
        "Error",
        "EvalError",
        "FinalizationRegistry",
        "Float16Array",
        "Float32Array",
        "Float64Array",
        "Function",
        "Infinity",
        "Int16Array",
        "Int32Array",
        "Int8Array",
        "InternalError",
        "Iterator",
        "JSON",
        "Map",
        "Math",
        "NaN",
        "Number",
        "Object",
        "Promise",
        "Proxy",
        "RangeError",
        "ReferenceError",
        "Reflect",
        "RegExp",
        "Set",
        "String",
        "SuppressedError",
        "Symbol",
        "SyntaxError",
        "TypeError",
        "URIError",
        "Uint16Array",
        "Uint32Array",
        "Uint8Array",
        "Uint8ClampedArray",
        "WeakMap",
        "WeakRef",
        "WeakSet",
    ];
    assert_eq!(found, expected.map(str::to_owned).into());
    for (code, expected) in [
        (
            "return [typeof require, typeof process, typeof fetch, typeof setTimeout, typeof std, typeof os].join()",
            "none",
        ),
        ("return await import('fs').catch(error => 'no ' + typeof error)", "no object"),
        ("return await (0, eval)(\"import('std')\").catch(error => 'no ' + typeof error)", "no object"),
        ("return Object.keys(notes).join()", "read_all,add"),
        ("return Object.getPrototypeOf(notes) === null && Object.isFrozen(notes)", "true"),
        ("'use strict'; try { notes = 1 } catch (e) { return e.name }", "TypeError"),
    ] {
        let given = gives(code).await.replace("undefined,", "").replace("undefined", "none");
        assert_eq!(given, expected, "{code}");
    }
}

/// The host takes what it needs before the code begins.
#[tokio::test]
async fn code_that_changes_built_in_objects_changes_them_for_itself() {
    let code = "
        JSON.stringify = () => 'x'; JSON.parse = () => 'x'; Promise.prototype.then = () => 'x'; Array.from = null;
        Map.prototype.get = null; Object.prototype.toJSON = () => 'x'; Array.prototype.push = null; globalThis.Promise = null;
        Error = null; Reflect.apply = null; String = null; delete Object.prototype.toJSON;
        try { await notes.add({bad: 1}) } catch (e) { console.log(e.message) }
        return await notes.add({a: 1})";
    assert_eq!(gives(code).await, "Printed:\nthat is a bad note\n\nReturned:\nadded {\"a\":1}");
}
