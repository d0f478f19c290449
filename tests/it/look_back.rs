//! Pieces behind one another that look at what was before a chunk.

use crate::support::{Work, binaries, shown};

/// RLlib's own items: an episode of five steps in two chunks, the second one with a look-back of one step.
fn chunks() -> Work {
    let item = |name: &str| {
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("src/source/testdata").join(name);
        std::fs::read(path).expect("an item")
    };
    let items = [item("infos_0.msgpack"), item("infos_1.msgpack")];
    Work::of(vec![("item", binaries(&[&items[0], &items[1]]))])
}

/// Three stacked observations, each with the reward before it: the second chunk needs three steps of the first one.
#[test]
fn a_piece_sees_whole_rows_of_the_piece_before() {
    let work = chunks();
    let job = "[[learner.connectors]]\ntype = \"PrevActionsPrevRewards\"\nn_prev_actions = 0\n\
        [[learner.connectors]]\ntype = \"StackObservations\"\nnum_frames = 3\n";
    let manifest = work.manifest_of(&work.convert_job(job, &[]));
    let rows = work.rows();
    assert_eq!(
        shown(&rows, "obs/_orig_obs"),
        "[0.0, 0.0, 0.0] [0.0, 0.0, 1.0] [0.0, 1.0, 2.0] [1.0, 2.0, 3.0] [2.0, 3.0, 4.0]"
    );
    // Only the episode's first step has no reward before it.
    assert_eq!(
        shown(&rows, "obs/prev_n_rewards"),
        "[0.0, 0.0, 0.0] [0.0, 0.0, 1.0] [0.0, 1.0, 1.0] [1.0, 1.0, 1.0] [1.0, 1.0, 1.0]"
    );
    assert!(manifest["repairs"].as_object().unwrap().is_empty(), "{}", manifest["repairs"]);
}
