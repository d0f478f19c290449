use super::*;

fn run(row: u64, len: u64, t: i64, terminated: bool) -> Run {
    Run {
        episode: 0,
        span: Span::new(row, len),
        t,
        done: Done { terminated, truncated: false },
        tail: false,
        hanging: false,
    }
}

/// Rows with the given contents; `obs` of row i is `obs[i]`, its next observation `obs[i] + 1`.
fn prints<'a>(contents: &'a [u128], obs: &'a [u64]) -> impl Fn(u64) -> Result<RowPrint> + 'a {
    move |row| {
        let i = usize::try_from(row).unwrap();
        Ok(RowPrint { content: contents[i], obs: obs[i], next_obs: Some(obs[i] + 1), unread: Unread::default() })
    }
}

fn spans(resolved: &[Resolved]) -> Vec<Vec<(u64, u64)>> {
    resolved.iter().map(|r| r.spans.iter().map(|s| (s.first(), s.len())).collect()).collect()
}

const DROP: Duplicates = Duplicates::Drop;

#[test]
fn rows_out_of_order_are_sorted_by_t() {
    let runs = [run(0, 2, 11, true), run(5, 3, 0, false), run(8, 8, 3, false)];
    let out = resolve(&runs, true, DROP, &prints(&[], &[])).unwrap();
    assert_eq!(spans(&out), [[(5, 11), (0, 2)]]);
    assert!(out[0].done.terminated);
}

#[test]
fn the_ends_of_time_do_not_overflow() {
    let runs = [run(0, 1, i64::MIN, false), run(1, 1, 1, false), run(2, 1, i64::MAX, false)];
    let error = resolve(&runs, true, DROP, &prints(&[], &[])).unwrap_err();
    assert!(error.error.what().ends_with("steps are missing"), "{}", error.error);
    let runs = [run(0, 1, i64::MAX, false), run(1, 1, i64::MAX, false)];
    let out = resolve(&runs, true, DROP, &prints(&[1, 1], &[0; 2])).unwrap();
    assert_eq!((out[0].spans.len(), out[0].duplicates), (1, 1));
}

fn tail(row: u64, t: i64, terminated: bool) -> Run {
    Run { tail: true, ..run(row, 1, t, terminated) }
}

#[test]
fn the_row_behind_the_last_step() {
    for timed in [true, false] {
        // Nothing is printed for a lone run; RLDS sets the flag on the row that holds no step.
        let out = resolve(&[run(0, 3, 0, false), tail(3, 3, true)], timed, DROP, &prints(&[], &[])).unwrap();
        assert_eq!((spans(&out), out[0].tail), (vec![vec![(0, 3)]], Some(3)));
        assert_eq!((out[0].done.terminated, out[0].duplicates), (true, 0));
        // In the middle it is a null where an action should be.
        let runs = [run(0, 2, 0, false), tail(2, 2, false), run(3, 2, 3, true)];
        let error = resolve(&runs, timed, DROP, &prints(&[1, 2, 3, 4, 5], &[0, 1, 2, 3, 4])).unwrap_err();
        assert_eq!((error.row, error.error.place().column.as_deref()), (2, Some("actions")));
        let all = [tail(0, 0, false), tail(1, 1, false)];
        assert_eq!(resolve(&all, timed, DROP, &prints(&[], &[])).unwrap_err().row, 0);
    }
}

#[test]
fn episodes_recorded_twice_keep_their_last_observations() {
    let runs = [run(0, 2, 0, true), tail(2, 2, false), run(3, 2, 0, true), tail(5, 2, false)];
    let (contents, obs) = ([1, 2, 0, 1, 2, 0], [0, 1, 2, 0, 1, 2]);
    for timed in [true, false] {
        let kept = resolve(&runs, timed, Duplicates::Keep, &prints(&contents, &obs)).unwrap();
        assert_eq!(kept.iter().map(|e| e.tail).collect::<Vec<_>>(), [Some(2), Some(5)], "timed: {timed}");
        let once = resolve(&runs, timed, DROP, &prints(&contents, &obs)).unwrap();
        assert_eq!((once.len(), once[0].duplicates, once[0].first_duplicate), (1, 2, Some(3)));
    }
}

#[test]
fn only_overlapping_runs_are_printed() {
    let runs = [run(0, 3, 0, false), run(3, 3, 3, false), run(6, 2, 4, false), run(8, 1, 6, true)];
    let rows = rows_to_print(&runs, true, DROP);
    assert_eq!(rows.iter().map(|s| s.first()).collect::<Vec<_>>(), [3, 6]);
    // A run a row, all at the same t: linear, and each row once.
    let same: Vec<Run> = (0..100_000).map(|row| run(row, 1, 0, false)).collect();
    assert_eq!(rows_to_print(&same, true, DROP).len(), 100_000);
}

#[test]
fn a_run_a_row_is_resolved_in_time() {
    let n = 200_000_i64;
    let back: Vec<Run> = (0..n).map(|i| run(u64::try_from(i).unwrap(), 1, n - 1 - i, i == 0)).collect();
    let out = resolve(&back, true, DROP, &prints(&[], &[])).unwrap();
    assert_eq!(out[0].spans.len(), 200_000);
    let forth: Vec<Run> = (0..200_000).map(|row| run(row * 2, 1, 0, false)).collect();
    let print = |row: u64| Ok(RowPrint { content: row.into(), obs: row, next_obs: None, unread: Unread::default() });
    assert_eq!(resolve(&forth, false, DROP, &print).unwrap()[0].spans.len(), 1);
}

#[test]
fn a_gap_is_an_error() {
    let error = resolve(&[run(0, 2, 0, false), run(2, 1, 4, true)], true, DROP, &prints(&[], &[])).unwrap_err();
    assert_eq!(error.error.what(), "t jumps from 1 to 4: 2 steps are missing");
    assert_eq!(error.row, 2);
}

#[test]
fn equal_rows_at_one_t_are_dropped_and_unequal_ones_refused() {
    let runs = [run(0, 3, 0, false), run(3, 3, 1, true)];
    let out = resolve(&runs, true, DROP, &prints(&[1, 2, 3, 2, 3, 4], &[0; 6])).unwrap();
    assert_eq!((spans(&out), out[0].duplicates), (vec![vec![(0, 3), (5, 1)]], 2));
    let error = resolve(&runs, true, DROP, &prints(&[1, 2, 3, 2, 9, 4], &[0; 6])).unwrap_err();
    assert_eq!((error.error.place().t, error.row), (Some(2), 4));
    let kept = resolve(&runs, true, Duplicates::Keep, &prints(&[], &[])).unwrap();
    assert_eq!(spans(&kept), [vec![(0, 3), (5, 1)], vec![(3, 2)]]);
}

#[test]
fn the_recorders_prefixes_are_dropped() {
    // Three files: [a], [a b], [a b c]; the last one is terminated.
    let runs = [run(0, 2, 0, false), run(2, 4, 0, false), run(6, 6, 0, true)];
    let contents = [1, 2, 1, 2, 3, 4, 1, 2, 3, 4, 5, 6];
    let obs = [0, 1, 0, 1, 2, 3, 0, 1, 2, 3, 4, 5];
    let out = resolve(&runs, false, DROP, &prints(&contents, &obs)).unwrap();
    assert_eq!((spans(&out), out[0].duplicates), (vec![vec![(0, 2), (4, 2), (10, 2)]], 6));
    assert!(out[0].done.terminated);
    let kept = resolve(&runs, false, Duplicates::Keep, &prints(&contents, &obs)).unwrap();
    assert_eq!(spans(&kept), [vec![(0, 2)], vec![(2, 4)], vec![(6, 6)]]);
}

#[test]
fn a_chunk_that_goes_on_is_no_duplicate() {
    // A corridor where the same thing happens at every step, recorded one row a file: obs 5 -> 6 is never equal
    // to the next row's 5, so rows that repeat are dropped; where the observation does continue, they stay.
    let runs = [run(0, 1, 0, false), run(1, 1, 0, false)];
    let still = |row: u64| Ok(RowPrint { next_obs: Some(5), ..prints(&[7, 7], &[5, 5])(row)? });
    assert_eq!(spans(&resolve(&runs, false, DROP, &still).unwrap()), [[(0, 2)]]);
    let out = resolve(&runs, false, DROP, &prints(&[7, 7], &[5, 5])).unwrap();
    assert_eq!((spans(&out), out[0].duplicates), (vec![vec![(0, 1)]], 1));
}

#[test]
fn an_id_that_is_used_again_is_refused() {
    let runs = [run(0, 2, 0, true), run(2, 2, 0, true)];
    let error = resolve(&runs, false, DROP, &prints(&[1, 2, 3, 4], &[0, 1, 0, 1])).unwrap_err();
    assert!(error.error.what().contains("goes on after its end"), "{}", error.error);
    let out = resolve(&runs, false, DROP, &prints(&[1, 2, 1, 2], &[0, 1, 0, 1])).unwrap();
    assert_eq!((spans(&out), out[0].duplicates), (vec![vec![(0, 2)]], 2));
}

#[test]
fn a_trailing_row_needs_no_prints() {
    let tail = Run { tail: true, ..run(5, 1, 0, false) };
    let unprinted = |row: u64| Err(Error::internal(format!("row {row} was not printed")));
    let out = resolve(&[run(0, 5, 0, false), tail], false, DROP, &unprinted).unwrap();
    assert_eq!((spans(&out), out[0].tail), (vec![vec![(0, 5)]], Some(5)));
    let error = resolve(&[tail, run(6, 5, 0, false)], false, DROP, &unprinted).unwrap_err();
    assert!(error.error.what().contains("the episode goes on after this row"), "{}", error.error);
}

/// Rows 0 to 4 are steps 0 to 2 and 2 to 3, with a row without an action in between that holds `obs`.
fn chunks(obs: u64, timed: bool) -> Result<Vec<Resolved>, RowError> {
    let runs = [run(0, 2, 0, false), tail(2, 2, false), run(3, 2, 2, true)];
    let runs = if timed { runs.to_vec() } else { vec![runs[0], tail(1, 0, false), runs[2]] };
    resolve(&runs, timed, DROP, &|row: u64| {
        let obs = if row == 2 { obs } else { [0, 1, 0, 2, 3][usize::try_from(row).unwrap()] };
        Ok(RowPrint { content: row.into(), obs, next_obs: None, unread: Unread { reward: row == 2, output: row == 2 } })
    })
}

#[test]
fn the_row_that_ends_a_chunk_repeats_the_next_ones_first_observation() {
    let out = chunks(2, true).unwrap();
    assert_eq!((spans(&out), out[0].tail, out[0].duplicates), (vec![vec![(0, 2), (3, 2)]], None, 0));
    assert_eq!(out[0].unread_rewards, Tally { count: 1, first: Some(2) });
    assert_eq!(out[0].unread_outputs, out[0].unread_rewards);
    let error = chunks(7, true).unwrap_err();
    assert!(error.error.what().contains("another observation than the step in its place"), "{}", error.error);
    assert_eq!(
        (error.row, error.error.place().t, error.error.place().column.as_deref()),
        (2, Some(2), Some("actions"))
    );
    let runs = [run(0, 2, 0, false), tail(2, 2, false), run(3, 2, 2, true)];
    assert_eq!(rows_to_print(&runs, true, DROP), [Span::one(3), Span::one(2)]);
    // A flag that ends the episode is no chunk's.
    let ended = [runs[0], tail(2, 2, true), runs[2]];
    let error = resolve(&ended, true, DROP, &prints(&[0; 5], &[0, 1, 2, 2, 3])).unwrap_err();
    assert!(error.error.what().contains("terminateds is true on a row without an action"), "{}", error.error);
}

#[test]
fn rows_behind_the_last_step_must_not_differ() {
    for (timed, duplicates) in [(true, DROP), (false, DROP), (true, Duplicates::Keep)] {
        let runs = [run(0, 2, 0, false), tail(2, 2, false), tail(3, 2, true)];
        let printed = rows_to_print(&runs, timed, duplicates);
        assert_eq!(printed, [Span::one(2), Span::one(3)], "timed: {timed}");
        let out = resolve(&runs, timed, duplicates, &prints(&[0; 4], &[0, 1, 2, 2])).unwrap();
        assert_eq!((out[0].tail, out[0].done.terminated), (Some(2), true));
        let error = resolve(&runs, timed, duplicates, &prints(&[0; 4], &[0, 1, 2, 9])).unwrap_err();
        assert_eq!((error.row, error.error.place().column.as_deref()), (3, Some("obs")), "timed: {timed}");
    }
}

#[test]
fn a_prefix_recorded_again_does_not_end_the_episode() {
    // Steps 0 to 3, then steps 0 and 1 again with the observation after them, which is step 2's.
    let runs = [run(0, 4, 0, false), run(4, 2, 0, false), tail(6, 2, false)];
    let contents = [1, 2, 3, 4, 1, 2, 0];
    for timed in [true, false] {
        let out = resolve(&runs, timed, DROP, &prints(&contents, &[0, 1, 2, 3, 0, 1, 2])).unwrap();
        assert_eq!((spans(&out), out[0].tail), (vec![vec![(0, 4)]], None), "timed: {timed}");
        let error = resolve(&runs, timed, DROP, &prints(&contents, &[0, 1, 2, 3, 0, 1, 9])).unwrap_err();
        assert_eq!(error.row, 6, "timed: {timed}");
        // Kept, it is an episode of its own, and that is its last observation.
        let kept = resolve(&runs, timed, Duplicates::Keep, &prints(&contents, &[0, 1, 2, 3, 0, 1, 2])).unwrap();
        assert_eq!(spans(&kept), [[(0, 4)], [(4, 2)]], "timed: {timed}");
        assert_eq!((kept[0].tail, kept[1].tail), (None, Some(6)), "timed: {timed}");
    }
}

#[test]
fn prints_are_asked_for_only_where_needed() {
    assert!(rows_to_print(&[run(0, 5, 0, true)], false, DROP).is_empty());
    assert!(rows_to_print(&[run(0, 5, 0, false), run(9, 5, 5, true)], true, DROP).is_empty());
    assert_eq!(rows_to_print(&[run(0, 5, 0, false), run(9, 5, 4, true)], true, DROP).len(), 2);
    assert_eq!(rows_to_print(&[run(0, 5, 0, false), run(9, 5, 0, true)], false, DROP).len(), 2);
}
