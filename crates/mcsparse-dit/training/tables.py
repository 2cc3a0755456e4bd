"""Print the model card's means and paired differences from results.json.

    python3 tables.py WEIGHTS/results.json
"""

import json
import statistics
import sys

COLUMNS = ("block_mean", "raster", "tile", "pddp", "per_query")
PAIRS = (
    ("pddp", "vanilla block-sparse"),
    ("tile groups", "vanilla block-sparse"),
    ("pddp", "tile groups"),
    ("pddp + residual", "pddp"),
    ("vanilla block-sparse + residual", "vanilla block-sparse"),
    ("pddp + residual", "vanilla block-sparse"),
    ("pddp + residual", "tile groups + residual"),
    ("pddp + residual, 2 anchors", "pddp + residual"),
)


def kept_mass(steps: dict, density: str) -> None:
    """Means over heads for each step and layer, then over all of them."""
    columns = ("entropy", *(f"{c}@{density}" for c in COLUMNS))
    every = []
    for step, layers in steps.items():
        rows = [[statistics.mean(h[c] for h in heads) for c in columns] for heads in layers]
        every += rows
        for layer, row in enumerate(rows):
            print(f"{step}, layer {layer}:", *(f"{x:.2f}" for x in row))
        print(f"{step}, all layers:", *(f"{statistics.mean(x):.3f}" for x in zip(*rows)))
    print("all:", *(f"{statistics.mean(x):.3f}" for x in zip(*every)))


def paired(table: dict, density: str) -> None:
    """Mean and standard error of the per-clip differences between two rows."""
    for better, worse in PAIRS:
        a, b = (table[f"{name} @ {density}"]["per_clip"] for name in (better, worse))
        gap = [x - y for x, y in zip(a, b)]
        error = statistics.stdev(gap) / len(gap) ** 0.5
        print(f"{better} over {worse} @ {density}: {statistics.mean(gap):+.2f} +- {error:.2f} dB")


def main() -> None:
    with open(sys.argv[1]) as file:
        results = json.load(file)
    for name in ("small", "nano"):
        for density in ("0.15", "0.25"):
            print(f"\n{name}, kept mass at {density}: entropy", *COLUMNS)
            kept_mass(results[name]["kept_mass"], density)
        for steps, table in results[name]["mc_sparse"].items():
            print(f"\n{name}, {steps}, paired per clip")
            for density in ("0.15", "0.25"):
                paired(table, density)


if __name__ == "__main__":
    main()
