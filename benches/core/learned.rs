//! Learned routing: predictions for the workers of a fleet, training, and the choice of samples for the next training.

mod random;
mod rows;
mod timing;

use std::hint::black_box;
use std::io::Result;
use std::sync::atomic::AtomicBool;

use cachelb_learned::{COLUMNS, Fitting, Kind, Model, Pools, Replay, Row as Pair, Sample, Scratch};

use random::Random;
use rows::Row;
use timing::{Samples, clock_cost};

const SAMPLES: usize = 10_000;
const CALLS: usize = 3_000;
const RUNS: usize = 5;

fn samples() -> Vec<Sample> {
    let mut random = Random(1);
    let mut draw = || random.below(1 << 20) as f32 / (1 << 20) as f32;
    let sample = |_| {
        let mut values = [0.0; COLUMNS];
        for value in &mut values {
            *value = draw();
        }
        let step = if values[2] > 0.5 { values[3] } else { 0.0 };
        Sample {
            row: Pair { values, gpu: 0 },
            cost: 0.1 + values[0] * values[1] + step,
        }
    };
    (0..SAMPLES).map(sample).collect()
}

fn emit(id: String, unit: &'static str, per: f64, samples: &mut Samples, note: &str) -> Result<()> {
    let (p50, p99) = samples.percentiles();
    Row {
        id,
        unit,
        p50: p50 / per,
        p99: p99 / per,
        n: samples.len(),
        note: note.to_owned(),
    }
    .emit()
}

fn main() -> Result<()> {
    let all = samples();
    let gpus = ["H100".to_owned()];
    let never = AtomicBool::new(false);
    let clock = format!("clock {:.0} ns included", clock_cost());
    for kind in Kind::ALL {
        let name = kind.name();
        let fitting = Fitting {
            kind,
            ..Fitting::default()
        };
        let mut times = Samples::default();
        let mut model = None;
        for _ in 0..RUNS {
            model = times
                .time(|| Model::fit(&all, &gpus, &fitting, 1, 1, &never))
                .ok()
                .flatten();
        }
        let Some(model) = model else { continue };
        let note = "one thread, 20 epochs of the network";
        emit(format!("fit/{name}/{SAMPLES}"), "ms", 1e6, &mut times, note)?;
        let (mut scratch, mut costs) = (Scratch::default(), Vec::new());
        for n in [1, 16, 64, 256] {
            let rows: Vec<Pair> = all[..n].iter().map(|sample| sample.row).collect();
            let mut times = Samples::default();
            for _ in 0..CALLS {
                times.time(|| {
                    model.predict(black_box(&rows), &mut costs, &mut scratch);
                    black_box(&costs);
                });
            }
            emit(
                format!("predict/{name}/{n}rows"),
                "us",
                1e3,
                &mut times,
                &clock,
            )?;
        }
        if kind == Kind::Mlp {
            let mut times = Samples::default();
            for _ in 0..RUNS {
                let mut pools = Pools::new(0, 5_000, Replay::Weighted, 1);
                pools.add(&all[..5_000], Some(&model));
                times.time(|| pools.add(&all[5_000..6_000], Some(&model)));
            }
            emit(
                "coreset/1000+5000".to_owned(),
                "ms",
                1e6,
                &mut times,
                "one thread",
            )?;
        }
    }
    Ok(())
}
