//! Tests of the ring and the group, with threads as ranks.

use std::time::{Duration, Instant};

use super::ring::MESSAGE_BYTES;
use super::*;
use crate::protocol::{Exit, Failure};

mod threads;

pub(crate) use threads::on_threads;

/// A value that depends on its place and on the rank, with bits at both ends.
fn value(rank: usize, index: usize) -> f32 {
    let scattered = (index as u64 * 2_654_435_761 + rank as u64 * 40_503) % 10_007;
    (scattered as f32 - 5000.0) * 10f32.powi((index % 7) as i32 - 3)
}

fn sums(size: usize, len: usize) -> Vec<Vec<f32>> {
    on_threads(size, |mut group| {
        let mut values: Vec<f32> = (0..len).map(|index| value(group.rank(), index)).collect();
        // Ranks arrive at different times.
        std::thread::sleep(Duration::from_millis(group.rank() as u64 * 3));
        group.sum(&mut values).unwrap();
        values
    })
}

fn bits(values: &[f32]) -> Vec<u32> {
    values.iter().map(|value| value.to_bits()).collect()
}

#[test]
fn sums_are_right_and_have_the_same_bits_on_every_rank_each_time() {
    // Fewer values than ranks, and more than a message in a segment.
    let lengths = [0, 1, 3, 1000, 3 * MESSAGE_BYTES / 4 + 5];
    for (len, size) in lengths.into_iter().flat_map(|len| (2..=4).map(move |size| (len, size))) {
        let all = sums(size, len);
        for (rank, sums) in all.iter().enumerate() {
            assert_eq!(bits(sums), bits(&all[0]), "rank {rank} of {size}, {len} values");
        }
        for (index, &sum) in all[0].iter().enumerate() {
            let exact: f64 = (0..size).map(|rank| f64::from(value(rank, index))).sum();
            let largest = (0..size).map(|rank| value(rank, index).abs()).fold(0.0, f32::max);
            let error = (f64::from(sum) - exact).abs();
            assert!(error <= 1e-6 * f64::from(largest), "{sum} for {exact} at {index}");
        }
        if len < MESSAGE_BYTES / 4 {
            assert_eq!(bits(&sums(size, len)[0]), bits(&all[0]));
        }
    }
}

#[test]
fn parts_of_any_sizes_reach_every_rank() {
    let most = 3 * MESSAGE_BYTES / 4 + 5;
    for lengths in [&[5usize, 5][..], &[most, 0], &[0, 0, most], &[1, most, 0, 7], &[0, 0, 0, 0, 0]]
    {
        let ends = lengths.iter().scan(0, |end, length| {
            *end += length;
            Some(*end)
        });
        let parts: Vec<_> = ends.zip(lengths).map(|(end, length)| end - length..end).collect();
        let all = on_threads(lengths.len(), |mut group| {
            let mut values = vec![0.0; lengths.iter().sum()];
            for index in parts[group.rank()].clone() {
                values[index] = value(group.rank(), index);
            }
            group.all_gather(&mut values, &parts).unwrap();
            values
        });
        let owner = |index| parts.iter().position(|part| part.contains(&index)).unwrap();
        let len = lengths.iter().sum::<usize>();
        let expected: Vec<f32> = (0..len).map(|index| value(owner(index), index)).collect();
        for values in all {
            assert_eq!(bits(&values), bits(&expected), "{lengths:?}");
        }
    }
}

#[test]
fn values_of_rank_0_are_shared_and_those_of_all_are_collected() {
    for size in 2..=5 {
        on_threads(size, |mut group| {
            // Within the first message, at its end, and of several.
            for len in [0, 247, 248, 249, 5000, 2 * MESSAGE_BYTES + 7] {
                let of = |rank: usize| "x".repeat(len) + &rank.to_string();
                assert_eq!(group.share(of(group.rank())).unwrap(), of(0));
                let all = group.collect(&of(group.rank())).unwrap();
                assert_eq!(all, (0..size).map(of).collect::<Vec<_>>());
            }
            let mut values = vec![group.rank() as f32 + 0.5; 3];
            group.share_values(&mut values).unwrap();
            assert_eq!(values, [0.5; 3]);
        });
    }
}

#[test]
fn one_rank_alone_has_its_own_values() {
    let mut group = Group::alone();
    assert!(group.is_alone() && group.is_first());
    let mut values = vec![1.0, 2.0];
    group.sum(&mut values).unwrap();
    group.share_values(&mut values).unwrap();
    assert_eq!(values, [1.0, 2.0]);
    assert_eq!(group.share(7).unwrap(), 7);
    assert_eq!(group.collect(&7).unwrap(), [7]);
}

/// A rank that never arrives is known by its number.
#[test]
fn a_silent_rank_is_named_within_the_limit() {
    let limit = Duration::from_millis(500);
    let transports: Vec<_> = threads::transports(3);
    let begun = Instant::now();
    std::thread::scope(|scope| {
        for (rank, transport) in transports.into_iter().enumerate() {
            scope.spawn(move || {
                let mut group = Group::of(transport, rank, 3, limit);
                match rank {
                    0 => {
                        let error = group.collect(&0).unwrap_err();
                        assert_eq!(error, RanksError::Silent { rank: 2, seconds: 0 });
                    }
                    // It waits for rank 0, which has given up.
                    1 => drop(group.collect(&1).unwrap_err()),
                    _ => std::thread::sleep(4 * limit),
                }
            });
        }
    });
    assert!(begun.elapsed() < Duration::from_secs(10));
}

#[test]
fn something_else_than_what_is_expected_is_no_panic() {
    let errors = on_threads(2, |mut group| {
        if group.is_first() {
            group.share("text".to_string()).map(|_| ()).err()
        } else {
            group.share(7u64).map(|_| ()).err()
        }
    });
    assert_eq!(errors[0], None);
    let Some(error @ RanksError::Message { .. }) = errors[1].clone() else { panic!("{errors:?}") };
    assert_eq!(Failure::from(error).exit, Exit::Usage);
}

#[test]
fn ranks_of_another_version_are_refused_by_all() {
    let check = |versions: [&'static str; 3]| {
        on_threads(3, |mut group| group.check_version(versions[group.rank()]))
    };
    assert!(check(["0.2.0"; 3]).iter().all(Result::is_ok));
    for result in check(["0.2.0", "0.2.0", "0.3.0"]) {
        let text = "rank 2 has wgpt 0.3.0, rank 0 has 0.2.0".to_string();
        assert_eq!(result, Err(RanksError::Disagree(text)));
    }
}
