"""Published checkpoints, by small series made here in the same format."""

from __future__ import annotations

import json
import pickle
import shutil

import numpy as np
import pytest
import torch
import transformers
from huggingface_hub import errors
from safetensors.torch import load_file, save_file

from staircase_lib.language import attention_path, corpus_counts, series, series_measurement
from staircase_lib.language.series import SeriesError, embedding_rows, open_series
from staircase_lib.language.tokens import prepare
from staircase_lib.language.vocabulary import train_tokenizer

V, STEPS = 300, (0, 8, 64)


def config(layout):
    sizes = {"vocab_size": V, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    if layout == "neox":
        return transformers.GPTNeoXConfig(
            **sizes, intermediate_size=32, max_position_embeddings=64, use_parallel_residual=True
        )
    if layout == "gpt2":
        return transformers.GPT2Config(vocab_size=V, n_embd=16, n_layer=2, n_head=2, n_positions=64)
    return transformers.LlamaConfig(
        **sizes, intermediate_size=32, max_position_embeddings=64, tie_word_embeddings=True
    )


@pytest.fixture(scope="session")
def text(tmp_path_factory):
    random = np.random.default_rng(0)
    words = ["".join(random.choice(list("abcdefghij"), 3)) for _ in range(60)]
    table = random.dirichlet(np.full(60, 0.1), size=60)
    found, last = [], 0
    for _ in range(6000):
        last = random.choice(60, p=table[last])
        found.append(words[last])
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text(" ".join(found))
    return path


@pytest.fixture(scope="session")
def tokenizer(text, tmp_path_factory):
    path = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    path.write_text(train_tokenizer(text, V).to_str())
    return path


@pytest.fixture(scope="session", params=["neox", "llama", "gpt2"])
def published(request, tokenizer, tmp_path_factory):
    """A series as a folder a revision, the last one in shards."""
    root = tmp_path_factory.mktemp(request.param)
    for step in STEPS:
        torch.manual_seed(step)
        model = transformers.AutoModelForCausalLM.from_config(config(request.param))
        shards = {"max_shard_size": "12KB"} if step == STEPS[-1] else {}
        model.save_pretrained(root / f"step{step}", **shards)
        shutil.copy(tokenizer, root / f"step{step}")
    return root


@pytest.fixture(scope="session")
def tokens(text, tokenizer, tmp_path_factory):
    return prepare(text, tmp_path_factory.mktemp("ids"), V, tokenizer=tokenizer)


@pytest.fixture
def neox(tokenizer, tmp_path):
    """One revision that a test may spoil."""
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config("neox"))
    model.save_pretrained(tmp_path / "series" / "step1")
    shutil.copy(tokenizer, tmp_path / "series" / "step1")
    return tmp_path / "series" / "step1"


def revisions(steps=STEPS):
    return [f"step{step}" for step in steps]


def opened(folder):
    (checkpoint,) = open_series(str(folder.parent), [folder.name])
    return checkpoint


# --- Revisions -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "step"),
    [
        ("step512", 512),
        ("step1000-tokens4B", 1000),
        ("stage1-step2000-tokens9B", 2000),
        ("step_3", 3),
        ("ckpt-70", 70),
        ("128", 128),
    ],
)
def test_the_step_is_read_from_the_name(name, step):
    assert series.step_of(name) == step


def test_names_without_a_step_and_steps_given_twice_are_refused(published):
    with pytest.raises(SeriesError, match="tell a step, such as step512, got 'main'"):
        series.step_of("main")
    (published / "ckpt-8").mkdir(exist_ok=True)
    with pytest.raises(SeriesError, match="both step 8"):
        open_series(str(published), ["step8", "ckpt-8"])
    (published / "ckpt-8").rmdir()


def test_a_revision_that_is_not_there_is_told_with_those_that_are(published):
    with pytest.raises(SeriesError, match="no revision 'step9'; there are step0, step64, step8"):
        open_series(str(published), ["step0", "step9"])
    with pytest.raises(SeriesError, match="there is no folder 'nowhere'"):
        open_series("nowhere", ["step0"])


def test_steps_are_put_in_order(published):
    found = open_series(str(published), ["step64", "step0"])
    assert [checkpoint.step for checkpoint in found] == [0, 64]


def test_the_cache_of_the_hub_is_a_series_too(neox, tmp_path):
    cache = tmp_path / "models--a--b"
    shutil.copytree(neox, cache / "snapshots" / "0123abc")
    (cache / "refs").mkdir()
    (cache / "refs" / "step1").write_text("0123abc\n")
    (checkpoint,) = open_series(str(cache), ["step1"])
    rows = embedding_rows(checkpoint, np.arange(3))
    np.testing.assert_array_equal(rows, embedding_rows(opened(neox), np.arange(3)))


# --- Embeddings ----------------------------------------------------------------------------------


def test_rows_are_those_that_transformers_reads(published):
    asked = np.array([7, 0, 299, 7])
    for checkpoint in open_series(str(published), revisions()):
        model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint.folder)
        expected = model.get_input_embeddings().weight[asked].detach().numpy()
        np.testing.assert_array_equal(embedding_rows(checkpoint, asked), expected)
        assert series.embedding_shape(checkpoint) == (V, 16)


def test_the_last_revision_is_in_shards(published):
    assert len(list((published / "step64").glob("model-*.safetensors"))) > 2


def test_only_the_rows_are_read(neox, monkeypatch):
    """Every read of a tensor is of one row."""
    from safetensors import safe_open

    seen = []

    class Counted:
        def __init__(self, part):
            self.part = part

        def get_shape(self):
            return self.part.get_shape()

        def __getitem__(self, rows):
            seen.append(rows)
            return self.part[rows]

    class Watched:
        def __init__(self, path, framework):
            self.file = safe_open(path, framework)

        def __enter__(self):
            return self

        def __exit__(self, *error):
            pass

        def keys(self):
            return self.file.keys()

        def get_slice(self, name):
            return Counted(self.file.get_slice(name))

    monkeypatch.setattr("safetensors.safe_open", Watched)
    embedding_rows(opened(neox), np.array([5, 2]))
    assert seen == [slice(5, 6), slice(2, 3)]


def test_bfloat16_and_torch_files_are_read(neox):
    asked = np.arange(4)
    expected = embedding_rows(opened(neox), asked)
    weights = load_file(neox / "model.safetensors")
    save_file({k: v.bfloat16() for k, v in weights.items()}, neox / "model.safetensors")
    np.testing.assert_allclose(embedding_rows(opened(neox), asked), expected, rtol=1e-2)
    (neox / "model.safetensors").unlink()
    for modern in (True, False):
        path = neox / "pytorch_model.bin"
        torch.save(weights, path, _use_new_zipfile_serialization=modern)
        np.testing.assert_array_equal(embedding_rows(opened(neox), asked), expected)


def test_a_pickle_that_would_run_something_is_refused(neox, tmp_path):
    class Harm:
        def __reduce__(self):
            return (exec, (f"open({str(tmp_path / 'ran')!r}, 'w')",))

    (neox / "model.safetensors").unlink()
    torch.save({"gpt_neox.embed_in.weight": Harm()}, neox / "pytorch_model.bin")
    with pytest.raises(SeriesError, match="holds more than tensors"):
        embedding_rows(opened(neox), np.arange(3))
    (neox / "pytorch_model.bin").write_bytes(pickle.dumps(Harm()))
    with pytest.raises(SeriesError):
        embedding_rows(opened(neox), np.arange(3))
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("left", [0, 100, 0.5, 0.99])
def test_a_truncated_file_is_told(neox, left):
    file = neox / "model.safetensors"
    content = file.read_bytes()
    file.write_bytes(content[: int(left * len(content)) if left < 1 else left])
    with pytest.raises(SeriesError, match=r"model\.safetensors: cannot be read, it was cut"):
        embedding_rows(opened(neox), np.arange(3))


def test_a_missing_shard_is_told(published, tmp_path):
    copy = tmp_path / "step64"
    shutil.copytree(published / "step64", copy)
    index = json.loads((copy / "model.safetensors.index.json").read_text())["weight_map"]
    tensor = next(name for name in index if name.endswith(series._EMBEDDINGS))
    (copy / index[tensor]).unlink()
    with pytest.raises(SeriesError, match=f"its index names {index[tensor]}, which is not there"):
        embedding_rows(opened(copy), np.arange(3))
    index[tensor] = "../../secret.safetensors"
    (copy / "model.safetensors.index.json").write_text(json.dumps({"weight_map": index}))
    with pytest.raises(SeriesError, match="expected shards beside their index"):
        embedding_rows(opened(copy), np.arange(3))


def test_without_weights_or_configuration_it_says_what_was_expected(neox):
    (neox / "model.safetensors").rename(neox / "other")
    with pytest.raises(SeriesError, match=r"expected weights as model\.safetensors"):
        embedding_rows(opened(neox), np.arange(3))
    (neox / "other").rename(neox / "model.safetensors")
    (neox / "config.json").write_text("{")
    with pytest.raises(SeriesError, match="cannot be read as JSON"):
        embedding_rows(opened(neox), np.arange(3))
    (neox / "config.json").unlink()
    with pytest.raises(SeriesError, match=r"expected a config\.json"):
        embedding_rows(opened(neox), np.arange(3))


def test_unknown_names_are_found_by_shape_or_asked_for(neox):
    weights = load_file(neox / "model.safetensors")
    expected = embedding_rows(opened(neox), np.arange(3))
    weights["table.weight"] = weights.pop("gpt_neox.embed_in.weight")
    save_file(weights, neox / "model.safetensors")  # embed_out.weight has the same shape
    np.testing.assert_array_equal(embedding_rows(opened(neox), np.arange(3)), expected)
    weights["second.weight"] = weights["table.weight"].clone()
    save_file(weights, neox / "model.safetensors")
    with pytest.raises(SeriesError, match="got second.weight, table.weight. Name it with --tensor"):
        embedding_rows(opened(neox), np.arange(3))
    np.testing.assert_array_equal(
        embedding_rows(opened(neox), np.arange(3), "table.weight"), expected
    )
    with pytest.raises(SeriesError, match="no tensor 'tabel'"):
        embedding_rows(opened(neox), np.arange(3), "tabel")


def test_weights_and_configuration_of_different_models_are_told(neox):
    told = json.loads((neox / "config.json").read_text())
    (neox / "config.json").write_text(json.dumps({**told, "vocab_size": 500}))
    with pytest.raises(SeriesError, match="a vocabulary of 500; they are not of one model"):
        embedding_rows(opened(neox), np.arange(3))


def test_tokens_without_a_row_and_broken_numbers_are_told(neox):
    with pytest.raises(SeriesError, match=r"got 300; the text was made .* another tokenizer"):
        embedding_rows(opened(neox), np.array([3, 300]))
    weights = load_file(neox / "model.safetensors")
    weights["gpt_neox.embed_in.weight"][2] = float("nan")
    save_file(weights, neox / "model.safetensors")
    with pytest.raises(SeriesError, match="not finite"):
        embedding_rows(opened(neox), np.arange(3))


# --- The hub -------------------------------------------------------------------------------------


def refusal(kind):
    def download(*arguments, **options):
        if issubclass(kind, errors.HfHubHTTPError):
            import httpx

            request = httpx.Request("GET", "https://example.org")
            raise kind("no", response=httpx.Response(404, request=request))
        raise kind("no")

    return download


@pytest.mark.parametrize(
    ("kind", "told"),
    [
        (errors.LocalEntryNotFoundError, "hf download a/b --revision step1 --local-dir DIR/step1"),
        (errors.RevisionNotFoundError, "no revision 'step1' on the hub"),
        (errors.RepositoryNotFoundError, "no such model on the hub"),
    ],
)
def test_what_the_hub_refuses_is_told_as_what_to_do(monkeypatch, kind, told):
    monkeypatch.setattr("huggingface_hub.hf_hub_download", refusal(kind))
    (checkpoint,) = open_series("a/b", ["step1"])
    with pytest.raises(SeriesError, match=told):
        embedding_rows(checkpoint, np.arange(3))


def test_without_a_network_the_cache_is_enough(monkeypatch, neox):
    """Then nobody can say whether a file that is not in the cache exists."""

    def download(name, file, revision):
        if file in ("config.json", "model.safetensors"):
            return str(neox / file)
        raise errors.LocalEntryNotFoundError("offline")

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    (checkpoint,) = open_series("a/b", ["step1"])
    expected = embedding_rows(opened(neox), np.arange(5))
    np.testing.assert_array_equal(embedding_rows(checkpoint, np.arange(5)), expected)


def test_files_of_the_hub_are_read_as_those_of_a_folder(monkeypatch, published):
    fetched = []

    def download(name, file, revision):
        fetched.append(file)
        path = published / revision / file
        if not path.is_file():
            refusal(errors.RemoteEntryNotFoundError)()
        return str(path)

    monkeypatch.setattr("huggingface_hub.hf_hub_download", download)
    here = open_series(str(published), revisions())
    for local, remote in zip(here, open_series("a/b", revisions()), strict=True):
        expected = embedding_rows(local, np.arange(5))
        np.testing.assert_array_equal(embedding_rows(remote, np.arange(5)), expected)
    shards = {file for file in fetched if file.startswith("model-")}
    assert len(shards) == 1  # only the one with the embeddings
    assert series.tokenizer_file(here) == published / "step0" / "tokenizer.json"


# --- Attention and the whole ---------------------------------------------------------------------


def test_attention_is_what_the_model_adds_to_its_stream(published, tokens):
    """Of the first block, written out: without FFN, the block is its attention."""
    checkpoint = open_series(str(published), ["step8"])[0]
    windows, positions = attention_path.sample_windows(tokens.ids, 16, 20)
    written, attention = series_measurement.read_attention(checkpoint, windows, positions)
    assert written.shape == (2, 20, 16) and attention.shape == (2, 20, 16)
    np.testing.assert_allclose(attention.sum(-1), 1, atol=1e-5)
    assert not attention[:, np.arange(16) > positions[:, None]].any()
    model = transformers.AutoModelForCausalLM.from_pretrained(checkpoint.folder)
    for name, parameter in model.named_parameters():  # what the FFNs write
        if any(end in name for end in ("dense_4h_to_h", "down_proj", "mlp.c_proj")):
            parameter.data.zero_()
    found = model(torch.tensor(windows), output_hidden_states=True)
    before, after = found.hidden_states[:2]
    expected = (after - before)[np.arange(20), positions].detach().numpy()
    np.testing.assert_allclose(written[0], expected, atol=1e-5)


def test_models_with_code_of_their_own_or_without_weights_are_refused(neox, tokens):
    sampled = attention_path.sample_windows(tokens.ids, 16, 3)
    told = json.loads((neox / "config.json").read_text())
    own = {**told, "model_type": "mine", "auto_map": {"AutoModelForCausalLM": "mine.Model"}}
    (neox / "config.json").write_text(json.dumps(own))
    (neox / "mine.py").write_text("raise SystemExit('it was run')")
    with pytest.raises(SeriesError, match="cannot make this model from its own code"):
        series_measurement.read_attention(opened(neox), *sampled)
    (neox / "config.json").write_text(json.dumps(told))
    weights = load_file(neox / "model.safetensors")
    del weights["gpt_neox.layers.1.attention.dense.weight"]
    save_file(weights, neox / "model.safetensors", {"format": "pt"})
    with pytest.raises(SeriesError, match="1 weights are missing, such as gpt_neox.layers.1"):
        series_measurement.read_attention(opened(neox), *sampled)


@pytest.mark.claim("X.6")
def test_a_series_whose_embeddings_become_signatures_is_seen_to(published, tokens, tmp_path):
    """Random at step 0, a projection of the signatures later: alignment rises from 0 to 1."""
    root = tmp_path / "series"
    counts = corpus_counts.count_corpus(tokens.ids, V, V)
    P = counts.pairs.toarray() / counts.pairs.sum(1)[:, None].clip(1)
    S = P - counts.pairs.sum(0) / counts.pairs.sum()
    for step, rows in ((0, np.random.default_rng(1).standard_normal((V, 400))), (5, S)):
        folder = root / f"step{step}"
        shutil.copytree(published / "step8", folder)
        told = json.loads((folder / "config.json").read_text())
        width = "n_embd" if "n_embd" in told else "hidden_size"
        rows = rows @ np.random.default_rng(2).standard_normal((rows.shape[1], 400))
        name = next(n for n in open_series(str(root), [folder.name])[0].weights
                    if n.endswith(series._EMBEDDINGS))  # fmt: skip
        weights = {name: torch.tensor(rows, dtype=torch.float32)}
        save_file(weights, folder / "model.safetensors")
        (folder / "config.json").write_text(json.dumps({**told, width: 400}))
    found = series_measurement.measure(
        open_series(str(root), ["step0", "step5"]), tokens, number=40
    )
    rows = found.rows[found.rows["measure"] == "alignment"]
    defined = rows[rows["variant"] == "as defined"].set_index("step")["value"]
    assert abs(defined[0]) < 0.2 and defined[5] > 0.9
    probe = found.rows[found.rows["measure"] == "probe mse"].set_index(["step", "signature"])
    late = probe.loc[5]["value"]
    assert late["order 0"] < 0.9 * late["mean"]
    assert len(found.tokens) == 40 and found.facts["embeddings"] == "300 rows of 400"


def test_attention_rows_are_measured_for_every_block_and_revision(published, tokens):
    found = series_measurement.measure(
        open_series(str(published), revisions()), tokens, number=40, attention=True, windows=30,
        length=16,
    )  # fmt: skip
    rows = found.rows[found.rows["measure"] == "attention path"]
    assert set(rows["step"]) == set(STEPS) and set(rows["block"]) == {0, 1}
    assert rows["value"].notna().all() and len(rows) == 3 * 2 * 4


def test_a_series_of_different_models_or_another_tokenizer_is_refused(neox, tokens):
    other = neox.parent / "step2"
    small = config("neox")
    small.hidden_size = 8
    transformers.AutoModelForCausalLM.from_config(small).save_pretrained(other)
    with pytest.raises(SeriesError, match="not of one series"):
        series_measurement.measure(open_series(str(neox.parent), ["step1", "step2"]), tokens)
    (other / "tokenizer.json").write_text("{}")
    with pytest.raises(SeriesError, match="another tokenizer"):
        series.tokenizer_file(open_series(str(neox.parent), ["step1", "step2"]))
    for file in neox.parent.rglob("tokenizer.json"):
        file.unlink()
    with pytest.raises(SeriesError, match="give one with --tokenizer"):
        series.tokenizer_file(open_series(str(neox.parent), ["step1"]))


def test_one_tokenizer_beside_all_revisions_is_enough(neox):
    (neox / "tokenizer.json").rename(neox.parent / "tokenizer.json")
    assert series.tokenizer_file([opened(neox)]) == neox.parent / "tokenizer.json"


def test_a_tokenizer_of_another_model_is_refused(neox, tmp_path):
    (tmp_path / "other.txt").write_text("x y z " * 50)
    foreign = prepare(tmp_path / "other.txt", tmp_path / "small", 64, words=True)
    with pytest.raises(SeriesError, match="for 300 rows of embeddings, got one of [0-9]+ tokens"):
        series_measurement.measure(open_series(str(neox.parent), ["step1"]), foreign)
    many = " ".join(f"w{n} w{n}" for n in range(400))
    (tmp_path / "other.txt").write_text(many)
    foreign = prepare(tmp_path / "other.txt", tmp_path / "large", 380, words=True)
    with pytest.raises(SeriesError, match="it is another model's"):
        series_measurement.measure(open_series(str(neox.parent), ["step1"]), foreign)
