//! The inner loops by themselves: `make kernels`. One thread, buffers fresh for each sample as in a run.
//!
//! What is printed as items a second are steps; bytes are those that a kernel writes.

use std::sync::Arc;

use divan::counter::{BytesCount, ItemsCount};
use divan::{Bencher, black_box};
use gristmill::batch::ModuleBatch;
use gristmill::connector::{ModuleUnit, Repairs, Room};
use gristmill::episode::{Chunk, EpisodeBatch, EpisodeId};
use gristmill::indexed::{Axis, FRAMES, Stored, WindowIndex, Windowed};
use gristmill::job::{Compat, Compression, Format, Learner};
use gristmill::pipeline::Pipeline;
use gristmill::scratch::Scratch;
use gristmill::sink::{ColumnData, ColumnType, ContentDigest, Encoder, RowGroupData, ShardSchema};
use gristmill::source::packed::Unpacker;
use gristmill::stats::ColumnStats;
use gristmill::tensor::{DType, Tensor, TensorType};
use gristmill::window::{Column, End, Fill, Pad, Span, Spec, Start, Windows};

fn main() {
    divan::main();
}

/// Steps of a sample.
const STEPS: usize = 128 << 10;
/// Steps of an episode.
const EPISODE: usize = 200;

/// Numbers that no codec shortens much.
fn noise(n: usize) -> impl Iterator<Item = u64> {
    (1..=n as u64).map(|i| i.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ (i.wrapping_mul(0xd1b5_4a32_d192_ed03) >> 29))
}

fn floats(rows: usize, width: usize) -> Tensor {
    // Mantissas alone are noise: numbers from 1 to 2.
    let float = |v: u64| f32::from_bits(0x3f80_0000 | u32::try_from(v >> 41).unwrap_or(0));
    let values: Vec<f32> = noise(rows * width).map(float).collect();
    Tensor::from_values::<f32>([width], &values)
}

fn offsets(steps: usize) -> Vec<usize> {
    (0..steps).step_by(EPISODE).chain([steps]).collect()
}

fn spans(offsets: &[usize]) -> impl Iterator<Item = Span> {
    offsets.windows(2).map(|w| Span { look_back: 0, len: w[1] - w[0] })
}

/// `AddTimeDimToBatchAndZeroPad`: `[4]` to `[20, 4]`.
#[divan::bench]
fn sequences_of_20(bencher: Bencher) {
    let (obs, offsets) = (floats(STEPS, 4), offsets(STEPS));
    bencher.counter(ItemsCount::new(STEPS)).bench_local(|| {
        let windows = Windows::cut(Spec::sequences(20), spans(&offsets));
        windows.gather(Column { steps: black_box(&obs), offsets: &offsets, look_back: None }, &Fill::Zeros)
    });
}

/// Four stacked frames of 84 x 84, laid out from an index.
#[divan::bench]
fn four_frames(bencher: Bencher) {
    let n = 512;
    let frames = Tensor::zeros(TensorType::new(DType::UInt8, [84, 84, 1]), n);
    let spec = Spec { before: 3, after: 1, period: 1, start: Start::Before, end: End::Past, pad: Pad::InPlace };
    let offsets = offsets(n);
    let windows = Windows::cut(spec, spans(&offsets));
    let index = Arc::new(WindowIndex::of(&windows, &offsets));
    let stored = Stored { table: FRAMES, step: frames.ty().clone(), places: 4, axis: Axis::Last, prefix: Vec::new() };
    bencher.counter(ItemsCount::new(n)).counter(BytesCount::new(n * 84 * 84 * 4)).bench_local(|| {
        let column = Windowed::new(stored.clone(), Arc::clone(&index), black_box(&frames).clone());
        column.whole().rows()
    });
}

/// `CountBasedCuriosity` over observations of 16 bytes.
#[divan::bench(args = [STEPS, 1000])]
fn counts(bencher: Bencher, distinct: usize) {
    let values = floats(distinct, 4);
    let places: Vec<usize> = noise(STEPS).map(|v| usize::try_from(v % distinct as u64).unwrap_or(0)).collect();
    let mut episodes = EpisodeBatch { offsets: offsets(STEPS), ..EpisodeBatch::default() };
    let chunk = |i: usize| Chunk {
        id: EpisodeId::Int(i64::try_from(i).unwrap_or(0)),
        agent_id: None,
        ordinal: u32::try_from(i).unwrap_or(0),
        bare_rank: 0,
        t_started: 0,
        terminated: true,
        truncated: false,
        has_last_obs: false,
    };
    episodes.chunks = (0..episodes.offsets.len() - 1).map(chunk).collect();
    episodes.history_offsets = vec![0; episodes.offsets.len()];
    episodes.steps.set("obs", values.take(&places));
    episodes.steps.set("rewards", Tensor::zeros(DType::Float64.scalar(), STEPS));
    let learner = serde_json::json!({ "connectors": [{ "type": "CountBasedCuriosity" }] });
    let learner: Learner = serde_json::from_value(learner).expect("a job's learner");
    let pipeline = Pipeline::new(&learner).expect("a pipeline");
    let scratch = Scratch::new(&std::env::temp_dir());
    bencher
        .counter(ItemsCount::new(STEPS))
        .with_inputs(|| {
            let mut counter = pipeline.start_ordered(0).expect("an ordered piece");
            counter.enter(Room { bytes: 1 << 30, scratch: scratch.clone() }, None).expect("room");
            (counter, vec![ModuleUnit { module: 0, episodes: episodes.clone(), batch: ModuleBatch::default() }])
        })
        .bench_local_values(|(mut counter, mut unit)| {
            counter.apply(Compat::Correct, &mut unit, &mut Repairs::default()).expect("counts");
            unit
        });
}

/// RLlib's packed observations of four floats.
#[divan::bench]
fn packed_observations(bencher: Bencher) {
    const TEXT: &str = "BCJNGGhAjwAAAAAAAAAdigAAAFKABZWEAAEA8hqME251bXB5Ll9jb3JlLm51bWVyaWOUjAtfZnJvbWJ1ZmZl\
        cpSTlCiWEC8A8QUAzWsVPSuIET1Wyv48U2zDvJSMBUEA8RaUjAVkdHlwZZSTlIwCZjSUiYiHlFKUKEsDjAE8lE5OTkr/////BQDwA0sA\
        dJRiSwSFlIwBQ5R0lFKULgAAAAA=";
    bencher.counter(ItemsCount::new(1000_usize)).bench_local(|| {
        let mut unpacker = Unpacker::default();
        (0..1000).map(|_| unpacker.unpack(black_box(TEXT)).expect("an array").1.len()).sum::<usize>()
    });
}

/// A column's statistics and its digest.
#[divan::bench]
fn statistics(bencher: Bencher) {
    let obs = floats(STEPS, 4);
    bencher.counter(BytesCount::new(obs.bytes().len())).bench_local(|| ColumnStats::of(black_box(&obs), None));
}

#[divan::bench]
fn digest(bencher: Bencher) {
    let obs = ColumnData::Tensor(floats(STEPS, 4));
    let ty = ColumnType::Tensor(TensorType::new(DType::Float32, [4]));
    bencher.counter(BytesCount::new(STEPS * 16)).bench_local(|| {
        let mut digest = ContentDigest::new("obs", &ty);
        digest.update(black_box(&obs)).map(|()| digest.finish())
    });
}

/// A row group of one tensor column to the bytes of its pages.
#[divan::bench(args = [Compression::None, Compression::Zstd(1)])]
fn encode(bencher: Bencher, compression: Compression) {
    let obs = floats(STEPS, 4);
    let schema = ShardSchema::new(vec![("obs".to_owned(), ColumnType::Tensor(obs.ty().clone()))]);
    let encoder = Encoder::new(schema, Format::Parquet, compression).expect("an encoder");
    let data = RowGroupData { rows: STEPS, columns: vec![ColumnData::Tensor(obs)] };
    bencher.counter(BytesCount::new(STEPS * 16)).bench_local(|| encoder.encode(black_box(&data)).map(|_| ()));
}
