//! What `segmentry up` shows: on a terminal a table that is drawn again in place below the lines that were said; elsewhere
//! plain lines, and only what changed.

use super::table::Table;
use std::{
    collections::BTreeMap,
    io::{self, IsTerminal as _, Write as _},
    sync::{Mutex, PoisonError},
};

/// Standard output.
pub struct Screen(Mutex<Inner>);

struct Inner {
    terminal: bool,
    /// Lines of the table that stand on the terminal now; without one, the words as printed last.
    drawn: Vec<String>,
    /// Kind and name of a row → the row without its age, as printed last.
    printed: BTreeMap<(&'static str, String), String>,
}

impl Default for Screen {
    fn default() -> Self {
        let terminal = io::stdout().is_terminal();
        Self(Mutex::new(Inner {
            terminal,
            drawn: Vec::new(),
            printed: BTreeMap::new(),
        }))
    }
}

impl Screen {
    /// A line that stays.
    pub fn say(&self, line: &str) {
        self.with(|inner, out| {
            if !inner.terminal {
                return writeln!(out, "{line}");
            }
            let table = std::mem::take(&mut inner.drawn);
            wipe(out, table.len())?;
            writeln!(out, "{line}")?;
            draw(out, &table)?;
            inner.drawn = table;
            Ok(())
        });
    }

    /// The newest tables; `words` are more lines below them (what is waited for).
    pub fn show(&self, tables: &[Table], words: &[String]) {
        self.with(|inner, out| {
            if !inner.terminal {
                return changes(inner, out, tables, words);
            }
            let mut lines = vec![String::new()];
            for table in tables.iter().filter(|table| !table.rows.is_empty()) {
                lines.extend(table.lines());
                lines.push(String::new());
            }
            lines.extend(words.iter().cloned());
            // a line that wraps would be two lines to wipe
            let width = std::env::var("COLUMNS")
                .ok()
                .and_then(|text| text.parse().ok())
                .unwrap_or_else(terminal_width);
            let lines: Vec<String> = lines
                .into_iter()
                .map(|line| line.chars().take(width).collect())
                .collect();
            if lines != inner.drawn {
                wipe(out, inner.drawn.len())?;
                draw(out, &lines)?;
                inner.drawn = lines;
            }
            Ok(())
        });
    }

    fn with(&self, work: impl FnOnce(&mut Inner, &mut dyn io::Write) -> io::Result<()>) {
        let mut inner = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let mut out = io::stdout().lock();
        // a closed pipe is nobody who reads: the nodes run on
        if let Err(error) = work(&mut inner, &mut out).and_then(|()| out.flush()) {
            tracing::debug!(%error, "standard output is closed");
        }
    }
}

fn terminal_width() -> usize {
    rustix::termios::tcgetwinsize(io::stdout())
        .map_or(0, |size| usize::from(size.ws_col))
        .max(40)
}

fn wipe(out: &mut dyn io::Write, lines: usize) -> io::Result<()> {
    if lines > 0 {
        write!(out, "\x1b[{lines}A\x1b[J")?;
    }
    Ok(())
}

fn draw(out: &mut dyn io::Write, lines: &[String]) -> io::Result<()> {
    lines.iter().try_for_each(|line| writeln!(out, "{line}"))
}

/// One line for each row that changed in more than its age, and one for each that is gone.
fn changes(inner: &mut Inner, out: &mut dyn io::Write, tables: &[Table], words: &[String]) -> io::Result<()> {
    let mut now = BTreeMap::new();
    for table in tables {
        for row in &table.rows {
            let columns = table
                .header
                .iter()
                .zip(row)
                .skip(1)
                .filter(|(name, _)| *name != "AGE");
            let cells: Vec<String> = columns
                .filter(|(_, cell)| !cell.is_empty())
                .map(|(name, cell)| format!("{}={cell}", name.to_lowercase()))
                .collect();
            let name = row.first().cloned().unwrap_or_default();
            now.insert((table.kind, name), cells.join(" "));
        }
    }
    for ((kind, name), cells) in &now {
        if inner.printed.get(&(*kind, name.clone())) != Some(cells) {
            writeln!(out, "{kind} {name}: {cells}")?;
        }
    }
    for (kind, name) in inner.printed.keys().filter(|key| !now.contains_key(*key)) {
        writeln!(out, "{kind} {name}: gone")?;
    }
    inner.printed = now;
    for word in words.iter().filter(|word| !inner.drawn.contains(*word)) {
        writeln!(out, "{word}")?;
    }
    inner.drawn = words.to_vec();
    Ok(())
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn without_a_terminal_only_what_changed_is_printed() {
        let mut inner = Inner {
            terminal: false,
            drawn: vec![],
            printed: BTreeMap::new(),
        };
        let table = |health: &str, age: &str| Table {
            kind: "Index",
            header: ["NAME", "HEALTH", "AGE"].map(str::to_owned).into(),
            rows: vec![["i", health, age].map(str::to_owned).into()],
        };
        let mut out = Vec::new();
        for (health, age) in [("Red", "1s"), ("Red", "2s"), ("Green", "3s")] {
            changes(&mut inner, &mut out, &[table(health, age)], &["waits".to_owned()]).unwrap();
        }
        changes(&mut inner, &mut out, &[], &[]).unwrap();
        assert_eq!(
            String::from_utf8(out).unwrap(),
            "Index i: health=Red\nwaits\nIndex i: health=Green\nIndex i: gone\n"
        );
    }
}
