//! One module for each subject.

mod awkward;
mod cache;
mod dit_denoise;
mod dit_load;
mod dit_parity;
mod dit_pretrained;
mod dit_sampler;
mod dit_support;
#[cfg(feature = "cube")]
mod fusion;
mod grouping;
mod half;
mod hostile;
mod lab;
mod memory;
mod method;
mod misuse;
mod readme;
mod real_attention;
mod repeat;
mod selection;
mod stages;
mod warpgroup;
