//! What the README promises and a test can read.

use burn::{
    nn::LinearConfig,
    tensor::{Distribution, Tensor},
};
use mcsparse::McSparseConfig;
use mcsparse_tests::{
    device,
    snippet::{SelfAttention, denoise},
};

#[test]
fn the_snippet_is_the_code_that_is_compiled_and_it_runs() {
    let readme = include_str!("../../../README.md");
    let shown = readme.split("```rust\n").nth(1).and_then(|rest| rest.split("```").next()).expect("a snippet");
    let compiled = include_str!("../../src/snippet.rs").split_once("\n\n").expect("a head").1;
    assert_eq!(compiled.replace("pub ", ""), shown);

    let device = device();
    let block = |layer| SelfAttention {
        qkv: LinearConfig::new(32, 96).init(&device),
        out: LinearConfig::new(32, 32).init(&device),
        heads: 2,
        sparse: McSparseConfig::density(0.15).init(layer).unwrap(),
    };
    let x = Tensor::random([1, 300, 32], Distribution::Default, &device);
    let y = denoise(&[block(0), block(1)], x, 5).unwrap();
    assert_eq!(y.dims(), [1, 300, 32]);
}

#[test]
fn the_snippet_changes_at_most_ten_lines() {
    let readme = include_str!("../../../README.md");
    let snippet = readme.split("```rust").nth(1).and_then(|rest| rest.split("```").next()).expect("a snippet");
    let marks: Vec<_> = (1..=20).map(|n| snippet.matches(&format!("// ({n})")).count()).collect();
    let changed = marks.iter().sum::<usize>();
    assert!((1..=10).contains(&changed), "{changed} lines are marked");
    assert!(marks[..changed].iter().all(|&count| count == 1), "the marks do not count up: {marks:?}");
    let unmarked = snippet.lines().filter(|line| line.contains("mcsparse") || line.contains("cache"));
    for line in unmarked {
        assert!(line.contains("// (") || line.contains("block.forward"), "not marked: {line}");
    }
}

#[test]
fn nothing_is_left_to_be_filled_in() {
    for (name, text) in
        [("README.md", include_str!("../../../README.md")), ("CHANGELOG.md", include_str!("../../../CHANGELOG.md"))]
    {
        assert!(!text.contains("@@"), "{name} has a gap");
    }
}

/// Whoever gets a crate alone gets its licences, and is told what it is.
#[test]
fn every_crate_has_licences_a_readme_and_a_description() {
    let root = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let read = |path: std::path::PathBuf| {
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    let mut seen = 0;
    for entry in std::fs::read_dir(root.join("crates")).unwrap() {
        let folder = entry.unwrap().path();
        let name = folder.file_name().unwrap().to_str().unwrap();
        for license in ["LICENSE-MIT", "LICENSE-APACHE"] {
            assert_eq!(read(folder.join(license)), read(root.join(license)), "{name}: {license}");
        }
        assert!(read(folder.join("README.md")).starts_with(&format!("# {name}\n")), "{name}");
        let manifest = read(folder.join("Cargo.toml"));
        for key in ["license.workspace = true", "keywords.workspace = true", "categories.workspace = true"] {
            assert!(manifest.contains(key), "{name}: {key}");
        }
        let description = manifest.lines().find_map(|line| line.strip_prefix("description = ")).unwrap_or_default();
        assert!(description.len() > 20, "{name}: {description}");
        seen += 1;
    }
    assert!(seen >= 4, "{seen} crates");
}
