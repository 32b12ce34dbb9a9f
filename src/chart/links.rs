//! Reads the links of a graph: rows with a source, a target and a value.

use super::error::ChartError;
use super::frame::Frame;
use super::scale::format_value;

#[derive(Debug, Clone, Copy, PartialEq)]
pub(super) struct GraphLink {
    pub(super) source: usize,
    pub(super) target: usize,
    pub(super) value: f64,
}

#[derive(Debug, Clone, Default)]
pub(super) struct LinkSet {
    pub(super) nodes: Vec<String>,
    pub(super) links: Vec<GraphLink>,
}

impl LinkSet {
    /// Reads the links. A row without a target is a node without links. Fails on a negative value or too many nodes.
    pub(super) fn read(frame: Frame<'_>, max_nodes: usize, max_links: usize) -> Result<Self, ChartError> {
        let texts = frame.text_columns();
        let source = frame.role(frame.options.x.as_ref(), &["source", "from"])?.or_else(|| texts.first().copied());
        let target = frame.role(frame.options.group.as_ref(), &["target", "to"])?;
        let target = target.or_else(|| texts.iter().copied().find(|column| Some(*column) != source));
        let (Some(source), Some(target)) = (source, target) else {
            return Err(frame.missing("the columns `source` and `target`"));
        };
        let all = 0..frame.table.columns.len();
        let value = match frame.options.y.first() {
            Some(name) => Some(frame.column(name)?),
            None => frame.role(None, &["value", "weight"])?.or_else(|| {
                all.clone().find(|column| frame.is_numeric(*column) && *column != source && *column != target)
            }),
        };
        let mut set = Self::default();
        let mut places = std::collections::HashMap::new();
        let mut node = |set: &mut Self, name: String| {
            *places.entry(name.clone()).or_insert_with(|| {
                set.nodes.push(name);
                set.nodes.len() - 1
            })
        };
        for row in 0..frame.table.rows.len() {
            let (from, to) = (frame.text(row, Some(source)), frame.text(row, Some(target)));
            let value = value.map_or(Ok(Some(1.0)), |value| frame.number(row, value))?.unwrap_or(0.0);
            if value < 0.0 {
                let label = format!("{from} → {to}");
                return Err(ChartError::Negative { kind: frame.kind.title(), label, value: format_value(value) });
            }
            if from.is_empty() && to.is_empty() {
                continue;
            }
            if from.is_empty() || to.is_empty() {
                node(&mut set, if from.is_empty() { to } else { from });
                continue;
            }
            let source = node(&mut set, from);
            let target = node(&mut set, to);
            set.links.push(GraphLink { source, target, value });
        }
        let kind = frame.kind.title();
        if set.nodes.len() > max_nodes {
            return Err(ChartError::TooMany { kind, what: "nodes", count: set.nodes.len(), max: max_nodes });
        }
        if set.links.len() > max_links {
            return Err(ChartError::TooMany { kind, what: "links", count: set.links.len(), max: max_links });
        }
        Ok(set)
    }

    pub(super) fn tip(&self, link: &GraphLink) -> String {
        format!("{} → {}: {}", self.nodes[link.source], self.nodes[link.target], format_value(link.value))
    }

    /// Returns the nodes of a circle of links, if there is one. The first node is repeated at the end.
    pub(super) fn find_circle(&self) -> Option<Vec<usize>> {
        let mut next = vec![Vec::new(); self.nodes.len()];
        for link in &self.links {
            next[link.source].push(link.target);
        }
        let mut done = vec![false; self.nodes.len()];
        for start in 0..self.nodes.len() {
            // Nodes of the current path, each with the number of its links that were followed.
            let mut path: Vec<(usize, usize)> = vec![(start, 0)];
            let mut on_path = vec![false; if done[start] { 0 } else { self.nodes.len() }];
            while let Some((node, followed)) = path.last_mut() {
                let node = *node;
                if done[node] {
                    path.pop();
                    continue;
                }
                on_path[node] = true;
                let Some(&target) = next[node].get(*followed) else {
                    done[node] = true;
                    on_path[node] = false;
                    path.pop();
                    continue;
                };
                *followed += 1;
                if on_path[target] {
                    let from = path.iter().position(|(node, _)| *node == target).unwrap_or(0);
                    return Some(path[from..].iter().map(|(node, _)| *node).chain([target]).collect());
                }
                if !done[target] {
                    path.push((target, 0));
                }
            }
        }
        None
    }
}
