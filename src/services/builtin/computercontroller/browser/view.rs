//! Shows a page as text: the accessibility tree as an indented list, in which elements that can be used have references.

use std::collections::{HashMap, HashSet};

use serde::Deserialize;
use serde_json::Value;

use crate::services::builtin::answer::truncate;
use crate::tool::strip_to_line;

/// Limits of one view.
const MAX_NODES: usize = 60_000;
const MAX_NAME: usize = 300;
const MAX_VALUE: usize = 500;
const MAX_LINK: usize = 200;
/// Texts that follow each other become one line up to this length.
const MAX_JOINED: usize = 600;
const MAX_INDENT: usize = 20;

/// Roles of elements that can be used.
const USABLE: [&str; 20] = [
    "button",
    "checkbox",
    "combobox",
    "gridcell",
    "link",
    "listbox",
    "menuitem",
    "menuitemcheckbox",
    "menuitemradio",
    "option",
    "radio",
    "scrollbar",
    "searchbox",
    "slider",
    "spinbutton",
    "switch",
    "tab",
    "textbox",
    "textfield",
    "treeitem",
];
/// Roles that are worth a line, also without a name.
const SHOWN: [&str; 30] = [
    "alert",
    "alertdialog",
    "article",
    "banner",
    "cell",
    "columnheader",
    "complementary",
    "contentinfo",
    "dialog",
    "form",
    "grid",
    "heading",
    "iframe",
    "listitem",
    "main",
    "menu",
    "menubar",
    "navigation",
    "progressbar",
    "region",
    "row",
    "rowheader",
    "search",
    "status",
    "table",
    "tablist",
    "tabpanel",
    "toolbar",
    "tree",
    "treegrid",
];
/// Roles that never have a line.
const SKIPPED: [&str; 6] =
    ["inlinetextbox", "linebreak", "listmarker", "rootwebarea", "iframepresentational", "labeltext"];
/// Roles of fields. What is inside is their value, or parts that are filled as one.
const FIELDS: [&str; 8] =
    ["textbox", "searchbox", "spinbutton", "textfield", "date", "datetime", "inputtime", "colorwell"];
/// Properties that a line shows if they are true.
const STATES: [&str; 8] =
    ["disabled", "required", "readonly", "focused", "selected", "multiselectable", "modal", "busy"];
/// Properties that a line shows with their value.
const VALUED_STATES: [&str; 4] = ["checked", "pressed", "expanded", "invalid"];

/// A node of the accessibility tree.
#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub(super) struct AxNode {
    node_id: String,
    ignored: bool,
    role: AxValue,
    name: AxValue,
    value: AxValue,
    properties: Vec<AxProperty>,
    child_ids: Vec<String>,
    parent_id: Option<String>,
    #[serde(rename = "backendDOMNodeId")]
    element: Option<i64>,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct AxValue {
    value: Value,
}

#[derive(Debug, Default, Deserialize)]
#[serde(default)]
struct AxProperty {
    name: String,
    value: AxValue,
}

impl AxNode {
    fn text(value: &AxValue) -> String {
        match &value.value {
            Value::String(text) => strip_to_line(text),
            Value::Null => String::new(),
            other => other.to_string(),
        }
    }

    fn role(&self) -> String {
        self.role.value.as_str().unwrap_or_default().to_ascii_lowercase()
    }

    fn property(&self, name: &str) -> Option<&Value> {
        self.properties.iter().find(|property| property.name == name).map(|property| &property.value.value)
    }

    fn is_true(&self, name: &str) -> bool {
        match self.property(name) {
            Some(Value::Bool(value)) => *value,
            Some(Value::String(value)) => value == "true",
            _ => false,
        }
    }
}

/// A frame inside the page.
#[derive(Debug)]
pub(super) struct FrameTree {
    /// The element that holds the frame.
    pub(super) owner: i64,
    pub(super) nodes: Vec<AxNode>,
}

/// The references of elements. An element keeps its reference until the page shows another document.
#[derive(Debug, Default)]
pub(super) struct ElementRefs {
    by_element: HashMap<i64, u32>,
    elements: HashMap<u32, NamedElement>,
    /// Numbers are not used again, so that an old reference never means another element.
    last: u32,
    document: u64,
}

/// An element and how the model knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NamedElement {
    pub(super) element: i64,
    /// `button "Send"`.
    pub(super) shown: String,
}

impl ElementRefs {
    /// Forgets all references if the page shows another document.
    pub(super) fn start_document(&mut self, document: u64) {
        if self.document != document {
            self.document = document;
            self.by_element.clear();
            self.elements.clear();
        }
    }

    fn add(&mut self, element: i64, shown: &str) -> u32 {
        let number = *self.by_element.entry(element).or_insert_with(|| {
            self.last += 1;
            self.last
        });
        self.elements.insert(number, NamedElement { element, shown: truncate(shown, MAX_NAME).to_owned() });
        number
    }

    /// Returns the element of `e12`. `None` if the current document has no such reference.
    pub(super) fn get(&self, text: &str) -> Option<&NamedElement> {
        self.elements.get(&text.trim().strip_prefix('e')?.parse().ok()?)
    }
}

/// Returns the page as a list.
pub(super) fn show_tree(nodes: &[AxNode], frames: &[FrameTree], refs: &mut ElementRefs) -> String {
    let frames: HashMap<i64, &FrameTree> = frames.iter().map(|frame| (frame.owner, frame)).collect();
    let mut writer = TreeWriter { frames, refs, lines: Vec::new(), left: MAX_NODES, shown_frames: HashSet::new() };
    writer.write(nodes, 0);
    if writer.left == 0 {
        writer.lines.push(ViewLine { depth: 0, text: "… the page has more elements".to_owned(), is_text: false });
    }
    let mut text = String::new();
    for line in &writer.lines {
        let indent = line.depth.min(MAX_INDENT) * 2;
        text.push_str(&format!("{:indent$}{}\n", "", line.text));
    }
    text
}

struct TreeWriter<'a> {
    frames: HashMap<i64, &'a FrameTree>,
    refs: &'a mut ElementRefs,
    lines: Vec<ViewLine>,
    /// Nodes that may still be visited.
    left: usize,
    /// A frame is shown once, even if the trees name it twice.
    shown_frames: HashSet<i64>,
}

struct ViewLine {
    depth: usize,
    text: String,
    /// Plain text, to which more can be added.
    is_text: bool,
}

impl TreeWriter<'_> {
    /// Writes a tree in its order. It uses no recursion per level, because a page can be arbitrarily deep.
    fn write(&mut self, nodes: &[AxNode], base: usize) {
        let by_id: HashMap<&str, usize> =
            nodes.iter().enumerate().map(|(index, node)| (node.node_id.as_str(), index)).collect();
        let Some(root) = nodes.iter().position(|node| node.parent_id.is_none()) else { return };
        // Each entry: the node, its depth, and the name above it that may repeat its text.
        let mut open: Vec<(usize, usize, Option<usize>)> = vec![(root, base, None)];
        let mut seen = vec![false; nodes.len()];
        while let Some((index, depth, above)) = open.pop() {
            if std::mem::replace(&mut seen[index], true) || self.left == 0 {
                continue;
            }
            self.left -= 1;
            let node = &nodes[index];
            let name_above = above.map(|above| AxNode::text(&nodes[above].name)).unwrap_or_default();
            let (shown, hides_children) = self.write_node(node, depth, &name_above);
            if let Some(frame) = node.element.and_then(|element| self.frames.get(&element).copied())
                && self.shown_frames.insert(frame.owner)
                && self.shown_frames.len() < 30
            {
                self.write(&frame.nodes, depth + 1);
            }
            if hides_children {
                continue;
            }
            let (depth, above) = if shown { (depth + 1, Some(index)) } else { (depth, above) };
            let children = node.child_ids.iter().rev().filter_map(|id| by_id.get(id.as_str()));
            open.extend(children.map(|child| (*child, depth, above)));
        }
    }

    /// Writes the line of a node, if it has one. Returns whether it has, and whether it stands for its children too.
    fn write_node(&mut self, node: &AxNode, depth: usize, above: &str) -> (bool, bool) {
        if node.ignored {
            return (false, false);
        }
        let role = node.role();
        let name = AxNode::text(&node.name);
        if role == "statictext" {
            if !name.is_empty() && !above.contains(&name) {
                self.write_text(depth, &name);
            }
            return (false, false);
        }
        if SKIPPED.contains(&role.as_str()) {
            return (false, false);
        }
        let is_usable = USABLE.contains(&role.as_str()) || node.is_true("focusable");
        let is_named =
            !name.is_empty() && !["generic", "none", "paragraph", "strong", "emphasis"].contains(&role.as_str());
        if !is_usable && !is_named && !SHOWN.contains(&role.as_str()) {
            return (false, false);
        }
        let mut line = role.clone();
        if !name.is_empty() {
            line.push_str(&format!(" \"{}\"", truncate(&name, MAX_NAME)));
        }
        let shown = line.clone();
        if let Some(element) = node.element.filter(|_| is_usable) {
            let number = self.refs.add(element, &shown);
            line.push_str(&format!(" [e{number}]"));
        }
        if let Some(level) = node.property("level").filter(|_| role == "heading") {
            line.push_str(&format!(" (level {level})"));
        }
        for state in STATES.iter().filter(|state| node.is_true(state)) {
            line.push_str(&format!(" ({state})"));
        }
        for state in VALUED_STATES {
            match node.property(state) {
                Some(Value::Bool(value)) => line.push_str(&format!(" ({state}: {value})")),
                Some(Value::String(value)) if value != "false" || state != "invalid" => {
                    line.push_str(&format!(" ({state}: {})", strip_to_line(value)));
                }
                _ => {}
            }
        }
        let value = AxNode::text(&node.value);
        if !value.is_empty() && value != name {
            line.push_str(&format!(" = \"{}\"", truncate(&value, MAX_VALUE)));
        }
        if let Some(url) = node.property("url").and_then(Value::as_str).filter(|_| role == "link") {
            line.push_str(&format!(" → {}", truncate(&strip_to_line(url), MAX_LINK)));
        }
        self.lines.push(ViewLine { depth, text: line, is_text: false });
        (true, FIELDS.contains(&role.as_str()))
    }

    fn write_text(&mut self, depth: usize, text: &str) {
        if let Some(last) = self.lines.last_mut()
            && last.is_text
            && last.depth == depth
            && last.text.len() + text.len() < MAX_JOINED
        {
            last.text.push(' ');
            last.text.push_str(text);
            return;
        }
        let text = truncate(text, 4 * MAX_JOINED);
        self.lines.push(ViewLine { depth, text: format!("text: {text}"), is_text: true });
    }
}

#[cfg(test)]
mod tests {
    use expect_test::expect;
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn node(id: u32, parent: Option<u32>, role: &str, name: &str, children: &[u32]) -> Value {
        json!({
            "nodeId": id.to_string(), "parentId": parent.map(|id| id.to_string()), "role": {"value": role},
            "name": {"value": name}, "backendDOMNodeId": 100 + id,
            "childIds": children.iter().map(ToString::to_string).collect::<Vec<_>>(),
        })
    }

    fn nodes(values: Vec<Value>) -> Vec<AxNode> {
        serde_json::from_value(Value::Array(values)).unwrap()
    }

    fn page() -> Vec<AxNode> {
        let mut field = node(7, Some(2), "textbox", "Name", &[8]);
        field["value"] = json!({"value": "Ada\nLovelace"});
        field["properties"] =
            json!([{"name": "required", "value": {"value": true}}, {"name": "invalid", "value": {"value": "false"}}]);
        let mut link = node(5, Some(2), "link", "More", &[6]);
        link["properties"] = json!([{"name": "url", "value": {"value": "http://a.test/more"}}]);
        let mut heading = node(3, Some(2), "heading", "Title", &[4]);
        heading["properties"] = json!([{"name": "level", "value": {"value": 1}}]);
        let mut box_ = node(9, Some(2), "checkbox", "Agree", &[]);
        box_["properties"] = json!([{"name": "checked", "value": {"value": "false"}}]);
        nodes(vec![
            node(1, None, "RootWebArea", "Page", &[2]),
            node(2, Some(1), "generic", "", &[3, 5, 7, 9, 10, 11]),
            heading,
            node(4, Some(3), "StaticText", "Title", &[]),
            link,
            node(6, Some(5), "StaticText", "More", &[]),
            field,
            node(8, Some(7), "StaticText", "Ada", &[]),
            box_,
            node(10, Some(2), "StaticText", "Two", &[]),
            node(11, Some(2), "StaticText", "\u{202e}words\u{7}", &[]),
        ])
    }

    #[test]
    fn a_view_has_roles_names_states_and_references() {
        let mut refs = ElementRefs::default();
        expect![[r#"
            heading "Title" (level 1)
            link "More" [e1] → http://a.test/more
            textbox "Name" [e2] (required) = "Ada Lovelace"
            checkbox "Agree" [e3] (checked: false)
            text: Two words
        "#]]
        .assert_eq(&show_tree(&page(), &[], &mut refs));
        assert_eq!(refs.get("e1").unwrap(), &NamedElement { element: 105, shown: "link \"More\"".into() });
        assert!(refs.get("e4").is_none() && refs.get("1").is_none() && refs.get("e").is_none());
    }

    #[test]
    fn references_stay_until_the_next_document() {
        let mut refs = ElementRefs::default();
        refs.start_document(1);
        let first = show_tree(&page(), &[], &mut refs);
        refs.start_document(1);
        assert_eq!(show_tree(&page(), &[], &mut refs), first);
        refs.start_document(2);
        assert!(refs.get("e1").is_none());
        let second = show_tree(&page(), &[], &mut refs);
        assert!(second.contains("[e4]") && !second.contains("[e1]"), "{second}");
    }

    #[test]
    fn a_frame_is_shown_inside_its_element() {
        let outer = nodes(vec![
            node(1, None, "RootWebArea", "", &[2, 3]),
            node(2, Some(1), "Iframe", "pay", &[]),
            node(3, Some(1), "button", "After", &[]),
        ]);
        let inner = nodes(vec![node(1, None, "RootWebArea", "", &[2]), node(2, Some(1), "button", "Inside", &[])]);
        let frames = [FrameTree { owner: 102, nodes: inner }];
        let mut refs = ElementRefs::default();
        let text = show_tree(&outer, &frames, &mut refs);
        assert!(text.starts_with("iframe \"pay\"\n  button \"Inside\" [e1]\nbutton \"After\" [e2]"), "{text}");
    }

    #[test]
    fn deep_and_circular_trees_end() {
        let count = 30_000;
        let mut deep: Vec<Value> =
            (1..count).map(|id| node(id, (id > 1).then(|| id - 1), "listitem", "x", &[id + 1])).collect();
        deep.push(node(count, Some(count - 1), "button", "End", &[1]));
        let text = show_tree(&nodes(deep), &[], &mut ElementRefs::default());
        assert!(text.trim_end().ends_with("button \"End\" [e1]"), "{}", text.len());
    }

    proptest! {
        /// Whatever the tree, every reference of the view leads to an element, and every line is one line.
        #[test]
        fn references_of_any_view_resolve(
            names in prop::collection::vec("[ -~\u{202e}\n\t]{0,12}", 1..30),
            roles in prop::collection::vec(prop::sample::select(vec!["button", "link", "StaticText", "generic", "row"]), 1..30),
        ) {
            let count = names.len().min(roles.len()) as u32;
            let values = (1..=count).map(|id| {
                let at = id as usize - 1;
                let children: Vec<u32> = [id * 2, id * 2 + 1].into_iter().filter(|child| *child <= count).collect();
                node(id, (id > 1).then_some(id / 2), roles[at], &names[at], &children)
            });
            let mut refs = ElementRefs::default();
            let text = show_tree(&nodes(values.collect()), &[], &mut refs);
            let usable = (0..count as usize).filter(|at| ["button", "link"].contains(&roles[*at])).count();
            prop_assert_eq!(refs.elements.len(), usable);
            for number in 1..=usable {
                let reference = format!("e{number}");
                prop_assert!(refs.get(&reference).is_some());
                let shown = format!("[{reference}]");
                prop_assert!(text.contains(&shown));
            }
            prop_assert!(text.chars().all(|c| c == '\n' || !c.is_control()));
        }
    }
}
