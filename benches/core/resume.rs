//! The cost of the depths at which workers with several cache groups can resume, beside the match of full attention.
//!
//! 64 workers hold the same path of 512 blocks, of one or of many. A match, and a match that is refined, take turns call by
//! call; the figure is the median over rounds of the ratio of their medians, the other one the worst round.

mod random;
mod rows;
mod timing;

use std::hint::black_box;
use std::io::Result;

use cachelb_core::ids::{Medium, SequenceHash, WorkerId};
use cachelb_core::index::{BlockIndex, Matcher, Overlaps, Resumes};
use random::Random;
use rows::Row;
use timing::{Samples, clock_cost};

const WORKERS: u32 = 64;
const BLOCKS: usize = 512;
const ROUNDS: usize = 21;
const CALLS: usize = 4_000;

/// Which marks the workers have.
#[derive(Clone, Copy)]
enum Marked {
    /// No worker has more than one cache group.
    Plain,
    /// All workers have marks at so many depths.
    Everywhere(usize),
    /// So many in all, on workers at random: most have none, and the whole path is looked at.
    Few(usize),
    /// On every block.
    Dense,
}

impl Marked {
    fn name(self) -> String {
        match self {
            Self::Plain => "plain".to_owned(),
            Self::Everywhere(depths) => format!("{depths}-depths"),
            Self::Few(marks) => format!("{marks}-marks"),
            Self::Dense => "dense".to_owned(),
        }
    }
}

fn worker(slot: u32) -> WorkerId {
    WorkerId {
        slot,
        generation: 0,
    }
}

/// An index of many paths that all workers hold, and the paths.
fn fill(paths: usize, marked: Marked) -> (BlockIndex, Vec<Vec<SequenceHash>>) {
    let mut index = BlockIndex::new(Matcher::Kary);
    let mut random = Random(11);
    for slot in 0..WORKERS {
        index.add_worker(worker(slot), u32::MAX);
        if !matches!(marked, Marked::Plain) {
            let resumes = Resumes {
                marked_only: true,
                above: 0,
            };
            index
                .set_resumes(worker(slot), resumes)
                .expect("registered");
        }
    }
    let mut all = Vec::new();
    for _ in 0..paths {
        let path: Vec<_> = (0..BLOCKS).map(|_| SequenceHash(random.bits())).collect();
        for slot in 0..WORKERS {
            index
                .record(worker(slot), &path, None, None)
                .expect("registered");
        }
        let mut mark = |slot, at: usize| {
            let marked = index.mark(worker(slot), path[at], Medium::Gpu);
            assert_eq!(marked, Ok(true));
        };
        match marked {
            Marked::Plain => {}
            Marked::Everywhere(depths) => {
                for at in (0..depths).map(|nth| (nth + 1) * BLOCKS / depths - 9) {
                    (0..WORKERS).for_each(|slot| mark(slot, at));
                }
            }
            Marked::Few(marks) => {
                for _ in 0..marks {
                    mark(random.below(WORKERS), random.below(BLOCKS as u32) as usize);
                }
            }
            Marked::Dense => {
                (0..BLOCKS).for_each(|at| (0..WORKERS).for_each(|slot| mark(slot, at)));
            }
        }
        all.push(path);
    }
    (index, all)
}

fn median(mut figures: Vec<f64>) -> (f64, f64) {
    figures.sort_unstable_by(f64::total_cmp);
    (figures[figures.len() / 2], figures[figures.len() - 1])
}

/// Nanoseconds of a match alone, and of a match that is refined: medians of calls that take turns. And how many of each.
fn round(
    index: &BlockIndex,
    paths: &[Vec<SequenceHash>],
    random: &mut Random,
) -> (f64, f64, usize) {
    let mut out = Overlaps::default();
    let (mut alone, mut refined) = (Samples::default(), Samples::default());
    for _ in 0..CALLS {
        let path = &paths[random.below(paths.len() as u32) as usize];
        // Once untimed, so that neither finds the caches colder.
        index.overlaps(path, &mut out);
        alone.time(|| index.overlaps(black_box(path), &mut out));
        refined.time(|| {
            index.overlaps(black_box(path), &mut out);
            index.resume(black_box(BLOCKS as u32 - 1), &mut out);
        });
        black_box(&out);
    }
    let (matches, calls) = (alone.percentiles().0, alone.len());
    (matches, refined.percentiles().0, calls)
}

fn main() -> Result<()> {
    for paths in [1, 256] {
        for marked in [
            Marked::Plain,
            Marked::Everywhere(16),
            Marked::Few(16),
            Marked::Dense,
        ] {
            let (index, paths) = fill(paths, marked);
            let mut random = Random(3);
            let (mut matched, mut ratios, mut total) = (Vec::new(), Vec::new(), 0);
            let clock = clock_cost();
            for _ in 0..ROUNDS {
                let (alone, both, calls) = round(&index, &paths, &mut random);
                matched.push(alone - clock);
                ratios.push((both - clock) / (alone - clock));
                total += calls;
            }
            let (alone, (p50, p99)) = (median(matched).0, median(ratios));
            Row {
                id: format!(
                    "resume/{WORKERS}w/{BLOCKS}/{}/{}p",
                    marked.name(),
                    paths.len()
                ),
                unit: "of match",
                p50,
                p99,
                n: total,
                note: format!("match {alone:.0} ns, without the clock"),
            }
            .emit()?;
        }
    }
    Ok(())
}
