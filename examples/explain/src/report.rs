//! Kept mass by density for every way of choosing keys.

use burn::tensor::{Int, Tensor};

use crate::kept::{Head, kept};

/// The ways of choosing keys, from the coarsest to the finest, and the cached one.
pub const METHODS: [&str; 6] = [
    "blocks, mean-pooled",
    "blocks, exact",
    "keys, groups by position",
    "keys, groups by content",
    "keys, groups and keys of the anchor",
    "keys, each query its own",
];

/// The kept masses of one head at one step, with what an earlier step would have cached.
#[derive(Debug)]
pub struct Masses {
    head: Head,
    position: (Tensor<3, Int>, Tensor<2>),
    cumulated: [Vec<f64>; 3],
    cached_now: Tensor<2>,
    cached_then: Head,
    cached_order: Tensor<3, Int>,
    group_size: usize,
}

impl Masses {
    /// Computes all masses of `head`; `anchor` is the same head at the step whose groups and keys are reused.
    pub fn new(head: Head, anchor: Head, group_size: usize) -> Self {
        let order = head.position_order();
        let position = (order.clone(), head.mass(order));
        let cumulated = [&position.1, &head.mass(head.content_order()), &head.mass_of_queries()]
            .map(|mass| cumulated(mass.clone()));
        let cached_order = anchor.content_order();
        let cached_now = head.mass(cached_order.clone());
        Self { head, position, cumulated, cached_now, cached_then: anchor, cached_order, group_size }
    }

    /// Number of blocks.
    pub fn blocks(&self) -> usize {
        self.head.tokens() / self.group_size
    }

    /// Mass that each of [`METHODS`] keeps with as many keys as `blocks` blocks have.
    pub fn kept(&self, blocks: usize) -> [f64; 6] {
        let keys = blocks * self.group_size;
        let (order, mass) = &self.position;
        let cached = self.cached_then.selected(self.cached_order.clone(), keys);
        [
            kept(mass, self.head.pooled_blocks(order.clone(), blocks)),
            kept(mass, self.head.best_blocks(mass, blocks)),
            self.cumulated[0][keys - 1],
            self.cumulated[1][keys - 1],
            kept(&self.cached_now, cached),
            self.cumulated[2][keys - 1],
        ]
    }
}

/// Share of the mass on the 1, 2, 3, ... largest of each row: what exact selection of that many keys keeps.
fn cumulated(mass: Tensor<2>) -> Vec<f64> {
    let tokens = mass.dims()[1];
    let sorted = mass.sort_descending(1).sum_dim(0).reshape([tokens]).into_data();
    let sums: Vec<f64> = sorted
        .iter::<f64>()
        .scan(0.0, |sum, value| {
            *sum += value;
            Some(*sum)
        })
        .collect();
    let all = sums[tokens - 1];
    sums.into_iter().map(|sum| sum / all).collect()
}

/// Mean over heads of [`Masses::kept`].
pub fn mean_kept(heads: &[Masses], blocks: usize) -> [f64; 6] {
    let mut mean = [0.0; 6];
    for head in heads {
        head.kept(blocks).iter().zip(&mut mean).for_each(|(value, mean)| *mean += value / heads.len() as f64);
    }
    mean
}

/// A line of the printed table.
pub fn line(name: &str, values: impl IntoIterator<Item = impl std::fmt::Display>) -> String {
    let cells: String = values.into_iter().map(|value| format!(" {value:>9} |")).collect();
    format!("| {name:<16} |{cells}")
}

/// The head of the printed table.
pub fn heading(first: &str) -> String {
    let names = ["pooled", "blocks", "position", "content", "anchor", "query"];
    let rule: String = (0..names.len()).map(|_| "----------:|").collect();
    format!("{}\n|{}|{rule}", line(first, names), "-".repeat(18))
}

#[cfg(test)]
mod tests {
    use burn::tensor::{Device, Distribution};

    use super::*;
    use mcsparse_lab::attention::tiles;

    #[test]
    fn sums_are_what_the_selection_keeps() {
        let qkv = [0; 3].map(|_| Tensor::random([1, 2, 96, 8], Distribution::Normal(0.0, 3.0), &Device::default()));
        let head = Head::new(&qkv, 1, 8, &tiles([4, 4, 6], [2, 2, 2])).unwrap();
        let order = head.content_order();
        let mass = head.mass(order.clone());
        let sums = cumulated(mass.clone());
        for keys in [1, 7, 40, 96] {
            assert!((sums[keys - 1] - kept(&mass, head.selected(order.clone(), keys))).abs() < 1e-5);
        }
        let rows = mass.sum_dim(1).into_data();
        assert!(rows.iter::<f64>().all(|sum| (sum - 8.0).abs() < 1e-4));
    }

    #[test]
    fn tiles_are_neighbours() {
        assert_eq!(tiles([1, 2, 4], [1, 2, 2]), [0, 1, 4, 5, 2, 3, 6, 7]);
    }

    #[test]
    fn finer_choices_keep_more() {
        let qkv = [0; 3].map(|_| Tensor::random([1, 1, 128, 16], Distribution::Normal(0.0, 2.0), &Device::default()));
        let head = Head::new(&qkv, 0, 16, &tiles([2, 8, 8], [1, 4, 4])).unwrap();
        let masses = Masses::new(head.clone(), head, 16);
        for blocks in 1..8 {
            let [pooled, exact, position, content, anchor, query] = masses.kept(blocks);
            assert!(pooled <= exact + 1e-6 && exact <= position + 1e-6, "{pooled} {exact} {position}");
            assert!(content <= query + 1e-6 && position <= query + 1e-6, "{position} {content} {query}");
            assert!((anchor - content).abs() < 1e-5, "the anchor is the step itself: {anchor} {content}");
        }
    }
}
