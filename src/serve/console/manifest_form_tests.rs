//! Tests of the form of a manifest: which inputs the schema gives, and what a form that was sent changes.

use super::super::schema_field::FieldInput;
use super::*;

const SERVICE: &str = "version: 1\nkind: service\nname: web\n# mine\ndescription: Reads.\ntransport:\n  stdio:\n    \
                       command: serve\n    args: [a, b]\n    env:\n      HOST: here # near\n      PORT: \"1\"\n";

const AGENT: &str = "version: 1\nkind: agent\nname: a\ndescription: A.\ndelegates:\n  # tests\n  - coding/qa # quick\n  \
                     - to: coding/backend\n    workspace: worktree # apart\n  - {to: goose/*, workspace: shared}\n\
                     modes:\n  - slug: one\n    description: One.\n    tool_groups:\n      - read # safe\n      \
                     - {group: edit, files: \"*.md\"}\n  # second\n  - slug: two\n    description: Two.\n";

fn form_of_text(kind: DocumentKind, text: &str) -> SchemaForm {
    SchemaForm::of(kind, &parse(&SourceFile::new("a.yaml", text)).unwrap())
}

fn form() -> SchemaForm {
    form_of_text(DocumentKind::Service, SERVICE)
}

fn field(path: &str) -> SchemaField {
    form().fields.into_iter().find(|field| field.path.join(".") == path).unwrap_or_else(|| panic!("{path}"))
}

fn apply(sent: &str) -> Result<String, FormError> {
    form().apply(SERVICE, &FormFields::parse(sent.as_bytes()))
}

fn apply_agent(sent: &str) -> Result<String, FormError> {
    form_of_text(DocumentKind::Agent, AGENT).apply(AGENT, &FormFields::parse(sent.as_bytes()))
}

#[test]
fn the_schema_gives_each_field_its_input() {
    assert_eq!((field("name").input, field("name").is_required), (FieldInput::Text, true));
    assert_eq!(field("description").hint.as_deref(), Some("One sentence on what the service offers."));
    let choice = |words: [&str; 2]| FieldInput::Choice(words.map(str::to_owned).to_vec());
    assert_eq!(field("status").input, choice(["ready", "planned"]));
    assert_eq!((field("restart.max").input, field("timeouts.call").input), (FieldInput::Number, FieldInput::Text));
    let args = field("transport.stdio.args");
    assert_eq!((args.input, args.value.as_str()), (FieldInput::Lines, "a\nb"));
    let form = form();
    assert!(!form.fields.iter().any(|field| field.path.join(".").starts_with("transport.http")), "another form");
    assert!(form.others.contains(&"sandbox.network".to_owned()), "{:?}", form.others);
    assert!(!form.fields.iter().any(|field| field.path == ["kind"]));
}

#[test]
fn lists_of_mappings_and_named_items_are_in_the_form() {
    let names = |form: &SchemaForm| -> Vec<String> { form.lists.iter().map(|list| list.name("")).collect() };
    let service = form();
    for name in ["transport.stdio.env", "groups", "sandbox.read"] {
        assert!(names(&service).contains(&name.to_owned()), "{name}: {:?}", names(&service));
    }
    let agent = form_of_text(DocumentKind::Agent, AGENT);
    for name in ["delegates", "modes", "metadata.dependencies", "metadata.links"] {
        assert!(names(&agent).contains(&name.to_owned()), "{name}: {:?}", names(&agent));
    }
    let modes = agent.lists.iter().find(|list| list.path == ["modes"]).unwrap();
    assert!(names(&modes.items[0].form).contains(&"tool_groups".to_owned()), "a list in an item");
    let config = form_of_text(DocumentKind::Config, "version: 1\n");
    for name in ["permissions", "profiles", "hooks.Stop", "serve.principals"] {
        assert!(names(&config).contains(&name.to_owned()), "{name}: {:?}", names(&config));
    }
}

#[test]
fn only_what_was_changed_changes_in_the_text() {
    let same = "field.name=web&field.status=&field.transport.stdio.args=a%0D%0Ab";
    assert_eq!(apply(same).as_deref(), Ok(SERVICE));
    let new = apply("field.description=Reads+more.&field.restart.max=2&field.status=planned").unwrap();
    let added = "status: \"planned\"\nrestart:\n  max: 2\n";
    assert_eq!(new, format!("{}{added}", SERVICE.replace("Reads.", "\"Reads more.\"")));
}

/// A page that was sent as it is: each list with all items.
const SAME: &str = "list.delegates=1&item.delegates=0&field.delegates.0.to=coding/qa&field.delegates.0.workspace=\
                    &item.delegates=1&field.delegates.1.to=coding/backend&field.delegates.1.workspace=worktree\
                    &item.delegates=2&field.delegates.2.to=goose/*&field.delegates.2.workspace=shared";

#[test]
fn items_that_were_not_changed_stay_as_they_are() {
    assert_eq!(apply_agent(SAME).as_deref(), Ok(AGENT));
    assert_eq!(apply_agent("field.name=a").as_deref(), Ok(AGENT), "the form does not have the lists");
}

#[test]
fn an_item_of_a_list_changes_in_place() {
    let changed = |from: &str, to: &str| apply_agent(&SAME.replace(from, to));
    assert_eq!(changed("=coding/qa", "=coding/*"), Ok(AGENT.replace("coding/qa", "\"coding/*\"")), "a short item");
    let long = AGENT.replace("- coding/qa # quick", "- to: \"coding/qa\" # quick\n    workspace: \"worktree\"");
    assert_eq!(changed("0.workspace=", "0.workspace=worktree"), Ok(long), "it needs the long form");
    let other = AGENT.replace("workspace: worktree", "workspace: \"shared\"");
    assert_eq!(changed("1.workspace=worktree", "1.workspace=shared"), Ok(other));
    let removed = AGENT.replace("    workspace: worktree # apart\n", "");
    assert_eq!(changed("1.workspace=worktree", "1.workspace="), Ok(removed));
    let in_brackets = AGENT.replace("{to: goose/*, workspace: shared}", "to: \"goose/*\"");
    assert_eq!(changed("2.workspace=shared", "2.workspace="), Ok(in_brackets));
}

#[test]
fn items_are_added_removed_and_moved() {
    let moved = apply_agent("list.delegates=1&item.delegates=1&item.delegates=0").unwrap();
    let (first, second) =
        ("  # tests\n  - coding/qa # quick\n", "  - to: coding/backend\n    workspace: worktree # apart\n");
    let third = "  - {to: goose/*, workspace: shared}\n";
    let before = [first, second, third].concat();
    assert_eq!(moved, AGENT.replace(&before, &[second, first].concat()));
    let added = apply_agent(&format!("{SAME}&item.delegates=n1&field.delegates.n1.to=a/b")).unwrap();
    assert_eq!(added, AGENT.replace(&before, &format!("{before}  - \"a/b\"\n")), "a short item if that is enough");
    let long = "&item.delegates=n7&field.delegates.n7.to=a/b&field.delegates.n7.workspace=shared";
    let lines = "  - to: \"a/b\"\n    workspace: \"shared\"\n";
    assert_eq!(apply_agent(&format!("{SAME}{long}")), Ok(AGENT.replace(&before, &format!("{before}{lines}"))));
    assert_eq!(apply_agent("list.delegates=1"), Ok(AGENT.replace(&format!("delegates:\n{before}"), "")));
}

#[test]
fn a_list_in_an_item_changes_in_place() {
    let groups = "list.modes.0.tool_groups=1&item.modes.0.tool_groups=1&item.modes.0.tool_groups=0";
    let new = apply_agent(&format!("list.modes=1&item.modes=0&item.modes=1&{groups}")).unwrap();
    let (one, other) = ("      - read # safe\n", "      - {group: edit, files: \"*.md\"}\n");
    assert_eq!(new, AGENT.replace(&[one, other].concat(), &[other, one].concat()));
    let mode = "list.modes=1&item.modes=0&item.modes=1&item.modes=n1&field.modes.n1.slug=three\
                &field.modes.n1.description=Three.&field.modes.n1.sandbox.files=none&list.modes.n1.tool_groups=1\
                &item.modes.n1.tool_groups=n2&field.modes.n1.tool_groups.n2.group=edit\
                &field.modes.n1.tool_groups.n2.files=*.rs";
    let lines = "  - slug: \"three\"\n    description: \"Three.\"\n    sandbox:\n      files: \"none\"\n    tool_groups:\n      \
                 - group: \"edit\"\n        files: \"*.rs\"\n";
    assert_eq!(apply_agent(mode), Ok(format!("{AGENT}{lines}")));
}

#[test]
fn named_items_are_renamed_changed_added_and_removed() {
    let env = "transport.stdio.env";
    let known = format!("list.{env}=1&item.{env}=0&key.{env}.0=HOST&field.{env}.0.=here");
    let with_port = format!("{known}&item.{env}=1&key.{env}.1=PORT&field.{env}.1.=1");
    assert_eq!(apply(&with_port).as_deref(), Ok(SERVICE));
    assert_eq!(apply(&known), Ok(SERVICE.replace("      PORT: \"1\"\n", "")));
    assert_eq!(apply(&with_port.replace("0=HOST", "0=NAME")), Ok(SERVICE.replace("HOST:", "NAME:")));
    assert_eq!(apply(&with_port.replace("=here", "=there")), Ok(SERVICE.replace("here #", "\"there\" #")));
    let group = "list.groups=1&item.groups=n1&key.groups.n1=read&field.groups.n1.=get%0D%0Alist";
    assert_eq!(apply(group), Ok(format!("{SERVICE}groups:\n  read:\n    - \"get\"\n    - \"list\"\n")));
}

#[test]
fn items_that_do_not_fit_are_refused() {
    let field = || "delegates".to_owned();
    let unknown = |item: &str| Err(FormError::UnknownItem { field: field(), item: item.to_owned() });
    for item in ["3", "x", "n", "n-1", ""] {
        assert_eq!(apply_agent(&format!("list.delegates=1&item.delegates={item}")), unknown(item));
    }
    assert_eq!(apply_agent("list.delegates=1&item.delegates=0&item.delegates=0"), unknown("0"), "twice");
    let empty = Err(FormError::EmptyItem { field: field() });
    assert_eq!(apply_agent("list.delegates=1&item.delegates=n1&field.delegates.n1.to=+"), empty);
    let group = |names: [&str; 2]| {
        let item = |id: usize| format!("&item.groups=n{id}&key.groups.n{id}={}&field.groups.n{id}.=x", names[id]);
        apply(&format!("list.groups=1{}{}", item(0), item(1)))
    };
    assert_eq!(group(["a", ""]), Err(FormError::NoName { field: "groups".to_owned() }));
    assert_eq!(group(["a", "a"]), Err(FormError::SameName { field: "groups".to_owned(), name: "a".to_owned() }));
    let wrong = apply_agent(&SAME.replace("1.workspace=worktree", "1.workspace=odd"));
    assert!(matches!(wrong, Err(FormError::NoChoice { field, .. }) if field == "delegates.1.workspace"));
}

#[test]
fn a_value_that_does_not_fit_is_refused() {
    let number = FormError::NoNumber { field: "restart.max".to_owned(), value: "many".to_owned() };
    assert_eq!(apply("field.restart.max=many"), Err(number));
    assert!(matches!(apply("field.status=odd"), Err(FormError::NoChoice { .. })));
}

#[test]
fn a_value_that_is_no_option_stays_in_the_text() {
    let form = form_of_text(DocumentKind::Service, &SERVICE.replace("# mine", "status: odd"));
    assert!(form.others.contains(&"status".to_owned()), "{:?}", form.others);
    let agent = form_of_text(DocumentKind::Agent, &AGENT.replace("workspace: shared", "workspace: odd"));
    let delegates = agent.lists.iter().find(|list| list.path == ["delegates"]).unwrap();
    assert_eq!(delegates.items[2].form.others, ["workspace"]);
}

#[test]
fn values_are_escaped() {
    let document = json!({
        "name": "\"><script>", "title": "a\n</textarea><b>", "groups": {"<b>": ["</textarea><script>"]},
    });
    let page = SchemaForm::of(DocumentKind::Service, &document).markup().into_string();
    assert!(!page.contains("<script>") && !page.contains("<b>"), "{page}");
}

#[test]
fn each_input_of_a_page_has_its_own_name() {
    let page = form_of_text(DocumentKind::Agent, AGENT).markup().into_string();
    let names: Vec<&str> = page.split(" name=\"field.").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    let mut different = names.clone();
    different.sort_unstable();
    different.dedup();
    assert_eq!(names.len(), different.len(), "{names:?}");
    for name in
        ["delegates.0.to", "delegates.~0~.to", "modes.1.slug", "modes.0.tool_groups.~1~.group", "modes.~0~.slug"]
    {
        assert!(names.contains(&name), "{name}");
    }
}
