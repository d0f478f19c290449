//! One column of several files.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field};
use indexmap::{IndexMap, IndexSet};

use super::names::{Named, note};
use super::{MAY_LACK, NEEDED, Role, Unified, UnifiedColumn};
use crate::column;
use crate::error::{Error, Result};
use crate::source::file::InputFile;
use crate::source::ingest::{
    IdKind, InfoLeaves, LeafSpec, describe, describe_infos, id_kind, is_flag, is_int, type_name,
};

/// What files may differ in.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rules {
    /// Several modules may have rows, each with columns of its own.
    pub(super) several: bool,
    /// Infos are wanted.
    pub(super) infos: bool,
}

/// A column while the files are gone through.
pub(super) struct Merge {
    pub(super) name: String,
    pub(super) source: String,
    role: Role,
    /// The files that have it.
    files: Vec<usize>,
    /// The files in which it is of the null type.
    null_in: Vec<usize>,
    /// The first file in which it is of another type, and that type.
    first: Option<(usize, String)>,
    /// Id columns: what the ids are, and in which file that was seen.
    id: Option<(IdKind, usize)>,
    /// Tensor columns: the leaves, once a file had a type that may hold tensors.
    pub(super) leaves: Vec<Leaf>,
    /// Positions of the leaves, by name.
    places: HashMap<String, usize>,
    /// The first file in which it cannot be read as tensors, the type there, and why.
    unusable: Option<(usize, String, Error)>,
    notes: IndexSet<String>,
    rules: Rules,
    /// Leaves of infos that are no numbers of one shape: each with what they are.
    odd_infos: IndexMap<String, String>,
    /// Fields of structs that are text: each with the first file in which it is.
    text: IndexMap<String, usize>,
}

/// A leaf while the files are gone through.
pub(super) struct Leaf {
    /// What is known of it by now.
    pub(super) spec: LeafSpec,
    dtype_from: usize,
    shape_from: usize,
    /// Files in which only the data knows the rest, with what their schema says.
    pub(super) open: Vec<(usize, LeafSpec)>,
}

impl Leaf {
    /// A leaf of which only the name and the place are known.
    fn bare(spec: &LeafSpec, at: usize) -> Self {
        let spec = LeafSpec { dtype: None, shape: None, ..spec.clone() };
        Self { spec, dtype_from: at, shape_from: at, open: Vec::new() }
    }
}

/// An error for two files that cannot be one table.
fn differ(files: &[Arc<InputFile>], name: &str, a: (&str, usize), b: (&str, usize), hint: &str) -> Error {
    let (a_file, b_file) = (&files[a.1].name, &files[b.1].name);
    Error::usage(format!("the files differ: found {} in {a_file} and {} in {b_file}", a.0, b.0)).column(name).hint(hint)
}

impl Merge {
    pub(super) fn new(named: &Named, rules: Rules) -> Self {
        Self {
            name: named.name.clone(),
            source: named.source.clone(),
            role: Role::of(&named.name),
            files: Vec::new(),
            null_in: Vec::new(),
            first: None,
            id: None,
            leaves: Vec::new(),
            places: HashMap::new(),
            unusable: None,
            notes: IndexSet::new(),
            rules,
            odd_infos: IndexMap::new(),
            text: IndexMap::new(),
        }
    }

    /// Whether the column holds infos. They are what environments put there, so nothing about them is an error.
    pub(super) fn is_infos(&self) -> bool {
        column::is_under(&self.name, column::INFOS)
    }

    /// Whether the column must be usable.
    pub(super) fn is_data(&self) -> bool {
        let root = column::root(&self.name);
        NEEDED.contains(&root) || root == column::NEXT_OBS
    }

    /// Adds the column as a group of files has it, whose fields are all equal.
    pub(super) fn add(&mut self, group: &[usize], files: &[Arc<InputFile>], field: &Field) -> Result<()> {
        self.files.extend(group);
        if self.is_infos() {
            if self.rules.infos {
                self.add_infos(group, files, field);
            }
            return Ok(());
        }
        if field.data_type() == &DataType::Null {
            self.null_in.extend(group);
            return Ok(());
        }
        let at = group[0];
        let expected = match self.role {
            Role::Id => match id_kind(field.data_type()) {
                Some(kind) => {
                    self.add_id(kind, at, files)?;
                    None
                }
                None => Some("ids: integers or text"),
            },
            Role::Int => (!is_int(field.data_type())).then_some("integers"),
            Role::Flag => (!is_flag(field.data_type())).then_some("booleans, or 0 and 1"),
            Role::Tensor => {
                match describe(field, &self.name) {
                    Ok(specs) => self.add_leaves(specs, group, field, files)?,
                    Err(e) => self.cannot_read(at, field, e.file(files[at].name.clone()))?,
                }
                None
            }
        };
        if let Some(expected) = expected {
            let e = Error::usage(format!("found {}, expected {expected}", type_name(field)))
                .file(files[at].name.clone())
                .column(self.name.clone());
            return Err(if field.data_type().is_floating() {
                e.hint("cast the column to int64 or text before")
            } else {
                e.hint(format!("cast it before, or {}", self.map_another()))
            });
        }
        self.note_difference(at, field, files);
        Ok(())
    }

    /// How to name another column, in words. What the job says already it is not told to say.
    fn map_another(&self) -> String {
        let root = column::root(&self.name);
        if self.source == self.name {
            format!("name another: `[input] columns = {{ {root} = \"...\" }}`")
        } else {
            format!("name another than {:?} for {root} in `[input] columns`", self.source)
        }
    }

    fn add_id(&mut self, kind: IdKind, at: usize, files: &[Arc<InputFile>]) -> Result<()> {
        let word = |kind| if kind == IdKind::Int { "integers" } else { "text" };
        let (before, first) = *self.id.get_or_insert((kind, at));
        if before == kind {
            return Ok(());
        }
        Err(differ(files, &self.name, (word(before), first), (word(kind), at), "cast one of them before"))
    }

    /// The column cannot be read as tensors in a file: an error if it must be, else remembered.
    pub(super) fn cannot_read(&mut self, at: usize, field: &Field, e: Error) -> Result<()> {
        if self.is_data() {
            let hint = match e.place().column.as_deref().and_then(|leaf| leaf.rsplit_once('/')) {
                // One field of a struct, of which the others may be fine.
                Some((_, part)) if field.data_type().is_nested() => {
                    format!("write the struct without its field `{part}`, or with numbers in it")
                }
                _ => format!("cast the column to numbers before, or {}", self.map_another()),
            };
            return Err(e.column(self.name.clone()).hint(hint));
        }
        self.unusable.get_or_insert_with(|| (at, type_name(field), e));
        Ok(())
    }

    /// A leaf holds text in a file: one field of a struct is left out by itself, if nobody needs it.
    pub(super) fn found_text(&mut self, leaf: usize, at: usize, field: &Field, e: Error) -> Result<()> {
        if self.is_data() || self.leaves[leaf].spec.path.is_empty() {
            return self.cannot_read(at, field, e);
        }
        let name = self.leaves[leaf].spec.name.clone();
        self.text.entry(name).or_insert(at);
        Ok(())
    }

    fn add_leaves(
        &mut self,
        specs: Vec<LeafSpec>,
        group: &[usize],
        field: &Field,
        files: &[Arc<InputFile>],
    ) -> Result<()> {
        let at = group[0];
        if self.leaves.is_empty() {
            for spec in &specs {
                self.leaf_number(spec, at);
            }
        }
        let same = self.leaves.iter().map(|l| &l.spec.name).eq(specs.iter().map(|s| &s.name));
        if !same && (!self.rules.several || self.clashes(&specs)) {
            let (first, before) = self.first.clone().unwrap_or_else(|| (at, type_name(field)));
            let hint = "record one layout, or convert the files apart";
            return Err(differ(files, &self.name, (&before, first), (&type_name(field), at), hint));
        }
        for spec in specs {
            let i = self.leaf_number(&spec, at);
            self.merge_leaf(i, &spec, at, files)?;
            let leaf = &mut self.leaves[i];
            leaf.spec.packed |= spec.packed;
            if !spec.is_known() {
                leaf.open.extend(group.iter().map(|&file| (file, spec.clone())));
            }
        }
        Ok(())
    }

    /// Whether a leaf is a struct here and a value there.
    fn clashes(&self, specs: &[LeafSpec]) -> bool {
        let new = specs.iter().filter(|s| !self.places.contains_key(&s.name)).map(|s| s.name.as_str());
        let names: Vec<&str> = self.leaves.iter().map(|l| l.spec.name.as_str()).chain(new).collect();
        column::nested(&names).is_some()
    }

    /// The position of a leaf, new or known.
    fn leaf_number(&mut self, spec: &LeafSpec, at: usize) -> usize {
        let new = self.leaves.len();
        let place = *self.places.entry(spec.name.clone()).or_insert(new);
        if place == new {
            self.leaves.push(Leaf::bare(spec, at));
        }
        place
    }

    /// Adds infos as a group of files has them.
    fn add_infos(&mut self, group: &[usize], files: &[Arc<InputFile>], field: &Field) {
        let at = group[0];
        let InfoLeaves { leaves, left_out } = describe_infos(field, &self.name);
        for (name, why) in left_out {
            self.odd_infos.entry(name).or_insert_with(|| format!("{why} in {}", files[at].name));
        }
        for spec in leaves {
            let i = self.leaf_number(&spec, at);
            if let Err(e) = self.merge_leaf(i, &spec, at, files) {
                self.leave_info_out(i, &e);
            } else if !spec.is_known() {
                self.leaves[i].open.extend(group.iter().map(|&file| (file, spec.clone())));
            }
        }
    }

    /// Leaves a leaf of infos out for what is wrong with it.
    pub(super) fn leave_info_out(&mut self, leaf: usize, why: &Error) {
        let file = why.place().file.as_ref().map_or_else(String::new, |f| format!(" in {f}"));
        let row = why.place().row.map_or_else(String::new, |r| format!(" (row {r})"));
        let text = format!("{}{file}{row}", why.what());
        self.odd_infos.entry(self.leaves[leaf].spec.name.clone()).or_insert(text);
    }

    /// Takes over what a file says of a leaf, if it goes with what the others said.
    pub(super) fn merge_leaf(
        &mut self,
        leaf: usize,
        spec: &LeafSpec,
        at: usize,
        files: &[Arc<InputFile>],
    ) -> Result<()> {
        // What modules differ in is told by their rows. Infos belong to no module's space.
        let several = self.rules.several && !self.is_infos();
        let leaf = &mut self.leaves[leaf];
        let name = &leaf.spec.name;
        match (leaf.spec.dtype, spec.dtype) {
            (Some(a), Some(b)) if a != b && several && a.lossless_union(b).is_none() => {}
            (Some(a), Some(b)) if a != b => {
                let union = a.lossless_union(b).ok_or_else(|| {
                    let hint = "no type holds both without loss: cast the column in one of them before";
                    differ(files, name, (a.name(), leaf.dtype_from), (b.name(), at), hint)
                })?;
                let both = format!("{a} in {} and {b} in {}", files[leaf.dtype_from].name, files[at].name);
                if self.notes.is_empty() || union != a {
                    note(&mut self.notes, format!("column `{name}` is {both}: read as {union}"));
                }
                if union != a {
                    (leaf.spec.dtype, leaf.dtype_from) = (Some(union), at);
                }
            }
            (None, Some(b)) => (leaf.spec.dtype, leaf.dtype_from) = (Some(b), at),
            _ => {}
        }
        match (&leaf.spec.shape, &spec.shape) {
            (Some(a), Some(b)) if a != b && !several => {
                let (a, b) = (format!("shape {a:?}"), format!("shape {b:?}"));
                let hint = "one column has one shape: pad the rows, or convert the files apart";
                Err(differ(files, &leaf.spec.name, (&a, leaf.shape_from), (&b, at), hint))
            }
            (None, Some(b)) => {
                (leaf.spec.shape, leaf.shape_from) = (Some(b.clone()), at);
                Ok(())
            }
            _ => Ok(()),
        }
    }

    /// Notes that a column is stored in another way than in the first file.
    fn note_difference(&mut self, at: usize, field: &Field, files: &[Arc<InputFile>]) {
        let found = type_name(field);
        let Some((first, before)) = &self.first else {
            self.first = Some((at, found));
            return;
        };
        if *before != found && self.notes.is_empty() {
            let both = format!("{before} in {} and {found} in {}", files[*first].name, files[at].name);
            note(&mut self.notes, format!("column `{}` is stored as {both}: read as one", self.name));
        }
    }

    /// The column as it is read, or as it is left out.
    pub(super) fn finish(mut self, files: &[Arc<InputFile>], out: &mut Unified) -> Result<()> {
        self.files.sort_unstable();
        if self.is_infos() && !self.rules.infos {
            self.leave_out("infos are no batch column", out);
            return Ok(());
        }
        if self.is_infos() {
            self.finish_infos(files, out);
            return Ok(());
        }
        if let Some((at, found, e)) = self.unusable.take() {
            let usable = self.leaves.iter().find_map(|l| Some((l.spec.dtype?, l.dtype_from)));
            if let Some((dtype, first)) = usable {
                let hint = "record the column in one way, or rename it in one of them";
                return Err(differ(files, &self.name, (dtype.name(), first), (&found, at), hint));
            }
            let hint = e.hint_text().map_or_else(String::new, |h| format!("; {h}"));
            let field = e.place().column.as_ref().filter(|field| **field != self.name);
            let field = field.map_or_else(String::new, |field| format!(" in `{field}`"));
            self.leave_out(&format!("{}{field}{hint}", e.what()), out);
            return Ok(());
        }
        let missing_in: Vec<String> =
            (0..files.len()).filter(|i| self.files.binary_search(i).is_err()).map(|i| files[i].name.clone()).collect();
        if let Some(without) = missing_in.first() {
            let with = &files[self.files[0]].name;
            if !MAY_LACK.contains(&self.name.as_str()) {
                let e = Error::usage(format!("the files differ: the column is in {with} and not in {without}"));
                let hint = "record the same columns in all files, or convert the files apart";
                let more = format!("; or leave it out: `[input] ignore = [{:?}]`", glob::Pattern::escape(&self.source));
                let needed = NEEDED.contains(&column::root(&self.name));
                let hint = if needed { hint.to_owned() } else { format!("{hint}{more}") };
                return Err(e.column(self.name).hint(hint));
            }
            let more = if missing_in.len() > 1 { " and others" } else { "" };
            let text = format!("column `{}` is in {with} and not in {without}{more}: null there", self.name);
            note(&mut self.notes, text);
        }
        let is_null = self.null_in.len() == self.files.len();
        let never_seen =
            self.role == Role::Tensor && self.text.is_empty() && self.leaves.iter().all(|l| !l.spec.is_known());
        if (is_null || never_seen) && NEEDED.contains(&column::root(&self.name)) {
            return Err(self.only_nulls(&self.name, files));
        }
        if never_seen {
            self.leave_out(self.nothing(files), out);
            return Ok(());
        }
        if let Some(&at) = self.null_in.first().filter(|_| !is_null) {
            let more = if self.null_in.len() > 1 { " and others" } else { "" };
            note(&mut self.notes, format!("column `{}` is all null in {}{more}", self.name, files[at].name));
        }
        let mut leaves = Vec::with_capacity(self.leaves.len());
        for leaf in std::mem::take(&mut self.leaves) {
            if let Some(&at) = self.text.get(&leaf.spec.name) {
                if let Some(dtype) = leaf.spec.dtype {
                    let hint = "record the field in one way, or rename it in one of them";
                    return Err(differ(files, &leaf.spec.name, (dtype.name(), leaf.dtype_from), ("text", at), hint));
                }
                let why = "found text, expected numbers";
                note(&mut self.notes, format!("column `{}` is left out: {why}", leaf.spec.name));
                out.left_out.push((leaf.spec.name, why.to_owned()));
                continue;
            }
            match leaf.spec.ty() {
                Some(ty) => leaves.push((leaf.spec, ty)),
                None if self.is_data() => return Err(self.only_nulls(&leaf.spec.name, files)),
                None => {
                    let why = self.nothing(files);
                    note(&mut self.notes, format!("column `{}` is left out: {why}", leaf.spec.name));
                    out.left_out.push((leaf.spec.name, why.to_owned()));
                }
            }
        }
        out.notes.append(&mut self.notes);
        if leaves.is_empty() && !self.text.is_empty() {
            return Ok(());
        }
        out.columns.push(UnifiedColumn { name: self.name, source: self.source, role: self.role, leaves, missing_in });
        Ok(())
    }

    /// The infos as they are read.
    fn finish_infos(self, files: &[Arc<InputFile>], out: &mut Unified) {
        let names: Vec<String> =
            self.leaves.iter().map(|l| l.spec.name.clone()).chain(self.odd_infos.keys().cloned()).collect();
        let outer = column::outer_names(names.iter().map(String::as_str));
        let (of_leaves, mut odd): (Vec<_>, Vec<_>) =
            self.odd_infos.into_iter().partition(|(name, _)| self.places.contains_key(name));
        let mut of_leaves: HashMap<String, String> = of_leaves.into_iter().collect();
        let mut leaves = Vec::with_capacity(self.leaves.len());
        for leaf in self.leaves {
            let name = leaf.spec.name.clone();
            let inner = outer.contains(name.as_str());
            let why = match (of_leaves.remove(&name), leaf.spec.ty()) {
                (Some(why), _) => why,
                (None, _) if inner => "found numbers in some files and a struct in others".to_owned(),
                (None, None) => "it is null in every row".to_owned(),
                (None, Some(ty)) => {
                    leaves.push((leaf.spec, ty));
                    continue;
                }
            };
            odd.push((name, why));
        }
        for (name, why) in odd {
            note(&mut out.notes, format!("`{name}` is left out of the infos: {why}"));
            out.left_out.push((name, why));
        }
        leaves.sort_by(|a, b| a.0.name.cmp(&b.0.name));
        if leaves.is_empty() {
            note(&mut out.notes, format!("no infos are added from `{}`: it holds no numbers", self.source));
            return;
        }
        let missing_in =
            (0..files.len()).filter(|i| self.files.binary_search(i).is_err()).map(|i| files[i].name.clone()).collect();
        out.columns.push(UnifiedColumn { name: self.name, source: self.source, role: self.role, leaves, missing_in });
    }

    /// What a column of which no value was seen has in its rows.
    fn nothing(&self, files: &[Arc<InputFile>]) -> &'static str {
        let field = |i: &usize| files[*i].field(&self.source);
        let lists = self.files.iter().any(|i| field(i).is_some_and(|(_, f)| has_empty_lists(f.data_type())));
        if lists { "it holds only nulls and empty lists" } else { "it is null in every row" }
    }

    fn only_nulls(&self, name: &str, files: &[Arc<InputFile>]) -> Error {
        let e = if files.iter().all(|f| f.rows() == 0) {
            Error::usage("the input holds no rows, so the shape of the column is unknown")
        } else {
            match self.first.as_ref() {
                Some((_, found)) if self.leaves.is_empty() => Error::usage(format!("found {found}, expected values")),
                _ => Error::usage(format!("{}, expected values", self.nothing(files).replacen("it", "the column", 1)))
                    .hint(format!(
                        "if another column has them, name that: `[input] columns = {{ {} = \"...\" }}`; if none has, the \
                         recorder wrote none",
                        column::root(name)
                    )),
            }
        };
        match self.files.as_slice() {
            [only] => e.column(name).file(files[*only].name.clone()),
            _ => e.column(name),
        }
    }

    fn leave_out(&self, why: &str, out: &mut Unified) {
        note(&mut out.notes, format!("column `{}` is left out: {why}", self.source));
        out.left_out.push((self.name.clone(), why.to_owned()));
    }
}

/// Whether values of a type are lists that can only be empty (or of nulls), or have such.
fn has_empty_lists(ty: &DataType) -> bool {
    match ty {
        DataType::List(of) | DataType::LargeList(of) | DataType::ListView(of) | DataType::LargeListView(of) => {
            of.data_type() == &DataType::Null || has_empty_lists(of.data_type())
        }
        DataType::FixedSizeList(of, _) => has_empty_lists(of.data_type()),
        DataType::Struct(fields) => fields.iter().any(|f| has_empty_lists(f.data_type())),
        _ => false,
    }
}
