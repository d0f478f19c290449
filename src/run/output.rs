//! The write side: row groups to shards, with digests and statistics gathered in order.

use std::collections::HashMap;
use std::sync::Arc;

use super::cutter::{Cut, Cutter, Rows};
use super::shuffle::{Scattered, Shuffle, Shuffler};
use super::tables::{Growing, Table};
use crate::batch;
use crate::column::LOSS_MASK;
use crate::connector::Room;
use crate::error::{Error, Result};
use crate::job::Format;
use crate::manifest::{ColumnRecord, ModuleRecord, ShardRecord, TableRecord};
use crate::sink::{
    ColumnType, ContentDigest, Durable, EncodedRowGroup, Encoder, Finished, ModuleDir, RowGroupData, ShardSchema,
    ShardWriter, combine, row_group_rows,
};
use crate::stats::{self, ColumnStats};

/// A row group's bytes, and what was learned from its values on the way.
#[derive(Debug)]
pub(super) struct Encoded {
    stream: usize,
    pub shard: usize,
    pub ends_shard: bool,
    pub data: RowGroupData,
    /// Nothing where the shard is on the disk already.
    pub bytes: Option<EncodedRowGroup>,
    pub stats: Vec<Option<ColumnStats>>,
}

/// What every row group of a module shares.
#[derive(Debug)]
pub(super) struct ModuleEncoder {
    pub encoder: Encoder,
    /// For each column, whether `loss_mask` says which of its places are real (`None`: no statistics).
    masked: Vec<Option<bool>>,
    loss_mask: Option<usize>,
    /// Shards at the start that an interrupted run has finished.
    finished: usize,
}

impl ModuleEncoder {
    /// An encoder of `schema`, whose last columns are the pipeline's (`columns`).
    pub fn new(
        schema: ShardSchema,
        columns: &[batch::ColumnLayout],
        output: &crate::job::Output,
        finished: usize,
    ) -> Result<Self> {
        let provenance = schema.columns.len() - columns.len();
        let mask_shape = columns.iter().find(|c| c.name == LOSS_MASK).map(|c| c.ty.shape.as_slice());
        let of = |c: &batch::ColumnLayout| Some(stats::is_masked(&c.name, &c.ty.shape, mask_shape));
        let masked = std::iter::repeat_n(None, provenance).chain(columns.iter().map(of)).collect();
        let loss_mask = schema.columns.iter().position(|(n, _)| n == LOSS_MASK);
        let encoder = Encoder::new(schema, output.format, output.compression())?;
        Ok(Self { encoder, masked, loss_mask, finished })
    }

    /// Statistics of no rows yet, by column.
    pub fn no_stats(&self) -> Vec<Option<ColumnStats>> {
        self.masked.iter().map(|m| m.map(|_| ColumnStats::default())).collect()
    }
}

impl Encoded {
    /// Joins a cut's pieces and encodes them. Pure: any thread.
    pub fn new(cut: Cut, module: &ModuleEncoder) -> Result<Self> {
        let data = cut.join(module.encoder.schema())?;
        let (stream, shard, ends_shard) = (cut.stream, cut.shard, cut.ends_shard);
        drop(cut); // joined, the pieces are not needed beside the bytes
        let tensor = |i: usize| data.columns[i].tensor();
        let mask = module.loss_mask.and_then(tensor);
        let stats = module
            .masked
            .iter()
            .enumerate()
            .map(|(i, masked)| match (masked, tensor(i)) {
                (Some(masked), Some(t)) => ColumnStats::of(t, mask.filter(|_| *masked)).map(Some),
                _ => Ok(None),
            })
            .collect::<Result<_>>()?;
        let on_disk = shard < module.finished;
        let bytes = if on_disk { None } else { Some(module.encoder.encode(&data)?) };
        Ok(Self { stream, shard, ends_shard, data, bytes, stats })
    }
}

/// The columns of a module's shards: the pipeline's behind those that tell where a row came from.
pub(super) fn schema(
    provenance: Vec<(String, ColumnType)>,
    columns: &[batch::ColumnLayout],
    output: &crate::job::Output,
) -> ShardSchema {
    let all = columns.iter().map(|c| (c.name.clone(), ColumnType::Tensor(c.ty.clone())));
    ShardSchema::new(provenance.into_iter().chain(all).collect()).with_tensors(output.tensors)
}

/// Bytes of a row's windows, laid out.
pub(super) fn windows_bytes(columns: &[batch::ColumnLayout]) -> usize {
    columns.iter().filter(|c| c.stored.is_some()).map(|c| c.ty.row_bytes()).fold(0, usize::saturating_add)
}

/// What the output holds in memory.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Sizes {
    /// Bytes of a row group of every stream, together.
    pub groups: usize,
    /// Bytes of the largest row group.
    pub largest: usize,
    /// Whether rows are brought into another order.
    pub shuffled: bool,
}

impl Sizes {
    /// What streams of these schemas hold.
    pub fn of(schemas: &[ShardSchema], output: &crate::job::Output) -> Self {
        let of = |schema: &ShardSchema| {
            let rows = row_group_rows(schema, output.rows_per_shard);
            let texts = match output.format {
                Format::Parquet => schema.texts.most_different(rows),
                Format::Arrow => schema.texts.most(rows),
            };
            rows.saturating_mul(schema.row_bytes()).saturating_add(texts)
        };
        // Rows go to scratch and come back in pieces of a bucket, each with every text that is in it.
        let scattered = |schema: &ShardSchema| match output.shuffle {
            Some(_) => schema.texts.most_different(usize::MAX).saturating_mul(2),
            None => 0,
        };
        Self {
            groups: schemas.iter().map(|schema| of(schema).saturating_add(scattered(schema))).sum(),
            largest: schemas.iter().map(of).max().unwrap_or(0),
            shuffled: output.shuffle.is_some(),
        }
    }
}

/// Rows that a unit brings to a stream.
#[derive(Debug)]
pub(super) enum Brought {
    /// In the order of the data.
    Rows(Rows),
    /// By bucket of their order.
    Scattered(Scattered),
}

impl Brought {
    /// Does something to all rows.
    pub fn each(&mut self, f: impl FnOnce(&mut Rows)) {
        match self {
            Self::Rows(rows) => f(rows),
            Self::Scattered(scattered) => f(&mut scattered.rows),
        }
    }
}

/// A table, and the stream of shards that its rows go to.
pub(super) struct TableStream {
    pub table: Growing,
    pub stream: usize,
}

/// The shards of all modules: one stream a module, and behind those one a table.
pub(super) struct Outputs {
    streams: Vec<Output>,
    /// By module.
    tables: Vec<Vec<TableStream>>,
    /// Columns in front of the batch's.
    provenance: usize,
    durable: Durable,
}

impl Outputs {
    /// One output a stream.
    pub fn new(streams: Vec<Output>, tables: Vec<Vec<TableStream>>, provenance: usize, durable: Durable) -> Self {
        Self { streams, tables, provenance, durable }
    }

    /// Adds what a unit brings to a module: rows, and of each of its tables the steps.
    ///
    /// # Errors
    /// If scratch space fails.
    pub fn push(&mut self, module: usize, mut rows: Brought, steps: Vec<Rows>) -> Result<()> {
        let Self { streams, tables, provenance, .. } = self;
        for (own, steps) in tables[module].iter_mut().zip(steps) {
            own.table.take(&mut rows, *provenance, steps.rows)?;
            streams[own.stream].cutter.push(steps);
        }
        let output = &mut streams[module];
        match (rows, &mut output.shuffler) {
            (Brought::Rows(rows), None) => output.cutter.push(rows),
            (Brought::Scattered(rows), Some(shuffler)) => shuffler.push(rows)?,
            _ => return Err(Error::internal("rows in two orders")),
        }
        Ok(())
    }

    /// The next row group to be encoded, of any stream; with `flush` also what is left.
    ///
    /// # Errors
    /// If scratch space fails.
    pub fn cut(&mut self, flush: bool) -> Result<Option<Cut>> {
        for output in &mut self.streams {
            if let Some(cut) = output.cut(flush)? {
                return Ok(Some(cut));
            }
        }
        Ok(None)
    }

    /// What encoding a cut needs.
    pub fn encoder(&self, cut: &Cut) -> Arc<ModuleEncoder> {
        Arc::clone(&self.streams[cut.stream].module)
    }

    /// Appends a row group. They come in the order in which they were cut.
    pub fn append(&mut self, group: Encoded) -> Result<()> {
        self.streams[group.stream].append(group, &mut self.durable)
    }

    /// Ends the last shards, and waits until all are on the disk.
    pub fn finish(self) -> Result<Vec<ModuleRecord>> {
        let mut durable = self.durable;
        let records = self.streams.into_iter().map(|s| s.finish(&mut durable)).collect::<Result<Vec<_>>>()?;
        durable.finish()?;
        let tables = self.tables.into_iter().map(|own| own.into_iter().map(|t| t.table.table).collect()).collect();
        with_tables(records, tables)
    }
}

/// Modules with their tables, out of what became of every stream.
pub(super) fn with_tables(records: Vec<ModuleRecord>, tables: Vec<Vec<Table>>) -> Result<Vec<ModuleRecord>> {
    let (mut modules, mut steps) = (records, Vec::new());
    steps.extend(modules.drain(tables.len()..));
    let mut steps = steps.into_iter();
    for (module, tables) in modules.iter_mut().zip(tables) {
        for table in tables {
            let steps = steps.next().ok_or_else(|| Error::internal("a table without a stream"))?;
            let Table { name, places, axis, prefix, .. } = table;
            let record = TableRecord { places, axis, prefix, steps };
            module.tables.insert(name.to_owned(), record);
        }
        module.digest = module.combined(module.columns.iter().map(|c| (c.name.as_str(), c.digest.as_str())));
    }
    Ok(modules)
}

/// The shards of one module.
pub(super) struct Output {
    dir: ModuleDir,
    format: Format,
    module: Arc<ModuleEncoder>,
    cutter: Cutter,
    shuffler: Option<Shuffler>,
    writer: Option<ShardWriter>,
    /// The first shards, as an interrupted run has left them.
    finished: Vec<Finished>,
    /// Rows of the shard that is being made.
    rows: u64,
    shards: Vec<ShardRecord>,
    stats: Vec<Option<ColumnStats>>,
    digests: Vec<ContentDigest>,
}

impl Output {
    /// Shards of `schema` in `dir`; the last ones of its columns are the pipeline's (`columns`).
    pub fn new(
        stream: usize,
        dir: ModuleDir,
        schema: ShardSchema,
        columns: &[batch::ColumnLayout],
        output: &crate::job::Output,
        kept: &[Finished],
    ) -> Result<Self> {
        let group_rows = row_group_rows(&schema, output.rows_per_shard);
        let digests = schema.columns.iter().map(|(name, ty)| ContentDigest::new(name, ty)).collect();
        // Those in front without a gap: rows of one shard after the other are told from those that are there.
        let name = |i: usize| dir.shard(i, output.format).1;
        let kept: HashMap<&str, &Finished> = kept.iter().map(|k| (k.file.as_str(), k)).collect();
        let finished: Vec<Finished> = (0..).map_while(|i| kept.get(name(i).as_str()).copied().cloned()).collect();
        let module = ModuleEncoder::new(schema, columns, output, finished.len())?;
        let stats = module.no_stats();
        Ok(Self {
            dir,
            format: output.format,
            module: Arc::new(module),
            cutter: Cutter::new(stream, output.rows_per_shard, group_rows),
            shuffler: None,
            writer: None,
            finished,
            rows: 0,
            shards: Vec::new(),
            stats,
            digests,
        })
    }

    /// Brings the rows into another order.
    #[must_use]
    pub fn shuffled(mut self, shuffle: Shuffle, room: Room) -> Self {
        self.shuffler = Some(Shuffler::new(shuffle, &self.module.encoder.schema().columns, room));
        self
    }

    fn cut(&mut self, flush: bool) -> Result<Option<Cut>> {
        let Some(shuffler) = self.shuffler.as_mut().filter(|_| flush) else { return Ok(self.cutter.next(flush)) };
        loop {
            if let Some(cut) = self.cutter.next(false) {
                return Ok(Some(cut));
            }
            match shuffler.next()? {
                Some(rows) => self.cutter.push(rows),
                None => return Ok(self.cutter.next(true)),
            }
        }
    }

    /// Appends a row group. They come in the order in which they were cut.
    fn append(&mut self, group: Encoded, durable: &mut Durable) -> Result<()> {
        for (all, own) in self.stats.iter_mut().zip(&group.stats) {
            if let (Some(all), Some(own)) = (all, own) {
                all.merge(own);
            }
        }
        for (digest, data) in self.digests.iter_mut().zip(&group.data.columns) {
            digest.update(data)?;
        }
        if group.shard != self.shards.len() {
            return Err(Error::internal("row groups out of order"));
        }
        self.rows += group.data.rows as u64;
        let Some(bytes) = group.bytes else {
            return if group.ends_shard { self.keep_shard() } else { Ok(()) };
        };
        let mut writer = match self.writer.take() {
            Some(writer) => writer,
            None => self.start_shard()?,
        };
        writer.append(bytes)?;
        if group.ends_shard {
            self.finish_shard(writer, durable)?;
        } else {
            self.writer = Some(writer);
        }
        Ok(())
    }

    /// The shard is on the disk already.
    fn keep_shard(&mut self) -> Result<()> {
        let Finished { file, rows, bytes, digest } = self.finished[self.shards.len()].clone();
        if rows != self.rows {
            // The file is what the journal says, by its digest: it is the journal that was written to.
            let what = format!("the unfinished run's journal says {rows} rows, and they are {}", self.rows);
            return Err(Error::data(what).file(file).hint("--overwrite starts anew"));
        }
        self.rows = 0;
        self.shards.push(ShardRecord { file, rows, bytes, digest });
        Ok(())
    }

    fn start_shard(&self) -> Result<ShardWriter> {
        ShardWriter::create(&self.dir.shard(self.shards.len(), self.format).0, &self.module.encoder)
    }

    fn finish_shard(&mut self, writer: ShardWriter, durable: &mut Durable) -> Result<()> {
        let file = self.dir.shard(self.shards.len(), self.format).1;
        let (info, unsynced) = writer.close()?;
        let shard = Finished { file, rows: info.rows as u64, bytes: info.bytes, digest: info.digest };
        durable.push(unsynced, shard.clone())?;
        let Finished { file, rows, bytes, digest } = shard;
        self.shards.push(ShardRecord { file, rows, bytes, digest });
        self.rows = 0;
        Ok(())
    }

    /// Ends the last shard. A module without rows gets one shard that says which columns it would have.
    pub fn finish(mut self, durable: &mut Durable) -> Result<ModuleRecord> {
        if let Some(writer) = self.writer.take() {
            self.finish_shard(writer, durable)?;
        }
        if self.shards.is_empty() && self.finished.first().is_some_and(|f| f.rows == 0) {
            self.keep_shard()?;
        }
        if self.shards.is_empty() {
            let writer = self.start_shard()?;
            self.finish_shard(writer, durable)?;
        }
        let digests = self.digests.into_iter().map(ContentDigest::finish).collect();
        Ok(record(self.dir.relative, self.module.encoder.schema(), self.shards, digests, self.stats))
    }
}

/// A module in the manifest.
pub(super) fn record(
    folder: String,
    schema: &ShardSchema,
    shards: Vec<ShardRecord>,
    digests: Vec<String>,
    stats: Vec<Option<ColumnStats>>,
) -> ModuleRecord {
    let column = |(((name, ty), digest), stats): (((&String, &ColumnType), _), Option<ColumnStats>)| ColumnRecord {
        name: name.clone(),
        dtype: ty.dtype_name().to_owned(),
        shape: ty.shape().to_vec(),
        digest,
        statistics: stats.map(|s| s.summary()),
    };
    let named = schema.columns.iter().map(|(name, ty)| (name, ty));
    let columns: Vec<ColumnRecord> = named.zip(digests).zip(stats).map(column).collect();
    let digest = combine(columns.iter().map(|c| (c.name.as_str(), c.digest.as_str())));
    let rows = shards.iter().map(|s| s.rows).sum();
    ModuleRecord { folder, rows, columns, shards, digest, ..ModuleRecord::default() }
}
