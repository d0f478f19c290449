//! Names of leaves, as a tree that rows are walked along.

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
}

pub(super) const ROOT: usize = 0;

/// Names of leaves as paths from a root. The root's children are columns.
#[derive(Debug, Clone)]
pub(super) struct Tree {
    pub(super) nodes: Vec<Node>,
}

impl Tree {
    pub(super) fn new() -> Self {
        let root = Node { key: "".into(), index: None, parent: ROOT, kind: NodeKind::Dict, kids: Vec::new() };
        Self { nodes: vec![root] }
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
        let at = self.nodes[parent].kids.iter().position(|&kid| is(&self.nodes[kid], key))?;
        let kids = &mut self.nodes[parent].kids;
        let kid = kids[at];
        if hint < kids.len() {
            kids.swap(hint, at);
        }
        Some(kid)
    }

    pub(super) fn add(&mut self, parent: usize, key: Key<'_>, kind: NodeKind) -> usize {
        let key: Box<str> = match key {
            Key::Text(text) => text.into(),
            Key::Index(i) => i.to_string().into(),
        };
        let index = key.parse().ok().filter(|i: &usize| *i.to_string() == *key);
        let node = self.nodes.len();
        self.nodes.push(Node { key, index, parent, kind, kids: Vec::new() });
        self.nodes[parent].kids.push(node);
        node
    }

    /// Forgets the nodes added since there were `len`.
    pub(super) fn truncate(&mut self, len: usize) {
        self.nodes.truncate(len);
        for node in &mut self.nodes {
            node.kids.retain(|&kid| kid < len);
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
