//! One module for each subject.

mod awkward;
mod cache;
mod cooperative;
mod dit_checkpoints;
mod dit_denoise;
mod dit_experts;
mod dit_h3;
mod dit_hunyuan;
mod dit_hunyuan3d;
mod dit_load;
mod dit_parity;
mod dit_pretrained;
mod dit_sampler;
mod dit_support;
mod drift;
mod formats;
#[cfg(feature = "cube")]
mod fusion;
mod grouping;
mod half;
mod hostile;
mod lab;
mod large;
mod layers;
mod linear;
mod memory;
mod method;
mod misuse;
mod placement;
mod readme;
mod real_attention;
mod repeat;
mod selection;
mod stages;
mod tail;
mod warpgroup;
