//! What is kept, what is refused, and what is said about it.

use proptest::prelude::*;

use super::*;

fn page(body: &str) -> String {
    format!("<!doctype html>\n<html lang=\"en\"><head><title>T</title></head><body>\n{body}\n</body></html>\n")
}

/// The problems of a body, which begins in line 3.
fn problems(body: &str) -> Vec<String> {
    problems_of(&page(body), &[])
}

fn problems_of(html: &str, network: &[NetworkOrigin]) -> Vec<String> {
    match check(html, network) {
        Ok(_) => Vec::new(),
        Err(ToolRefusal(said)) => {
            said.strip_prefix("the page was not kept; correct ").unwrap().lines().map(str::to_owned).collect()
        }
    }
}

fn origin(text: &str) -> NetworkOrigin {
    NetworkOrigin::try_from(text.to_owned()).unwrap()
}

#[test]
fn a_page_with_everything_inline_is_kept_under_its_title() {
    let html = r##"<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title> Lunch
  Wheel </title><link rel="icon" href="data:,">
<style>body { background: url("data:image/gif;base64,R0lGODlhAQABAAAAACw=") } .a { fill: url(#g) }</style></head>
<body><p>One<p>Two<ul><li>a<li>b</ul><img src="data:image/gif;base64,R0lGODlhAQABAAAAACw=" alt=""><br/>
<svg viewBox="0 0 1 1"><title>Wheel</title><circle r="1" fill="url(#g)"/><g><path d="M0 0"/></g></svg>
<form onsubmit="return add(event)"><button>Add</button></form><a href="#top">Up</a>
<table><tr><td>1<td>2</table>
<script type="application/json">{"fetch(": "https://example.com"}</script>
<script>
  const svg = "http://www.w3.org/2000/svg"; // a name, not an address
  const links = ["https://example.com/a"], note = "see https://example.com"; // https://example.com
  if (1 < 2 && action === "import") fetchCards(); function fetchCards() { return "https://example.com" }
</script></body></html>
"##;
    assert_eq!(check(html, &[]), Ok("Lunch Wheel".to_owned()));
}

#[test]
fn a_page_is_one_whole_document() {
    for (html, expected) in [
        ("<p>hello", "begins with `<!doctype html>`"),
        ("<html><title>T</title></html>", "begins with `<!doctype html>`"),
        ("\u{a0}<!doctype html><title>T</title>", "begins with `<!doctype html>`"),
        ("\u{2003}<!doctype html><title>T</title>", "begins with `<!doctype html>`"),
        ("\u{feff}<!doctype html><title>T</title>", "begins with `<!doctype html>`"),
        ("<!-- x --><!doctype html><title>T</title>", "begins with `<!doctype html>`"),
        ("<!doctype html><p>no title", "line 1: the page has no `<title>`"),
        ("<!doctype html><title>T</title>\n<!doctype html>", "line 2: a second document begins"),
        ("<!doctype html><html><title>T</title>\n<html>", "line 2: a second `<html>` begins"),
        ("<!doctype html><html><title>T</title></html>\nmore", "line 1: text comes after `</html>`"),
        ("<!doctype html><html><title>T</title></html>\n<p>", "line 2: `<p>` comes after `</html>`"),
    ] {
        let Err(ToolRefusal(said)) = check(html, &[]) else { panic!("{html} was kept") };
        assert!(said.contains(expected), "{html}: {said}");
    }
    assert_eq!(check("\r\n\t \u{c}<!doctype html><title>T</title>", &[]), Ok("T".to_owned()), "blank in HTML");
    let Err(ToolRefusal(said)) = check(&page(&"x".repeat(MAX_HTML)), &[]) else { panic!("too long") };
    assert!(said.starts_with("the page has 200084 bytes, and an app at most 200000; "), "{said}");
}

#[test]
fn what_a_parser_would_have_to_guess_is_named_with_its_line() {
    for (body, expected) in [
        ("<div>", "line 3: `<div>` is never closed"),
        ("<div><span></div>", "line 3: `<span>` is not closed before `</div>`"),
        ("</section>", "line 3: `</section>` closes nothing that is open"),
        ("\n<p id=a id=b>", "line 4: HTML error `duplicate-attribute`"),
        ("a < b", "line 3: HTML error `invalid-first-character-of-tag-name`"),
        ("<p>\0", "line 3: HTML error `unexpected-null-character`"),
    ] {
        assert_eq!(problems(body), [expected], "{body}");
    }
    let unended = "<!doctype html><title>T</title>\n<script>let a = 1;";
    assert_eq!(problems_of(unended, &[]), ["line 2: `<script>` is never closed"]);
    assert!(!problems("<!-- never ended").is_empty());
    assert!(!problems("<p title=\"never ended").is_empty());
}

#[test]
fn whatever_comes_from_elsewhere_is_refused_and_its_place_named() {
    for (body, expected) in [
        (r#"<script src="https://cdn.example.com/x.js"></script>"#, "`<script src>` is not allowed"),
        (r#"<script src="data:text/javascript,1"></script>"#, "`<script src>` is not allowed"),
        (r#"<script type="importmap">{}</script>"#, "makes the browser load something"),
        (r#"<link rel="stylesheet" href="data:text/css,">"#, "`<link rel=\"stylesheet\">` is not allowed"),
        (r#"<link rel="preconnect" href="https://a.example">"#, "`<link rel=\"preconnect\">` is not allowed"),
        (r#"<meta http-equiv="refresh" content="0;url=https://a.example">"#, "`<meta http-equiv=\"refresh\">`"),
        (r#"<img src="https://a.example/x.png">"#, "`img src` needs https://a.example"),
        (r#"<img src="//a.example/x.png">"#, "`img src` needs https://a.example"),
        (r#"<img src="x.png">"#, "`img src` names another file"),
        (r#"<img srcset="x.png 2x" alt="">"#, "`srcset` is not allowed"),
        (r#"<video poster="http://a.example/"></video>"#, "`video poster` needs http://a.example"),
        (r#"<a href="https://a.example">x</a>"#, "an app cannot leave its page"),
        (r#"<form action="/submit"></form>"#, "`form action` names another file or page"),
        (r#"<button formaction="https://a.example">x</button>"#, "an app cannot leave its page"),
        (r#"<svg><image xlink:href="https://a.example/x"/></svg>"#, "`image xlink:href` needs https://a.example"),
        (r#"<iframe srcdoc="x"></iframe>"#, "`<iframe>` is not allowed"),
        (r#"<object data="x"></object>"#, "`<object>` is not allowed"),
        (r#"<p style="background: URL( 'https://a.example/x' )">"#, "a style needs https://a.example"),
        (r#"<style>@import "x.css";</style>"#, "`@import` is not allowed"),
        ("<script>\nfetch('/api')</script>", "line 4: the script uses `fetch`, and the app has no network"),
        ("<script>fetch(address)</script>", "the script uses `fetch`"),
        ("<script>fetch(`https://a.example/${x}`)</script>", "the script uses `fetch`"),
        (r#"<button onclick="fetch('https://a.example/x')">x</button>"#, "the script goes to https://a.example"),
        ("<script>const x = new XMLHttpRequest;</script>", "`XMLHttpRequest`, which no app may"),
        (r#"<script>new WebSocket("wss://a.example")</script>"#, "the script goes to wss://a.example"),
        ("<script>navigator.sendBeacon(u)</script>", "the script uses `sendBeacon`"),
        ("<script>new Image().src = \"https://a.example/x\"</script>", "the script goes to https://a.example"),
        ("<script>const a = new Audio('https://a.example/x')</script>", "the script goes to https://a.example"),
        ("<script>location.href = `https://a.example/${x}`</script>", "the script goes to https://a.example"),
        ("<script>location = 'https://a.example'</script>", "the script goes to https://a.example"),
        ("<script>location.assign('//a.example')</script>", "the script goes to https://a.example"),
        ("<script>p.innerHTML = '<img src=\"https://a.example/x\">'</script>", "the script goes to https://a.example"),
        ("<script>p.innerHTML = \"<img src=https://a.example/x>\"</script>", "the script goes to https://a.example"),
        ("<script>i.setAttribute('src', 'https://a.example/x')</script>", "the script goes to https://a.example"),
        ("<script>fetch?.(address)</script>", "the script uses `fetch`"),
        ("<script>const get = fetch; get(address)</script>", "the script uses `fetch`"),
        ("<script>const get = window.fetch\n</script>", "the script uses `fetch`"),
        ("<script type=\"text/ecmascript\">fetch(address)</script>", "the script uses `fetch`"),
        (r#"<style>p { background: image-set("https://a.example/x" 1x) }</style>"#, "a style needs https://a.example"),
        ("<script>await import(\"x\")</script>", "the script uses `import(`, which no app may"),
        ("<script type=\"module\">\nimport {a} from 'x'</script>", "which no app may"),
        ("<script>new RTCPeerConnection()</script>", "`RTCPeerConnection`, which no app may"),
        ("<script>result = eval(expression)</script>", "`eval(`, which no app may"),
        ("<script>document.write('x')</script>", "`document.write(`, which no app may"),
    ] {
        let found = problems(body);
        assert!(found.len() == 1 && found[0].contains(expected), "{body}: {found:#?}");
        assert!(found[0].starts_with("line "), "{body}");
    }
}

#[test]
fn allowed_origin_serves_data_and_images_but_no_code() {
    let network = [origin("https://api.example.com"), origin("wss://api.example.com")];
    let fine = page(
        r#"<img src="https://api.example.com/x.png" alt=""><p style="background: url(https://api.example.com/y)">
        <script>fetch("https://api.example.com/v1"); fetch(`${base}/v1`); new WebSocket("wss://api.example.com");</script>"#,
    );
    assert_eq!(check(&fine, &network), Ok("T".to_owned()));
    for body in [
        r#"<script src="https://api.example.com/x.js"></script>"#,
        r#"<link rel="stylesheet" href="https://api.example.com/x.css">"#,
        r#"<a href="https://api.example.com/">x</a>"#,
        r#"<img src="https://other.example.com/x.png" alt="">"#,
        r#"<script>fetch("https://other.example.com/v1")</script>"#,
        "<script>new RTCPeerConnection()</script>",
    ] {
        assert_eq!(problems_of(&page(body), &network).len(), 1, "{body}");
    }
}

#[test]
fn many_problems_are_named_in_order_and_not_without_end() {
    let found = problems(&"<img src=\"x.png\">\n".repeat(1_000));
    assert_eq!(found.len(), MAX_PROBLEMS);
    assert!(found[0].starts_with("line 3: ") && found[7].starts_with("line 10: "), "{found:#?}");
    let same = problems("<img src=\"x.png\"><img src=\"x.png\"><p id=a id=b>");
    assert_eq!(same.len(), 2, "what is the same is said once: {same:#?}");
    let deep = problems(&"<div>\n".repeat(30_000));
    assert_eq!(deep.len(), MAX_PROBLEMS);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

    /// Nothing panics and nothing hangs, whatever stands in a page.
    #[test]
    fn any_text_is_answered(pieces in proptest::collection::vec(
        prop_oneof!["[<>/!a-z\"'= -]{0,12}", ".{0,8}", Just("<script>".to_owned()), Just("</script>".to_owned()),
            Just("<svg>".to_owned()), Just("<!--".to_owned()), Just("url(".to_owned()), Just("<style>".to_owned())], 0..20)) {
        let body = pieces.concat();
        let found = problems(&body);
        prop_assert!(found.len() <= MAX_PROBLEMS);
        prop_assert!(found.iter().all(|line| line.starts_with("line ")));
    }
}
