//! Writes blocks with the prefixes of the lists and quotations around them.

/// Maximum depth of lists and quotations; deeper ones are written at this depth.
const MAX_DEPTH: usize = 24;

pub(super) struct MarkdownWriter {
    text: String,
    containers: Vec<Container>,
    /// Number of open containers beyond the maximum depth.
    uncounted: usize,
    gap: BlockGap,
    /// Number of quotations around the last block.
    quoted: usize,
    limit: usize,
}

enum Container {
    Quote,
    /// The number of the next item; `None` for an unordered list.
    List(Option<u64>),
    /// `fresh` until its sign is written before its first line.
    Item {
        sign: String,
        fresh: bool,
    },
}

#[derive(PartialEq, Eq)]
enum BlockGap {
    Line,
    Blank,
}

impl MarkdownWriter {
    /// Creates a writer that drops blocks beyond `limit` bytes.
    pub(super) fn new(limit: usize) -> Self {
        Self { text: String::new(), containers: Vec::new(), uncounted: 0, gap: BlockGap::Line, quoted: 0, limit }
    }

    pub(super) fn len(&self) -> usize {
        self.text.len()
    }

    pub(super) fn block(&mut self, block: &str) {
        if block.is_empty() {
            return;
        }
        let quotes = self.containers.iter().filter(|container| matches!(container, Container::Quote)).count();
        if !self.text.is_empty() && self.gap == BlockGap::Blank {
            self.text.push_str("> ".repeat(quotes.min(self.quoted)).trim_end());
            self.text.push('\n');
        }
        for line in block.split('\n') {
            if self.text.len() > self.limit {
                return;
            }
            let prefix = self.prefix();
            let line = format!("{prefix}{line}");
            self.text.push_str(line.trim_end());
            self.text.push('\n');
        }
        self.quoted = quotes;
        self.gap = BlockGap::Blank;
    }

    fn prefix(&mut self) -> String {
        let mut prefix = String::new();
        for container in &mut self.containers {
            match container {
                Container::Quote => prefix.push_str("> "),
                Container::List(_) => {}
                Container::Item { sign, fresh: true } => {
                    prefix.push_str(sign);
                    *container = Container::Item { sign: std::mem::take(sign), fresh: false };
                }
                Container::Item { sign, fresh: false } => prefix.push_str(&" ".repeat(sign.len())),
            }
        }
        prefix
    }

    fn push(&mut self, container: Container) {
        if self.containers.len() < MAX_DEPTH {
            self.containers.push(container);
        } else {
            self.uncounted += 1;
        }
    }

    pub(super) fn open_quote(&mut self) {
        self.push(Container::Quote);
    }

    pub(super) fn close_quote(&mut self) {
        self.close(|container| matches!(container, Container::Quote));
    }

    pub(super) fn open_list(&mut self, first: Option<u64>) {
        // A list in an item follows without a blank line.
        if self.containers.iter().any(|container| matches!(container, Container::Item { .. })) {
            self.gap = BlockGap::Line;
        }
        self.push(Container::List(first));
    }

    pub(super) fn close_list(&mut self) {
        self.close(|container| matches!(container, Container::List(_)));
    }

    /// Starts an item, which ends the previous one.
    pub(super) fn open_item(&mut self) {
        let list = self.containers.iter().rposition(|container| matches!(container, Container::List(_)));
        let begun = match list {
            Some(list) => {
                let begun = self.containers.len() > list + 1;
                self.containers.truncate(list + 1);
                begun
            }
            // An item outside a list.
            None => {
                let item = self.containers.iter().rposition(|container| matches!(container, Container::Item { .. }));
                item.is_some_and(|item| {
                    self.containers.truncate(item);
                    true
                })
            }
        };
        if begun {
            self.gap = BlockGap::Line;
        }
        let sign = match self.containers.last_mut() {
            Some(Container::List(Some(number))) => {
                let sign = format!("{number}. ");
                *number = number.saturating_add(1);
                sign
            }
            _ => "- ".to_owned(),
        };
        if self.containers.len() < MAX_DEPTH {
            self.containers.push(Container::Item { sign, fresh: true });
        }
    }

    /// Ends an item. In a list the item stays open until the next starts, so that the list knows it has one.
    pub(super) fn close_item(&mut self) {
        let list = self.containers.iter().rposition(|container| matches!(container, Container::List(_)));
        let item = self.containers.iter().rposition(|container| matches!(container, Container::Item { .. }));
        if let (None, Some(item)) = (list, item) {
            self.containers.truncate(item);
        }
    }

    /// Closes containers up to and including the innermost match. An end tag without a start closes nothing.
    fn close(&mut self, fits: impl Fn(&Container) -> bool) {
        if self.uncounted > 0 {
            self.uncounted -= 1;
        } else if let Some(at) = self.containers.iter().rposition(fits) {
            self.containers.truncate(at);
        }
    }

    pub(super) fn finish(self) -> String {
        self.text
    }
}
