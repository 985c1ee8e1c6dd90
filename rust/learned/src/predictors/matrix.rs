//! Products of matrices.

use matrixmultiply::sgemm;

/// A matrix stored by rows, or one whose columns those rows are.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Matrix<'a> {
    values: &'a [f32],
    /// Of the matrix as it is stored.
    columns: usize,
    is_transposed: bool,
}

impl<'a> Matrix<'a> {
    /// The matrix with these rows of `columns` numbers.
    pub fn new(values: &'a [f32], columns: usize) -> Self {
        Self {
            values,
            columns,
            is_transposed: false,
        }
    }

    /// Its transpose.
    pub fn transpose(self) -> Self {
        Self {
            is_transposed: !self.is_transposed,
            ..self
        }
    }

    /// Rows and columns.
    fn shape(self) -> (usize, usize) {
        let rows = self.values.len() / self.columns;
        if self.is_transposed {
            (self.columns, rows)
        } else {
            (rows, self.columns)
        }
    }

    /// Distances of the next row and the next column.
    fn strides(self) -> (isize, isize) {
        let row = self.columns.cast_signed();
        if self.is_transposed {
            (1, row)
        } else {
            (row, 1)
        }
    }
}

/// `out += a * b`, stored by rows.
///
/// # Panics
/// If the shapes do not fit.
#[allow(unsafe_code)]
pub(crate) fn add_product(a: Matrix<'_>, b: Matrix<'_>, out: &mut [f32]) {
    let ((rows, inner), (height, columns)) = (a.shape(), b.shape());
    assert!(inner == height && out.len() == rows * columns);
    let ((a_row, a_column), (b_row, b_column)) = (a.strides(), b.strides());
    let out_row = columns.cast_signed();
    // SAFETY: each matrix has rows times columns numbers at its strides, and `out` is borrowed for writing.
    unsafe {
        sgemm(
            rows,
            inner,
            columns,
            1.0,
            a.values.as_ptr(),
            a_row,
            a_column,
            b.values.as_ptr(),
            b_row,
            b_column,
            1.0,
            out.as_mut_ptr(),
            out_row,
            1,
        );
    }
}

/// The product of two vectors, added up by halves of 16 sums: in the same order however it is compiled.
pub(crate) fn dot(a: &[f32], b: &[f32]) -> f32 {
    let mut sums = [0.0; 16];
    for (a, b) in a.chunks(16).zip(b.chunks(16)) {
        for (sum, (a, b)) in sums.iter_mut().zip(a.iter().zip(b)) {
            *sum += a * b;
        }
    }
    for half in [8, 4, 2, 1] {
        for at in 0..half {
            sums[at] += sums[at + half];
        }
    }
    sums[0]
}
