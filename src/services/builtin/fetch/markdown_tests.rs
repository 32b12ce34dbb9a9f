//! Pages as they are written, and what a model reads of them.

use expect_test::{Expect, expect};
use proptest::prelude::*;

use super::*;

fn url() -> Url {
    Url::parse("https://example.com/docs/page.html?x=1").unwrap()
}

fn check(html: &str, expect: Expect) {
    expect.assert_eq(&render(html, &url(), Style::Markdown));
}

#[test]
fn headings_paragraphs_and_emphasis() {
    check(
        "<!doctype html><html><head><title>Ignored: there is a heading</title><style>p{}</style></head><body>\
         <h1>One <em>and</em> only</h1><p>First\n   paragraph, <b> bold </b>and <i>slanted</i>, <s>gone</s>.\
         <p>Second&nbsp;with &lt;tags&gt; &amp; &eacute;<br>on two lines.</p><h3>Third</h3>text<hr>end",
        expect![[r#"
            # One *and* only

            First paragraph, **bold** and *slanted*, ~~gone~~.

            Second with <tags> & é
            on two lines.

            ### Third

            text

            ---

            end"#]],
    );
}

#[test]
fn lists_in_lists() {
    check(
        "<p>Before</p><ul><li>one<li>two<ol start=3><li>deep</li><li><p>deeper</p><p>with more</p></li></ol></li>\
         <li><ul><li>only inside</li></ul></li></ul><p>After</p>",
        expect![[r#"
            Before

            - one
            - two
              3. deep
              4. deeper

                 with more
            - - only inside

            After"#]],
    );
}

#[test]
fn links_and_images_are_whole() {
    check(
        "<a href='../other?a=1#top'>Other</a> <a href=\"//cdn.example/x\">x</a> <a href='javascript:alert(1)'>no</a> \
         <a href='#here'>here</a> <a href='mailto:a@b.c'>mail</a> <a href='/p_(x)'>paren</a> \
         <h2>Title<a class=anchor href='/docs/page.html#title'>¶</a></h2>\
         <img src=logo.png alt='The  logo'><img src=tracker.gif><img src='data:image/png;base64,xx' alt='inline'>",
        expect![[r#"
            [Other](https://example.com/other?a=1#top) [x](https://cdn.example/x) no here [mail](mailto:a@b.c) [paren](https://example.com/p_%28x%29)

            ## Title

            ![The logo](https://example.com/docs/logo.png)inline"#]],
    );
}

#[test]
fn code_stays_as_it_is() {
    check(
        "<p>Call <code>f(&quot;x&quot;)</code> or <code>a`b</code>.</p><pre><code class=\"language-rust hljs\">fn main() {\n    \
         <span>let</span> x = &amp;1;\n}\n</code></pre><pre>has ``` in it</pre><ul><li>item<pre>\n  indented\n</pre></ul>",
        expect![[r#"
            Call `f("x")` or `` a`b ``.

            ```rust
            fn main() {
                let x = &1;
            }
            ```

            ````
            has ``` in it
            ````

            - item

              ```
                indented
              ```"#]],
    );
}

#[test]
fn tables() {
    check(
        "<table><caption>Ports</caption><thead><tr><th>Name<th>Port</thead><tbody><tr><td>a|b<td><p>80</p><p>or <b>81</b></p>\
         <tr><td>only one</table><table><tr><td>a single column</td></tr><tr><td>is text</td></tr></table>",
        expect![[r#"
            Ports

            | Name | Port |
            | --- | --- |
            | a\|b | 80 or **81** |
            | only one |  |

            a single column

            is text"#]],
    );
}

#[test]
fn a_table_that_only_lays_out_is_no_table() {
    check(
        "<table><tr><td>left<td><h2>News</h2><ul><li>one</ul><table><tr><th>k<th>v<tr><td>1<td>2</table></td></tr></table>end",
        expect![[r#"
            left

            ## News

            - one

            | k | v |
            | --- | --- |
            | 1 | 2 |

            end"#]],
    );
}

#[test]
fn quotations() {
    check(
        "<blockquote><p>First</p><p>second <q>said</q></p><blockquote>deeper</blockquote></blockquote><p>after",
        expect![[r#"
            > First
            >
            > second "said"
            >
            > > deeper

            after"#]],
    );
}

#[test]
fn noise_is_left_out() {
    check(
        "<title> The  page </title><nav><ul><li>Home</ul></nav><header>Head</header><script>if (a < b) { '</p>' }</script>\
         <div hidden>secret<div>more</div></div><span aria-hidden=true>icon</span><main><article>Text<footer>by me</footer></article></main>\
         <button>Buy</button><noscript>turn it on</noscript><svg><title>x</title></svg><template>t</template>\
         <!-- comment --><footer>Imprint</footer>",
        expect![[r#"
            # The page

            Head

            Text

            by me"#]],
    );
}

#[test]
fn noise_that_never_ends_does_not_take_the_page_along() {
    check("<nav>Menu<p>Text", expect!["Menu\n\nText"]);
}

#[test]
fn what_nobody_sees_is_not_shown() {
    check("vis\u{202e}ible\u{e0041}\u{e0042}\u{1b}[0m", expect!["visible[0m"]);
}

#[test]
fn definitions() {
    check("<dl><dt>Term<dd>What it means.</dl>", expect!["**Term**\n\nWhat it means."]);
}

#[test]
fn plain_text_has_no_marks() {
    let html =
        "<h1>A</h1><p>b <b>c</b> <a href=/x>d</a></p><ul><li>e</ul><pre>f\n g</pre><table><tr><td>1<td>2</table>";
    expect![[r#"
        A

        b c d

        - e

        f
         g

        1	2"#]]
    .assert_eq(&render(html, &url(), Style::Text));
}

/// Pages that make parsers build trees without bounds.
#[test]
fn hostile_pages_take_no_more_than_their_share() {
    let many = |part: &str| part.repeat(200_000 / part.len());
    for html in [
        many("<div>"),
        many("<ul><li>"),
        many("<blockquote>") + &many("<p>x"),
        many("<table><tr><td>"),
        many("<b x=1>") + &many("<p>y"),
        format!("<a href='/{}'>", "x".repeat(1_900)) + &many("<p>y"),
        format!("<table>{}", "<tr><td colspan=1000>x".repeat(2_000)),
        format!("<a {}>", many("x1 ")),
        format!("<pre>{}", many("\n")),
        many("</ul>") + &many("</table>"),
        many("&amp"),
        many("<!--"),
        many("<select>"),
    ] {
        let text = render(&html, &url(), Style::Markdown);
        assert!(text.len() < 2 * MAX_OUTPUT, "{} bytes of {}", text.len(), &html[..40]);
    }
}

fn tag() -> impl Strategy<Value = String> {
    let names = [
        "p",
        "div",
        "h1",
        "h3",
        "ul",
        "ol",
        "li",
        "blockquote",
        "table",
        "tr",
        "td",
        "th",
        "pre",
        "code",
        "b",
        "i",
        "a href=/x",
        "img src=a alt=b",
        "br",
        "hr",
        "nav",
        "footer",
        "article",
        "title",
        "script",
        "svg",
        "dt",
        "dd",
        "caption",
        "q",
        "textarea",
        "div hidden",
    ];
    let name = proptest::sample::select(names.to_vec());
    (name, any::<bool>()).prop_map(|(name, end)| {
        if end { format!("</{}>", name.split(' ').next().unwrap_or_default()) } else { format!("<{name}>") }
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn any_soup_of_tags_is_rendered(parts in proptest::collection::vec(prop_oneof![2 => tag(), 1 => "\\PC{0,6}", 1 => "[ \n]{1,2}"], 0..60)) {
        let html = parts.concat();
        for style in [Style::Markdown, Style::Text] {
            let text = render(&html, &url(), style);
            prop_assert!(text.len() < 100 + 50 * html.len(), "{text}");
        }
    }

    /// No words of a page of plain elements are lost, and their order stays.
    #[test]
    fn words_stay_in_order(parts in proptest::collection::vec((proptest::sample::select(vec!["p", "li", "h2", "b", "blockquote", "div", "td", "code"]), 0..1000_u32), 1..30)) {
        let html: String = parts.iter().map(|(tag, word)| format!("<{tag}>w{word}</{tag}> ")).collect();
        let words: Vec<_> = parts.iter().map(|(_, word)| format!("w{word}")).collect();
        let text = render(&html, &url(), Style::Text);
        let found: Vec<_> = text.split(|c: char| !c.is_alphanumeric()).filter(|word| word.starts_with('w')).collect();
        prop_assert_eq!(found, words);
    }
}
