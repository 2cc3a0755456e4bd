//! k-means of queries and of keys, and clusters of keys for clusters of queries (SVG2).

use burn::tensor::{DType, Int, Tensor};
use mcsparse::check::Problem;

use super::{
    pattern::Pattern,
    rows::{INDEX, arange, join, marks},
    select::Call,
};

/// Clusters of rows.
pub(super) struct Clusters {
    /// The cluster of each row, `[z, rows]`.
    pub of_row: Tensor<2, Int>,
    /// `[z, clusters, d]`.
    pub centroids: Tensor<3>,
    /// Rows in each, `[z, clusters]`, as floats.
    pub sizes: Tensor<2>,
}

/// Lloyd's iterations from rows at equal distances; all rows take part in every iteration. A cluster that loses all its rows
/// keeps its centroid.
pub(super) fn k_means(rows: Tensor<3>, clusters: usize, iterations: usize) -> Clusters {
    let ([z, n, _], device) = (rows.dims(), rows.device());
    let starts: Vec<i32> = (0..clusters).map(|c| ((2 * c + 1) * n / (2 * clusters)) as i32).collect();
    let mut centroids = rows.clone().select(1, Tensor::from_data(starts.as_slice(), (&device, INDEX)));
    let numbers = arange(clusters, &device).reshape([1, 1, clusters]);
    for iteration in 0.. {
        // The nearest centroid has the largest x.c - |c|^2 / 2.
        let half_squares = centroids.clone().square().sum_dim(2).mul_scalar(0.5).swap_dims(1, 2);
        let likeness = rows.clone().matmul(centroids.clone().swap_dims(1, 2)) - half_squares;
        let of_row = likeness.argmax(2).cast(INDEX);
        let members = of_row.clone().expand([z, n, clusters]).equal(numbers.clone().expand([z, n, clusters]));
        let members = members.float().cast(DType::F32).swap_dims(1, 2);
        let sizes = members.clone().sum_dim(2);
        if iteration == iterations {
            return Clusters { of_row: of_row.reshape([z, n]), centroids, sizes: sizes.reshape([z, clusters]) };
        }
        let means = members.matmul(rows.clone()) / sizes.clone().clamp_min(1.0);
        let empty = sizes.lower_scalar(0.5).expand(means.dims());
        centroids = means.mask_where(empty, centroids);
    }
    unreachable!("the loop ends at the last iteration")
}

/// The `keys` keys of each query cluster, whole key clusters of the largest estimated weight first. Clusters hold `sizes`
/// queries and keys on average.
pub(super) fn select(call: &Call<'_>, sizes: [usize; 2], iterations: usize, keys: usize) -> Pattern {
    let Problem { queries: tokens, .. } = call.problem;
    let [query_clusters, key_clusters] = sizes.map(|size| tokens.div_ceil(size.max(1)));
    let queries = k_means(join(call.query.clone()), query_clusters, iterations);
    let of_keys = k_means(join(call.key.clone()), key_clusters, iterations);
    let scores = queries.centroids.mul_scalar(call.scale()).matmul(of_keys.centroids.swap_dims(1, 2));
    let [z, rows, _] = scores.dims();
    let weight = scores + of_keys.sizes.log().reshape([z, 1, key_clusters]);
    // Every key has the weight of its cluster.
    let cluster = of_keys.of_row.reshape([z, 1, tokens]).expand([z, rows, tokens]);
    let chosen = call.largest(weight.gather(2, cluster), keys).reshape([z * rows, keys]);
    Pattern::Clusters { mask: marks(chosen, tokens).reshape([z, rows, tokens]), row_of: queries.of_row }
}
