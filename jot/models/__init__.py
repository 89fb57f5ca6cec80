"""The two model families and ``load``: a packaged name, a local folder or a hub id, in the published layout."""

from __future__ import annotations

import hashlib
import json
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from reprlib import repr as brief

import torch
from safetensors import SafetensorError, safe_open
from transformers import AutoConfig, AutoModel, AutoTokenizer, PreTrainedTokenizerFast, Qwen2Tokenizer

from jot.errors import UserError, closest, home, remade, unpacked
from jot.models import dream, llada, smol
from jot.models.base import DiffusionModel
from jot.models.checks import AGAIN, UNUSED, check_fields, check_heads, check_unread, with_rope
from jot.models.dream import DreamConfig, DreamModel
from jot.models.llada import LLaDAConfig, LLaDAModelLM

FAMILIES = {"llada": (LLaDAConfig, LLaDAModelLM, llada.SUPPORTED), "Dream": (DreamConfig, DreamModel, dream.SUPPORTED)}
PACKAGED = ("pocket-llada", "pocket-dream", "pocket-long-llada", "pocket-long-dream")
FETCHED = ["*.json", "*.safetensors", "*.txt", "*.model", "*.jinja"]
PUBLISHED = ("GSAI-ML/LLaDA-8B-Instruct", "Dream-org/Dream-v0-Instruct-7B")
HASHED_WHOLE = 1 << 30  # bytes
for _config, _model, _ in FAMILIES.values():
    AutoConfig.register(_config.model_type, _config, exist_ok=True)
    AutoModel.register(_config, _model, exist_ok=True)


def locate(name: str, revision: str | None = None) -> tuple[Path, str | None]:
    """Folder of a checkpoint and, for a hub id, the commit it was resolved to."""
    folder = smol.checkpoint() if name == smol.NAME else Path(os.path.expanduser(name))
    folder = home() / "data" / "models" / name if name in PACKAGED else folder
    if folder.is_dir():
        if revision is not None:
            raise UserError(f"{name!r} is a local folder, which has no revisions; leave revision out")
        if not (folder / "config.json").is_file():
            raise UserError(
                f"the folder {name!r} holds no config.json, so it is no checkpoint; name the folder that does"
            )
        return folder, None
    if name in PACKAGED:
        raise UserError(
            f"the packaged weights of {name!r} are missing: check out data/models, or set JOT_HOME to the checkout"
        )
    if name.count("/") != 1 or name.startswith((".", "/", "~")):
        hint = closest(name, (*PACKAGED, smol.NAME, *PUBLISHED), "beside local folders and hub ids, known")
        raise UserError(f"unknown model {name!r}{hint}")
    from huggingface_hub import snapshot_download

    try:
        path = Path(snapshot_download(name, revision=revision, allow_patterns=FETCHED))
    except Exception as error:  # the hub client raises a dozen unrelated types for "not reachable" and "not there"
        raise UserError(
            f"cannot get {name!r} (revision {revision or 'main'}) from the hub ({type(error).__name__}): "
            "check the id, the revision and the network, or pass a local folder"
        ) from error
    return path, path.name


def read_config(folder: Path):
    """The configuration object of a checkpoint folder, of one of the two families."""
    file = folder / "config.json"
    try:
        raw = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{file} is not readable JSON ({error}); {AGAIN}") from error
    if not isinstance(raw, dict):
        raise UserError(f"{file} must be a mapping of fields, not {brief(raw)}; {AGAIN}")
    kind = raw.get("model_type")
    if not isinstance(kind, str) or kind not in FAMILIES:
        raise UserError(f"model_type {brief(kind)} in {file} is not supported; it must be one of {', '.join(FAMILIES)}")
    config_class, model_class, supported = FAMILIES[kind]
    if model_class.__name__ not in (names := raw.get("architectures") or [model_class.__name__]):
        raise UserError(f"architectures={brief(names)} in {file} is not supported; only {model_class.__name__!r} is")
    raw = with_rope(raw, file)
    check_fields(raw, file)
    check_unread(raw, {*config_class.__dataclass_fields__, *supported}, file)
    try:
        config = config_class(**{name: value for name, value in raw.items() if name not in UNUSED})
    except Exception as error:  # fields of transformers' own, each of which it refuses in its own way
        raise UserError(f"{file} cannot be used ({error}); {AGAIN}") from error
    for field, value in supported.items():
        if getattr(config, field, value) != value:
            raise UserError(f"{field}={brief(getattr(config, field))} in {file} is not supported; only {value!r} is")
    check_heads(config, file)
    return config


def _check_ids(config, rows: int, tokenizer, folder: Path) -> None:
    mask, file, foreign = config.mask_token_id, folder / "config.json", "they do not belong together"
    for field in ("mask_token_id", "eos_token_id"):
        if (token := getattr(config, field)) is None or not 0 <= token < rows:
            raise UserError(f"{field} {token!r} in {file} is not one of the {rows} vocabulary entries; correct it")
    for field in ("eos_token_id", "pad_token_id"):
        if getattr(config, field) == mask:
            raise UserError(f"mask_token_id and {field} are both {mask} in {file}; they must differ")
    if tokenizer is None:
        return
    if len(tokenizer) > rows:
        raise UserError(f"the tokenizer in {folder} has {len(tokenizer)} entries but the model only {rows}: {foreign}")
    if tokenizer.mask_token_id not in (None, mask):
        its = tokenizer.mask_token_id
        raise UserError(f"the tokenizer's mask token has id {its} but the model's mask_token_id is {mask}: {foreign}")
    if tokenizer.convert_ids_to_tokens(mask) is None:
        raise UserError(f"the tokenizer in {folder} has no token with the model's mask_token_id {mask}: {foreign}")


def _weights(folder: Path) -> dict[Path, set[str] | None]:
    """The files that hold a checkpoint's weights, with the tensors that are read from each, None for all of them."""
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        try:
            named: dict[Path, set[str] | None] = {}
            for tensor, file in json.loads(index.read_text(encoding="utf-8"))["weight_map"].items():
                named.setdefault(folder / file, set()).add(tensor)
        except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise UserError(f"{index} is no index of weights ({error!r}); {AGAIN}") from error
        if missing := [file.name for file in named if not file.is_file()]:
            raise UserError(f"{index} names {missing[0]}, which is not there; {AGAIN}")
    else:
        single = unpacked(folder / "model.safetensors")
        named = dict.fromkeys([single] if single.is_file() else folder.glob("*.safetensors"))
    if not named:
        raise UserError(f"no .safetensors file in {folder}; fetch the weights")
    return dict(sorted(named.items()))


def _read_tensors(files: dict[Path, set[str] | None], device, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    tensors: dict[str, torch.Tensor] = {}
    for file, wanted in files.items():
        try:
            with safe_open(file, framework="pt", device=str(device)) as handle:
                for key in handle.keys() if wanted is None else wanted & set(handle.keys()):  # noqa: SIM118 - no mapping
                    if key in tensors:
                        raise UserError(
                            f"{key} is in {file} and in another file of {file.parent}; remove the stale one"
                        )
                    tensors[key] = handle.get_tensor(key).to(dtype)
        except (SafetensorError, OSError) as error:
            raise UserError(f"{file} is cut short or damaged ({error}); {remade(file)}") from error
    return tensors


def _names(keys: set[str]) -> str:
    shown = sorted(keys)
    return ", ".join(shown[:3]) + (f" and {len(shown) - 3} more" if len(shown) > 3 else "")


def fingerprint(folder: Path) -> str:
    """Hash of configuration and weights; beyond 1 GiB of the hashes of the files, taken side by side."""
    digest, files = hashlib.sha256((folder / "config.json").read_bytes()), _weights(folder)
    whole = sum(f.stat().st_size for f in files) <= HASHED_WHOLE
    with ThreadPoolExecutor() as pool:
        contents = pool.map(lambda file: file.read_bytes() if whole else _sha256(file), files)
        for file, content in zip(files, contents, strict=True):
            digest.update(f"{file.name}:{file.stat().st_size}".encode())
            digest.update(content)
    return digest.hexdigest()


def _sha256(file: Path) -> bytes:
    with file.open("rb") as handle:
        return hashlib.file_digest(handle, "sha256").digest()


def load(
    name: str | os.PathLike,
    *,
    revision: str | None = None,
    device: str | torch.device | None = None,
    dtype: str | torch.dtype | None = None,
) -> DiffusionModel:
    """A model ready to decode, with its tokenizer attached as ``model.tokenizer``.

    Args:
        name: "pocket-llada", "pocket-dream", "smol-dream", a local folder, or a hub id.
        revision: commit, tag or branch of the hub repository; pin it for a reproducible run.
        device: defaults to CUDA where there is one.
        dtype: defaults to float32 below 100 M parameters and bfloat16 above; below 1 G also float32 on a CPU that lacks
            instructions for bfloat16.

    Raises:
        UserError: a device that is not usable, nothing there, a damaged file, missing or extra tensors, a wrong mask
            id, or a tokenizer that does not fit.
    """
    name = os.fspath(name)
    device, dtype = resolve_device(device), resolve_dtype(dtype)
    folder, commit = locate(name, revision)
    config = read_config(folder)
    with torch.device("meta"):
        model = FAMILIES[config.model_type][1](config)
    has = [getattr(torch.cpu, f"_is_{name}_supported", bool)() for name in ("avx512_bf16", "amx_tile")]
    narrow = device.type != "cpu" or any(has)  # multiplies bfloat16 at least as fast
    small = sum(p.numel() for p in model.parameters()) < (100_000_000 if narrow else 1_000_000_000)
    dtype = dtype or (torch.float32 if small else torch.bfloat16)
    tokenizer = _tokenizer(folder, config.model_type)
    _check_ids(config, model.head.shape[0], tokenizer, folder)

    tensors = _read_tensors(_weights(folder), device, dtype)
    wanted = {key: value.shape for key, value in model.state_dict().items()}
    other = "its config.json belongs to another model"
    if missing := wanted.keys() - tensors.keys():
        raise UserError(f"the weights in {folder} lack {_names(missing)}: the checkpoint is incomplete or {other}")
    if extra := tensors.keys() - wanted.keys():
        raise UserError(f"the weights in {folder} hold the extra tensors {_names(extra)}: {other}")
    for key, shape in wanted.items():
        if (found := tensors[key].shape) != shape:
            raise UserError(f"{key} in {folder} has shape {list(found)}, not {list(shape)}: {other}")
    model.load_state_dict(tensors, assign=True)
    model.requires_grad_(False).eval()
    model.name, model.tokenizer, model.fingerprint = name, tokenizer, commit or fingerprint(folder)
    return model


def _tokenizer(folder: Path, family: str):
    """The tokenizer beside a checkpoint, None where there is none; never by code of the checkpoint's own."""
    if not any((folder / file).is_file() for file in ("tokenizer.json", "tokenizer_config.json", "vocab.json")):
        return None
    kind = Qwen2Tokenizer if family == "Dream" else AutoTokenizer  # Dream's own class is Qwen2's under another name
    kind = PreTrainedTokenizerFast if (folder / "tokenizer.json").is_file() else kind
    try:
        if kind is Qwen2Tokenizer and not all((folder / file).is_file() for file in ("vocab.json", "merges.txt")):
            raise ValueError("there is neither tokenizer.json nor vocab.json with merges.txt")
        return kind.from_pretrained(folder, trust_remote_code=False)
    except Exception as error:  # tokenizers raises bare Exception for a damaged file
        raise UserError(f"the tokenizer in {folder} cannot be read ({error}); fetch it again") from error


def resolve_device(device: str | torch.device | None) -> torch.device:
    """The device asked for, or CUDA where there is one, else the CPU; refuses what cannot compute here."""
    asked = str(device) if isinstance(device, torch.device) else device
    try:
        chosen = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    except (RuntimeError, TypeError) as error:
        raise UserError(f"unknown device {asked!r}; use cpu, cuda or cuda:N") from error
    if chosen.type == "cuda":
        count = torch.cuda.device_count()
        if not torch.cuda.is_available() or (chosen.index or 0) >= count:
            raise UserError(f"device {asked!r} is not there: this machine has {count} CUDA devices; use cpu")
        return chosen
    try:
        if chosen.type == "cpu" and chosen.index:
            raise ValueError("there is one CPU")
        torch.zeros(1, device=chosen).tolist()
    except Exception as error:  # a backend that is not built in, has no hardware or holds no values
        raise UserError(f"device {asked!r} is not usable here; use cpu, cuda or cuda:N") from error
    return torch.device("cpu") if chosen.type == "cpu" else chosen


def resolve_dtype(dtype: str | torch.dtype | None) -> torch.dtype | None:
    """ "float32", "bfloat16", "float16" or "float64" as a torch dtype."""
    if dtype is None or isinstance(dtype, torch.dtype):
        return dtype
    if dtype not in ("float32", "bfloat16", "float16", "float64"):
        raise UserError(f"unknown dtype {dtype!r}; use float32, bfloat16, float16 or float64")
    return getattr(torch, dtype)


__all__ = ["DiffusionModel", "DreamConfig", "DreamModel", "LLaDAConfig", "LLaDAModelLM", "load"]
