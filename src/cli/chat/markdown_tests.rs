//! Markdown in all widths and pieces.

use expect_test::expect;
use proptest::prelude::*;

use super::*;

fn shown(text: &str, width: usize) -> String {
    let mut markdown = Markdown::default();
    let begun = markdown.push(text, width);
    begun + &markdown.end(width)
}

fn plain(text: &str, width: usize) -> String {
    anstream::adapter::strip_str(&shown(text, width)).to_string()
}

#[test]
fn blocks_are_set_for_the_screen() {
    let text = "\n\n# Plan\n\n\nFirst **read** the code, then change `main.rs` and run all of the tests.\n- one item that is too long for a line\n  - nested\n12. twelve\n> quoted words that go on and on\n\n```rust\nfn main() {\n\tlet x = \"*\";\n}\n```\n---\n| a | b |\n|---|--:|\n| x | 1 |\nDone";
    expect![[r#"
        Plan

        First read the code, then
        change main.rs and run all of
        the tests.
        • one item that is too long
          for a line
          • nested
        12. twelve
        │ quoted words that go on and
        │ on

        ```rust
        fn main() {
            let x = "*";
        }
        ```
        ──────────────────────────────
        a  b
        ─  ─
        x  1
        Done
    "#]]
    .assert_eq(&plain(text, 30));
}

#[test]
fn words_are_shown_before_the_line_ends() {
    let mut markdown = Markdown::default();
    assert_eq!(markdown.push("Hello wor", 80), "Hello");
    assert_eq!(markdown.push("ld **bo", 80), " world");
    assert!(!markdown.is_at_margin());
    assert_eq!(anstream::adapter::strip_str(&markdown.push("ld** x", 80)).to_string(), " bold");
    assert_eq!(markdown.push("\n", 80), " x\n");
    assert!(markdown.is_at_margin());
}

#[test]
fn a_new_width_holds_for_what_follows() {
    let mut markdown = Markdown::default();
    let wide = markdown.push("one two three four ", 80);
    let narrow = markdown.push("five six seven ", 10);
    assert_eq!(wide + &narrow, "one two three four\nfive six\nseven");
}

#[test]
fn a_remark_in_between_breaks_neither_a_word_nor_a_block() {
    let mut markdown = Markdown::default();
    assert_eq!(
        markdown.push("- one tw", 80) + markdown.interrupt(),
        format!("{} one\n", item(Margin::default(), "•").first.trim_end())
    );
    assert!(markdown.is_at_margin());
    assert_eq!(markdown.push("o three\n```\ncode", 80), "  two three\n\u{1b}[90m```\u{1b}[0m\n");
    assert_eq!(markdown.interrupt(), "");
    assert_eq!(markdown.push(" **more**\n", 80), "code **more**\n");
}

/// Text as models write it, with whatever may confuse a reader of marks.
fn texts() -> impl Strategy<Value = String> {
    let piece = prop_oneof![
        "[a-z]{1,7}",
        "[ \n]{1,2}",
        "[ \t\u{a0}\u{3000}]{1,2}",
        "(\\*|_|`|~|\\[|\\]|\\(|\\)|!|\\||#|>|-|\\\\){1,3}",
        "\n(```|- |1. |# |> |\\| |---|\\* \\*\t\\*)",
        "(日本|語。|👩‍👩‍👧|e\u{301}|ñ)",
        "\u{1b}\\[[0-9]m",
        "[\u{7}\u{9b}\r\t\u{202e}]",
    ];
    proptest::collection::vec(piece, 0..60).prop_map(|pieces| pieces.concat())
}

proptest! {
    #[test]
    fn the_pieces_it_comes_in_do_not_matter(text in texts(), cuts in proptest::collection::vec(0_usize..400, 0..40), width in 5_usize..60) {
        let mut cuts: Vec<_> = cuts.into_iter().filter(|cut| text.is_char_boundary(*cut) && *cut <= text.len()).collect();
        cuts.sort_unstable();
        let mut markdown = Markdown::default();
        let (mut pieced, mut from) = (String::new(), 0);
        for cut in cuts {
            pieced.push_str(&markdown.push(&text[from..cut], width));
            from = cut;
        }
        pieced.push_str(&markdown.push(&text[from..], width));
        pieced.push_str(&markdown.end(width));
        prop_assert_eq!(pieced, shown(&text, width));
    }

    #[test]
    fn no_letter_is_lost_and_nothing_steers_the_terminal(text in texts(), width in 5_usize..60) {
        let whole = shown(&text, width);
        let plain = anstream::adapter::strip_str(&whole).to_string();
        prop_assert!(!plain.contains(|c: char| (c.is_control() && c != '\n') || c == '\u{202e}'), "{plain:?}");
        let letters = |text: &str| text.chars().filter(|c| c.is_alphabetic()).collect::<String>();
        // The names of a table's columns are said again for every row that is shown as a list.
        if !text.contains("---") {
            prop_assert_eq!(letters(&plain), letters(&text));
        }
    }
}
