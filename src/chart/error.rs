//! The ways in which data cannot be drawn. Each message names the place in the data and what to change.

/// Why there is no picture.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ChartError {
    #[error("`data` must be a list of rows such as [{{\"month\": \"Jan\", \"sales\": 3}}]; this is {found}")]
    NotRows { found: &'static str },
    #[error("row {row} is {found}; every row must be an object such as {{\"month\": \"Jan\", \"sales\": 3}}")]
    BadRow { row: usize, found: &'static str },
    #[error("row {row}, column `{column}` holds {found}; a cell is a text, a number or null")]
    BadCell { row: usize, column: String, found: &'static str },
    #[error("there is no column `{name}`; the columns are {columns}{near}")]
    UnknownColumn { name: String, columns: String, near: String },
    #[error("a {kind} needs {need}; the columns are {columns}. Name them in `options`, or add them to the data")]
    MissingColumn { kind: &'static str, need: String, columns: String },
    #[error("row {row}, column `{column}`: `{value}` is not a number; correct it, or use null for a missing value")]
    NotNumber { row: usize, column: String, value: String },
    #[error("row {row}, column `{column}`: {value} is too large to draw; use another unit, such as millions")]
    TooExtreme { row: usize, column: String, value: String },
    #[error("`{label}` has the value {value}; a {kind} shows parts of a whole, so remove it or draw a bar chart")]
    Negative { kind: &'static str, label: String, value: String },
    #[error("row {row}: {value} is no {what}, which is between {min} and {max}")]
    OutOfRange { row: usize, what: &'static str, value: String, min: i32, max: i32 },
    #[error("{count} {what} are too many for a {kind}, {max} are the limit; group or filter the data first")]
    TooMany { kind: &'static str, what: &'static str, count: usize, max: usize },
    #[error("a {kind} needs at least {min} {what}, and the data has {count}; {advice}")]
    TooFew { kind: &'static str, what: &'static str, count: usize, min: usize, advice: &'static str },
    #[error("the links lead in a circle: {path}; remove one of them, or draw a `network` or `chord`")]
    Circle { path: String },
    #[error("row {row} links `{node}` with itself; remove the row")]
    SelfLink { row: usize, node: String },
    #[error("row {row}: `{node}` has the parent `{parent}`, and no row has this name{near}")]
    UnknownParent { row: usize, node: String, parent: String, near: String },
    #[error("row {row}: the name `{node}` is used twice; names of nodes must be unique")]
    DuplicateNode { row: usize, node: String },
    #[error("node `{node}` is its own ancestor; correct its parent")]
    ParentCircle { node: String },
    #[error("row {row}: there is no country `{name}` on the map{near}; use the English name or the ISO code")]
    UnknownCountry { row: usize, name: String, near: String },
    #[error("row {row} (`{label}`): {range} must enclose {prices}")]
    BadCandle { row: usize, label: String, range: String, prices: String },
    #[error("`min` is {min} and `max` is {max}; `min` must be the smaller one")]
    BadRange { min: String, max: String },
    #[error("line {line} of the Mermaid text: {problem}")]
    Mermaid { line: usize, problem: String },
    #[error("line {line} of the CSV text: {problem}")]
    Csv { line: usize, problem: String },
}

/// Returns `; did you mean …?` for the nearest known name, or nothing.
pub(super) fn suggest<'a>(name: &str, mut known: impl Iterator<Item = &'a str>) -> String {
    let name = name.to_lowercase();
    let near = known.find(|known| is_near(&name, &known.to_lowercase()));
    near.map(|near| format!("; did you mean `{near}`?")).unwrap_or_default()
}

/// Returns whether one text begins with the other, or one edit changes it to the other.
fn is_near(one: &str, other: &str) -> bool {
    if one.len() >= 3 && other.len() >= 3 && (one.starts_with(other) || other.starts_with(one)) {
        return true;
    }
    let (one, other): (Vec<char>, Vec<char>) = (one.chars().collect(), other.chars().collect());
    if one.len() < 3 || one.len().abs_diff(other.len()) > 1 {
        return false;
    }
    let same = one.iter().zip(&other).take_while(|(a, b)| a == b).count();
    let end = one[same..].iter().rev().zip(other[same..].iter().rev()).take_while(|(a, b)| a == b).count();
    one.len() - same - end <= 1 && other.len() - same - end <= 1
}
