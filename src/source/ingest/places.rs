//! Fields of structs by name.

use std::collections::HashMap;

use arrow::datatypes::Fields;

/// So many fields are compared faster than hashed.
const FEW: usize = 32;

/// Where the fields of one struct are, and those of the structs inside it. Arrow looks a field up by comparing the names of
/// all fields before it, which for every field of a struct with very many takes the square of their number: here a struct
/// has a map, made when its first field is looked for.
#[derive(Debug, Default)]
pub(crate) struct Places<'a> {
    by_name: HashMap<&'a str, usize>,
    inside: HashMap<usize, Places<'a>>,
}

impl<'a> Places<'a> {
    /// The position of the first field of this name, and the places inside it. `fields` are the same in every call.
    pub(super) fn find(&mut self, fields: &'a Fields, name: &str) -> Option<(usize, &mut Self)> {
        let at = if fields.len() <= FEW {
            fields.find(name)?.0
        } else {
            if self.by_name.is_empty() {
                for (i, field) in fields.iter().enumerate() {
                    self.by_name.entry(field.name()).or_insert(i);
                }
            }
            *self.by_name.get(name)?
        };
        Some((at, self.inside.entry(at).or_default()))
    }
}

#[cfg(test)]
mod tests {
    use arrow::datatypes::{DataType, Field};

    use super::*;

    #[test]
    fn a_field_is_where_arrow_finds_it_in_structs_with_few_and_with_many() {
        for n in [3, FEW, FEW + 1, 100] {
            // The last name stands there twice.
            let names = (0..n).chain([n - 1]).map(|i| Field::new(format!("f{i}"), DataType::Int8, true));
            let fields: Fields = names.collect();
            let inner: Fields = vec![Field::new("a", DataType::Int8, true)].into();
            let mut places = Places::default();
            for _ in 0..2 {
                for field in &fields {
                    let (at, inside) = places.find(&fields, field.name()).unwrap();
                    assert_eq!(Some(at), fields.find(field.name()).map(|(i, _)| i));
                    assert_eq!(inside.find(&inner, "a").map(|(i, _)| i), Some(0));
                }
                assert!(places.find(&fields, "g").is_none());
            }
        }
    }
}
