//! Names the tools of a binding as JavaScript functions: `developer__read_file` becomes `developer.read_file`.

use std::collections::HashSet;

use crate::broker::Binding;

/// JavaScript keywords and built-in names, which no service object may have.
const RESERVED_NAMES: &[&str] = &[
    "AggregateError",
    "Array",
    "ArrayBuffer",
    "Atomics",
    "BigInt",
    "Boolean",
    "DataView",
    "Date",
    "Error",
    "Function",
    "Infinity",
    "Intl",
    "Iterator",
    "JSON",
    "Map",
    "Math",
    "NaN",
    "Number",
    "Object",
    "Promise",
    "Proxy",
    "Reflect",
    "RegExp",
    "Set",
    "String",
    "Symbol",
    "WeakMap",
    "WeakRef",
    "WeakSet",
    "arguments",
    "async",
    "await",
    "break",
    "case",
    "catch",
    "class",
    "console",
    "const",
    "continue",
    "debugger",
    "default",
    "delete",
    "do",
    "else",
    "enum",
    "escape",
    "eval",
    "export",
    "extends",
    "false",
    "finally",
    "for",
    "function",
    "globalThis",
    "if",
    "implements",
    "import",
    "in",
    "instanceof",
    "interface",
    "let",
    "new",
    "null",
    "package",
    "private",
    "protected",
    "public",
    "return",
    "static",
    "super",
    "switch",
    "this",
    "throw",
    "true",
    "try",
    "typeof",
    "undefined",
    "unescape",
    "var",
    "void",
    "while",
    "with",
    "yield",
];

/// Function names with a special meaning: `then` makes an object a promise, and `__proto__` sets its prototype.
const RESERVED_METHODS: &[&str] = &["then", "__proto__"];

/// A tool as code calls it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Function {
    pub(super) object: String,
    pub(super) name: String,
    /// The tool's name in the binding.
    pub(super) tool: String,
}

impl std::fmt::Display for Function {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}.{}", self.object, self.name)
    }
}

/// Returns a function for every tool of a binding, grouped by service.
pub(super) fn of(binding: &Binding) -> Vec<Function> {
    let mut tools: Vec<_> =
        binding.tools().iter().map(|(tool, bound)| (bound.service.as_str(), bound.spec.name.as_str(), tool)).collect();
    tools.sort_unstable();
    name_functions(&tools)
}

fn name_functions(tools: &[(&str, &str, &String)]) -> Vec<Function> {
    let mut functions = Vec::with_capacity(tools.len());
    let mut objects = HashSet::new();
    for of_one in tools.chunk_by(|a, b| a.0 == b.0) {
        let Some((service, ..)) = of_one.first() else { continue };
        let object = free(identifier(service), RESERVED_NAMES, &mut objects);
        let mut names = HashSet::new();
        for (_, name, tool) in of_one {
            let name = free(identifier(name), RESERVED_METHODS, &mut names);
            functions.push(Function { object: object.clone(), name, tool: (*tool).clone() });
        }
    }
    functions
}

/// Converts a name to a JavaScript identifier. A valid one stays unchanged.
fn identifier(name: &str) -> String {
    let clean: String = name.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '_' }).collect();
    if clean.starts_with(|c: char| c.is_ascii_digit()) || clean.is_empty() { format!("_{clean}") } else { clean }
}

fn free(name: String, taken: &[&str], given: &mut HashSet<String>) -> String {
    let numbered = (1..).map(|number| if number == 1 { name.clone() } else { format!("{name}_{number}") });
    let mut usable = numbered.filter(|name| !taken.contains(&name.as_str()));
    let free = usable.find(|name| !given.contains(name)).unwrap_or(name);
    given.insert(free.clone());
    free
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(tools: &[(&str, &str)]) -> Vec<String> {
        let names: Vec<_> = tools.iter().map(|(service, tool)| format!("{service}__{tool}")).collect();
        let tools: Vec<_> = tools.iter().zip(&names).map(|((service, tool), name)| (*service, *tool, name)).collect();
        name_functions(&tools).iter().map(|function| format!("{function} = {}", function.tool)).collect()
    }

    #[test]
    fn a_name_that_code_can_write_stays_and_any_other_becomes_one() {
        let tools = [("delete", "x"), ("developer", "read_file"), ("my-notes", "1st.note"), ("my-notes", "then")];
        assert_eq!(
            shown(&tools),
            [
                "delete_2.x = delete__x",
                "developer.read_file = developer__read_file",
                "my_notes._1st_note = my-notes__1st.note",
                "my_notes.then_2 = my-notes__then",
            ]
        );
    }

    #[test]
    fn no_two_tools_share_a_function() {
        let tools = [("a-b", "x y"), ("a-b", "x-y"), ("a-b", "x_y"), ("a_b", "x"), ("a_b_2", "x")];
        let objects: Vec<_> =
            shown(&tools).iter().map(|line| line.split(' ').next().unwrap_or("").to_owned()).collect();
        assert_eq!(objects, ["a_b.x_y", "a_b.x_y_2", "a_b.x_y_3", "a_b_2.x", "a_b_2_2.x"]);
    }
}
