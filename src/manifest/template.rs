//! Renders templates under limits on what they may use, how much work they may do, and how long their output may be.
//!
//! Invariant: a template is parsed and inspected before it is compiled, because compiling already evaluates constants.
//! No accepted expression makes a value that grows with the number of steps. Two variables cannot be joined into one
//! value, and filters that produce text share one limit.

use std::borrow::Cow;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use minijinja::machinery::ast::{BinOpKind, CallArg, Expr, Stmt, UnaryOpKind};
use minijinja::value::{Rest, ValueKind};
use minijinja::{Environment, Error, ErrorKind, UndefinedBehavior, Value, filters, functions, machinery};

/// The maximum number of steps. A prompt with a few loops needs less; more is a mistake or an attack.
const FUEL: u64 = 50_000;
/// The maximum length of the output in bytes.
const MAX_OUTPUT: usize = 1 << 20;
/// The maximum number of bytes that all filters of one template may read and write.
const MAX_WORK: usize = 16 << 20;
/// The maximum number of elements of a `range`.
const MAX_RANGE: usize = 1_000;
/// The maximum width of `indent`.
const MAX_INDENT: usize = 100;
/// The cost of a part that `split` or `lines` makes, including its memory overhead.
const PART_COST: usize = 32;

/// The filters that a template may use. Those that produce text are replaced by limited versions.
const FILTERS: [&str; 21] = [
    "abs",
    "bool",
    "capitalize",
    "count",
    "d",
    "default",
    "first",
    "float",
    "indent",
    "int",
    "join",
    "last",
    "length",
    "lines",
    "lower",
    "replace",
    "round",
    "split",
    "title",
    "trim",
    "upper",
];

/// The reason why a text cannot be used as a template.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}{reason}", .line.map(|line| format!("line {line}: ")).unwrap_or_default())]
pub struct TemplateError {
    pub line: Option<usize>,
    pub reason: String,
    pub(super) kind: TemplateProblem,
}

/// The kind of problem, which determines the help.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum TemplateProblem {
    /// Not a template, or it fails with these values.
    Invalid,
    /// It uses a feature that is not available here.
    Unavailable,
    /// It exceeds a limit on time or length.
    OverLimit,
}

impl From<Error> for TemplateError {
    fn from(error: Error) -> Self {
        let line = error.line();
        let over = |reason: String| Self { line, reason, kind: TemplateProblem::OverLimit };
        match error.kind() {
            ErrorKind::OutOfFuel => over("it takes too long to fill in".to_owned()),
            ErrorKind::WriteFailure => over(format!("its text gets longer than {MAX_OUTPUT} bytes")),
            kind => {
                let reason = error.detail().map_or_else(|| kind.to_string(), str::to_owned);
                Self { line, reason, kind: TemplateProblem::Invalid }
            }
        }
    }
}

/// A template that passed the inspection.
#[derive(Debug)]
pub(super) struct Template<'a> {
    environment: Environment<'a>,
    name: &'a str,
    text: &'a str,
}

impl<'a> Template<'a> {
    /// Parses and inspects a text without evaluating it.
    pub(super) fn parse(name: &'a str, text: &'a str) -> Result<Self, TemplateError> {
        let parsed = machinery::parse(text, name, minijinja::syntax::SyntaxConfig::default())?;
        inspect_statement(&parsed)?;
        Ok(Self { environment: environment(), name, text })
    }

    /// Returns the variables that the text uses and does not set itself, sorted.
    pub(super) fn variables(&self) -> Result<Vec<String>, TemplateError> {
        let template = self.environment.template_from_named_str(self.name, self.text)?;
        let mut used: Vec<_> = template.undeclared_variables(false).into_iter().collect();
        used.retain(|name| !self.environment.globals().any(|(global, _)| global == name));
        used.sort();
        Ok(used)
    }

    /// Renders the text with these values.
    pub(super) fn render(&self, values: Value) -> Result<String, TemplateError> {
        let template = self.environment.template_from_named_str(self.name, self.text)?;
        let mut output = LimitedOutput::default();
        template.render_captured_to(values, &mut output)?;
        String::from_utf8(output.bytes).map_err(|error| TemplateError {
            line: None,
            reason: error.to_string(),
            kind: TemplateProblem::Invalid,
        })
    }
}

#[derive(Default)]
struct LimitedOutput {
    bytes: Vec<u8>,
}

impl io::Write for LimitedOutput {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > MAX_OUTPUT {
            return Err(io::Error::other("the text is too long"));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// The number of bytes that filters may still read and write.
#[derive(Clone)]
struct WorkBudget(Arc<AtomicUsize>);

impl WorkBudget {
    fn spend(&self, bytes: usize) -> Result<(), Error> {
        let spend = |left: usize| left.checked_sub(bytes);
        let spent = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, spend);
        spent.map(drop).map_err(|_| Error::from(ErrorKind::OutOfFuel))
    }
}

fn environment<'a>() -> Environment<'a> {
    let mut environment = Environment::new();
    environment.set_undefined_behavior(UndefinedBehavior::Strict);
    environment.set_fuel(Some(FUEL));
    let work = WorkBudget(Arc::new(AtomicUsize::new(MAX_WORK)));
    type TextFilter = fn(&str) -> String;
    let texts: [(&'static str, TextFilter); 5] = [
        ("lower", str::to_lowercase),
        ("upper", str::to_uppercase),
        ("trim", |text| text.trim().to_owned()),
        ("capitalize", capitalize),
        ("title", |text| filters::title(Cow::Borrowed(text))),
    ];
    for (name, convert) in texts {
        let work = work.clone();
        environment.add_filter(name, move |text: Cow<'_, str>| {
            work.spend(text.len())?;
            Ok::<_, Error>(convert(&text))
        });
    }
    let spending = work.clone();
    environment.add_filter("replace", move |text: Cow<'_, str>, from: Cow<'_, str>, to: Cow<'_, str>| {
        spending.spend(text.len())?;
        spending.spend(text.matches(from.as_ref()).count().saturating_mul(to.len()))?;
        Ok::<_, Error>(text.replace(from.as_ref(), &to))
    });
    let spending = work.clone();
    environment.add_filter("join", move |values: Value, separator: Option<Cow<'_, str>>| {
        let mut joined = String::new();
        for (nth, value) in values.try_iter()?.enumerate() {
            let separator = separator.as_deref().filter(|_| nth > 0).unwrap_or_default();
            let value = value.to_string();
            spending.spend(separator.len() + value.len() + 1)?;
            joined.push_str(separator);
            joined.push_str(&value);
        }
        Ok::<_, Error>(joined)
    });
    let spending = work.clone();
    environment.add_filter("indent", move |text: Cow<'_, str>, width: usize, options: Rest<Value>| {
        let first = options.first().is_some_and(Value::is_true);
        let width = width.min(MAX_INDENT);
        spending.spend(text.len() + (text.matches('\n').count() + 1) * width)?;
        let indented = text.replace('\n', &format!("\n{:width$}", ""));
        Ok::<_, Error>(if first { format!("{:width$}{indented}", "") } else { indented })
    });
    let spending = work.clone();
    environment.add_filter("split", move |text: Value, separator: Option<Arc<str>>| {
        spending.spend(text.as_str().map_or(0, str::len).saturating_mul(PART_COST))?;
        filters::split(&text, separator, None)
    });
    let spending = work.clone();
    environment.add_filter("lines", move |text: Value| {
        spending.spend(text.as_str().map_or(0, str::len).saturating_mul(PART_COST))?;
        filters::lines(&text)
    });
    for name in ["length", "count"] {
        let work = work.clone();
        environment.add_filter(name, move |value: Value| {
            work.spend(value.as_str().map_or(0, str::len))?;
            filters::length(&value)
        });
    }
    environment.add_function("range", |lower: isize, upper: Option<isize>, step: Option<isize>| {
        let range = functions::range(lower, upper, step)?;
        if range.try_iter()?.nth(MAX_RANGE).is_some() {
            let reason = format!("range has more than {MAX_RANGE} elements");
            return Err(Error::new(ErrorKind::InvalidOperation, reason));
        }
        Ok(range)
    });
    environment
}

fn capitalize(text: &str) -> String {
    let mut chars = text.chars();
    let first: String = chars.next().into_iter().flat_map(char::to_uppercase).collect();
    first + &chars.as_str().to_lowercase()
}

fn unavailable(line: u16, reason: impl Into<String>) -> TemplateError {
    TemplateError { line: Some(line.into()), reason: reason.into(), kind: TemplateProblem::Unavailable }
}

fn inspect_statements(statements: &[Stmt<'_>]) -> Result<(), TemplateError> {
    statements.iter().try_for_each(inspect_statement)
}

fn inspect_statement(statement: &Stmt<'_>) -> Result<(), TemplateError> {
    match statement {
        Stmt::Template(template) => inspect_statements(&template.children),
        Stmt::EmitRaw(_) => Ok(()),
        Stmt::EmitExpr(emitted) => inspect(&emitted.expr),
        Stmt::ForLoop(repeated) => {
            if repeated.recursive {
                return Err(unavailable(repeated.span().start_line, "a recursive loop is not available"));
            }
            inspect(&repeated.iter)?;
            repeated.filter_expr.as_ref().map_or(Ok(()), inspect)?;
            inspect_statements(&repeated.body)?;
            inspect_statements(&repeated.else_body)
        }
        Stmt::IfCond(choice) => {
            inspect(&choice.expr)?;
            inspect_statements(&choice.true_body)?;
            inspect_statements(&choice.false_body)
        }
        Stmt::Set(set) => inspect(&set.expr),
        Stmt::WithBlock(with) => {
            with.assignments.iter().try_for_each(|(_, value)| inspect(value))?;
            inspect_statements(&with.body)
        }
        Stmt::SetBlock(block) => Err(unavailable(block.span().start_line, "a `set` block is not available")),
        Stmt::AutoEscape(block) => Err(unavailable(block.span().start_line, "`autoescape` is not available")),
        Stmt::FilterBlock(block) => Err(unavailable(block.span().start_line, "a `filter` block is not available")),
        Stmt::Do(statement) => Err(unavailable(statement.span().start_line, "`do` is not available")),
    }
}

fn inspect_all(expressions: &[Expr<'_>]) -> Result<(), TemplateError> {
    expressions.iter().try_for_each(inspect)
}

fn inspect(expression: &Expr<'_>) -> Result<(), TemplateError> {
    let line = expression.span().start_line;
    match expression {
        Expr::Var(_) | Expr::Const(_) => Ok(()),
        Expr::Slice(_) => Err(unavailable(line, "a slice is not available")),
        Expr::UnaryOp(operation) => inspect(&operation.expr),
        Expr::BinOp(operation) => {
            let numeric = is_number(&operation.left) || is_number(&operation.right);
            match operation.op {
                BinOpKind::Concat => {
                    return Err(unavailable(line, "`~` is not available; write {{ a }}{{ b }} to join texts"));
                }
                BinOpKind::Mul => return Err(unavailable(line, "`*` is not available")),
                BinOpKind::Add if !numeric => {
                    return Err(unavailable(
                        line,
                        "`+` is only available with a number; write {{ a }}{{ b }} to join texts",
                    ));
                }
                _ => {}
            }
            inspect(&operation.left)?;
            inspect(&operation.right)
        }
        Expr::Compare(compare) => {
            inspect(&compare.expr)?;
            compare.ops.iter().try_for_each(|operand| inspect(&operand.expr))
        }
        Expr::IfExpr(choice) => {
            inspect(&choice.test_expr)?;
            inspect(&choice.true_expr)?;
            choice.false_expr.as_ref().map_or(Ok(()), inspect)
        }
        Expr::Filter(filter) => {
            if !FILTERS.contains(&filter.name) {
                return Err(unavailable(line, format!("the filter `{}` is not available", filter.name)));
            }
            filter.expr.as_ref().map_or(Ok(()), inspect)?;
            inspect_arguments(&filter.args)
        }
        Expr::Test(test) => {
            inspect(&test.expr)?;
            inspect_arguments(&test.args)
        }
        Expr::GetAttr(attribute) => inspect(&attribute.expr),
        Expr::GetItem(item) => {
            inspect(&item.expr)?;
            inspect(&item.subscript_expr)
        }
        Expr::Call(call) => {
            if !matches!(&call.expr, Expr::Var(name) if name.id == "range") {
                return Err(unavailable(line, "`range` is the only function that is available"));
            }
            inspect_arguments(&call.args)
        }
        Expr::List(list) => inspect_literal(line, &list.items),
        Expr::Tuple(tuple) => inspect_literal(line, &tuple.items),
        Expr::Map(map) => {
            inspect_literal(line, &map.keys)?;
            inspect_literal(line, &map.values)
        }
    }
}

fn inspect_arguments(arguments: &[CallArg<'_>]) -> Result<(), TemplateError> {
    arguments.iter().try_for_each(|argument| match argument {
        CallArg::Pos(value) | CallArg::Kwarg(_, value) => inspect(value),
        CallArg::PosSplat(value) | CallArg::KwargSplat(value) => {
            Err(unavailable(value.span().start_line, "`*` before an argument is not available"))
        }
    })
}

/// Rejects lists and mappings of variables. Such a value can contain another one twice, and so grow exponentially.
fn inspect_literal(line: u16, items: &[Expr<'_>]) -> Result<(), TemplateError> {
    let constant = |item: &Expr<'_>| match item {
        Expr::Const(_) | Expr::List(_) | Expr::Tuple(_) | Expr::Map(_) => true,
        Expr::UnaryOp(operation) => is_number(&operation.expr),
        _ => false,
    };
    if !items.iter().all(constant) {
        return Err(unavailable(line, "a list or mapping may only hold constants"));
    }
    inspect_all(items)
}

fn is_number(expression: &Expr<'_>) -> bool {
    match expression {
        Expr::Const(constant) => constant.value.kind() == ValueKind::Number,
        Expr::UnaryOp(operation) => matches!(operation.op, UnaryOpKind::Neg) && is_number(&operation.expr),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn render(text: &str) -> Result<String, TemplateError> {
        Template::parse("t", text)?.render(minijinja::context! { x => "ab\nc", n => "3", long => "a".repeat(100_000) })
    }

    #[test]
    fn everyday_templates_are_filled_in() {
        for (text, expected) in [
            ("{% if n == \"3\" and x is defined %}yes{% else %}no{% endif %}", "yes"),
            ("{% for i in range(2) %}{{ loop.index + 1 }} {% endfor %}", "2 3 "),
            ("{% for word in ['a', 'b'] %}{{ word|upper }}{% endfor %}", "AB"),
            ("{% set y = x|replace(\"a\", \"z\") %}{{ y|indent(2) }}", "zb\n  c"),
            ("{{ x|indent(1, true) }}", " ab\n c"),
            ("{{ x|lines|join(\", \") }} {{ x|length }} {{ n|int }}", "ab, c 4 3"),
            ("{{ \" b c \"|trim|title }} {{ \"bC\"|capitalize }}", "B C Bc"),
            ("{# note #}{% raw %}{{ a ~ b }}{% endraw %}", "{{ a ~ b }}"),
            ("{{ \"y\" if n|int > 2 else \"z\" }}", "y"),
        ] {
            assert_eq!(render(text).as_deref(), Ok(expected), "{text}");
        }
    }

    #[test]
    fn nothing_that_grows_values_is_available() {
        for text in [
            "{{ \"x\" * 100000000 }}",
            "{% set a = \"x\" * 100000000 %}{% set b = \"y\" * 100000000 %}",
            "{{ x ~ x }}",
            "{% set x = x + x %}{{ x }}",
            "{% set y = [x, x] %}{% set z = [y, y] %}{{ z == z }}",
            "{% for y in [[x, x]] %}{% for z in [(y, y)] %}{{ z }}{% endfor %}{% endfor %}",
            "{% set y = {\"a\": x} %}",
            "{% set y %}{{ x }}{{ x }}{% endset %}",
            "{% filter upper %}{{ x }}{% endfilter %}",
            "{% macro m() %}x{% endmacro %}{{ m() }}",
            "{% for y in x recursive %}{{ loop(y) }}{% endfor %}",
            "{% set ns = namespace(a=x) %}",
            "{% set y = long[1:] %}",
            "{{ \"%100000000s\"|format(x) }}",
            "{{ range(1000)|list }}",
            "{{ dict(a=x) }}",
            "{% include \"x\" %}",
        ] {
            let error = render(text).expect_err(text);
            assert_ne!(error.kind, TemplateProblem::OverLimit, "{text}: {error}");
        }
    }

    #[test]
    fn a_template_has_a_limit_on_its_text_and_its_work() {
        for text in [
            "{% for i in range(1000) %}{{ long }}{% endfor %}",
            "{% for i in range(900) %}{% if long|upper %}{% endif %}{% endfor %}",
            "{{ long|replace(\"a\", long) }}",
            "{{ long|split(\"\")|join(long) }}",
            "{% for i in range(900) %}{% for j in range(900) %}{% endfor %}{% endfor %}",
        ] {
            assert_eq!(render(text).expect_err(text).kind, TemplateProblem::OverLimit, "{text}");
        }
        assert!(render("{% for i in range(1001) %}{% endfor %}").is_err());
        assert_eq!(render("{% for i in range(10) %}{{ long }}{% endfor %}").map(|text| text.len()), Ok(1_000_000));
    }
}
