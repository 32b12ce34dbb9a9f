//! Shows the form of a manifest. A script adds, removes and moves the items of its lists: the form sends the items in the
//! order in which they are on the page.

use maud::{Markup, html};

use super::field_schema::ItemOrder;
use super::manifest_form::{ItemList, SchemaForm, SchemaItem, item_name, key_name, list_name};
use super::schema_field::SchemaField;
use super::transcript::display_text;

/// Items with more fields and lists than this one are closed at first.
const MAX_OPEN: usize = 3;

/// One item on the page.
struct ShownItem<'a> {
    list: &'a ItemList,
    /// The name of the list in the form.
    name: &'a str,
    id: &'a str,
    /// Its name. Empty in a list, and for a new item.
    key: &'a str,
    form: &'a SchemaForm,
    nesting: usize,
}

impl SchemaForm {
    pub(super) fn markup(&self) -> Markup {
        html! {
            (self.parts("", 0))
            // Says what the last button did.
            p class="meta" role="status" id="items-state" {}
        }
    }

    /// Shows the fields by the mapping that they are in, then the lists. `nesting` is the number of lists around them.
    fn parts(&self, prefix: &str, nesting: usize) -> Markup {
        let mut groups: Vec<(&[String], Vec<&SchemaField>)> = Vec::new();
        for field in &self.fields {
            let group = field.path.split_last().map(|(_, group)| group).unwrap_or_default();
            match groups.iter_mut().find(|(known, _)| *known == group) {
                Some((_, fields)) => fields.push(field),
                None => groups.push((group, vec![field])),
            }
        }
        html! {
            @for (group, fields) in &groups {
                @if nesting > 0 && group.is_empty() {
                    @for field in fields { (field.markup(prefix)) }
                } @else {
                    fieldset class="stack" {
                        legend { @if group.is_empty() { "The manifest" } @else { code { (group.join(".")) } } }
                        @for field in fields { (field.markup(prefix)) }
                    }
                }
            }
            @for list in &self.lists { (list.markup(prefix, nesting)) }
        }
    }
}

impl ItemList {
    fn markup(&self, prefix: &str, nesting: usize) -> Markup {
        let name = self.name(prefix);
        let label = self.path.join(".");
        // The script replaces it with the number of the new item. Lists inside have another one.
        let place = format!("~{nesting}~");
        let shown = |id: &str, item: &SchemaItem| {
            ShownItem { list: self, name: &name, id, key: &item.name, form: &item.form, nesting }.markup(false)
        };
        let new = ShownItem { list: self, name: &name, id: &place, key: "", form: &self.template, nesting };
        html! {
            fieldset class="stack items" data-items {
                legend { code { (label) } }
                @if let Some(hint) = &self.hint { p class="hint" { (display_text(hint)) } }
                input type="hidden" name=(list_name(&name)) value="1";
                ol { @for (place, item) in self.items.iter().enumerate() { (shown(&place.to_string(), item)) } }
                template data-place=(place) { (new.markup(true)) }
                button type="button" class="quiet" data-do="add" { "Add to " (label) }
            }
        }
    }
}

impl ShownItem<'_> {
    fn markup(&self, is_new: bool) -> Markup {
        let title = self.title();
        let prefix = format!("{}.{}.", self.name, self.id);
        let is_open = is_new || self.form.fields.len() + self.form.lists.len() <= MAX_OPEN;
        html! {
            li data-item {
                input type="hidden" name=(item_name(self.name)) value=(self.id);
                details open[is_open] {
                    summary { (title) }
                    div class="stack" {
                        @if self.list.order == ItemOrder::Named {
                            label { "name (required)"
                                input name=(key_name(self.name, self.id)) value=(self.key) spellcheck="false";
                            }
                        }
                        (self.form.parts(&prefix, self.nesting + 1))
                        @if !self.form.others.is_empty() {
                            p class="hint" { "Only in the text: " (self.form.others.join(", ")) "." }
                        }
                    }
                }
                div class="row" {
                    @if self.list.order != ItemOrder::Named {
                        (item_button("up", "Move up", &title))
                        (item_button("down", "Move down", &title))
                    }
                    (item_button("remove", "Remove", &title))
                }
            }
        }
    }

    /// Returns its name, or the value of its first field.
    fn title(&self) -> String {
        let first = || self.form.fields.iter().map(|field| field.value.as_str()).find(|value| !value.trim().is_empty());
        let text = if self.key.is_empty() { first().unwrap_or("new item") } else { self.key };
        display_text(text.lines().next().unwrap_or_default())
    }
}

fn item_button(action: &str, label: &str, title: &str) -> Markup {
    html! { button type="button" class="quiet" data-do=(action) aria-label={ (label) ": " (title) } { (label) } }
}
