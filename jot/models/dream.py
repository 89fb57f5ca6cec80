"""Dream (Ye et al. 2025): the Qwen2.5 layout without a causal mask; predictions are shifted by one."""

from __future__ import annotations

from torch import nn
from transformers import PreTrainedConfig

from jot.models.base import Block, DiffusionModel, Parts, RMSNorm


class DreamConfig(PreTrainedConfig):
    """Fields of the published ``config.json``; the defaults are Dream-v0-Instruct-7B's."""

    model_type = "Dream"
    vocab_size: int = 152064
    hidden_size: int = 3584
    intermediate_size: int = 18944
    num_hidden_layers: int = 28
    num_attention_heads: int = 28
    num_key_value_heads: int = 4
    hidden_act: str = "silu"
    max_position_embeddings: int = 131072
    initializer_range: float = 0.02
    rms_norm_eps: float = 1e-6
    rope_theta: float = 1000000.0
    rope_scaling: dict | None = None
    use_sliding_window: bool = False
    tie_word_embeddings: bool = False
    use_cache: bool = False
    mask_token_id: int | None = 151666
    eos_token_id: int | None = 151643
    pad_token_id: int | None = 151643
    bos_token_id: int | None = 151643
    eot_token_id: int | None = None


SUPPORTED = {"hidden_act": "silu", "rope_scaling": None, "use_sliding_window": False, "tie_word_embeddings": False}


class DreamLayer(Block):
    def __init__(self, config: DreamConfig):
        super().__init__(config)
        width, mlp = config.hidden_size, config.intermediate_size
        self.input_layernorm = RMSNorm(width, config.rms_norm_eps)
        sizes = {"q_proj": width, "k_proj": self.kv_width, "v_proj": self.kv_width}
        projections = {name: nn.Linear(width, size, bias=True) for name, size in sizes.items()}
        self.self_attn = nn.ModuleDict({**projections, "o_proj": nn.Linear(width, width, bias=False)})
        self.post_attention_layernorm = RMSNorm(width, config.rms_norm_eps)
        shapes = {"gate_proj": (width, mlp), "up_proj": (width, mlp), "down_proj": (mlp, width)}
        self.mlp = nn.ModuleDict({name: nn.Linear(*shape, bias=False) for name, shape in shapes.items()})

    @property
    def parts(self) -> Parts:
        attention, mlp = self.self_attn.values(), self.mlp.values()
        return Parts(self.input_layernorm, *attention, self.post_attention_layernorm, *mlp)


class DreamModel(DiffusionModel):
    """Dream with its head; the logits that predict a position live one row to its left."""

    config_class = DreamConfig
    base_model_prefix = "model"
    family = "dream"
    shift = 1
    decode_defaults = {
        "schedule": "precomputed", "proposal": "dream", "ranking": "entropy", "temperature": 0.1, "top_p": 0.9,
    }  # fmt: skip
    places = {"embedding": "model.embed_tokens", "layers": "model.layers", "norm": "model.norm", "head": "lm_head"}

    def __init__(self, config: DreamConfig):
        super().__init__(config)
        parts = {
            "embed_tokens": nn.Embedding(config.vocab_size, config.hidden_size),
            "layers": nn.ModuleList([DreamLayer(config) for _ in range(config.num_hidden_layers)]),
            "norm": RMSNorm(config.hidden_size, config.rms_norm_eps),
        }
        self.model = nn.ModuleDict(parts)
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()
