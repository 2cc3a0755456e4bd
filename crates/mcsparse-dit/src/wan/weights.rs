//! The files of Wan.

use super::{WanConfig, WanTransformer};
use crate::load::{Format, rename_by, weights};

fn format(_: &WanConfig) -> Format {
    Format {
        // They shape every value of a block and cost next to nothing.
        kept_in_f32: &["time_embedder.", "scale_shift_table", ".norm1.", ".norm2."],
        original_has: ".self_attn.",
        from_original: Box::new(|tensor| vec![rename_by(tensor, &ORIGINAL)]),
    }
}

/// Names in the files of Wan's repositories, and in those of diffusers.
const ORIGINAL: [(&str, &str); 24] = [
    ("^head.head.", "proj_out."),
    ("^head.modulation", "scale_shift_table"),
    (".modulation", ".scale_shift_table"),
    ("^text_embedding.0.", "condition_embedder.text_embedder.linear_1."),
    ("^text_embedding.2.", "condition_embedder.text_embedder.linear_2."),
    ("^time_embedding.0.", "condition_embedder.time_embedder.linear_1."),
    ("^time_embedding.2.", "condition_embedder.time_embedder.linear_2."),
    ("^time_projection.1.", "condition_embedder.time_proj."),
    ("^img_emb.proj.0.", "condition_embedder.image_embedder.norm1."),
    ("^img_emb.proj.1.", "condition_embedder.image_embedder.ff.net.0.proj."),
    ("^img_emb.proj.3.", "condition_embedder.image_embedder.ff.net.2."),
    ("^img_emb.proj.4.", "condition_embedder.image_embedder.norm2."),
    (".self_attn.", ".attn1."),
    (".cross_attn.", ".attn2."),
    (".q.", ".to_q."),
    (".k.", ".to_k."),
    (".v.", ".to_v."),
    (".o.", ".to_out.0."),
    (".k_img.", ".add_k_proj."),
    (".v_img.", ".add_v_proj."),
    (".norm_k_img.", ".norm_added_k."),
    // The norm before cross-attention is the third there and the second in diffusers.
    (".norm3.", ".norm2."),
    (".ffn.0.", ".ffn.net.0.proj."),
    (".ffn.2.", ".ffn.net.2."),
];

weights!(WanTransformer, WanConfig, format, "WanTransformer3DModel");
