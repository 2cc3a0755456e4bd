//! The files of Hunyuan3D-2.1.

use super::{Hunyuan3d, Hunyuan3dConfig};
use crate::load::{Format, weights};

/// Before the names of the transformer in a file that has the whole pipeline.
const PREFIX: &str = "model.";

fn format(_: &Hunyuan3dConfig) -> Format {
    Format {
        kept_in_f32: &[],
        original_has: "model.x_embedder.",
        // The autoencoder and the image encoder in the same file are not read.
        from_original: Box::new(|mut tensor| match tensor.name.strip_prefix(PREFIX) {
            Some(name) => {
                tensor.name = name.to_owned();
                vec![tensor]
            }
            None => Vec::new(),
        }),
    }
}

weights!(Hunyuan3d, Hunyuan3dConfig, format, "HunYuanDiTPlain");
