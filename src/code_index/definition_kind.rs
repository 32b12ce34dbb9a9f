//! What a definition is.

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum DefinitionKind {
    Class,
    Constant,
    Constructor,
    Enum,
    Function,
    /// A block of methods for a type that is defined elsewhere.
    Impl,
    Interface,
    Macro,
    Method,
    Module,
    /// A function without a body.
    Prototype,
    Struct,
    TypeAlias,
    Union,
    Variable,
}

impl DefinitionKind {
    /// Returns true if functions inside are methods.
    pub(super) fn has_methods(self) -> bool {
        matches!(self, Self::Class | Self::Enum | Self::Impl | Self::Interface | Self::Struct | Self::Union)
    }

    /// Returns true if it can be called.
    pub fn is_callable(self) -> bool {
        matches!(self, Self::Constructor | Self::Function | Self::Macro | Self::Method | Self::Prototype)
    }
}
