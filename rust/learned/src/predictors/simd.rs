//! The products of small matrices that a network of 128 units is made of.
//!
//! A matrix is stored in panels of 16 columns: panel after panel, in each row after row. The lanes of either factor
//! that a tile of six rows by 16 columns reads then lie in one piece, and the next product reads the lanes that it
//! writes. With AVX2 the tile stays in 12 of the 16 registers; without, the same loops run over arrays.
//!
//! The only unsafe code of `learned`: loads and stores of whole lanes, and calls of functions compiled for AVX2 and FMA
//! where the processor has both.
#![expect(
    clippy::inline_always,
    reason = "a tile that is not inlined is compiled without the features of its caller"
)]

use std::array;

/// Columns of a panel.
pub(crate) const WIDTH: usize = 16;

/// 16 numbers of one row.
#[derive(Debug, Clone, Copy, PartialEq)]
#[repr(C, align(64))]
pub(crate) struct Lane(pub [f32; WIDTH]);

impl Lane {
    pub const ZERO: Self = Self([0.0; WIDTH]);
}

/// Which code runs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Isa {
    /// Whatever the target promises.
    Portable,
    /// AVX2 and FMA; [`detect`] alone may give it.
    Fma,
}

/// The best this processor has.
pub(crate) fn detect() -> Isa {
    #[cfg(target_arch = "x86_64")]
    if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("fma") {
        return Isa::Fma;
    }
    Isa::Portable
}

/// The start of a product and the last step on its results.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Ends<'a> {
    /// From zero, as it is.
    Plain,
    /// From a lane of biases per panel, negative results become zero.
    BiasRelu(&'a [Lane]),
}

/// `out = x * w`: `x` of `rows` rows, `w` of as many rows as `x` has columns.
pub(crate) fn multiply(
    isa: Isa,
    x: &[Lane],
    rows: usize,
    w: &[Lane],
    ends: Ends<'_>,
    out: &mut [Lane],
) {
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: `Isa::Fma` comes from `detect`, which found the features.
        #[allow(unsafe_code)]
        Isa::Fma => unsafe { avx2::multiply(x, rows, w, ends, out) },
        _ => multiply_in::<[f32; WIDTH]>(x, rows, w, ends, out),
    }
}

/// `sum += transpose(x) * y`, both of `rows` rows.
pub(crate) fn add_gram(isa: Isa, x: &[Lane], y: &[Lane], rows: usize, sum: &mut [Lane]) {
    match isa {
        #[cfg(target_arch = "x86_64")]
        // SAFETY: as in `multiply`.
        #[allow(unsafe_code)]
        Isa::Fma => unsafe { avx2::add_gram(x, y, rows, sum) },
        _ => add_gram_in::<[f32; WIDTH]>(x, y, rows, sum),
    }
}

/// A lane in registers.
trait Wide: Copy {
    fn load(lane: &Lane) -> Self;
    fn store(self, lane: &mut Lane);
    /// `self + a * b`, with the same `a` for all.
    fn add_scaled(self, a: f32, b: Self) -> Self;
    fn relu(self) -> Self;
}

impl Wide for [f32; WIDTH] {
    #[inline(always)]
    fn load(lane: &Lane) -> Self {
        lane.0
    }

    #[inline(always)]
    fn store(self, lane: &mut Lane) {
        lane.0 = self;
    }

    #[inline(always)]
    fn add_scaled(self, a: f32, b: Self) -> Self {
        array::from_fn(|at| self[at] + a * b[at])
    }

    #[inline(always)]
    fn relu(self) -> Self {
        self.map(|value| value.max(0.0))
    }
}

/// Most rows of a tile.
const TILE: usize = 6;

#[inline(always)]
fn multiply_in<W: Wide>(x: &[Lane], rows: usize, w: &[Lane], ends: Ends<'_>, out: &mut [Lane]) {
    if rows == 0 {
        return;
    }
    let panels = out.len() / rows;
    let inner = w.len() / panels;
    let tiles = rows.div_ceil(TILE);
    for (panel, out) in out.chunks_exact_mut(rows).enumerate() {
        let w = &w[panel * inner..][..inner];
        let (start, relu) = match ends {
            Ends::Plain => (Lane::ZERO, false),
            Ends::BiasRelu(bias) => (bias[panel], true),
        };
        let start = W::load(&start);
        let mut from = 0;
        for tile in 0..tiles {
            // Tiles of nearly equal height: 16 rows are 5 + 5 + 6, not 6 + 6 + 4.
            let to = rows * (tile + 1) / tiles;
            let out = &mut out[from..to];
            match out.len() {
                1 => multiply_tile::<W, 1>(x, rows, from, w, start, relu, out),
                2 => multiply_tile::<W, 2>(x, rows, from, w, start, relu, out),
                3 => multiply_tile::<W, 3>(x, rows, from, w, start, relu, out),
                4 => multiply_tile::<W, 4>(x, rows, from, w, start, relu, out),
                5 => multiply_tile::<W, 5>(x, rows, from, w, start, relu, out),
                _ => multiply_tile::<W, 6>(x, rows, from, w, start, relu, out),
            }
            from = to;
        }
    }
}

#[inline(always)]
fn multiply_tile<W: Wide, const M: usize>(
    x: &[Lane],
    rows: usize,
    from: usize,
    w: &[Lane],
    start: W,
    relu: bool,
    out: &mut [Lane],
) {
    let mut sums = [start; M];
    let (blocks, _) = w.as_chunks::<WIDTH>();
    for (x, block) in x.chunks_exact(rows).zip(blocks) {
        let Some(x) = x[from..].first_chunk::<M>() else {
            return;
        };
        for (k, w) in block.iter().enumerate() {
            let w = W::load(w);
            for (sum, x) in sums.iter_mut().zip(x) {
                *sum = sum.add_scaled(x.0[k], w);
            }
        }
    }
    for (sum, lane) in sums.into_iter().zip(out) {
        if relu { sum.relu() } else { sum }.store(lane);
    }
}

#[inline(always)]
fn add_gram_in<W: Wide>(x: &[Lane], y: &[Lane], rows: usize, sum: &mut [Lane]) {
    if rows == 0 {
        return;
    }
    let columns = x.len() / rows * WIDTH;
    for (y, sum) in y.chunks_exact(rows).zip(sum.chunks_exact_mut(columns)) {
        let (blocks, _) = sum.as_chunks_mut::<WIDTH>();
        for (x, block) in x.chunks_exact(rows).zip(blocks) {
            gram_tile::<W, 0, 6>(x, y, block);
            gram_tile::<W, 6, 5>(x, y, block);
            gram_tile::<W, 11, 5>(x, y, block);
        }
    }
}

/// Rows `FROM..FROM + M` of a block of 16 by 16.
#[inline(always)]
fn gram_tile<W: Wide, const FROM: usize, const M: usize>(
    x: &[Lane],
    y: &[Lane],
    block: &mut [Lane; WIDTH],
) {
    let mut sums: [W; M] = array::from_fn(|row| W::load(&block[FROM + row]));
    for (x, y) in x.iter().zip(y) {
        let y = W::load(y);
        for (row, sum) in sums.iter_mut().enumerate() {
            *sum = sum.add_scaled(x.0[FROM + row], y);
        }
    }
    for (row, sum) in sums.into_iter().enumerate() {
        sum.store(&mut block[FROM + row]);
    }
}

#[cfg(target_arch = "x86_64")]
#[allow(unsafe_code)]
mod avx2 {
    use core::arch::x86_64::{
        __m256, _mm256_fmadd_ps, _mm256_load_ps, _mm256_max_ps, _mm256_set1_ps, _mm256_setzero_ps,
        _mm256_store_ps,
    };

    use super::{Ends, Lane, Wide, add_gram_in, multiply_in};

    #[target_feature(enable = "avx2,fma")]
    pub(crate) fn multiply(x: &[Lane], rows: usize, w: &[Lane], ends: Ends<'_>, out: &mut [Lane]) {
        multiply_in::<Pair>(x, rows, w, ends, out);
    }

    #[target_feature(enable = "avx2,fma")]
    pub(crate) fn add_gram(x: &[Lane], y: &[Lane], rows: usize, sum: &mut [Lane]) {
        add_gram_in::<Pair>(x, y, rows, sum);
    }

    /// Private to this module: nothing but the two functions above, which have the features, makes one.
    #[derive(Clone, Copy)]
    struct Pair(__m256, __m256);

    impl Wide for Pair {
        #[inline(always)]
        fn load(lane: &Lane) -> Self {
            let at = lane.0.as_ptr();
            // SAFETY: a lane is 16 numbers, aligned to 64 bytes; the caller has AVX.
            unsafe { Self(_mm256_load_ps(at), _mm256_load_ps(at.add(8))) }
        }

        #[inline(always)]
        fn store(self, lane: &mut Lane) {
            let at = lane.0.as_mut_ptr();
            // SAFETY: as in `load`, and the lane is borrowed for writing.
            unsafe {
                _mm256_store_ps(at, self.0);
                _mm256_store_ps(at.add(8), self.1);
            }
        }

        #[inline(always)]
        fn add_scaled(self, a: f32, b: Self) -> Self {
            // SAFETY: arithmetic on registers; the caller has FMA.
            unsafe {
                let a = _mm256_set1_ps(a);
                Self(
                    _mm256_fmadd_ps(a, b.0, self.0),
                    _mm256_fmadd_ps(a, b.1, self.1),
                )
            }
        }

        #[inline(always)]
        fn relu(self) -> Self {
            // SAFETY: as in `add_scaled`. A NaN becomes zero in both forms: `max` gives its second operand.
            unsafe {
                let zero = _mm256_setzero_ps();
                Self(_mm256_max_ps(self.0, zero), _mm256_max_ps(self.1, zero))
            }
        }
    }
}
