//! The files of HunyuanVideo and HunyuanVideo-1.5.

use burn_store::burn_pack::Tensor as StoredTensor;

use super::{HunyuanVideo, HunyuanVideo15, HunyuanVideo15Config, HunyuanVideoConfig};
use crate::load::{Format, rename_by, split_rows, swap_halves, weights};

fn video(config: &HunyuanVideoConfig) -> Format {
    let (inner, hidden) = (config.inner_dim(), config.hidden());
    format(
        inner,
        hidden,
        &[
            ("^time_in.mlp.0.", "time_text_embed.timestep_embedder.linear_1."),
            ("^time_in.mlp.2.", "time_text_embed.timestep_embedder.linear_2."),
            ("^guidance_in.mlp.0.", "time_text_embed.guidance_embedder.linear_1."),
            ("^guidance_in.mlp.2.", "time_text_embed.guidance_embedder.linear_2."),
            ("^vector_in.in_layer.", "time_text_embed.text_embedder.linear_1."),
            ("^vector_in.out_layer.", "time_text_embed.text_embedder.linear_2."),
        ],
    )
}

fn video15(config: &HunyuanVideo15Config) -> Format {
    format(
        config.inner_dim(),
        config.hidden(),
        &[
            ("^time_in.mlp.0.", "time_embed.timestep_embedder.linear_1."),
            ("^time_in.mlp.2.", "time_embed.timestep_embedder.linear_2."),
            ("^byt5_in.layernorm.", "context_embedder_2.norm."),
            ("^byt5_in.fc", "context_embedder_2.linear_"),
            ("^vision_in.proj.0.", "image_embedder.norm_in."),
            ("^vision_in.proj.1.", "image_embedder.linear_1."),
            ("^vision_in.proj.3.", "image_embedder.linear_2."),
            ("^vision_in.proj.4.", "image_embedder.norm_out."),
            ("^cond_type_embedding.", "cond_type_embed."),
        ],
    )
}

/// Parts of names in the files of the authors, and in those of diffusers, that both models have.
const ORIGINAL: [(&str, &str); 29] = [
    ("^img_in.", "x_embedder."),
    ("^txt_in.individual_token_refiner.blocks.", "context_embedder.token_refiner.refiner_blocks."),
    ("^txt_in.t_embedder.mlp.0.", "context_embedder.time_text_embed.timestep_embedder.linear_1."),
    ("^txt_in.t_embedder.mlp.2.", "context_embedder.time_text_embed.timestep_embedder.linear_2."),
    ("^txt_in.c_embedder.", "context_embedder.time_text_embed.text_embedder."),
    ("^txt_in.input_embedder.", "context_embedder.proj_in."),
    ("^final_layer.linear.", "proj_out."),
    ("^final_layer.adaLN_modulation.1.", "norm_out.linear."),
    (".adaLN_modulation.1.", ".norm_out.linear."),
    (".self_attn_proj.", ".attn.to_out.0."),
    ("^double_blocks.", "transformer_blocks."),
    ("^single_blocks.", "single_transformer_blocks."),
    (".img_mod.", ".norm1."),
    (".txt_mod.", ".norm1_context."),
    (".img_mlp.", ".ff."),
    (".txt_mlp.", ".ff_context."),
    (".mlp.", ".ff."),
    (".fc1.", ".net.0.proj."),
    (".fc2.", ".net.2."),
    (".img_attn_q_norm.", ".attn.norm_q."),
    (".img_attn_k_norm.", ".attn.norm_k."),
    (".txt_attn_q_norm.", ".attn.norm_added_q."),
    (".txt_attn_k_norm.", ".attn.norm_added_k."),
    (".img_attn_proj.", ".attn.to_out.0."),
    (".txt_attn_proj.", ".attn.to_add_out."),
    (".modulation.", ".norm."),
    (".linear2.", ".proj_out."),
    (".q_norm.", ".attn.norm_q."),
    (".k_norm.", ".attn.norm_k."),
];

/// Projections of queries, keys and values, apart or in one matrix: their names there and the ones of diffusers.
const PROJECTIONS: [(&str, [&str; 3]); 3] = [
    (".img_attn_", [".attn.to_q.", ".attn.to_k.", ".attn.to_v."]),
    (".txt_attn_", [".attn.add_q_proj.", ".attn.add_k_proj.", ".attn.add_v_proj."]),
    (".self_attn_", [".attn.to_q.", ".attn.to_k.", ".attn.to_v."]),
];

fn format(inner: usize, hidden: usize, more: &'static [(&'static str, &'static str)]) -> Format {
    let from_original = move |tensor: StoredTensor| {
        // Scale and shift of the last norm are the other way round.
        let swap = tensor.name.starts_with("final_layer.adaLN_modulation.");
        let tensor = rename_by(rename_by(tensor, more), &ORIGINAL);
        if swap {
            return vec![swap_halves(tensor)];
        }
        if let Some((block, kind)) = tensor.name.clone().split_once(".linear1.") {
            let names = [".attn.to_q.", ".attn.to_k.", ".attn.to_v.", ".proj_mlp."];
            let names = names.map(|name| format!("{block}{name}{kind}"));
            return split_rows(tensor, 1, &[inner, inner, inner, hidden], names);
        }
        for (prefix, names) in PROJECTIONS {
            let Some((block, rest)) = tensor.name.clone().split_once(prefix).map(|(a, b)| (a.to_owned(), b.to_owned()))
            else {
                continue;
            };
            if let Some(kind) = rest.strip_prefix("qkv.") {
                return split_rows(tensor, 1, &[inner; 3], names.map(|name| format!("{block}{name}{kind}")));
            }
            let apart = ["q.", "k.", "v."].into_iter().zip(names);
            if let Some((kind, name)) = apart.filter_map(|(old, name)| Some((rest.strip_prefix(old)?, name))).next() {
                let name = format!("{block}{name}{kind}");
                return vec![renamed(tensor, name)];
            }
        }
        vec![tensor]
    };
    Format { kept_in_f32: &[], original_has: "double_blocks.", from_original: Box::new(from_original) }
}

fn renamed(mut tensor: StoredTensor, name: String) -> StoredTensor {
    tensor.name = name;
    tensor
}

weights!(HunyuanVideo, HunyuanVideoConfig, video, "HunyuanVideoTransformer3DModel");
weights!(HunyuanVideo15, HunyuanVideo15Config, video15, "HunyuanVideo15Transformer3DModel");
