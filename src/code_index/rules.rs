//! Tables of the grammar nodes that define and call something, for each language.

use tree_sitter::Language;

use super::definition_kind::DefinitionKind;
use super::language::SourceLanguage;

/// How a definition gets its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NameRule {
    /// From the field `name`.
    Name,
    /// From the field `name`, if the node has a body. Without one it is only a use of the type.
    NameWithBody,
    /// From the field `name`, in the outermost scope of the file. Other variables are local.
    NameAtTop,
    /// From the field `left`, in the outermost scope of the file.
    LeftAtTop,
    /// From this field, if the node's value is a function.
    FunctionValue(&'static str),
    /// From the innermost C declarator.
    Declarator,
    /// From the innermost C declarator, if it declares a function.
    Prototype,
    /// The type that an `impl` block belongs to.
    ImplementedType,
    /// The first identifier below the node.
    #[cfg(feature = "all-languages")]
    FirstIdentifier,
}

/// A grammar node that defines something.
pub(super) struct DefinitionRule {
    node: &'static str,
    pub(super) kind: DefinitionKind,
    pub(super) name: NameRule,
}

/// The nodes of one language.
struct LanguageRules {
    definitions: &'static [DefinitionRule],
    /// Nodes that call a function or create an object.
    calls: &'static [&'static str],
}

/// What a node means.
#[derive(Clone, Copy, Default)]
pub(super) struct NodeMeaning {
    pub(super) definition: Option<&'static DefinitionRule>,
    pub(super) is_call: bool,
}

/// Fields that lead from a call to the name of its function. `a.b::<T>(c)` leads to `b`.
const CALLEE_FIELDS: [&str; 10] =
    ["method", "macro", "constructor", "function", "field", "property", "attribute", "name", "suffix", "type"];

/// The meaning of each node kind of a grammar.
pub(super) struct NodeTable {
    meanings: Vec<NodeMeaning>,
    /// The ids of [`CALLEE_FIELDS`] that the grammar has. Ids are compared faster than names.
    pub(super) callee_fields: Vec<u16>,
}

impl NodeTable {
    pub(super) fn new(language: SourceLanguage, grammar: &Language) -> Self {
        let rules = rules(language);
        let kinds = u16::try_from(grammar.node_kind_count()).unwrap_or(u16::MAX);
        let meaning = |id| match grammar.node_kind_for_id(id) {
            Some(kind) if grammar.node_kind_is_named(id) => NodeMeaning {
                definition: rules.definitions.iter().find(|rule| rule.node == kind),
                is_call: rules.calls.contains(&kind),
            },
            _ => NodeMeaning::default(),
        };
        let callee_fields = CALLEE_FIELDS.iter().filter_map(|field| grammar.field_id_for_name(field)).map(u16::from);
        Self { meanings: (0..kinds).map(meaning).collect(), callee_fields: callee_fields.collect() }
    }

    pub(super) fn meaning(&self, kind_id: u16) -> NodeMeaning {
        self.meanings.get(usize::from(kind_id)).copied().unwrap_or_default()
    }
}

const fn define(node: &'static str, kind: DefinitionKind, name: NameRule) -> DefinitionRule {
    DefinitionRule { node, kind, name }
}

fn rules(language: SourceLanguage) -> &'static LanguageRules {
    match language {
        SourceLanguage::Bash => &BASH,
        SourceLanguage::C => &C,
        SourceLanguage::Go => &GO,
        SourceLanguage::Java => &JAVA,
        SourceLanguage::JavaScript | SourceLanguage::Tsx | SourceLanguage::TypeScript => &JAVASCRIPT,
        SourceLanguage::Python => &PYTHON,
        SourceLanguage::Rust => &RUST,
        #[cfg(feature = "all-languages")]
        SourceLanguage::CSharp => &C_SHARP,
        #[cfg(feature = "all-languages")]
        SourceLanguage::Cpp => &C,
        #[cfg(feature = "all-languages")]
        SourceLanguage::Kotlin => &KOTLIN,
        #[cfg(feature = "all-languages")]
        SourceLanguage::Php => &PHP,
        #[cfg(feature = "all-languages")]
        SourceLanguage::Ruby => &RUBY,
        #[cfg(feature = "all-languages")]
        SourceLanguage::Swift => &SWIFT,
    }
}

use DefinitionKind::{
    Class, Constant, Constructor, Enum, Function, Impl, Interface, Macro, Method, Module, Prototype, Struct, TypeAlias,
    Union, Variable,
};
#[cfg(feature = "all-languages")]
use NameRule::FirstIdentifier;
use NameRule::{Declarator, FunctionValue, ImplementedType, LeftAtTop, Name, NameAtTop, NameWithBody};

static BASH: LanguageRules =
    LanguageRules { definitions: &[define("function_definition", Function, Name)], calls: &["command"] };

/// Also for C++, whose grammar extends that of C.
static C: LanguageRules = LanguageRules {
    definitions: &[
        define("function_definition", Function, Declarator),
        define("declaration", Prototype, NameRule::Prototype),
        define("field_declaration", Prototype, NameRule::Prototype),
        define("struct_specifier", Struct, NameWithBody),
        define("class_specifier", Class, NameWithBody),
        define("union_specifier", Union, NameWithBody),
        define("enum_specifier", Enum, NameWithBody),
        define("type_definition", TypeAlias, Declarator),
        define("alias_declaration", TypeAlias, Name),
        define("namespace_definition", Module, Name),
        define("concept_definition", Interface, Name),
        define("preproc_def", Macro, Name),
        define("preproc_function_def", Macro, Name),
    ],
    calls: &["call_expression", "new_expression"],
};

static GO: LanguageRules = LanguageRules {
    definitions: &[
        define("function_declaration", Function, Name),
        define("method_declaration", Method, Name),
        define("method_elem", Method, Name),
        define("type_spec", Struct, Name),
        define("type_alias", TypeAlias, Name),
        define("const_spec", Constant, NameAtTop),
        define("var_spec", Variable, NameAtTop),
    ],
    calls: &["call_expression"],
};

static JAVA: LanguageRules = LanguageRules {
    definitions: &[
        define("class_declaration", Class, Name),
        define("interface_declaration", Interface, Name),
        define("annotation_type_declaration", Interface, Name),
        define("enum_declaration", Enum, Name),
        define("record_declaration", Class, Name),
        define("method_declaration", Method, Name),
        define("constructor_declaration", Constructor, Name),
        define("compact_constructor_declaration", Constructor, Name),
    ],
    calls: &["method_invocation", "object_creation_expression"],
};

/// Also for TypeScript, whose grammar extends that of JavaScript.
static JAVASCRIPT: LanguageRules = LanguageRules {
    definitions: &[
        define("function_declaration", Function, Name),
        define("generator_function_declaration", Function, Name),
        define("function_signature", Prototype, Name),
        define("class_declaration", Class, Name),
        define("abstract_class_declaration", Class, Name),
        define("method_definition", Method, Name),
        define("method_signature", Method, Name),
        define("abstract_method_signature", Method, Name),
        define("interface_declaration", Interface, Name),
        define("type_alias_declaration", TypeAlias, Name),
        define("enum_declaration", Enum, Name),
        define("internal_module", Module, Name),
        define("module", Module, Name),
        define("variable_declarator", Function, FunctionValue("name")),
        define("public_field_definition", Method, FunctionValue("name")),
        define("field_definition", Method, FunctionValue("property")),
        define("assignment_expression", Function, FunctionValue("left")),
        define("pair", Function, FunctionValue("key")),
    ],
    calls: &["call_expression", "new_expression"],
};

static PYTHON: LanguageRules = LanguageRules {
    definitions: &[
        define("class_definition", Class, Name),
        define("function_definition", Function, Name),
        define("assignment", Variable, LeftAtTop),
    ],
    calls: &["call"],
};

static RUST: LanguageRules = LanguageRules {
    definitions: &[
        define("function_item", Function, Name),
        define("function_signature_item", Prototype, Name),
        define("struct_item", Struct, Name),
        define("enum_item", Enum, Name),
        define("union_item", Union, Name),
        define("trait_item", Interface, Name),
        define("impl_item", Impl, ImplementedType),
        define("mod_item", Module, NameWithBody),
        define("macro_definition", Macro, Name),
        define("type_item", TypeAlias, Name),
        define("const_item", Constant, Name),
        define("static_item", Variable, Name),
    ],
    calls: &["call_expression", "macro_invocation", "struct_expression"],
};

#[cfg(feature = "all-languages")]
static C_SHARP: LanguageRules = LanguageRules {
    definitions: &[
        define("class_declaration", Class, Name),
        define("record_declaration", Class, Name),
        define("struct_declaration", Struct, Name),
        define("interface_declaration", Interface, Name),
        define("enum_declaration", Enum, Name),
        define("delegate_declaration", TypeAlias, Name),
        define("namespace_declaration", Module, Name),
        define("file_scoped_namespace_declaration", Module, Name),
        define("method_declaration", Method, Name),
        define("constructor_declaration", Constructor, Name),
        define("property_declaration", Method, Name),
        define("local_function_statement", Function, Name),
    ],
    calls: &["invocation_expression", "object_creation_expression"],
};

#[cfg(feature = "all-languages")]
static KOTLIN: LanguageRules = LanguageRules {
    definitions: &[
        define("class_declaration", Class, Name),
        define("object_declaration", Class, Name),
        define("companion_object", Class, Name),
        define("function_declaration", Function, Name),
        define("type_alias", TypeAlias, FirstIdentifier),
    ],
    calls: &["call_expression"],
};

#[cfg(feature = "all-languages")]
static PHP: LanguageRules = LanguageRules {
    definitions: &[
        define("namespace_definition", Module, Name),
        define("class_declaration", Class, Name),
        define("interface_declaration", Interface, Name),
        define("trait_declaration", Interface, Name),
        define("enum_declaration", Enum, Name),
        define("function_definition", Function, Name),
        define("method_declaration", Method, Name),
        define("const_element", Constant, FirstIdentifier),
    ],
    calls: &[
        "function_call_expression",
        "member_call_expression",
        "nullsafe_member_call_expression",
        "scoped_call_expression",
        "object_creation_expression",
    ],
};

#[cfg(feature = "all-languages")]
static RUBY: LanguageRules = LanguageRules {
    definitions: &[
        define("module", Module, Name),
        define("class", Class, Name),
        define("method", Method, Name),
        define("singleton_method", Method, Name),
    ],
    calls: &["call"],
};

#[cfg(feature = "all-languages")]
static SWIFT: LanguageRules = LanguageRules {
    definitions: &[
        define("class_declaration", Class, Name),
        define("protocol_declaration", Interface, Name),
        define("function_declaration", Function, Name),
        define("protocol_function_declaration", Prototype, Name),
        define("typealias_declaration", TypeAlias, Name),
    ],
    calls: &["call_expression"],
};
