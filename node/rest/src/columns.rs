//! Tables of `_cat`: columns, their choice and order, text or JSON.

use crate::{Context, reply::Reply};
use segmentry_coordinator::ApiError;
use segmentry_query::source::matches;
use serde_json::{Map, Value};
use std::{cmp::Ordering, fmt::Write};

/// One cell.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Cell {
    /// Text.
    Text(String),
    /// A count.
    Number(u64),
    /// A size, printed in the unit of `bytes`.
    Bytes(u64),
    /// Not known.
    Nothing,
}

/// One column.
pub struct Column {
    /// Name.
    pub name: &'static str,
    /// Other names.
    pub aliases: &'static [&'static str],
    /// Shown where `h` does not say otherwise.
    pub shown: bool,
    /// Aligned to the right.
    pub right: bool,
    /// For `help`.
    pub about: &'static str,
}

/// A column.
pub const fn column(
    name: &'static str,
    aliases: &'static [&'static str],
    shown: bool,
    right: bool,
    about: &'static str,
) -> Column {
    Column {
        name,
        aliases,
        shown,
        right,
        about,
    }
}

/// The answer to `help`: the columns.
///
/// # Errors
/// `help` is neither true nor false.
pub fn help(context: &Context, columns: &[Column]) -> Result<Option<Reply>, ApiError> {
    if !context.params.bool("help", false)? {
        return Ok(None);
    }
    let width = columns.iter().map(|column| column.name.len()).max().unwrap_or(0);
    let aliases = columns
        .iter()
        .map(|column| column.aliases.join(",").len().max(1))
        .max()
        .unwrap_or(1);
    let mut out = String::new();
    for column in columns {
        let names = if column.aliases.is_empty() {
            "-".to_owned()
        } else {
            column.aliases.join(",")
        };
        let _ = writeln!(
            out,
            "{:width$} | {names:aliases$} | {}",
            column.name, column.about
        );
    }
    Ok(Some(Reply::text(out)))
}

/// Columns of `h`, by name, alias or pattern; all shown ones without it.
fn choose(context: &Context, columns: &[Column]) -> Vec<usize> {
    let Some(list) = context.params.get("h").filter(|list| !list.is_empty()) else {
        return (0..columns.len())
            .filter(|position| columns[*position].shown)
            .collect();
    };
    let mut out = Vec::new();
    for name in list.split(',').map(str::trim) {
        let found: Vec<usize> = (0..columns.len())
            .filter(|position| {
                let column = &columns[*position];
                column.name == name
                    || column.aliases.contains(&name)
                    || (name.contains('*') && matches(name, column.name))
            })
            .collect();
        // An alias that two columns have means the first.
        let found = if name.contains('*') {
            found
        } else {
            found.into_iter().take(1).collect()
        };
        out.extend(
            found
                .into_iter()
                .filter(|position| !out.contains(position))
                .collect::<Vec<_>>(),
        );
    }
    out
}

/// The answer: a table of text, or JSON.
///
/// # Errors
/// A parameter that is not understood.
pub fn print(context: &Context, columns: &[Column], mut rows: Vec<Vec<Cell>>) -> Result<Reply, ApiError> {
    let params = &context.params;
    let unit = byte_unit(params.get("bytes"))?;
    if let Some(keys) = params.get("s").filter(|keys| !keys.is_empty()) {
        sort(&mut rows, columns, keys)?;
    }
    let shown = choose(context, columns);
    let text = |cell: &Cell| match cell {
        Cell::Text(text) => text.clone(),
        Cell::Number(number) => number.to_string(),
        Cell::Bytes(bytes) => match unit {
            Some(unit) => (bytes / unit).to_string(),
            None => segmentry_settings::units::format_bytes(*bytes),
        },
        Cell::Nothing => String::new(),
    };
    match params.get("format") {
        None | Some("" | "text" | "txt") => {}
        Some(format) if format.eq_ignore_ascii_case("json") => {
            let list: Vec<Value> = rows
                .iter()
                .map(|row| {
                    let object: Map<String, Value> = shown
                        .iter()
                        .map(|position| {
                            let value = match &row[*position] {
                                Cell::Nothing => Value::Null,
                                cell => Value::String(text(cell)),
                            };
                            (columns[*position].name.to_owned(), value)
                        })
                        .collect();
                    Value::Object(object)
                })
                .collect();
            return Reply::json(&list);
        }
        Some(other) => {
            return Err(ApiError::unsupported(format!(
                "value [{other}] of parameter [format]"
            )));
        }
    }
    let mut lines: Vec<Vec<String>> = Vec::new();
    if params.bool("v", false)? {
        lines.push(
            shown
                .iter()
                .map(|position| columns[*position].name.to_owned())
                .collect(),
        );
    }
    lines.extend(rows.iter().map(|row| {
        shown
            .iter()
            .map(|position| text(&row[*position]))
            .collect::<Vec<_>>()
    }));
    let widths: Vec<usize> = (0..shown.len())
        .map(|column| {
            lines
                .iter()
                .map(|line| line[column].chars().count())
                .max()
                .unwrap_or(0)
        })
        .collect();
    let mut out = String::new();
    for line in lines {
        let mut cells = Vec::with_capacity(line.len());
        for (column, cell) in line.iter().enumerate() {
            let width = widths[column];
            cells.push(if columns[shown[column]].right {
                format!("{cell:>width$}")
            } else {
                format!("{cell:<width$}")
            });
        }
        out.push_str(cells.join(" ").trim_end());
        out.push('\n');
    }
    Ok(Reply::text(out))
}

fn sort(rows: &mut [Vec<Cell>], columns: &[Column], keys: &str) -> Result<(), ApiError> {
    let mut order = Vec::new();
    for key in keys.split(',') {
        let (name, direction) = key.split_once(':').unwrap_or((key, "asc"));
        let position = columns
            .iter()
            .position(|column| column.name == name)
            .or_else(|| columns.iter().position(|column| column.aliases.contains(&name)))
            .ok_or_else(|| ApiError::illegal(format!("Unable to sort by unknown sort key `{name}`")))?;
        match direction {
            "asc" => order.push((position, false)),
            "desc" => order.push((position, true)),
            other => {
                return Err(ApiError::illegal(format!(
                    "unknown sort order [{other}] of sort key `{name}`"
                )));
            }
        }
    }
    rows.sort_by(|left, right| {
        for (position, descending) in &order {
            let ordering = compare(&left[*position], &right[*position]);
            let ordering = if *descending { ordering.reverse() } else { ordering };
            if ordering != Ordering::Equal {
                return ordering;
            }
        }
        Ordering::Equal
    });
    Ok(())
}

fn compare(left: &Cell, right: &Cell) -> Ordering {
    match (left, right) {
        (Cell::Number(left), Cell::Number(right)) | (Cell::Bytes(left), Cell::Bytes(right)) => {
            left.cmp(right)
        }
        (Cell::Text(left), Cell::Text(right)) => left.cmp(right),
        (Cell::Nothing, Cell::Nothing) => Ordering::Equal,
        (Cell::Nothing, _) => Ordering::Less,
        (_, Cell::Nothing) => Ordering::Greater,
        _ => Ordering::Equal,
    }
}

fn byte_unit(text: Option<&str>) -> Result<Option<u64>, ApiError> {
    Ok(Some(match text {
        None | Some("") => return Ok(None),
        Some("b") => 1,
        Some("k" | "kb") => 1 << 10,
        Some("m" | "mb") => 1 << 20,
        Some("g" | "gb") => 1 << 30,
        Some("t" | "tb") => 1 << 40,
        Some("p" | "pb") => 1 << 50,
        Some(other) => {
            return Err(ApiError::illegal(format!(
                "unknown unit [{other}] of parameter [bytes]"
            )));
        }
    }))
}
