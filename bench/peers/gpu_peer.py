"""One peer on the card: trains a GPT-2 shape by PyTorch, alone or under DeepSpeed, and prints tokens/s as a JSON object.

usage: gpu_peer.py PEER MODEL.json MICRO_BATCH ACCUMULATION STEPS

Peers: pytorch (master weights in fp32, bf16 autocast, fused AdamW), zero_offload (DeepSpeed stage 2, optimizer in host memory),
zero3_offload (stage 3, weights and optimizer in host memory). All: AdamW, clipping 1.0, bf16, causal attention by PyTorch's
scaled_dot_product_attention. Activations are kept if they fit, which is quickest, else recomputed block by block. Exit status 77
where the peer cannot be imported.
"""

import json
import os
import statistics
import sys
import time

SKIPPED = 77
WARM_UP = 3  # steps that are not counted

try:
    import torch
    from torch import nn
    from torch.nn import functional
    from torch.utils.checkpoint import checkpoint
except ImportError as error:
    print(f"no PyTorch: {error}")
    sys.exit(SKIPPED)


class Block(nn.Module):
    def __init__(self, channels, heads):
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(channels), nn.LayerNorm(channels)
        self.qkv, self.projection = nn.Linear(channels, 3 * channels), nn.Linear(channels, channels)
        self.up, self.down = nn.Linear(channels, 4 * channels), nn.Linear(4 * channels, channels)

    def forward(self, x):
        batch, tokens, channels = x.shape
        q, k, v = (part.view(batch, tokens, self.heads, -1).transpose(1, 2) for part in self.qkv(self.ln_1(x)).split(channels, 2))
        y = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.projection(y.transpose(1, 2).reshape(batch, tokens, channels))
        return x + self.down(functional.gelu(self.up(self.ln_2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    """Returns the mean loss. The output projection is the token table."""

    def __init__(self, model, recompute):
        super().__init__()
        channels = model["channels"]
        self.recompute = recompute
        self.tokens, self.positions = nn.Embedding(model["vocabulary"], channels), nn.Embedding(model["context"], channels)
        self.blocks = nn.ModuleList(Block(channels, model["heads"]) for _ in range(model["layers"]))
        self.ln_f = nn.LayerNorm(channels)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, inputs, targets):
        x = self.tokens(inputs) + self.positions(torch.arange(inputs.shape[1], device=inputs.device))
        for block in self.blocks:
            x = checkpoint(block, x, use_reentrant=False) if self.recompute else block(x)
        logits = functional.linear(self.ln_f(x), self.tokens.weight)
        return functional.cross_entropy(logits.view(-1, logits.shape[-1]).float(), targets.view(-1))


class PyTorch:
    def __init__(self, network, accumulation):
        self.network, self.accumulation = network.cuda(), accumulation
        self.optimizer = torch.optim.AdamW(network.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)

    def step(self, batches):
        for inputs, targets in batches:
            with torch.autocast("cuda", dtype=torch.bfloat16):
                loss = self.network(inputs, targets) / self.accumulation
            loss.backward()
        nn.utils.clip_grad_norm_(self.network.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


class DeepSpeed:
    def __init__(self, network, micro_batch, accumulation, stage):
        import deepspeed
        offload = {"offload_optimizer": {"device": "cpu", "pin_memory": True}}
        if stage == 3:
            offload["offload_param"] = {"device": "cpu", "pin_memory": True}
        self.engine, *_ = deepspeed.initialize(model=network, model_parameters=network.parameters(), config={
            "train_micro_batch_size_per_gpu": micro_batch, "gradient_accumulation_steps": accumulation, "bf16": {"enabled": True},
            "gradient_clipping": 1.0, "optimizer": {"type": "AdamW", "params": {"lr": 3e-4, "betas": [0.9, 0.95], "weight_decay": 0.1}},
            "zero_optimization": {"stage": stage, "overlap_comm": True, "contiguous_gradients": True, **offload}})

    def step(self, batches):
        for inputs, targets in batches:
            self.engine.backward(self.engine(inputs, targets))
            self.engine.step()


def make_trainer(peer, model, micro_batch, accumulation, recompute):
    torch.manual_seed(1234)
    network = Gpt2(model, recompute)
    if peer == "pytorch":
        return PyTorch(network, accumulation)
    return DeepSpeed(network, micro_batch, accumulation, {"zero_offload": 2, "zero3_offload": 3}[peer])


def measure(peer, model, micro_batch, accumulation, steps, recompute):
    trainer = make_trainer(peer, model, micro_batch, accumulation, recompute)
    shape = (accumulation, micro_batch, model["context"] + 1)
    samples = torch.randint(model["vocabulary"], shape, generator=torch.Generator().manual_seed(1)).cuda()
    batches = [(sample[:, :-1].contiguous(), sample[:, 1:].contiguous()) for sample in samples]
    seconds = []
    for _ in range(WARM_UP + steps):
        torch.cuda.synchronize()
        start = time.perf_counter()
        trainer.step(batches)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - start)
    tokens = accumulation * micro_batch * model["context"]
    return {"peer": peer, "torch": torch.__version__, "recompute": recompute, "tokens_per_s": tokens / statistics.median(seconds[WARM_UP:])}


def main():
    peer, model, (micro_batch, accumulation, steps) = sys.argv[1], json.load(open(sys.argv[2], encoding="utf-8")), map(int, sys.argv[3:])
    if not torch.cuda.is_available():
        print("PyTorch here sees no CUDA device")
        sys.exit(SKIPPED)
    if peer != "pytorch":
        os.environ.update(RANK="0", LOCAL_RANK="0", WORLD_SIZE="1", MASTER_ADDR="127.0.0.1", MASTER_PORT=os.environ.get("MASTER_PORT", "29517"))
        try:
            import deepspeed
        except ImportError as error:
            print(f"no DeepSpeed: {error}")
            sys.exit(SKIPPED)
    for recompute in (False, True):
        try:
            print(json.dumps(measure(peer, model, micro_batch, accumulation, steps, recompute)))
            return
        except torch.cuda.OutOfMemoryError:
            torch.cuda.empty_cache()
    sys.exit("does not fit in device memory, even with activations recomputed")


main()
