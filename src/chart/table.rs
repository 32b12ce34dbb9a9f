//! Reads rows from JSON and CSV into a table of cells.

use serde_json::Value;

use super::error::ChartError;

/// Numbers beyond this cannot be added up without overflow.
const MAX_NUMBER: f64 = 1e200;

#[derive(Debug, Clone, PartialEq)]
pub(super) enum TableCell {
    Empty,
    Number(f64),
    Text(String),
}

impl TableCell {
    pub(super) fn to_text(&self) -> String {
        match self {
            TableCell::Empty => String::new(),
            TableCell::Number(number) => number.to_string(),
            TableCell::Text(text) => text.clone(),
        }
    }

    fn to_json(&self) -> Value {
        match self {
            TableCell::Empty => Value::Null,
            TableCell::Number(number) if number.fract() == 0.0 && number.abs() < 9e15 => Value::from(*number as i64),
            TableCell::Number(number) => Value::from(*number),
            TableCell::Text(text) => Value::from(text.as_str()),
        }
    }
}

/// Rows with named columns. Every row has one cell per column.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct DataTable {
    pub(super) columns: Vec<String>,
    pub(super) rows: Vec<Vec<TableCell>>,
}

impl DataTable {
    /// Reads a list of objects, a list of lists whose first is the header, a list of numbers, or an object of lists.
    pub fn from_json(value: &Value) -> Result<Self, ChartError> {
        match value {
            Value::Array(rows) if rows.iter().all(Value::is_array) && !rows.is_empty() => Self::from_lists(rows),
            Value::Array(rows) => Self::from_objects(rows),
            Value::Object(columns) if !columns.is_empty() && columns.values().all(Value::is_array) => {
                if let (Some(Value::Array(names)), Some(Value::Array(rows)), 2) =
                    (columns.get("columns"), columns.get("rows"), columns.len())
                {
                    let lists: Vec<_> =
                        std::iter::once(Value::Array(names.clone())).chain(rows.iter().cloned()).collect();
                    return Self::from_lists(&lists);
                }
                let longest = columns.values().filter_map(Value::as_array).map(Vec::len).max().unwrap_or(0);
                let row = |row: usize| {
                    columns
                        .iter()
                        .map(|(name, cells)| cell(cells.get(row).unwrap_or(&Value::Null), row, name))
                        .collect()
                };
                let rows = (0..longest).map(row).collect::<Result<_, _>>()?;
                Ok(Self { columns: columns.keys().cloned().collect(), rows })
            }
            other => Err(ChartError::NotRows { found: describe(other) }),
        }
    }

    fn from_objects(rows: &[Value]) -> Result<Self, ChartError> {
        let mut table = Self::default();
        let mut places = std::collections::HashMap::new();
        for (index, row) in rows.iter().enumerate() {
            let single;
            let row = match row {
                Value::Object(row) => row,
                Value::Number(_) => {
                    single = serde_json::Map::from_iter([("value".to_owned(), row.clone())]);
                    &single
                }
                other => return Err(ChartError::BadRow { row: index + 1, found: describe(other) }),
            };
            let mut cells = vec![TableCell::Empty; table.columns.len()];
            for (name, value) in row {
                let place = *places.entry(name.clone()).or_insert_with(|| {
                    table.columns.push(name.clone());
                    cells.push(TableCell::Empty);
                    table.columns.len() - 1
                });
                cells[place] = cell(value, index, name)?;
            }
            table.rows.push(cells);
        }
        let width = table.columns.len();
        table.rows.iter_mut().for_each(|row| row.resize(width, TableCell::Empty));
        Ok(table)
    }

    fn from_lists(rows: &[Value]) -> Result<Self, ChartError> {
        let list = |value: &Value| value.as_array().cloned().unwrap_or_default();
        let mut lists = rows.iter();
        let header = lists.next().map(list).unwrap_or_default();
        let name = |(index, value): (usize, &Value)| match value {
            Value::String(name) if !name.is_empty() => name.clone(),
            _ => format!("column {}", index + 1),
        };
        // Without names in the first row, that row is data.
        let named = header.iter().any(Value::is_string);
        let columns: Vec<_> = header.iter().enumerate().map(name).collect();
        let skip = usize::from(named);
        let mut table = Self { columns, rows: Vec::new() };
        for (index, row) in rows.iter().skip(skip).enumerate() {
            let Value::Array(row) = row else {
                return Err(ChartError::BadRow { row: index + 1, found: describe(row) });
            };
            let cells = table.columns.iter().enumerate();
            let cells = cells.map(|(at, name)| cell(row.get(at).unwrap_or(&Value::Null), index, name));
            table.rows.push(cells.collect::<Result<_, _>>()?);
        }
        Ok(table)
    }

    /// Reads CSV text whose first line has the names. The separator is the comma, semicolon or tab that occurs most often
    /// in that line.
    pub fn from_csv(text: &str) -> Result<Self, ChartError> {
        let text = text.trim_start_matches('\u{feff}');
        let first = text.lines().next().unwrap_or_default();
        let count = |separator: char| first.matches(separator).count();
        let separator = if count(';') > count(',') { ';' } else { ',' };
        let separator = if count('\t') > count(separator) { '\t' } else { separator };
        let mut records = records(text, separator)?.into_iter();
        let Some((_, columns)) = records.next() else { return Ok(Self::default()) };
        let name = |(index, name): (usize, String)| {
            if name.trim().is_empty() { format!("column {}", index + 1) } else { name.trim().to_owned() }
        };
        let columns: Vec<_> = columns.into_iter().enumerate().map(name).collect();
        let mut table = Self { columns, rows: Vec::new() };
        for (line, fields) in records {
            if fields.len() > table.columns.len() {
                let (has, need) = (fields.len(), table.columns.len());
                let problem = format!(
                    "it has {has} fields, and the first line has {need}; quote fields that contain `{separator}`"
                );
                return Err(ChartError::Csv { line, problem });
            }
            let mut row: Vec<_> = fields.iter().map(|field| parse(field)).collect();
            row.resize(table.columns.len(), TableCell::Empty);
            table.rows.push(row);
        }
        Ok(table)
    }

    /// Returns at most `max` rows as JSON objects.
    pub(super) fn to_json(&self, max: usize) -> Value {
        let object = |row: &Vec<TableCell>| -> serde_json::Map<String, Value> {
            self.columns.iter().cloned().zip(row.iter().map(TableCell::to_json)).collect()
        };
        self.rows.iter().take(max).map(object).map(Value::Object).collect()
    }
}

/// Splits CSV into records with the line on which each starts. Empty lines are skipped.
fn records(text: &str, separator: char) -> Result<Vec<(usize, Vec<String>)>, ChartError> {
    let mut records = Vec::new();
    let mut fields = Vec::new();
    let mut field = String::new();
    let (mut line, mut start, mut quoted, mut was_quoted) = (1, 1, false, false);
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        line += usize::from(letter == '\n');
        match letter {
            '"' if quoted && letters.peek() == Some(&'"') => field.extend(letters.next()),
            '"' if quoted => quoted = false,
            '"' if field.trim().is_empty() && !was_quoted => {
                field.clear();
                (quoted, was_quoted) = (true, true);
            }
            letter if letter == separator && !quoted => {
                fields.push(std::mem::take(&mut field));
                was_quoted = false;
            }
            '\n' if !quoted => {
                fields.push(std::mem::take(&mut field));
                let record = std::mem::take(&mut fields);
                if record.len() > 1 || !record[0].trim().is_empty() {
                    records.push((start, record));
                }
                (start, was_quoted) = (line, false);
            }
            '\r' if !quoted => {}
            letter => field.push(letter),
        }
    }
    if quoted {
        return Err(ChartError::Csv { line: start, problem: "a quoted field has no closing `\"`".to_owned() });
    }
    if !field.trim().is_empty() || !fields.is_empty() {
        fields.push(field);
        records.push((start, fields));
    }
    Ok(records)
}

fn cell(value: &Value, row: usize, column: &str) -> Result<TableCell, ChartError> {
    let cell = match value {
        Value::Null => TableCell::Empty,
        Value::Bool(value) => TableCell::Text(value.to_string()),
        Value::Number(number) => TableCell::Number(number.as_f64().unwrap_or(f64::INFINITY)),
        Value::String(text) => parse(text),
        other => {
            return Err(ChartError::BadCell { row: row + 1, column: column.to_owned(), found: describe(other) });
        }
    };
    match cell {
        TableCell::Number(number) if number.abs() > MAX_NUMBER => {
            Err(ChartError::TooExtreme { row: row + 1, column: column.to_owned(), value: format!("{number:e}") })
        }
        cell => Ok(cell),
    }
}

/// Reads a cell of text: a number with thousands separators, a currency or a percent sign; a missing value; or text.
fn parse(text: &str) -> TableCell {
    let trimmed = text.trim();
    if matches!(trimmed, "" | "-" | "NA" | "N/A" | "n/a" | "null" | "NaN" | "nan") {
        return TableCell::Empty;
    }
    let plain = trimmed.trim_start_matches(['$', '€', '£']).trim_end_matches(['%', '€']).trim();
    let digits = plain.trim_start_matches(['-', '+']);
    let grouped = plain.contains(',') && digits.split(',').skip(1).all(|part| part.len() >= 3);
    let plain = if grouped { plain.replace(',', "") } else { plain.to_owned() };
    // Rust also reads `inf` and `infinity`, which are words here.
    // A number with leading zeros is a code or an hour.
    let is_code = digits.len() > 1 && digits.starts_with('0') && digits.bytes().all(|byte| byte.is_ascii_digit());
    let numeric = !is_code
        && plain.trim_start_matches(['-', '+']).starts_with(|letter: char| letter.is_ascii_digit() || letter == '.');
    match plain.parse::<f64>() {
        Ok(number) if numeric && number.abs() <= MAX_NUMBER => TableCell::Number(number),
        _ => TableCell::Text(trimmed.to_owned()),
    }
}

fn describe(value: &Value) -> &'static str {
    match value {
        Value::Null => "null",
        Value::Bool(_) => "true or false",
        Value::Number(_) => "a number",
        Value::String(_) => "a text",
        Value::Array(_) => "a list",
        Value::Object(_) => "an object",
    }
}

#[cfg(test)]
#[path = "table_tests.rs"]
mod tests;
