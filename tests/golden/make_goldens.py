#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Makes the golden files of this folder with PyTorch (any version with scaled_dot_product_attention;
the CPU is enough):  python3 make_goldens.py

PyTorch computes in float64 on inputs that float32 holds exactly, so a golden is right to the last bit
of float32. The format is described in README.md. Running the tests does not need this script.
"""
import os
import struct

import torch
import torch.nn.functional as F

HERE = os.path.dirname(os.path.abspath(__file__))
DTYPES = {torch.float32: 0, torch.int32: 1, torch.float16: 2}


class Golden(dict):
    """name -> tensor; float64 is stored as f32, float16 as f16, integers as i32."""

    def put(self, prefix, **tensors):
        for name, t in tensors.items():
            if t is not None:
                self[prefix + name] = t.detach().clone()

    def write(self, name):
        with open(os.path.join(HERE, name), "wb") as f:
            f.write(b"GTGOLD1\n" + struct.pack("<I", len(self)))
            for key, t in self.items():
                if t.dtype == torch.float64:
                    t = t.float()
                elif not t.dtype.is_floating_point:
                    t = t.int()
                raw = bytes(t.contiguous().flatten().view(torch.uint8).tolist())
                key = key.encode()
                f.write(struct.pack("<III", len(key), DTYPES[t.dtype], t.dim()) + key)
                f.write(struct.pack("<%dq" % t.dim(), *t.shape) + raw)


def rand(*shape, scale=1.0, shift=0.0, grad=True):
    """Normal values that float32 holds exactly."""
    t = (torch.randn(*shape, dtype=torch.float64) * scale + shift).float().double()
    return t.requires_grad_(grad)


# ---- single operations ---------------------------------------------------------------------------
def norms(g):
    x, r, w, b = rand(5, 37), rand(5, 37), rand(37, scale=0.3, shift=1), rand(37)
    dy, dr = rand(5, 37, grad=False), rand(5, 37, grad=False)
    s = x + r
    s = s.float().double().detach().requires_grad_()
    y = F.layer_norm(s, (37,), w, b, 1e-5)
    ((y * dy).sum() + (s * dr).sum()).backward()
    g.put("layernorm/", x=x, residual=r, gamma=w, beta=b, dy=dy, dresidual=dr, s=s, y=y,
          dx=s.grad, dgamma=w.grad, dbeta=b.grad)
    x, w = rand(5, 37), rand(37, scale=0.3, shift=1)
    y = F.rms_norm(x, (37,), w, 1e-6)
    ((y * dy).sum() + (x * dr).sum()).backward()
    g.put("rmsnorm/", x=x, gamma=w, dy=dy, dresidual=dr, y=y, dx=x.grad, dgamma=w.grad)


def activations(g):
    x, dy = rand(9, 31, scale=2), rand(9, 31, grad=False)
    y = F.gelu(x, approximate="tanh")
    (y * dy).sum().backward()
    g.put("gelu/", x=x, dy=dy, y=y, dx=x.grad)
    gu, dy = rand(7, 38), rand(7, 19, grad=False)
    y = F.silu(gu[:, :19]) * gu[:, 19:]
    (y * dy).sum().backward()
    g.put("swiglu/", gu=gu, dy=dy, y=y, dgu=gu.grad)


def embedding(g):
    seq = 6
    table, positions, dy = rand(11, 10), rand(seq, 10), rand(12, 10, grad=False)
    ids, rows = torch.randint(0, 11, (12,)), torch.arange(12)
    y = F.embedding(ids, table) + positions[rows % seq]
    (y * dy).sum().backward()
    g.put("embedding/", table=table, positions=positions, ids=ids, dy=dy, y=y, dtable=table.grad,
          dpositions=positions.grad)


def cross_entropy(g):
    for name, eps, z in ("plain", 0.0, 0.0), ("smoothed", 0.1, 0.0), ("zloss", 0.05, 0.01):
        logits = rand(8, 29, scale=3)
        targets = torch.randint(0, 29, (8,))
        targets[2] = targets[7] = -100
        losses = F.cross_entropy(logits, targets, reduction="none", label_smoothing=eps)
        losses = losses + z * (targets != -100) * torch.logsumexp(logits, 1) ** 2
        losses.sum().backward()
        g.put("xent_%s/" % name, logits=logits, targets=targets, losses=losses, grad=logits.grad,
              params=torch.tensor([eps, z]))


def attention(g):
    cases = (("causal", 2, 7, 7, 4, 4, 5, True, False), ("grouped", 1, 9, 9, 4, 2, 8, True, False),
             ("cross", 2, 5, 8, 3, 1, 4, False, False), ("masked", 2, 6, 6, 2, 2, 4, False, True))
    for name, b, tq, tk, h, hkv, d, causal, masked in cases:
        q, k, v = rand(b, tq, h, d), rand(b, tk, hkv, d), rand(b, tk, hkv, d)
        dout = rand(b, tq, h, d, grad=False)
        mask = torch.ones(b, 1, tq, tk, dtype=torch.bool)
        keys = None
        if causal:
            mask = mask.tril()
        if masked:
            keys = torch.rand(b, tk) < 0.6
            keys[:, 0] = True
            mask = mask & keys[:, None, None, :]
        kk, vv = (t.transpose(1, 2).repeat_interleave(h // hkv, 1) for t in (k, v))
        out = F.scaled_dot_product_attention(q.transpose(1, 2), kk, vv, mask)
        scores = (q.transpose(1, 2) @ kk.transpose(2, 3)) / d**0.5
        lse = torch.logsumexp(scores.masked_fill(~mask, float("-inf")), 3)
        out = out.transpose(1, 2)
        (out * dout).sum().backward()
        g.put("attention_%s/" % name, q=q, k=k, v=v, dout=dout, out=out, lse=lse, dq=q.grad,
              dk=k.grad, dv=v.grad, key_mask=keys)


def rotate(x, positions, base=10000.0):
    """x [..., T, H, D], pairs (i, i + D/2)."""
    half = x.shape[-1] // 2
    freq = (base ** (-torch.arange(half, dtype=torch.float64) / half)).float().double()
    angle = positions.double()[:, None, None] * freq
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * angle.cos() - b * angle.sin(), b * angle.cos() + a * angle.sin()), -1)


def rope(g):
    half, rows = 4, torch.arange(18)
    x = rand(18, 3, 2 * half)
    freq = 10000.0 ** (-torch.arange(half, dtype=torch.float64) / half)
    y = rotate(x, rows % 9)
    g.put("rope/", x=x, freq=freq, y=y)


def gemm(g):
    a, b, bias, c = rand(7, 19), rand(19, 13), rand(13), rand(7, 13, grad=False)
    pre = a @ b + bias
    g.put("gemm/", a=a, at=a.t(), b=b, bt=b.t(), bias=bias, c0=c, ab=a @ b, ab_c0=a @ b + c, pre=pre,
          gelu=F.gelu(pre, approximate="tanh"))
    x, w, bias, dy = rand(9, 10), rand(6, 10), rand(6), rand(9, 6, grad=False)
    y = F.linear(x, w, bias)
    (y * dy).sum().backward()
    g.put("linear/", x=x, w=w, bias=bias, dy=dy, y=y, dx=x.grad, dw=w.grad, dbias=bias.grad)


def optimizers(g):
    start, grads = rand(51, grad=False), rand(5, 51, grad=False)
    makers = {
        "adamw": lambda p: torch.optim.AdamW(p, 0.01, (0.9, 0.95), 1e-6, 0.1),
        "adam_l2": lambda p: torch.optim.Adam(p, 0.01, (0.9, 0.95), 1e-6, 0.1),
        "sgd": lambda p: torch.optim.SGD(p, 0.05, 0.9, weight_decay=0.1),
        "sgd_nesterov": lambda p: torch.optim.SGD(p, 0.05, 0.9, nesterov=True),
    }
    g.put("optimizer/", start=start, grads=grads)
    for name, make in makers.items():
        p = start.clone().requires_grad_()
        optimizer = make([p])
        for grad in grads:
            p.grad = grad.clone()
            optimizer.step()
        g.put("optimizer/", **{name: p})
    # Chen et al. 2023 and You et al. 2020 are not in PyTorch: written down from the papers.
    p, m = start.clone(), torch.zeros_like(start)
    for grad in grads:
        p = p - 0.003 * ((0.9 * m + 0.1 * grad).sign() + 0.1 * p)
        m = 0.99 * m + 0.01 * grad
    g.put("optimizer/", lion=p)
    p, m, v = start.clone(), torch.zeros_like(start), torch.zeros_like(start)
    for t, grad in enumerate(grads, 1):
        m, v = 0.9 * m + 0.1 * grad, 0.95 * v + 0.05 * grad**2
        u = (m / (1 - 0.9**t)) / ((v / (1 - 0.95**t)).sqrt() + 1e-6) + 0.1 * p
        p = p - 0.01 * (p.norm() / u.norm()) * u
    g.put("optimizer/", lamb=p)


# ---- whole models --------------------------------------------------------------------------------
LAYERS, WIDTH, HEADS, VOCAB, SEQ, BATCH, STEPS = 2, 32, 4, 61, 16, 3, 20
LR, BETAS, EPS, DECAY = 3e-3, (0.9, 0.95), 1e-5, 0.1


def gpt2_shapes():
    c = WIDTH
    yield "embed.tokens", (VOCAB, c)
    yield "embed.positions", (SEQ, c)
    for i in range(LAYERS):
        block = "blocks.%d." % i
        for norm in "norm1", "norm2":
            yield block + norm + ".weight", (c,)
            yield block + norm + ".bias", (c,)
        for name, rows, columns in (("attn.qkv", 3 * c, c), ("attn.out", c, c),
                                    ("mlp.up", 4 * c, c), ("mlp.down", c, 4 * c)):
            yield block + name + ".weight", (rows, columns)
            yield block + name + ".bias", (rows,)
    yield "head.norm.weight", (c,)
    yield "head.norm.bias", (c,)


def attend(x, p, block, kv_heads, rope_on):
    b, t, c = x.shape
    d = c // HEADS
    qkv = F.linear(x, p[block + "attn.qkv.weight"], p.get(block + "attn.qkv.bias"))
    qkv = qkv.view(b, t, HEADS + 2 * kv_heads, d)
    q, k, v = qkv.split((HEADS, kv_heads, kv_heads), 2)
    if rope_on:
        q, k = rotate(q, torch.arange(t)), rotate(k, torch.arange(t))
    q = q.transpose(1, 2)
    k, v = (u.transpose(1, 2).repeat_interleave(HEADS // kv_heads, 1) for u in (k, v))
    out = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape(b, t, c)
    return F.linear(out, p[block + "attn.out.weight"], p.get(block + "attn.out.bias"))


def gpt2(p, tokens):
    def norm(x, name):
        return F.layer_norm(x, (WIDTH,), p[name + ".weight"], p[name + ".bias"], 1e-5)

    x = p["embed.tokens"][tokens] + p["embed.positions"]
    for i in range(LAYERS):
        block = "blocks.%d." % i
        x = x + attend(norm(x, block + "norm1"), p, block, HEADS, False)
        h = F.linear(norm(x, block + "norm2"), p[block + "mlp.up.weight"], p[block + "mlp.up.bias"])
        h = F.gelu(h, approximate="tanh")
        x = x + F.linear(h, p[block + "mlp.down.weight"], p[block + "mlp.down.bias"])
    return norm(x, "head.norm") @ p["embed.tokens"].t()


KV_HEADS, FFN = 2, 56


def llama_shapes():
    c, d = WIDTH, WIDTH // HEADS
    yield "embed.tokens", (VOCAB, c)
    for i in range(LAYERS):
        block = "blocks.%d." % i
        yield block + "norm1.weight", (c,)
        yield block + "attn.qkv.weight", ((HEADS + 2 * KV_HEADS) * d, c)
        yield block + "attn.out.weight", (c, c)
        yield block + "norm2.weight", (c,)
        yield block + "mlp.gate_up.weight", (2 * FFN, c)
        yield block + "mlp.down.weight", (c, FFN)
    yield "head.norm.weight", (c,)
    yield "head.weight", (VOCAB, c)


def llama(p, tokens):
    def norm(x, name):
        return F.rms_norm(x, (WIDTH,), p[name + ".weight"], 1e-5)

    x = p["embed.tokens"][tokens]
    for i in range(LAYERS):
        block = "blocks.%d." % i
        x = x + attend(norm(x, block + "norm1"), p, block, KV_HEADS, True)
        h = F.linear(norm(x, block + "norm2"), p[block + "mlp.gate_up.weight"])
        h = F.silu(h[..., :FFN]) * h[..., FFN:]
        x = x + F.linear(h, p[block + "mlp.down.weight"])
    return F.linear(norm(x, "head.norm"), p["head.weight"])


def initial(shapes):
    """Large enough that every part matters; float16 holds the values exactly (half the file)."""
    p = {}
    for name, shape in shapes:
        is_norm = "norm" in name and name.endswith("weight")
        t = torch.randn(*shape, dtype=torch.float64) * 0.12 + (1 if is_norm else 0)
        p[name] = t.half().double().requires_grad_()
    return p


def model(name, shapes, forward):
    torch.manual_seed(len(name))
    g, p = Golden(), initial(shapes)
    tokens = torch.randint(0, VOCAB, (STEPS, BATCH, SEQ))
    targets = torch.randint(0, VOCAB, (STEPS, BATCH, SEQ))
    targets[torch.rand(STEPS, BATCH, SEQ) < 0.1] = -100
    targets[0, 1, :5] = -100
    g.put("", tokens=tokens, targets=targets)
    g.put("", adamw=torch.tensor([LR, *BETAS, EPS, DECAY]))
    for key, t in p.items():
        g["initial/" + key] = t.detach().half()
    groups = [{"params": [t for t in p.values() if t.dim() >= 2], "weight_decay": DECAY},
              {"params": [t for t in p.values() if t.dim() < 2], "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, LR, BETAS, EPS)
    losses, norms = [], []
    for step in range(STEPS):
        optimizer.zero_grad()
        logits = forward(p, tokens[step])
        loss = F.cross_entropy(logits.view(-1, VOCAB), targets[step].view(-1))
        loss.backward()
        norms.append(torch.stack([(t.grad**2).sum() for t in p.values()]).sum().sqrt())
        losses.append(loss.detach())
        if step == 0:
            g.put("", logits=logits)
            g.put("grad/", **{key: t.grad for key, t in p.items()})
        optimizer.step()
    g.put("", losses=torch.stack(losses), norms=torch.stack(norms))
    g.put("final/", **p)
    g.write(name + ".gold")


def main():
    torch.manual_seed(1)
    torch.set_num_threads(1)
    g = Golden()
    for make in (norms, activations, embedding, cross_entropy, attention, rope, gemm, optimizers):
        make(g)
    g.write("ops.gold")
    model("gpt2", gpt2_shapes(), gpt2)
    model("llama", llama_shapes(), llama)


if __name__ == "__main__":
    main()
