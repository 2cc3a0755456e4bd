//! One module for each subject.

mod cache;
mod dit_denoise;
mod dit_load;
mod dit_parity;
mod dit_pretrained;
mod dit_sampler;
mod dit_support;
mod method;
mod misuse;
mod readme;
mod selection;
mod stages;
