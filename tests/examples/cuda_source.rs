//! Writes the Hopper kernels, and attention by cooperative matrices, as CUDA C++, `NAME.cu` each, and `kernels.json` with what is to
//! be found in their machine code.
//!
//! `cargo run -p mcsparse-tests --features cuda-source --example cuda_source -- DIRECTORY`

use std::{env, fs, path::PathBuf};

fn main() {
    let directory = PathBuf::from(env::args().nth(1).expect("expected a directory to write to"));
    fs::create_dir_all(&directory).expect("the directory cannot be made");
    let mut kernels = Vec::new();
    for kernel in mcsparse::cuda_source::cuda_sources() {
        let path = directory.join(&kernel.name).with_extension("cu");
        fs::write(&path, &kernel.source).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        println!("{}: {} bytes, {} of shared memory", kernel.name, kernel.source.len(), kernel.shared_bytes);
        kernels.push(serde_json::json!({
            "name": kernel.name,
            "instruction": kernel.instruction,
            "products": kernel.products,
        }));
    }
    let path = directory.join("kernels.json");
    fs::write(&path, serde_json::to_string_pretty(&kernels).unwrap())
        .unwrap_or_else(|e| panic!("{}: {e}", path.display()));
}
