//! The languages and their grammars.

use std::path::Path;

use tree_sitter::Language;

/// A language whose files can be analysed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum SourceLanguage {
    Bash,
    C,
    Go,
    Java,
    JavaScript,
    Python,
    Rust,
    Tsx,
    TypeScript,
    #[cfg(feature = "all-languages")]
    CSharp,
    #[cfg(feature = "all-languages")]
    Cpp,
    #[cfg(feature = "all-languages")]
    Kotlin,
    #[cfg(feature = "all-languages")]
    Php,
    #[cfg(feature = "all-languages")]
    Ruby,
    #[cfg(feature = "all-languages")]
    Swift,
}

impl SourceLanguage {
    /// All languages of this build.
    pub const ALL: &'static [Self] = &[
        Self::Bash,
        Self::C,
        Self::Go,
        Self::Java,
        Self::JavaScript,
        Self::Python,
        Self::Rust,
        Self::Tsx,
        Self::TypeScript,
        #[cfg(feature = "all-languages")]
        Self::CSharp,
        #[cfg(feature = "all-languages")]
        Self::Cpp,
        #[cfg(feature = "all-languages")]
        Self::Kotlin,
        #[cfg(feature = "all-languages")]
        Self::Php,
        #[cfg(feature = "all-languages")]
        Self::Ruby,
        #[cfg(feature = "all-languages")]
        Self::Swift,
    ];

    /// Returns the language of a file, by the end of its name. `None` if this build does not know it.
    pub fn of_path(path: &Path) -> Option<Self> {
        Some(match path.extension()?.to_str()? {
            "sh" | "bash" => Self::Bash,
            "c" | "h" => Self::C,
            "go" => Self::Go,
            "java" => Self::Java,
            "js" | "mjs" | "cjs" | "jsx" => Self::JavaScript,
            "py" | "pyi" => Self::Python,
            "rs" => Self::Rust,
            "tsx" => Self::Tsx,
            "ts" | "mts" | "cts" => Self::TypeScript,
            #[cfg(feature = "all-languages")]
            "cs" => Self::CSharp,
            #[cfg(feature = "all-languages")]
            "cc" | "cpp" | "cxx" | "hh" | "hpp" | "hxx" => Self::Cpp,
            #[cfg(feature = "all-languages")]
            "kt" | "kts" => Self::Kotlin,
            #[cfg(feature = "all-languages")]
            "php" => Self::Php,
            #[cfg(feature = "all-languages")]
            "rb" => Self::Ruby,
            #[cfg(feature = "all-languages")]
            "swift" => Self::Swift,
            _ => return None,
        })
    }

    /// Returns the name that people use.
    pub fn title(self) -> &'static str {
        match self {
            Self::Bash => "Bash",
            Self::C => "C",
            Self::Go => "Go",
            Self::Java => "Java",
            Self::JavaScript => "JavaScript",
            Self::Python => "Python",
            Self::Rust => "Rust",
            Self::Tsx | Self::TypeScript => "TypeScript",
            #[cfg(feature = "all-languages")]
            Self::CSharp => "C#",
            #[cfg(feature = "all-languages")]
            Self::Cpp => "C++",
            #[cfg(feature = "all-languages")]
            Self::Kotlin => "Kotlin",
            #[cfg(feature = "all-languages")]
            Self::Php => "PHP",
            #[cfg(feature = "all-languages")]
            Self::Ruby => "Ruby",
            #[cfg(feature = "all-languages")]
            Self::Swift => "Swift",
        }
    }

    /// Returns true if code of one language calls functions of the other by name.
    pub fn shares_names_with(self, other: Self) -> bool {
        self.name_space() == other.name_space()
    }

    fn name_space(self) -> &'static str {
        match self {
            Self::JavaScript | Self::Tsx | Self::TypeScript => "JavaScript",
            #[cfg(feature = "all-languages")]
            Self::Cpp => "C",
            #[cfg(feature = "all-languages")]
            Self::Kotlin => "Java",
            _ => self.title(),
        }
    }

    pub(super) fn grammar(self) -> Language {
        match self {
            Self::Bash => tree_sitter_bash::LANGUAGE,
            Self::C => tree_sitter_c::LANGUAGE,
            Self::Go => tree_sitter_go::LANGUAGE,
            Self::Java => tree_sitter_java::LANGUAGE,
            Self::JavaScript => tree_sitter_javascript::LANGUAGE,
            Self::Python => tree_sitter_python::LANGUAGE,
            Self::Rust => tree_sitter_rust::LANGUAGE,
            Self::Tsx => tree_sitter_typescript::LANGUAGE_TSX,
            Self::TypeScript => tree_sitter_typescript::LANGUAGE_TYPESCRIPT,
            #[cfg(feature = "all-languages")]
            Self::CSharp => tree_sitter_c_sharp::LANGUAGE,
            #[cfg(feature = "all-languages")]
            Self::Cpp => tree_sitter_cpp::LANGUAGE,
            #[cfg(feature = "all-languages")]
            Self::Kotlin => tree_sitter_kotlin_ng::LANGUAGE,
            #[cfg(feature = "all-languages")]
            Self::Php => tree_sitter_php::LANGUAGE_PHP,
            #[cfg(feature = "all-languages")]
            Self::Ruby => tree_sitter_ruby::LANGUAGE,
            #[cfg(feature = "all-languages")]
            Self::Swift => tree_sitter_swift::LANGUAGE,
        }
        .into()
    }
}
