//! Names of leaves, as a tree that rows are walked along.

use std::collections::HashMap;

use crate::column;

#[derive(Debug, Clone, Copy)]
pub(super) enum Key<'a> {
    Text(&'a str),
    Index(usize),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum NodeKind {
    Leaf(usize),
    Dict,
    List,
}

#[derive(Debug, Clone)]
pub(super) struct Node {
    pub(super) key: Box<str>,
    /// The key as an index, if it is one.
    pub(super) index: Option<usize>,
    pub(super) parent: usize,
    pub(super) kind: NodeKind,
    pub(super) kids: Vec<usize>,
    /// Where it stands among its parent's kids.
    place: usize,
    /// The kids by key, once there are more than a few.
    by_key: HashMap<Box<str>, usize>,
}

/// So many keys are compared faster than hashed.
const FEW: usize = 32;

pub(super) const ROOT: usize = 0;

impl Node {
    fn new(key: Box<str>, parent: usize, kind: NodeKind, place: usize) -> Self {
        let index = key.parse().ok().filter(|i: &usize| *i.to_string() == *key);
        Self { key, index, parent, kind, kids: Vec::new(), place, by_key: HashMap::new() }
    }
}

/// Names of leaves as paths from a root. The root's children are columns.
#[derive(Debug, Clone)]
pub(super) struct Tree {
    pub(super) nodes: Vec<Node>,
}

impl Tree {
    pub(super) fn new() -> Self {
        Self { nodes: vec![Node::new("".into(), ROOT, NodeKind::Dict, 0)] }
    }

    /// The child under `key`, looked for at `hint` first. A child found elsewhere moves to `hint`: rows list their
    /// keys in the same order, so the next row finds it at once.
    #[inline]
    pub(super) fn kid(&mut self, parent: usize, hint: usize, key: Key<'_>) -> Option<usize> {
        fn is(node: &Node, key: Key<'_>) -> bool {
            match key {
                Key::Text(text) => *node.key == *text,
                Key::Index(i) => node.index == Some(i),
            }
        }
        let here = self.nodes[parent].kids.get(hint).copied();
        if let Some(kid) = here.filter(|&kid| is(&self.nodes[kid], key)) {
            return Some(kid);
        }
        let node = &self.nodes[parent];
        let kid = match key {
            Key::Text(text) if node.kids.len() > FEW => *node.by_key.get(text)?,
            _ => *node.kids.iter().find(|&&kid| is(&self.nodes[kid], key))?,
        };
        if let Some(here) = here {
            let at = self.nodes[kid].place;
            self.nodes[parent].kids.swap(hint, at);
            (self.nodes[kid].place, self.nodes[here].place) = (hint, at);
        }
        Some(kid)
    }

    pub(super) fn add(&mut self, parent: usize, key: Key<'_>, kind: NodeKind) -> usize {
        let key: Box<str> = match key {
            Key::Text(text) => text.into(),
            Key::Index(i) => i.to_string().into(),
        };
        let (node, place) = (self.nodes.len(), self.nodes[parent].kids.len());
        self.nodes.push(Node::new(key, parent, kind, place));
        self.nodes[parent].kids.push(node);
        let new = match self.nodes[parent].kids.len() {
            n if n > FEW + 1 => place..n,
            n if n > FEW => 0..n,
            _ => 0..0,
        };
        for i in new {
            let own = self.nodes[parent].kids[i];
            let key = self.nodes[own].key.clone();
            self.nodes[parent].by_key.insert(key, own);
        }
        node
    }

    /// Forgets the nodes added since there were `len`.
    pub(super) fn truncate(&mut self, len: usize) {
        self.nodes.truncate(len);
        for parent in 0..len {
            let node = &mut self.nodes[parent];
            let before = node.kids.len();
            node.kids.retain(|&kid| kid < len);
            if node.kids.len() < before {
                node.by_key.retain(|_, kid| *kid < len);
                for place in 0..node.kids.len() {
                    let kid = self.nodes[parent].kids[place];
                    self.nodes[kid].place = place;
                }
            }
        }
    }

    pub(super) fn name(&self, mut node: usize) -> String {
        let mut parts = Vec::new();
        while node != ROOT {
            parts.push(&*self.nodes[node].key);
            node = self.nodes[node].parent;
        }
        parts.reverse();
        parts.join("/")
    }

    /// The child of the root that `node` is under.
    pub(super) fn column_of(&self, mut node: usize) -> usize {
        while self.nodes[node].parent != ROOT {
            node = self.nodes[node].parent;
        }
        node
    }

    /// Leaves under `node`: dicts in key order, lists by index.
    pub(super) fn leaves(&self, node: usize, out: &mut Vec<usize>) {
        let Node { kind, kids, .. } = &self.nodes[node];
        if let NodeKind::Leaf(leaf) = kind {
            out.push(*leaf);
        }
        let mut kids = kids.clone();
        match kind {
            NodeKind::List => kids.sort_by_key(|&kid| self.nodes[kid].index),
            _ => kids.sort_by(|&a, &b| self.nodes[a].key.cmp(&self.nodes[b].key)),
        }
        if node == ROOT {
            let rank = |kid: usize| match &*self.nodes[kid].key {
                column::OBS => 0,
                column::ACTIONS => 1,
                column::REWARDS => 2,
                _ => 3,
            };
            kids.sort_by_key(|&kid| rank(kid));
        }
        for kid in kids {
            self.leaves(kid, out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However many there are, in whatever order they are asked for, and behind what was forgotten.
    #[test]
    fn kids_are_found_by_their_keys() {
        let mut tree = Tree::new();
        let keys: Vec<String> = (0..3 * FEW).map(|i| format!("k{}", i * 37 % (3 * FEW))).collect();
        for (i, key) in keys.iter().enumerate() {
            assert_eq!(tree.kid(ROOT, i, Key::Text(key)), None);
            assert_eq!(tree.add(ROOT, Key::Text(key), NodeKind::Leaf(i)), i + 1);
            // In turns from the front, and where nobody looks for them.
            for (hint, j) in (0..=i).rev().enumerate() {
                assert_eq!(tree.kid(ROOT, hint, Key::Text(&keys[j])), Some(j + 1));
                assert_eq!(tree.kid(ROOT, usize::MAX, Key::Text(&keys[j])), Some(j + 1));
            }
        }
        for len in [2 * FEW, FEW + 1, FEW, 3] {
            tree.truncate(len + 1);
            for (i, key) in keys.iter().enumerate() {
                let found = tree.kid(ROOT, (i * 7) % 40, Key::Text(key));
                assert_eq!(found, (i < len).then_some(i + 1), "{len} left: {key}");
            }
            let mut kids = tree.nodes[ROOT].kids.clone();
            kids.sort_unstable();
            assert_eq!(kids, (1..=len).collect::<Vec<_>>(), "each once");
        }
    }
}
