//! Finds the columns that a kind of picture needs: those that the options name, or those that fit.

use super::error::{ChartError, suggest};
use super::table::{DataTable, TableCell};
use super::{ChartKind, ChartOptions, time};

/// A table with the request that it is drawn for.
#[derive(Debug, Clone, Copy)]
pub(super) struct Frame<'a> {
    pub(super) kind: ChartKind,
    pub(super) table: &'a DataTable,
    pub(super) options: &'a ChartOptions,
}

/// What the positions of a horizontal axis mean.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AxisKind {
    /// Positions are indexes of labels.
    Category,
    Number,
    /// Positions are seconds.
    Time,
}

/// Series over a shared horizontal axis.
#[derive(Debug, Clone)]
pub(super) struct SeriesSet {
    pub(super) kind: AxisKind,
    pub(super) x_name: String,
    /// Labels of the positions of a category axis.
    pub(super) labels: Vec<String>,
    pub(super) series: Vec<Series>,
}

#[derive(Debug, Clone)]
pub(super) struct Series {
    pub(super) name: String,
    /// Position and value. `None` is a gap.
    pub(super) points: Vec<(f64, Option<f64>)>,
}

impl SeriesSet {
    /// Returns the text of a position.
    pub(super) fn position(&self, x: f64) -> String {
        match self.kind {
            AxisKind::Category => self.labels.get(x as usize).cloned().unwrap_or_default(),
            AxisKind::Number => super::scale::format_value(x),
            AxisKind::Time => time::format(x),
        }
    }

    pub(super) fn values(&self) -> impl Iterator<Item = f64> {
        self.series.iter().flat_map(|series| series.points.iter().filter_map(|(_, value)| *value))
    }
}

impl<'a> Frame<'a> {
    pub(super) fn column(&self, name: &str) -> Result<usize, ChartError> {
        let columns = &self.table.columns;
        let exact = columns.iter().position(|column| column == name);
        let found = exact.or_else(|| columns.iter().position(|column| column.eq_ignore_ascii_case(name)));
        found.ok_or_else(|| ChartError::UnknownColumn {
            name: name.to_owned(),
            columns: self.list(),
            near: suggest(name, columns.iter().map(String::as_str)),
        })
    }

    fn list(&self) -> String {
        let names: Vec<_> = self.table.columns.iter().take(20).map(|name| format!("`{name}`")).collect();
        if names.is_empty() { "none".to_owned() } else { names.join(", ") }
    }

    pub(super) fn missing(&self, need: impl Into<String>) -> ChartError {
        ChartError::MissingColumn { kind: self.kind.title(), need: need.into(), columns: self.list() }
    }

    /// Returns the column that an option names, else the first with one of the usual names.
    pub(super) fn role(&self, option: Option<&String>, usual: &[&str]) -> Result<Option<usize>, ChartError> {
        if let Some(name) = option {
            return self.column(name).map(Some);
        }
        let columns = &self.table.columns;
        Ok(usual.iter().find_map(|usual| columns.iter().position(|column| column.eq_ignore_ascii_case(usual))))
    }

    /// Returns whether a column is meant to have numbers: most of its cells do.
    pub(super) fn is_numeric(&self, column: usize) -> bool {
        let mut numbers = 0;
        let mut texts = 0;
        for row in &self.table.rows {
            match row[column] {
                TableCell::Empty => {}
                TableCell::Number(_) => numbers += 1,
                TableCell::Text(_) => texts += 1,
            }
        }
        numbers > 0 && numbers > texts
    }

    pub(super) fn text_columns(&self) -> Vec<usize> {
        (0..self.table.columns.len()).filter(|column| !self.is_numeric(*column)).collect()
    }

    /// Returns the columns that the option `y` names, else all numeric columns but `except`.
    pub(super) fn value_columns(&self, except: &[Option<usize>]) -> Result<Vec<usize>, ChartError> {
        if !self.options.y.is_empty() {
            return self.options.y.iter().map(|name| self.column(name)).collect();
        }
        let free = |column: &usize| self.is_numeric(*column) && !except.contains(&Some(*column));
        let found: Vec<_> = (0..self.table.columns.len()).filter(free).collect();
        if found.is_empty() {
            return Err(self.missing("a column of numbers (`y`)"));
        }
        Ok(found)
    }

    /// Returns the column of names: the option `x`, else the first column of text.
    pub(super) fn name_column(&self) -> Result<Option<usize>, ChartError> {
        if let Some(name) = &self.options.x {
            return self.column(name).map(Some);
        }
        Ok(self.text_columns().first().copied())
    }

    pub(super) fn number(&self, row: usize, column: usize) -> Result<Option<f64>, ChartError> {
        match &self.table.rows[row][column] {
            TableCell::Empty => Ok(None),
            TableCell::Number(number) => Ok(Some(*number)),
            TableCell::Text(text) => Err(ChartError::NotNumber {
                row: row + 1,
                column: self.table.columns[column].clone(),
                value: text.chars().take(60).collect(),
            }),
        }
    }

    pub(super) fn numbers(&self, column: usize) -> Result<Vec<Option<f64>>, ChartError> {
        (0..self.table.rows.len()).map(|row| self.number(row, column)).collect()
    }

    pub(super) fn text(&self, row: usize, column: Option<usize>) -> String {
        column.map_or_else(|| (row + 1).to_string(), |column| self.table.rows[row][column].to_text())
    }

    /// Returns names with values of at least 0. Rows without a value are left out.
    pub(super) fn parts(&self) -> Result<Vec<(String, f64)>, ChartError> {
        let names = self.name_column()?;
        let Some(&values) = self.value_columns(&[names])?.first() else { return Ok(Vec::new()) };
        let mut parts = Vec::new();
        for row in 0..self.table.rows.len() {
            let Some(value) = self.number(row, values)? else { continue };
            let label = self.text(row, names);
            if value < 0.0 {
                return Err(ChartError::Negative { kind: self.kind.title(), label, value: value.to_string() });
            }
            parts.push((label, value));
        }
        Ok(parts)
    }

    /// Returns the series over the axis of column `x`. Without names of positions, rows are counted from 1.
    pub(super) fn series(&self, categories_only: bool) -> Result<SeriesSet, ChartError> {
        let group = self.options.group.as_ref().map(|name| self.column(name)).transpose()?;
        let columns = self.table.columns.len();
        let x = match &self.options.x {
            Some(name) => Some(self.column(name)?),
            None => {
                let texts = self.text_columns().into_iter().find(|column| Some(*column) != group);
                let numbers = (0..columns).filter(|column| self.is_numeric(*column) && Some(*column) != group).count();
                texts.or_else(|| (numbers > 1 && self.options.y.is_empty()).then_some(0))
            }
        };
        let values = self.value_columns(&[x, group])?;
        let (kind, labels, positions) = self.positions(x, categories_only, group.is_some());
        let x_name = x.map(|x| self.table.columns[x].clone()).unwrap_or_default();
        let mut series: Vec<Series> = Vec::new();
        let mut places = std::collections::HashMap::new();
        for &column in &values {
            for (row, value) in self.numbers(column)?.into_iter().enumerate() {
                let Some(position) = positions[row] else { continue };
                let name = match group {
                    Some(group) if values.len() > 1 => {
                        format!("{} {}", self.text(row, Some(group)), self.table.columns[column])
                    }
                    Some(group) => self.text(row, Some(group)),
                    None => self.table.columns[column].clone(),
                };
                let place = *places.entry((name.clone(), group.map_or(column, |_| 0))).or_insert_with(|| {
                    series.push(Series { name, points: Vec::new() });
                    series.len() - 1
                });
                series[place].points.push((position, value));
            }
        }
        if series.len() > MAX_SERIES {
            let (kind, count) = (self.kind.title(), series.len());
            return Err(ChartError::TooMany { kind, what: "series", count, max: MAX_SERIES });
        }
        if kind != AxisKind::Category {
            for series in &mut series {
                series.points.sort_by(|one, other| one.0.total_cmp(&other.0));
            }
        }
        Ok(SeriesSet { kind, x_name, labels, series })
    }

    /// Returns the kind of the axis, its labels and the position of each row.
    fn positions(&self, x: Option<usize>, only: bool, unique: bool) -> (AxisKind, Vec<String>, Vec<Option<f64>>) {
        let rows = &self.table.rows;
        let Some(x) = x else {
            let labels = (1..=rows.len()).map(|row| row.to_string()).collect();
            return (AxisKind::Category, labels, (0..rows.len()).map(|row| Some(row as f64)).collect());
        };
        let numbers = rows.iter().map(|row| match row[x] {
            TableCell::Number(number) => Some(number),
            _ => None,
        });
        let numbers: Vec<Option<f64>> = numbers.collect();
        if !only && !rows.is_empty() && numbers.iter().all(Option::is_some) {
            return (AxisKind::Number, Vec::new(), numbers);
        }
        let times: Vec<_> = rows.iter().map(|row| time::parse(&row[x].to_text())).collect();
        if !only && !rows.is_empty() && times.iter().all(Option::is_some) {
            return (AxisKind::Time, Vec::new(), times);
        }
        let mut labels: Vec<String> = Vec::new();
        let mut places = std::collections::HashMap::new();
        let mut position = |row: usize| {
            let label = self.text(row, Some(x));
            // With groups, the rows of one label share its place. Without, each row has its own.
            let key = if unique { (label.clone(), 0) } else { (label.clone(), row) };
            *places.entry(key).or_insert_with(|| {
                labels.push(label);
                labels.len() - 1
            }) as f64
        };
        let positions = (0..rows.len()).map(|row| Some(position(row))).collect();
        (AxisKind::Category, labels, positions)
    }
}

/// More series than this look alike.
const MAX_SERIES: usize = 40;
