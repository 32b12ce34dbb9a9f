//! The file and the resource: what they hold, and what cannot get out of them.

use proptest::prelude::*;

use super::*;

fn app(prd: &str, html: &str) -> App {
    App {
        name: "timer".to_owned(),
        title: "Timer".to_owned(),
        width: Some(320),
        height: None,
        network: Vec::new(),
        versions: vec![Version { version: 1, saved: "2026-11-15T09:30:00Z".to_owned(), note: "created".to_owned() }],
        prd: prd.to_owned(),
        html: html.to_owned(),
    }
}

#[test]
fn what_ends_a_script_element_in_the_description_ends_nothing() {
    let hostile = "</script><script>alert(1)</script><!-- <script> ]]> {title} \u{2028}";
    let app = app(hostile, "<!doctype html><title>T</title>{app}</script>");
    let file = app.to_file();
    assert_eq!(App::from_file(&file).unwrap(), app);
    assert_eq!(file.matches("</script>").count(), 2, "the block of data and the frame's own script");
    assert!(!file.contains("alert(1)</script>"));
}

#[test]
fn a_title_is_text_in_the_frame_and_nothing_else() {
    let file = App { title: "\"><script>1</script>&".to_owned(), ..app("p", "h") }.to_file();
    assert!(file.contains("<title>&quot;&gt;&lt;script&gt;1&lt;/script&gt;&amp;</title>"));
}

#[test]
fn without_origins_nothing_is_reached_and_with_them_no_code_is() {
    let strict = policy(&[]);
    assert!(strict.starts_with("default-src 'none'; script-src 'unsafe-inline'; "), "{strict}");
    assert!(strict.contains("connect-src 'none'; frame-src 'none'; form-action 'none'; base-uri 'none'"), "{strict}");
    assert!(!strict.contains("http"), "{strict}");
    let open = policy(&[NetworkOrigin::try_from("https://api.example.com".to_owned()).unwrap()]);
    assert!(
        open.contains("script-src 'unsafe-inline';") && open.contains("connect-src https://api.example.com;"),
        "{open}"
    );
}

#[test]
fn page_starts_with_its_policy_and_the_host_gets_the_same() {
    let mut app = app("p", "<!DOCTYPE html>\n<html><head><title>T</title></head></html>");
    let resource = app.to_resource();
    assert!(resource.starts_with("<!doctype html><meta http-equiv=\"Content-Security-Policy\" content=\"default-src"));
    assert!(resource.contains("\"><script>(function guard() {"), "{resource}");
    assert!(resource.ends_with("</script><!DOCTYPE html>\n<html><head><title>T</title></head></html>"));
    let odd = App { html: "\u{a0}<!doctype html><p>x".to_owned(), ..app.clone() }.to_resource();
    assert!(odd.starts_with("<!doctype html><meta http-equiv=\"Content-Security-Policy\""), "whatever it begins with");
    assert_eq!(
        app.meta(),
        json!({
            "ui": {
                "csp": {"connectDomains": [], "resourceDomains": [], "frameDomains": [], "baseUriDomains": []},
                "permissions": {"clipboardWrite": {}},
                "prefersBorder": true,
            },
            "skein": {"width": 320, "height": null},
        })
    );
    app.network = vec![NetworkOrigin::try_from("https://api.example.com".to_owned()).unwrap()];
    assert_eq!(app.meta()["ui"]["csp"]["connectDomains"], json!(["https://api.example.com"]));
}

#[test]
fn a_file_that_was_tampered_with_cannot_loosen_its_policy() {
    let file = app("p", "h")
        .to_file()
        .replace("\"versions\"", "\"network\":[\"https://a.example; script-src *\"],\"versions\"");
    assert!(App::from_file(&file).is_err());
    assert!(matches!(App::from_file("<p>hello"), Err(AppFileError::NoApp)));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 128, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn what_was_written_is_what_is_read(prd in any::<String>(), html in any::<String>(), title in any::<String>()) {
        let app = App { title, ..app(&prd, &html) };
        let file = app.to_file();
        prop_assert_eq!(file.matches("</script").count(), 2);
        prop_assert_eq!(App::from_file(&file).unwrap(), app);
    }
}
