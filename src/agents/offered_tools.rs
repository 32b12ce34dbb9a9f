//! Keeps the tools of recent bindings as a model sees them. All turns of all sessions with the same tools share a list.

use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};

use serde_json::{Map, Value};

use crate::broker::Binding;
use crate::llm::OfferedTool;
use crate::tool::ToolSpec;

/// Maximum number of lists. Sessions in one mode share a list, so this is the number of modes in use at a time. Beyond
/// it, the list whose last use is the oldest goes.
const MAX_LISTS: usize = 16;

/// The latest lists. The latest use comes first.
#[derive(Debug, Default)]
struct RecentLists(VecDeque<OfferedList>);

#[derive(Debug)]
struct OfferedList {
    /// What each offered tool was made of.
    sources: Vec<ToolSource>,
    tools: Arc<[OfferedTool]>,
}

#[derive(Debug)]
struct ToolSource {
    description: String,
    /// Bindings share the schemas of a service, so that it is enough to compare addresses.
    schema: Arc<Map<String, Value>>,
}

/// Returns the tools of a binding as a model sees them.
pub(super) fn tools_for_model(binding: &Binding) -> Arc<[OfferedTool]> {
    static RECENT: Mutex<RecentLists> = Mutex::new(RecentLists(VecDeque::new()));
    let specs = binding.tools().iter().map(|(name, tool)| (name.as_str(), &tool.spec)).collect();
    RECENT.lock().unwrap_or_else(PoisonError::into_inner).tools(&specs)
}

impl RecentLists {
    fn tools(&mut self, specs: &BTreeMap<&str, &ToolSpec>) -> Arc<[OfferedTool]> {
        let place = self.0.iter().position(|list| list.is_of(specs));
        let list = place.and_then(|place| self.0.remove(place)).unwrap_or_else(|| OfferedList::new(specs));
        let tools = Arc::clone(&list.tools);
        self.0.push_front(list);
        self.0.truncate(MAX_LISTS);
        tools
    }
}

impl OfferedList {
    fn new(specs: &BTreeMap<&str, &ToolSpec>) -> Self {
        let sources = specs
            .values()
            .map(|spec| ToolSource { description: spec.description.clone(), schema: Arc::clone(&spec.input_schema) });
        let tools = specs.iter().map(|(name, spec)| {
            OfferedTool::new((*name).to_owned(), spec.description.clone(), Arc::clone(&spec.input_schema))
        });
        Self { sources: sources.collect(), tools: tools.collect() }
    }

    fn is_of(&self, specs: &BTreeMap<&str, &ToolSpec>) -> bool {
        let known = self.tools.iter().zip(&self.sources);
        self.tools.len() == specs.len()
            && known.zip(specs).all(|((tool, source), (name, spec))| {
                tool.name == *name
                    && Arc::ptr_eq(&source.schema, &spec.input_schema)
                    && source.description == spec.description
            })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::ids::ToolName;
    use crate::tool::ToolHints;

    fn spec(description: &str) -> ToolSpec {
        // A provider refuses an array without items.
        let schema = json!({"type": "object", "properties": {"names": {"type": "array"}}});
        let Value::Object(schema) = schema else { unreachable!("an object") };
        ToolSpec {
            name: ToolName::new("read"),
            title: None,
            description: description.to_owned(),
            input_schema: Arc::new(schema),
            output_schema: None,
            hints: ToolHints::default(),
            meta: None,
        }
    }

    #[test]
    fn turns_with_the_same_tools_share_a_list() {
        let (mut recent, one) = (RecentLists::default(), spec("Reads."));
        let first = recent.tools(&BTreeMap::from([("read", &one)]));
        assert_eq!(first[0].schema["properties"]["names"]["items"], json!({}));
        assert!(Arc::ptr_eq(&first, &recent.tools(&BTreeMap::from([("read", &one)]))));
        let (equal, changed) = (spec("Reads."), ToolSpec { description: "Reads a file.".to_owned(), ..one.clone() });
        let others = [
            BTreeMap::from([("other", &one)]),
            BTreeMap::from([("read", &one), ("write", &one)]),
            BTreeMap::from([("read", &equal)]),
            BTreeMap::from([("read", &changed)]),
        ];
        for specs in others {
            let tools = recent.tools(&specs);
            assert!(!Arc::ptr_eq(&first, &tools));
            assert_eq!(
                (tools.len(), &tools[0].description),
                (specs.len(), &specs.values().next().unwrap().description)
            );
        }
    }

    #[test]
    fn the_list_of_tools_unused_for_longest_makes_room() {
        let (mut recent, one) = (RecentLists::default(), spec("Reads."));
        let first = recent.tools(&BTreeMap::from([("first", &one)]));
        for number in 0..MAX_LISTS {
            recent.tools(&BTreeMap::from([(number.to_string().as_str(), &one)]));
        }
        assert_eq!(recent.0.len(), MAX_LISTS);
        assert!(!Arc::ptr_eq(&first, &recent.tools(&BTreeMap::from([("first", &one)]))));
    }
}
