//! Linear regression on the same numbers, by the normal equations.

/// Keeps the equations solvable where columns repeat each other: the devices add up to one.
const RIDGE: f64 = 1e-6;

/// Weights per column, then the constant.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Linear {
    pub weights: Vec<f32>,
}

impl Linear {
    /// The least squares fit of `targets` to rows of `width` numbers.
    pub fn fit(rows: &[f32], width: usize, targets: &[f32]) -> Self {
        let n = width + 1;
        let mut matrix = vec![0.0; n * n];
        let mut right = vec![0.0; n];
        let mut row = vec![1.0; n];
        for (values, target) in rows.chunks_exact(width).zip(targets) {
            for (to, value) in row.iter_mut().zip(values) {
                *to = f64::from(*value);
            }
            for i in 0..n {
                right[i] += row[i] * f64::from(*target);
                for j in 0..=i {
                    matrix[i * n + j] += row[i] * row[j];
                }
            }
        }
        for i in 0..n {
            matrix[i * n + i] += RIDGE * (targets.len() as f64 + 1.0);
        }
        let weights = solve(&mut matrix, right, n);
        Self {
            weights: weights.into_iter().map(|value| value as f32).collect(),
        }
    }

    /// The prediction for a row.
    pub fn predict(&self, row: impl Iterator<Item = f32>) -> f32 {
        let constant = self.weights.last().copied().unwrap_or(0.0);
        row.zip(&self.weights)
            .map(|(value, weight)| value * weight)
            .sum::<f32>()
            + constant
    }
}

/// Solves `a x = b` for a positive definite `a` of which the lower half is given, by Cholesky's decomposition.
fn solve(a: &mut [f64], mut b: Vec<f64>, n: usize) -> Vec<f64> {
    for i in 0..n {
        for j in 0..=i {
            let known: f64 = (0..j).map(|k| a[i * n + k] * a[j * n + k]).sum();
            let rest = a[i * n + j] - known;
            a[i * n + j] = if i == j {
                rest.max(f64::MIN_POSITIVE).sqrt()
            } else {
                rest / a[j * n + j]
            };
        }
        let known: f64 = (0..i).map(|k| a[i * n + k] * b[k]).sum();
        b[i] = (b[i] - known) / a[i * n + i];
    }
    for i in (0..n).rev() {
        let known: f64 = (i + 1..n).map(|k| a[k * n + i] * b[k]).sum();
        b[i] = (b[i] - known) / a[i * n + i];
    }
    b
}
