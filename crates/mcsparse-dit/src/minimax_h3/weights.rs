//! The files of MiniMax-H3.

use burn_store::burn_pack::Tensor as StoredTensor;

use super::{MiniMaxH3, MiniMaxH3Config};
use crate::load::{Format, rename_by, split_rows, swap_halves, weights};

/// Parts of names in the files of the authors, and in those of diffusers.
const ORIGINAL: [(&str, &str); 16] = [
    ("^blocks.", "transformer_blocks."),
    ("^token_refiner.blocks.", "token_refiner.refiner_blocks."),
    ("^time_embedder.proj_in.", "time_embedder.linear_1."),
    ("^time_embedder.proj_out.", "time_embedder.linear_2."),
    ("^video_patch_proj.", "proj_in."),
    ("^audio_patch_proj.", "audio_proj_in."),
    ("^condition_proj.", "context_embedder."),
    ("^final_layer.norm.", "norm_out.norm."),
    ("^final_layer.adaln_proj.linear.", "norm_out.linear."),
    ("^final_layer.video_out.", "proj_out."),
    ("^final_layer.audio_out.", "audio_proj_out."),
    (".attn.q_norm.", ".attn.norm_q."),
    (".attn.k_norm.", ".attn.norm_k."),
    (".attn.out_proj.", ".attn.to_out.0."),
    (".mlp.fc1.", ".ff.net.0.proj."),
    (".mlp.fc2.", ".ff.net.2."),
];

fn format(config: &MiniMaxH3Config) -> Format {
    let (heads, head_dim) = (config.num_attention_heads, config.attention_head_dim);
    let from_original = move |tensor: StoredTensor| {
        if tensor.name == "rope.inv_freq" {
            // It follows from the configuration.
            return Vec::new();
        }
        // The two halves of a gated network are the other way round.
        let swap = tensor.name.ends_with(".mlp.fc1.weight");
        let tensor = rename_by(tensor, &ORIGINAL);
        if swap {
            return vec![swap_halves(tensor)];
        }
        match tensor.name.clone().strip_suffix("qkv_proj.weight") {
            // Head by head: its queries, its keys, its values.
            Some(block) => {
                let names = ["to_q.weight", "to_k.weight", "to_v.weight"].map(|name| format!("{block}{name}"));
                split_rows(tensor, heads, &[head_dim; 3], names)
            }
            None => vec![tensor],
        }
    };
    Format {
        kept_in_f32: &["proj_in", "time_embedder", "proj_out"],
        original_has: "video_patch_proj.",
        from_original: Box::new(from_original),
    }
}

weights!(MiniMaxH3, MiniMaxH3Config, format, "MiniMaxH3Transformer3DModel");
