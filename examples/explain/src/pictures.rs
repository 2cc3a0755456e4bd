//! groups.png and selection.png.

use std::path::Path;

use burn::tensor::{Int, Tensor};

use crate::{
    Error,
    canvas::{Sheet, distinct, heat},
    kept::{Head, kept_by_group},
};

/// Width of all frames of a row together, about.
const WIDTH: usize = 1024;

/// Frames of RGB values and the grid of tokens over them.
#[derive(Debug)]
pub struct Clip {
    size: [usize; 3],
    grid: [usize; 3],
    /// `[3, frames, height, width]`, 0 to 1.
    values: Vec<f32>,
}

impl Clip {
    /// A clip `[1, 3, frames, height, width]` with values from -1 to 1, cut off outside.
    pub fn new(clip: Tensor<5>, grid: [usize; 3]) -> Self {
        let [_, _, frames, height, width] = clip.dims();
        let values = clip.into_data().iter::<f32>().map(|value| ((value + 1.0) / 2.0).clamp(0.0, 1.0)).collect();
        Self { size: [frames, height, width], grid, values }
    }

    fn colour(&self, [frame, y, x]: [usize; 3]) -> [u8; 3] {
        let [frames, height, width] = self.size;
        // 32 levels, which the eye does not tell from 256 here and a PNG packs better.
        [0, 1, 2].map(|c| (self.values[((c * frames + frame) * height + y) * width + x] * 31.0).round() as u8 * 8)
    }

    /// The token of a pixel.
    fn token(&self, at: [usize; 3]) -> usize {
        let [t, y, x] = [0, 1, 2].map(|axis| at[axis] * self.grid[axis] / self.size[axis]);
        (t * self.grid[1] + y) * self.grid[2] + x
    }

    /// A dark grey for each token, as bright as its pixels are on average.
    fn shades(&self) -> Vec<[u8; 3]> {
        let mut sums = vec![(0.0, 0); self.grid.iter().product()];
        let [frames, height, width] = self.size;
        for at in (0..frames * height * width).map(|i| [i / (height * width), i / width % height, i % width]) {
            let (sum, count) = &mut sums[self.token(at)];
            *sum += self.colour(at).map(f32::from).iter().sum::<f32>() / 3.0;
            *count += 1;
        }
        sums.into_iter().map(|(sum, count)| [(12.0 + 0.3 * sum / count as f32) as u8; 3]).collect()
    }

    /// `columns` frames spread over the clip, and how many times they are enlarged to fill a row.
    fn spread(&self, columns: usize) -> (Vec<usize>, usize) {
        let columns = columns.min(self.size[0]);
        let frames = (0..columns).map(|i| i * (self.size[0] - 1) / (columns - 1).max(1)).collect();
        (frames, (WIDTH / columns / self.size[2]).max(1))
    }
}

fn integers<const D: usize>(tensor: Tensor<D, Int>) -> Vec<usize> {
    tensor.into_data().iter::<i64>().map(|value| value as usize).collect()
}

/// Frames, the same with every token in the colour of its group by content, and by position.
///
/// # Errors
///
/// If the file cannot be written.
pub fn groups(path: &Path, clip: &Clip, head: &Head, group_size: usize, title: &str) -> Result<(), Error> {
    let (frames, scale) = clip.spread(4);
    let count = head.tokens() / group_size;
    let mut sheet = Sheet::new(3, frames.len(), [clip.size[1] * scale, clip.size[2] * scale]);
    let at = |column: usize, y: usize, x: usize| [frames[column], y / scale, x / scale];
    sheet.row(0, title, |c, y, x| clip.colour(at(c, y, x)));
    for (row, order, caption) in [
        (1, head.content_order(), format!("{count} groups of {group_size} tokens by content (PDDP of queries)")),
        (2, head.position_order(), format!("{count} groups of {group_size} tokens by position")),
    ] {
        let mut group = vec![0; head.tokens()];
        integers(order).into_iter().enumerate().for_each(|(place, token)| group[token] = place / group_size);
        sheet.row(row, &caption, |c, y, x| distinct(group[clip.token(at(c, y, x))], count));
    }
    sheet.save(path)
}

/// What selection.png shows.
#[derive(Debug)]
pub struct Shown {
    /// The group.
    pub group: usize,
    /// Mass kept by the selected keys.
    pub selected: f64,
    /// Mass kept by whole blocks.
    pub blocks: f64,
    /// Share of keys in those blocks.
    pub block_density: f64,
}

/// One group: its queries, the mass of all keys, the keys that are kept, and the blocks that mean pooling keeps.
///
/// # Errors
///
/// If the file cannot be written.
pub fn selection(
    path: &Path,
    clip: &Clip,
    head: &Head,
    group_size: usize,
    density: f64,
    group: Option<usize>,
) -> Result<Shown, Error> {
    let (order, tokens) = (head.content_order(), head.tokens());
    let mass = head.mass(order.clone());
    let keys = ((density * tokens as f64).round() as usize).max(1);
    let block_count = ((density * (tokens / group_size) as f64).round() as usize).max(1);
    let selected = head.selected(order.clone(), keys);
    let blocks = head.pooled_blocks(order.clone(), block_count);

    let selected_kept = kept_by_group(&mass, selected.clone());
    let group = group.unwrap_or_else(|| {
        let mut by_kept: Vec<_> = (0..selected_kept.len()).collect();
        by_kept.sort_by(|&a, &b| selected_kept[a].total_cmp(&selected_kept[b]));
        by_kept[by_kept.len() / 2]
    });
    let shown = Shown {
        group,
        selected: selected_kept[group],
        blocks: kept_by_group(&mass, blocks.clone())[group],
        block_density: (block_count * group_size) as f64 / tokens as f64,
    };

    let (frames, scale) = clip.spread(8);
    let mut sheet = Sheet::new(4, frames.len(), [clip.size[1] * scale, clip.size[2] * scale]);
    let at = |column: usize, y: usize, x: usize| [frames[column], y / scale, x / scale];
    let shades = clip.shades();
    let mut marked = |row: usize, tokens: Vec<usize>, caption: String| {
        let mut lit = vec![false; shades.len()];
        tokens.into_iter().for_each(|token| lit[token] = true);
        sheet.row(row, &caption, |c, y, x| {
            let token = clip.token(at(c, y, x));
            if lit[token] { clip.colour(at(c, y, x)) } else { shades[token] }
        });
    };
    let of_group = |rows: Tensor<2, Int>| integers(rows.slice_dim(0, group..group + 1));
    let queries = integers(order).into_iter().skip(group * group_size).take(group_size).collect();
    marked(0, queries, format!("the {group_size} queries of group {group}"));
    let percent = |share: f64| format!("{:.1} %", 100.0 * share);
    let (kept, share) = (percent(shown.selected), percent(keys as f64 / tokens as f64));
    marked(2, of_group(selected), format!("keys kept one by one: {share} of the keys, {kept} of the mass"));
    let (kept, share) = (percent(shown.blocks), percent(shown.block_density));
    marked(3, of_group(blocks), format!("whole blocks by mean pooling: {share}, {kept} of the mass"));

    let row: Vec<f32> = mass.slice_dim(0, group..group + 1).into_data().iter::<f32>().collect();
    let most = row.iter().copied().fold(f32::MIN_POSITIVE, f32::max);
    // The square root brings out the tail.
    sheet.row(1, "attention mass that the group gives to each key (bright: much)", |c, y, x| {
        heat((row[clip.token(at(c, y, x))] / most).sqrt())
    });
    sheet.save(path)?;
    Ok(shown)
}
