//! Lays out a directed graph in layers by the method of Sugiyama: break circles, assign layers, order, place.

/// Space between nodes of one layer.
const NODE_GAP: f64 = 28.0;

/// A node's size along the layers and across them.
#[derive(Debug, Clone, Copy)]
pub(super) struct NodeSize {
    pub(super) along: f64,
    pub(super) across: f64,
}

/// Places in two coordinates: along the direction of the graph, and across it.
#[derive(Debug, Clone, Default)]
pub(super) struct LayerLayout {
    /// Centres of the nodes.
    pub(super) nodes: Vec<(f64, f64)>,
    /// Points of each edge between the borders of its nodes, from source to target.
    pub(super) edges: Vec<Vec<(f64, f64)>>,
    pub(super) along: f64,
    pub(super) across: f64,
}

/// A node, or a bend of an edge that passes a layer.
struct LayerCell {
    across: f64,
    size: f64,
    before: Vec<usize>,
    after: Vec<usize>,
}

/// Lays out the graph. `gap` is the space between layers. Edges from a node to itself get no points.
pub(super) fn lay_out(sizes: &[NodeSize], edges: &[(usize, usize)], gap: f64) -> LayerLayout {
    let turned = find_back_edges(sizes.len(), edges);
    let forward: Vec<(usize, usize)> =
        edges.iter().zip(&turned).map(|(&(from, to), turned)| if *turned { (to, from) } else { (from, to) }).collect();
    let ranks = assign_ranks(sizes.len(), &forward);
    let last = ranks.iter().copied().max().unwrap_or(0);
    let mut layers: Vec<Vec<usize>> = vec![Vec::new(); last + 1];
    let mut cells: Vec<LayerCell> = Vec::new();
    for (node, size) in sizes.iter().enumerate() {
        cells.push(LayerCell { across: 0.0, size: size.across, before: Vec::new(), after: Vec::new() });
        layers[ranks[node]].push(node);
    }
    let mut routes: Vec<Vec<usize>> = Vec::new();
    for &(from, to) in &forward {
        let mut route = vec![from];
        if from != to {
            for layer in layers.iter_mut().take(ranks[to]).skip(ranks[from] + 1) {
                cells.push(LayerCell { across: 0.0, size: 8.0, before: Vec::new(), after: Vec::new() });
                layer.push(cells.len() - 1);
                route.push(cells.len() - 1);
            }
            route.push(to);
            for pair in route.windows(2) {
                cells[pair[0]].after.push(pair[1]);
                cells[pair[1]].before.push(pair[0]);
            }
        }
        routes.push(route);
    }
    order(&mut layers, &cells);
    place(&layers, &mut cells);
    let thickness: Vec<f64> = layers
        .iter()
        .map(|layer| layer.iter().filter_map(|cell| sizes.get(*cell)).map(|size| size.along).fold(0.0, f64::max))
        .collect();
    let mut starts = vec![0.0];
    for (layer, size) in thickness.iter().enumerate() {
        starts.push(starts[layer] + size + gap);
    }
    let mut layer_of = vec![0; cells.len()];
    for (index, layer) in layers.iter().enumerate() {
        layer.iter().for_each(|cell| layer_of[*cell] = index);
    }
    let middle = |cell: usize| starts[layer_of[cell]] + thickness[layer_of[cell]] / 2.0;
    let nodes: Vec<_> = (0..sizes.len()).map(|node| (middle(node), cells[node].across)).collect();
    let ports = spread_ports(sizes, &routes, &cells);
    let edges = routes.iter().zip(&turned).zip(&ports).map(|((route, turned), port)| {
        let mut points = Vec::new();
        if let (Some(&from), Some(&to)) = (route.first(), route.last())
            && from != to
        {
            points.push((middle(from) + sizes[from].along / 2.0, cells[from].across + port.0));
            for &bend in &route[1..route.len() - 1] {
                let layer = layer_of[bend];
                // A bend is straight through its layer.
                points.push((starts[layer], cells[bend].across));
                points.push((starts[layer] + thickness[layer], cells[bend].across));
            }
            points.push((middle(to) - sizes[to].along / 2.0, cells[to].across + port.1));
        }
        if *turned {
            points.reverse();
        }
        points
    });
    let edges = edges.collect();
    let across = cells.iter().map(|cell| cell.across + cell.size / 2.0).fold(0.0, f64::max);
    LayerLayout { nodes, edges, along: starts[last] + thickness[last], across }
}

/// Returns how far from the middle of its source and its target each edge ends, so that edges of a node do not share a
/// point.
fn spread_ports(sizes: &[NodeSize], routes: &[Vec<usize>], cells: &[LayerCell]) -> Vec<(f64, f64)> {
    let mut ports = vec![(0.0, 0.0); routes.len()];
    for (node, size) in sizes.iter().enumerate() {
        for outgoing in [true, false] {
            let end = |route: &Vec<usize>| if outgoing { route.first().copied() } else { route.last().copied() };
            let next = |route: &Vec<usize>| if outgoing { route[1] } else { route[route.len() - 2] };
            let mut of_node: Vec<usize> =
                (0..routes.len()).filter(|edge| routes[*edge].len() > 1 && end(&routes[*edge]) == Some(node)).collect();
            of_node.sort_by(|one, other| {
                cells[next(&routes[*one])].across.total_cmp(&cells[next(&routes[*other])].across)
            });
            let step = (size.across * 0.5 / of_node.len().max(1) as f64).min(22.0);
            for (place, edge) in of_node.iter().enumerate() {
                let offset = (place as f64 - (of_node.len() as f64 - 1.0) / 2.0) * step;
                if outgoing { ports[*edge].0 = offset } else { ports[*edge].1 = offset }
            }
        }
    }
    ports
}

/// Returns which edges close a circle in a depth-first search.
fn find_back_edges(count: usize, edges: &[(usize, usize)]) -> Vec<bool> {
    let mut next: Vec<Vec<usize>> = vec![Vec::new(); count];
    for (edge, (from, _)) in edges.iter().enumerate() {
        next[*from].push(edge);
    }
    let mut back = vec![false; edges.len()];
    let (mut seen, mut open) = (vec![false; count], vec![false; count]);
    for start in 0..count {
        if seen[start] {
            continue;
        }
        let mut path = vec![(start, 0)];
        (seen[start], open[start]) = (true, true);
        while let Some((node, followed)) = path.last_mut() {
            let node = *node;
            let Some(&edge) = next[node].get(*followed) else {
                open[node] = false;
                path.pop();
                continue;
            };
            *followed += 1;
            let to = edges[edge].1;
            if open[to] {
                back[edge] = to != node;
            } else if !seen[to] {
                (seen[to], open[to]) = (true, true);
                path.push((to, 0));
            }
        }
    }
    back
}

/// Returns the layer of each node: the longest way from a node without predecessors.
fn assign_ranks(count: usize, edges: &[(usize, usize)]) -> Vec<usize> {
    let mut ranks = vec![0; count];
    for _ in 0..count {
        let mut changed = false;
        for &(from, to) in edges.iter().filter(|(from, to)| from != to) {
            if ranks[to] <= ranks[from] {
                ranks[to] = ranks[from] + 1;
                changed = true;
            }
        }
        if !changed {
            break;
        }
    }
    ranks
}

/// Orders each layer by the mean place of the neighbours, in sweeps down and up, which avoids most crossings.
fn order(layers: &mut [Vec<usize>], cells: &[LayerCell]) {
    let mut place = vec![0.0; cells.len()];
    let number = |layer: &[usize], place: &mut [f64]| {
        layer.iter().enumerate().for_each(|(index, cell)| place[*cell] = index as f64);
    };
    layers.iter().for_each(|layer| number(layer, &mut place));
    for sweep in 0..12 {
        let down = sweep % 2 == 0;
        for step in 0..layers.len() {
            let layer = if down { step } else { layers.len() - 1 - step };
            let mean = |cell: &usize| {
                let near = if down { &cells[*cell].before } else { &cells[*cell].after };
                if near.is_empty() {
                    return place[*cell];
                }
                near.iter().map(|cell| place[*cell]).sum::<f64>() / near.len() as f64
            };
            let mut keyed: Vec<(f64, usize)> = layers[layer].iter().map(|cell| (mean(cell), *cell)).collect();
            keyed.sort_by(|one, other| one.0.total_cmp(&other.0));
            layers[layer] = keyed.into_iter().map(|(_, cell)| cell).collect();
            number(&layers[layer], &mut place);
        }
    }
}

/// Moves each cell towards the mean of its neighbours, and keeps the order and the gaps.
fn place(layers: &[Vec<usize>], cells: &mut [LayerCell]) {
    for layer in layers {
        let mut at = 0.0;
        for &cell in layer {
            cells[cell].across = at + cells[cell].size / 2.0;
            at += cells[cell].size + NODE_GAP;
        }
    }
    for sweep in 0..16 {
        for step in 0..layers.len() {
            let layer = &layers[if sweep % 2 == 0 { step } else { layers.len() - 1 - step }];
            let wanted: Vec<f64> = layer
                .iter()
                .map(|&cell| {
                    let near = cells[cell].before.iter().chain(&cells[cell].after);
                    let (sum, count) =
                        near.fold((0.0, 0.0), |(sum, count), near| (sum + cells[*near].across, count + 1.0));
                    if count > 0.0 { sum / count } else { cells[cell].across }
                })
                .collect();
            let apart = |one: usize, other: usize| (cells[one].size + cells[other].size) / 2.0 + NODE_GAP;
            let mut low = wanted.clone();
            for index in 1..layer.len() {
                low[index] = low[index].max(low[index - 1] + apart(layer[index - 1], layer[index]));
            }
            let mut high = wanted;
            for index in (0..layer.len().saturating_sub(1)).rev() {
                high[index] = high[index].min(high[index + 1] - apart(layer[index], layer[index + 1]));
            }
            // Both keep the gaps, so their mean does too.
            for (index, &cell) in layer.iter().enumerate() {
                cells[cell].across = (low[index] + high[index]) / 2.0;
            }
        }
    }
    let least = cells.iter().map(|cell| cell.across - cell.size / 2.0).fold(f64::INFINITY, f64::min);
    if least.is_finite() {
        cells.iter_mut().for_each(|cell| cell.across -= least);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_of_a_layer_do_not_overlap() {
        let sizes = vec![NodeSize { along: 40.0, across: 100.0 }; 9];
        let edges = [(0, 1), (0, 2), (0, 3), (1, 4), (2, 4), (3, 5), (5, 0), (6, 6), (0, 7), (4, 8), (0, 8)];
        let layout = lay_out(&sizes, &edges, 50.0);
        for (index, one) in layout.nodes.iter().enumerate() {
            for other in &layout.nodes[..index] {
                assert!((one.0 - other.0).abs() >= 40.0 || (one.1 - other.1).abs() >= 100.0, "{one:?} {other:?}");
            }
        }
        // The edge of the circle is drawn from its source, and the edge to itself has no points.
        assert!(layout.edges[6].first().unwrap().0 > layout.edges[6].last().unwrap().0);
        assert!(layout.edges[7].is_empty());
    }
}
