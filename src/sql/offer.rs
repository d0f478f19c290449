//! Which columns an expression may name, and what is said when it names another.

use std::fmt::Write as _;

use crate::error::{Error, closest};
use crate::tensor::{DType, TensorType};

/// What a column holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Scalars of this dtype.
    Number(DType),
    /// Text.
    Text,
}

impl Kind {
    /// Scalars of this dtype, as expressions see them: half precision is read as float32.
    #[must_use]
    pub const fn of(dtype: DType) -> Self {
        match dtype {
            DType::Float16 => Self::Number(DType::Float32),
            other => Self::Number(other),
        }
    }
}

#[derive(Debug, Clone)]
struct Group {
    name: String,
    /// A tensor of one axis is this many columns, `name/0` and so on.
    elements: Option<usize>,
    kind: Kind,
}

/// The columns that an expression may name.
#[derive(Debug, Clone, Default)]
pub struct Offer {
    groups: Vec<Group>,
    /// What is there and cannot be named, with the reason.
    refused: Vec<(String, String)>,
}

impl Offer {
    /// Offers a column, unless one of that name is there.
    pub fn push(&mut self, name: &str, kind: Kind) {
        if self.get(name).is_none() {
            self.groups.push(Group { name: name.to_owned(), elements: None, kind });
        }
    }

    /// Offers a tensor: a scalar by its name, one axis as one column an element, more not at all.
    pub fn push_tensor(&mut self, name: &str, ty: &TensorType) {
        let (name, kind) = (name.to_owned(), Kind::of(ty.dtype));
        match ty.shape.as_slice() {
            [] => self.groups.push(Group { name, elements: None, kind }),
            [n] => self.groups.push(Group { name, elements: Some(*n), kind }),
            _ => self.refuse(&name, format!("it has {ty}, and only scalars and tensors of one axis can be named")),
        }
    }

    /// Says why a column cannot be named.
    pub fn refuse(&mut self, name: &str, why: impl Into<String>) {
        self.refused.push((name.to_owned(), why.into()));
    }

    /// What the column `name` holds.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<Kind> {
        let scalar = self.groups.iter().find(|g| g.elements.is_none() && g.name == name);
        if let Some(group) = scalar {
            return Some(group.kind);
        }
        let (leaf, index) = element(name)?;
        self.groups.iter().find(|g| g.name == leaf && g.elements.is_some_and(|n| index < n)).map(|g| g.kind)
    }

    /// The error for a name that is not offered.
    #[must_use]
    pub fn unknown(&self, name: &str) -> Error {
        let error = |what: String| Error::usage(what).column(name);
        if let Some((_, why)) = self.refused.iter().find(|(n, _)| n == name) {
            return error(format!("`{name}` cannot be used in an expression: {why}")).hint(self.listing());
        }
        let group = self.groups.iter().find(|g| g.name == name);
        if let Some(Group { elements: Some(n), .. }) = group {
            let what = format!("`{name}` is a tensor of {n} elements, expected one of them");
            return error(what).hint(format!(
                "name them by \"{name}/0\" to \"{name}/{}\", in double quotes: without them `/` divides",
                n.saturating_sub(1)
            ));
        }
        let error = error(format!("found no column `{name}`; {}", self.listing()));
        let names: Vec<String> = self
            .groups
            .iter()
            .map(|g| if g.elements.is_some() { format!("{}/0", g.name) } else { g.name.clone() })
            .collect();
        match closest(name, names.iter().map(String::as_str)) {
            Some(near) if near.contains('/') => error.hint(format!("did you mean \"{near}\"?")),
            Some(near) => error.hint(format!("did you mean `{near}`?")),
            None => error.hint("text stands in single quotes, names of columns in double quotes or none"),
        }
    }

    /// All columns, in words.
    fn listing(&self) -> String {
        let mut out = "there are ".to_owned();
        for (i, group) in self.groups.iter().enumerate() {
            let comma = if i == 0 { "" } else { ", " };
            let name = &group.name;
            let _ = match group.elements {
                None if name.contains('/') => write!(out, "{comma}\"{name}\""),
                None => write!(out, "{comma}{name}"),
                Some(0) => continue,
                Some(1) => write!(out, "{comma}\"{name}/0\""),
                Some(n) => write!(out, "{comma}\"{name}/0\" to \"{name}/{}\"", n - 1),
            };
        }
        out
    }
}

/// `obs/pos/3` as the element 3 of the leaf `obs/pos`.
#[must_use]
pub fn element(name: &str) -> Option<(&str, usize)> {
    let (leaf, digits) = name.rsplit_once('/')?;
    let index: usize = digits.parse().ok()?;
    (index.to_string() == digits).then_some((leaf, index))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn offer() -> Offer {
        let mut offer = Offer::default();
        offer.push_tensor("obs/pos", &TensorType::new(DType::Float32, [3]));
        offer.push_tensor("obs/image", &TensorType::new(DType::UInt8, [8, 8]));
        offer.push_tensor("rewards", &TensorType::new(DType::Float16, []));
        offer.push("t", Kind::Number(DType::Int64));
        offer
    }

    #[test]
    fn tensors_are_columns() {
        let offer = offer();
        assert_eq!(offer.get("obs/pos/2"), Some(Kind::Number(DType::Float32)));
        assert_eq!(offer.get("rewards"), Some(Kind::Number(DType::Float32)));
        for none in ["obs/pos", "obs/pos/3", "obs/pos/02", "obs/image", "obs/image/0", "obs"] {
            assert_eq!(offer.get(none), None, "{none}");
        }
    }

    #[test]
    fn unknown_names_are_told_what_there_is() {
        let error = offer().unknown("reward");
        assert_eq!(error.what(), "found no column `reward`; there are \"obs/pos/0\" to \"obs/pos/2\", rewards, t");
        assert_eq!(error.hint_text(), Some("did you mean `rewards`?"));
        assert!(offer().unknown("obs/pos").hint_text().unwrap().contains("\"obs/pos/0\" to \"obs/pos/2\""));
        assert!(offer().unknown("obs/image").what().contains("uint8[8, 8]"));
    }
}
