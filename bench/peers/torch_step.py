#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""The training step of bench_step in PyTorch: GPT-2 124M, B = 4, T = 256, forward, backward, clipping,
AdamW, on the CPU.

    python3 -m venv venv && venv/bin/pip install torch numpy
    venv/bin/python bench/peers/torch_step.py [--threads 2] [--compile] [--bf16] [--steps 5]

Prints one line per variant: seconds per step, tokens/s, model FLOP/s, and the ratio to sgemm (or to
the bf16 matrix product) at 2048^3 measured in between. FLOPs are counted as libgeektrain counts them:
three times the forward products, causal attention as half.
"""
import argparse
import math
import statistics
import time

import torch
import torch.nn as nn
import torch.nn.functional as F

LAYERS, WIDTH, HEADS, VOCAB, B, T = 12, 768, 12, 50257, 4, 256


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x):
        q, k, v = self.qkv(self.norm1(x)).split(WIDTH, dim=2)
        q, k, v = (t.view(B, T, HEADS, -1).transpose(1, 2) for t in (q, k, v))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(B, T, WIDTH))
        return x + self.down(F.gelu(self.up(self.norm2(x)), approximate="tanh"))


class GPT2(nn.Module):
    def __init__(self):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCAB, WIDTH), nn.Embedding(1024, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(WIDTH)
        self.apply(self.start)

    @staticmethod
    def start(m):
        if isinstance(m, (nn.Linear, nn.Embedding)):
            nn.init.normal_(m.weight, std=0.02)

    def forward(self, tokens, targets):
        x = self.tokens(tokens) + self.positions.weight[:T]
        for block in self.blocks:
            x = block(x)
        logits = self.norm(x) @ self.tokens.weight.T
        return F.cross_entropy(logits.view(-1, VOCAB), targets.view(-1))


def step_flops():
    rows = B * T
    block = rows * (2 * WIDTH * 12 * WIDTH + 2 * WIDTH * T)
    return 3 * (LAYERS * block + 2 * rows * WIDTH * VOCAB)


def gemm_rate(dtype):
    a, b = torch.randn(2048, 2048).to(dtype), torch.randn(2048, 2048).to(dtype)
    start = time.perf_counter()
    a @ b
    return 2 * 2048**3 / (time.perf_counter() - start)


def main():
    p = argparse.ArgumentParser(description=__doc__,
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--threads", type=int, default=2)
    p.add_argument("--steps", type=int, default=5)
    p.add_argument("--compile", action="store_true")
    p.add_argument("--bf16", action="store_true", help="autocast to bfloat16")
    o = p.parse_args()
    torch.set_num_threads(o.threads)
    torch.manual_seed(1)
    model = GPT2()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, weight_decay=0.1, fused=True)
    run = torch.compile(model) if o.compile else model
    tokens, targets = torch.randint(VOCAB, (B, T)), torch.randint(VOCAB, (B, T))
    dtype = torch.bfloat16 if o.bf16 else torch.float32
    seconds, rates = [], []
    for i in range(o.steps + 2):
        rates.append(gemm_rate(dtype))
        start = time.perf_counter()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=o.bf16):
            loss = run(tokens, targets)
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if i >= 2:
            seconds.append(time.perf_counter() - start)
    s, rate = statistics.median(seconds), statistics.median(rates[2:])
    name = f"torch {torch.__version__} {'compiled' if o.compile else 'eager'} " \
           f"{'bf16' if o.bf16 else 'f32'}"
    assert math.isfinite(loss.item())
    print(f"{name}: {s:.2f} s/step, {B * T / s:.0f} tokens/s, {step_flops() / s / 1e9:.1f} GFLOP/s, "
          f"gemm {rate / 1e9:.1f} GFLOP/s, ratio {step_flops() / s / rate:.2f}")


if __name__ == "__main__":
    main()
