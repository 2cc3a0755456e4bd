"""How the scripts beside this one time PyTorch: as `cargo bench -p mcsparse-benches` times ours."""
import math
import time

import torch

SAMPLES, SAMPLE_MS = 9, 20.0


def timed(run):
    """Median and minimum, in ms a call, of samples of many calls each, synchronised."""

    def sample(calls):
        torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(calls):
            run()
        torch.cuda.synchronize()
        return (time.perf_counter() - start) * 1e3 / calls

    sample(1)
    calls = max(1, math.ceil(SAMPLE_MS / sample(1)))
    sample(calls)
    times = sorted(sample(calls) for _ in range(SAMPLES))
    return times[SAMPLES // 2], times[0]
