//! Removes keywords that cost tokens and add no information from the tools' input schemas.

use std::sync::Arc;

use rmcp::handler::server::router::tool::ToolRouter;
use serde_json::{Map, Value};

/// Returns the same tools with smaller schemas. Calls that follow the original schemas stay valid.
pub(super) fn slim<S: Send + Sync + 'static>(router: ToolRouter<S>) -> ToolRouter<S> {
    let mut slim = ToolRouter::new();
    for mut route in router {
        let mut schema = Value::Object((*route.attr.input_schema).clone());
        tidy(&mut schema);
        if let Value::Object(schema) = schema {
            route.attr.input_schema = Arc::new(schema);
        }
        slim.add_route(route);
    }
    slim
}

/// `schema` must be a schema, not a map of properties, because a property may be called `title`.
fn tidy(schema: &mut Value) {
    let Value::Object(object) = schema else { return };
    // serde refuses an unknown field and names the known ones, so the schema need not forbid it.
    for noise in ["$schema", "title", "format", "additionalProperties"] {
        object.remove(noise);
    }
    // Omitting a field means the same as giving these defaults.
    let default = object.get("default");
    if matches!(default, Some(Value::Null | Value::Bool(false))) || default == Some(&Value::Array(Vec::new())) {
        object.remove("default");
    }
    // Every number here is unsigned.
    if object.get("minimum") == Some(&Value::from(0)) {
        object.remove("minimum");
    }
    drop_null(object);
    if let Some(Value::Object(properties)) = object.get_mut("properties") {
        properties.values_mut().for_each(tidy);
    }
    if let Some(items) = object.get_mut("items") {
        tidy(items);
    }
}

/// Removes `null` as a value: a model omits an optional field.
fn drop_null(object: &mut Map<String, Value>) {
    let Some(Value::Array(types)) = object.get_mut("type") else {
        if let Some(Value::Array(choices)) = object.get("anyOf")
            && let [Value::Object(only), null] = choices.as_slice()
            && null.get("type") == Some(&Value::from("null"))
        {
            let only = only.clone();
            object.remove("anyOf");
            object.extend(only);
        }
        return;
    };
    types.retain(|kind| kind != "null");
    if let [kind] = types.as_slice() {
        let kind = kind.clone();
        object.insert("type".to_owned(), kind);
    }
    if let Some(Value::Array(values)) = object.get_mut("enum") {
        values.retain(|value| !value.is_null());
    }
}
