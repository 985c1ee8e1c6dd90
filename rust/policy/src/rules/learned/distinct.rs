//! Rows without their repetitions: of an idle fleet most are alike, and a model need be asked about them once.

use cachelb_learned::Row;

const VACANT: u32 = u32::MAX;

/// Rows that differ, in the order they were met, and a hash table over them. Memory is kept from one use to the next.
#[derive(Debug, Default)]
pub(super) struct Distinct {
    rows: Vec<Row>,
    /// Positions in `rows`; a power of two of them, more than rows are ever put in.
    table: Vec<u32>,
}

impl Distinct {
    /// Forgets all rows, and makes room for at most `most`.
    pub fn begin(&mut self, most: usize) {
        self.rows.clear();
        self.table.clear();
        self.table
            .resize((2 * most + 1).next_power_of_two(), VACANT);
    }

    /// The position of a row among those that differ.
    pub fn position(&mut self, row: &Row) -> u32 {
        let mask = self.table.len() - 1;
        let mut at = hash(row) & mask;
        loop {
            let known = self.table[at];
            if known == VACANT {
                let new = self.rows.len() as u32;
                self.table[at] = new;
                self.rows.push(*row);
                return new;
            }
            if self.rows[known as usize] == *row {
                return known;
            }
            at = (at + 1) & mask;
        }
    }

    /// Those that differ.
    pub fn rows(&self) -> &[Row] {
        &self.rows
    }
}

/// Not hardened against collisions: rows follow from prompts only, and there are few rows.
fn hash(row: &Row) -> usize {
    let mix =
        |hash: u64, value: u64| (hash.rotate_left(23) ^ value).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    let hash = row.values.iter().fold(u64::from(row.gpu), |hash, value| {
        mix(hash, u64::from(value.to_bits()))
    });
    (hash >> 32) as usize
}

#[cfg(test)]
mod tests {
    use cachelb_learned::COLUMNS;
    use proptest::prelude::*;

    use super::*;

    fn row(seed: u8) -> Row {
        let mut values = [0.0; COLUMNS];
        values[usize::from(seed) % COLUMNS] = f32::from(seed / 16);
        Row {
            values,
            gpu: u16::from(seed % 3),
        }
    }

    proptest! {
        #[test]
        fn every_row_is_found_where_it_was_first_met(
            batches in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..100), 1..4),
        ) {
            let mut distinct = Distinct::default();
            for seeds in batches {
                distinct.begin(seeds.len());
                let mut model: Vec<Row> = Vec::new();
                for row in seeds.into_iter().map(row) {
                    let known = model.iter().position(|one| *one == row);
                    let expected = known.unwrap_or(model.len());
                    if known.is_none() {
                        model.push(row);
                    }
                    prop_assert_eq!(distinct.position(&row), expected as u32);
                }
                prop_assert_eq!(distinct.rows(), &model[..]);
                prop_assert!(distinct.table.len() > 2 * model.len());
            }
        }
    }

    #[test]
    fn a_number_that_equals_nothing_ends_the_search_all_the_same() {
        let mut distinct = Distinct::default();
        distinct.begin(3);
        let mut odd = row(1);
        odd.values[0] = f32::NAN;
        assert_eq!([0, 1, 2].map(|_| distinct.position(&odd)), [0, 1, 2]);
    }
}
