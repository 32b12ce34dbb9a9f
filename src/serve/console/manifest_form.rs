//! A form for a manifest, which its JSON Schema generates. A change of a field changes one entry of the text, and all
//! other lines stay as they are.
//!
//! The form has fields with text, numbers, choices and lists of words. It has lists of mappings, and mappings whose keys
//! are names: their items can be added, changed, removed and, in lists, moved. Everything else can be changed only in
//! the text.

use serde_json::{Map, Value, json};

use super::field_schema::{FieldSchema, ItemOrder, ItemSchema};
use super::form::FormFields;
use super::schema_field::{FieldChange, FormError, SchemaField};
use crate::manifest::{
    DocumentKind, EditedItem, SourceFile, block_text, edit_entry, edit_items, item_texts, parse, rename_entry,
    with_comments,
};

/// The depth of mappings that are in the form.
const MAX_DEPTH: usize = 4;
/// The depth of lists that are in the form: a list, and lists in its items.
const MAX_NESTING: usize = 2;
/// Items of one list in a form that was sent.
const MAX_ITEMS: usize = 1_000;
/// Fields that a form does not change: they identify the format.
const FIXED_FIELDS: [&str; 2] = ["version", "kind"];

/// The fields of a manifest, or of an item of a list.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct SchemaForm {
    pub(super) fields: Vec<SchemaField>,
    pub(super) lists: Vec<ItemList>,
    /// Fields that only the text has.
    pub(super) others: Vec<String>,
}

/// A list of mappings, or a mapping whose keys are names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ItemList {
    pub(super) path: Vec<String>,
    pub(super) hint: Option<String>,
    pub(super) order: ItemOrder<'static>,
    pub(super) items: Vec<SchemaItem>,
    /// The form of a new item.
    pub(super) template: SchemaForm,
}

/// An item that the manifest has.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct SchemaItem {
    /// Its key. Empty in a list.
    pub(super) name: String,
    /// It is a text instead of a mapping.
    is_short: bool,
    pub(super) form: SchemaForm,
}

/// An item of a form that was sent.
#[derive(Debug, Clone, PartialEq, Eq)]
enum SentItem {
    /// The item that was at this position.
    Known(usize),
    New(String),
}

impl SchemaForm {
    /// Returns the form of a document.
    pub(super) fn of(kind: DocumentKind, document: &Value) -> Self {
        form_of(&FieldSchema::of_document(kind.json_schema()), Some(document), 0)
    }

    /// Returns the text with the changes of a form that was sent. Fails if a value does not fit, or if a change would
    /// change other lines too.
    pub(super) fn apply(&self, text: &str, sent: &FormFields) -> Result<String, FormError> {
        self.apply_at(text, &[], "", sent)
    }

    /// Applies the form to the mapping at `base`. `prefix` begins the names of its fields.
    fn apply_at(&self, text: &str, base: &[String], prefix: &str, sent: &FormFields) -> Result<String, FormError> {
        let mut text = text.to_owned();
        for field in &self.fields {
            let value = match field.change(prefix, sent)? {
                FieldChange::Unchanged => continue,
                FieldChange::Removed => None,
                FieldChange::Set(value) => Some(value),
            };
            let path = [base, &field.path[..]].concat();
            let edited = edit_entry(&text, &names(&path), value.as_ref());
            text = edited.ok_or_else(|| FormError::Unsafe { field: format!("{prefix}{}", field.path.join(".")) })?;
        }
        for list in &self.lists {
            text = list.apply_at(&text, base, prefix, sent)?;
        }
        Ok(text)
    }

    /// Returns whether the sent form changes anything. Fails if a value does not fit.
    fn has_changes(&self, prefix: &str, sent: &FormFields) -> Result<bool, FormError> {
        for field in &self.fields {
            if field.change(prefix, sent)? != FieldChange::Unchanged {
                return Ok(true);
            }
        }
        for list in &self.lists {
            if list.has_changes(prefix, sent)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns the value of a new item. It is an empty mapping if nothing was entered.
    fn new_value(&self, prefix: &str, sent: &FormFields) -> Result<Value, FormError> {
        let mut value = Value::Object(Map::new());
        for field in &self.fields {
            if let FieldChange::Set(entered) = field.change(prefix, sent)? {
                put(&mut value, &field.path, entered);
            }
        }
        for list in &self.lists {
            if let Some(entered) = list.new_value(prefix, sent)? {
                put(&mut value, &list.path, entered);
            }
        }
        Ok(value)
    }

    /// Returns whether it has one field, which is the whole value.
    fn is_single(&self) -> bool {
        self.fields.first().is_some_and(|field| field.path.is_empty())
    }
}

impl ItemList {
    /// Returns the name in a form. `prefix` names the item that the list belongs to.
    pub(super) fn name(&self, prefix: &str) -> String {
        format!("{prefix}{}", self.path.join("."))
    }

    fn apply_at(&self, text: &str, base: &[String], prefix: &str, sent: &FormFields) -> Result<String, FormError> {
        let name = self.name(prefix);
        let items = self.items_of_form(&name, sent)?.unwrap_or_default();
        if !self.has_changes(prefix, sent)? {
            return Ok(text.to_owned());
        }
        let path = [base, &self.path[..]].concat();
        match self.order {
            ItemOrder::Ordered(main) => self.apply_ordered(text, &path, &name, main, &items, sent),
            ItemOrder::Named => self.apply_named(text, &path, &name, &items, sent),
        }
    }

    fn apply_ordered(
        &self,
        text: &str,
        path: &[String],
        name: &str,
        main: Option<&str>,
        items: &[SentItem],
        sent: &FormFields,
    ) -> Result<String, FormError> {
        let refused = || FormError::Unsafe { field: name.to_owned() };
        let documents = item_texts(text, &names(path)).ok_or_else(refused)?;
        let mut edited = Vec::new();
        for item in items {
            edited.push(match item {
                SentItem::Known(place) => {
                    let prefix = format!("{name}.{place}.");
                    let (known, document) = self.items.get(*place).zip(documents.get(*place)).ok_or_else(refused)?;
                    match known.form.has_changes(&prefix, sent)? {
                        true => EditedItem::Text(known.with_changes(document, main, &prefix, sent)?),
                        false => EditedItem::Kept(*place),
                    }
                }
                SentItem::New(id) => EditedItem::Text(block_text(&self.new_item(name, id, main, sent)?)),
            });
        }
        edit_items(text, &names(path), &edited).ok_or_else(refused)
    }

    fn apply_named(
        &self,
        text: &str,
        path: &[String],
        name: &str,
        items: &[SentItem],
        sent: &FormFields,
    ) -> Result<String, FormError> {
        let refused = || FormError::Unsafe { field: name.to_owned() };
        let at = |key: &str| [path, &[key.to_owned()]].concat();
        let keys = self.keys(name, items, sent)?;
        let mut text = text.to_owned();
        for (place, known) in self.items.iter().enumerate() {
            text = match items.contains(&SentItem::Known(place)) {
                true => known.form.apply_at(&text, &at(&known.name), &format!("{name}.{place}."), sent)?,
                false => edit_entry(&text, &names(&at(&known.name)), None).ok_or_else(refused)?,
            };
        }
        for (item, key) in items.iter().zip(&keys) {
            match item {
                SentItem::Known(place) => {
                    let old = self.items.get(*place).map(|known| &known.name).filter(|old| *old != key);
                    if let Some(old) = old {
                        text = rename_entry(&text, &names(&at(old)), key).ok_or_else(refused)?;
                    }
                }
                SentItem::New(id) => {
                    let value = self.value_with_key(name, id, sent)?;
                    text = add_entry(&text, &at(key), &value).ok_or_else(refused)?;
                }
            }
        }
        Ok(text)
    }

    /// Returns whether the sent form changes anything. Fails if a value does not fit.
    fn has_changes(&self, prefix: &str, sent: &FormFields) -> Result<bool, FormError> {
        let name = self.name(prefix);
        let Some(items) = self.items_of_form(&name, sent)? else { return Ok(false) };
        if items.len() != self.items.len() {
            return Ok(true);
        }
        for (place, (item, known)) in items.iter().zip(&self.items).enumerate() {
            let prefix = format!("{name}.{place}.");
            let is_renamed = || sent.text(&key_name(&name, &place.to_string())).is_some_and(|key| key != known.name);
            let is_same = *item == SentItem::Known(place) && !known.form.has_changes(&prefix, sent)?;
            if !is_same || (self.order == ItemOrder::Named && is_renamed()) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Returns the items of a form that was sent, in order. `None` if it does not have this list. Fails if an item is
    /// unknown.
    fn items_of_form(&self, name: &str, sent: &FormFields) -> Result<Option<Vec<SentItem>>, FormError> {
        if sent.get(&list_name(name)).is_none() {
            return Ok(None);
        }
        let mut items: Vec<SentItem> = Vec::new();
        if sent.all(&item_name(name)).nth(MAX_ITEMS).is_some() {
            return Err(FormError::TooMany { field: name.to_owned(), limit: MAX_ITEMS });
        }
        for id in sent.all(&item_name(name)) {
            let item = SentItem::parse(id, self.items.len()).filter(|item| !items.contains(item));
            let unknown = || FormError::UnknownItem { field: name.to_owned(), item: id.to_owned() };
            items.push(item.ok_or_else(unknown)?);
        }
        Ok(Some(items))
    }

    /// Returns the names of the items. Fails if one has none, or if two are the same.
    fn keys(&self, name: &str, items: &[SentItem], sent: &FormFields) -> Result<Vec<String>, FormError> {
        let mut keys: Vec<String> = Vec::new();
        for item in items {
            let key = sent.text(&key_name(name, &item.id())).map(str::to_owned);
            let key = key.ok_or_else(|| FormError::NoName { field: name.to_owned() })?;
            if keys.contains(&key) {
                return Err(FormError::SameName { field: name.to_owned(), name: key });
            }
            keys.push(key);
        }
        Ok(keys)
    }

    /// Returns the value of this list in a new item. `None` if it is empty.
    fn new_value(&self, prefix: &str, sent: &FormFields) -> Result<Option<Value>, FormError> {
        let name = self.name(prefix);
        let items = self.items_of_form(&name, sent)?.filter(|items| !items.is_empty());
        let Some(items) = items else { return Ok(None) };
        let value: Value = match self.order {
            ItemOrder::Ordered(main) => {
                let values = items.iter().map(|item| self.new_item(&name, &item.id(), main, sent));
                Value::Array(values.collect::<Result<_, _>>()?)
            }
            ItemOrder::Named => {
                let keys = self.keys(&name, &items, sent)?;
                let values = items.iter().map(|item| self.value_with_key(&name, &item.id(), sent));
                let values: Vec<Value> = values.collect::<Result<_, _>>()?;
                Value::Object(keys.into_iter().zip(values).collect())
            }
        };
        Ok(Some(value))
    }

    /// Returns a new item of a list. Fails if nothing was entered.
    fn new_item(&self, name: &str, id: &str, main: Option<&str>, sent: &FormFields) -> Result<Value, FormError> {
        match self.template.new_value(&format!("{name}.{id}."), sent)? {
            Value::Object(entries) if entries.is_empty() => Err(FormError::EmptyItem { field: name.to_owned() }),
            value => Ok(shorten(value, main)),
        }
    }

    /// Returns the value of a new item with a name. Fails if it needs a value and nothing was entered.
    fn value_with_key(&self, name: &str, id: &str, sent: &FormFields) -> Result<Value, FormError> {
        match self.template.new_value(&format!("{name}.{id}."), sent)? {
            Value::Object(entries) if self.template.is_single() && entries.is_empty() => {
                Err(FormError::EmptyItem { field: name.to_owned() })
            }
            value => Ok(value),
        }
    }
}

impl SchemaItem {
    /// Returns the text of the item with its changes. `main` is the field that a short item sets.
    fn with_changes(
        &self,
        document: &str,
        main: Option<&str>,
        prefix: &str,
        sent: &FormFields,
    ) -> Result<String, FormError> {
        let value = parse(&SourceFile::new("item.yaml", document)).ok();
        if let (true, Some(main), Some(value)) = (self.is_short, main, &value) {
            let long = self.form.apply_at(&block_text(&json!({main: value})), &[], prefix, sent)?;
            let value = parse(&SourceFile::new("item.yaml", long.as_str())).ok();
            let short = value.map(|value| block_text(&shorten(value, Some(main))));
            return Ok(with_comments(document, &short.unwrap_or(long)));
        }
        match (self.form.apply_at(document, &[], prefix, sent), value) {
            // Entries in brackets share a line.
            (Err(FormError::Unsafe { .. }), Some(value)) if !document.contains('#') => {
                self.form.apply_at(&block_text(&value), &[], prefix, sent)
            }
            (edited, _) => edited,
        }
    }
}

impl SentItem {
    /// Reads an item of a list with `count` items. `None` if there is no such item.
    fn parse(id: &str, count: usize) -> Option<Self> {
        match id.strip_prefix('n') {
            Some(number) => number.parse::<u32>().ok().map(|_| Self::New(id.to_owned())),
            None => id.parse::<usize>().ok().filter(|place| *place < count).map(Self::Known),
        }
    }

    fn id(&self) -> String {
        match self {
            Self::Known(place) => place.to_string(),
            Self::New(id) => id.clone(),
        }
    }
}

/// Returns the name of the input that says that the form has a list.
pub(super) fn list_name(name: &str) -> String {
    format!("list.{name}")
}

/// Returns the name of the inputs that say which items a list has, in order.
pub(super) fn item_name(name: &str) -> String {
    format!("item.{name}")
}

/// Returns the name of the input with the name of an item.
pub(super) fn key_name(name: &str, id: &str) -> String {
    format!("key.{name}.{id}")
}

fn names(path: &[String]) -> Vec<&str> {
    path.iter().map(String::as_str).collect()
}

/// Sets a value in a new item.
fn put(value: &mut Value, path: &[String], entered: Value) {
    match path.split_first() {
        None => *value = entered,
        Some((name, rest)) => {
            if !value.is_object() {
                *value = Value::Object(Map::new());
            }
            put(&mut value[name.as_str()], rest, entered);
        }
    }
}

/// Returns an item as the text of its main field, if it has nothing else.
fn shorten(value: Value, main: Option<&str>) -> Value {
    let entries = value.as_object().filter(|entries| entries.len() == 1);
    let text = main.and_then(|main| entries?.get(main)).filter(|text| text.is_string());
    text.cloned().unwrap_or(value)
}

/// Adds an entry that may have several lines. `None` if that would change anything else.
fn add_entry(text: &str, path: &[String], value: &Value) -> Option<String> {
    match value {
        Value::Object(entries) if !entries.is_empty() => {
            let add = |text: String, (key, value): (&String, &Value)| {
                add_entry(&text, &[path, std::slice::from_ref(key)].concat(), value)
            };
            entries.iter().try_fold(text.to_owned(), add)
        }
        Value::Array(items) if items.iter().any(Value::is_object) => {
            let items: Vec<_> = items.iter().map(|item| EditedItem::Text(block_text(item))).collect();
            edit_items(text, &names(path), &items)
        }
        value => edit_entry(text, &names(path), Some(value)),
    }
}

/// Collects the fields of a schema.
struct FieldCollector {
    form: SchemaForm,
    /// The number of lists around the form.
    nesting: usize,
}

fn form_of(schema: &FieldSchema<'static>, document: Option<&Value>, nesting: usize) -> SchemaForm {
    let mut collector = FieldCollector { form: SchemaForm::default(), nesting };
    collector.collect(schema, document, &[], true);
    collector.form
}

impl FieldCollector {
    fn collect(&mut self, schema: &FieldSchema<'static>, document: Option<&Value>, path: &[String], is_required: bool) {
        if path.len() < MAX_DEPTH
            && let Some(properties) = schema.properties(document)
        {
            for (name, property, is_required) in properties {
                if self.nesting == 0 && path.is_empty() && FIXED_FIELDS.contains(&name) {
                    continue;
                }
                let path = [path, &[name.to_owned()]].concat();
                let value = document.and_then(|document| document.get(name));
                self.collect(&property, value, &path, is_required);
            }
            return;
        }
        let input = schema.input().and_then(|input| Some((input.text_of(document)?, input)));
        if let Some((value, input)) = input {
            let path = path.to_vec();
            self.form.fields.push(SchemaField { path, hint: schema.hint(), input, is_required, value });
            return;
        }
        match self.list(schema, document, path) {
            Some(list) => self.form.lists.push(list),
            None => self.form.others.push(path.join(".")),
        }
    }

    /// Returns the list of a field. `None` if it has no items, or if the form cannot show one of them.
    fn list(&self, schema: &FieldSchema<'static>, document: Option<&Value>, path: &[String]) -> Option<ItemList> {
        let ItemSchema { item, order } = schema.items().filter(|_| self.nesting < MAX_NESTING)?;
        let form = |value: Option<&Value>| form_of(&item, value, self.nesting + 1);
        let is_shown = |form: &SchemaForm| !form.others.iter().any(String::is_empty);
        let template =
            Some(form(None)).filter(|form| is_shown(form) && !(form.fields.is_empty() && form.lists.is_empty()))?;
        let known = |name: &str, is_short: bool, value: &Value| {
            let item = SchemaItem { name: name.to_owned(), is_short, form: form(Some(value)) };
            Some(item).filter(|item| is_shown(&item.form))
        };
        let items: Option<Vec<SchemaItem>> = match (order, document) {
            (_, None | Some(Value::Null)) => Some(Vec::new()),
            (ItemOrder::Ordered(main), Some(Value::Array(values))) => {
                let item = |value: &Value| match value {
                    Value::Object(_) => known("", false, value),
                    Value::String(_) => main.and_then(|main| known("", true, &json!({main: value}))),
                    _ => None,
                };
                values.iter().map(item).collect()
            }
            (ItemOrder::Named, Some(Value::Object(values))) => {
                values.iter().map(|(name, value)| known(name, false, value)).collect()
            }
            _ => None,
        };
        Some(ItemList { path: path.to_vec(), hint: schema.hint(), order, items: items?, template })
    }
}

#[cfg(test)]
#[path = "manifest_form_tests.rs"]
mod tests;
