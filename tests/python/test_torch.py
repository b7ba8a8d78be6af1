"""Modules of PyTorch: exported and compiled, and behind `torch.compile`."""

import warnings

import numpy as np
import pytest
import tilescribe as ts

torch = pytest.importorskip("torch")

from tilescribe import dynamo  # noqa: E402

OPTIONS = {"trials": 0, "progress": False}


@pytest.fixture(autouse=True)
def fresh():
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    torch.manual_seed(0)
    dynamo._fallbacks.clear()
    dynamo._breaks.clear()


def compiled(module, **options):
    return torch.compile(module, backend="tilescribe", options=OPTIONS, **options)


def mlp():
    return torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.GELU(), torch.nn.Linear(16, 4)).eval()


def test_the_entry_point_is_there():
    assert "tilescribe" in torch._dynamo.list_backends()


def test_a_module_is_exported_and_compiled(tmp_path):
    module, x = mlp(), torch.randn(3, 8)
    net = ts.compile(module, tmp_path / "net", example_inputs=(x,), trials=0, progress=False)
    torch.testing.assert_close(torch.from_numpy(net(x)), module(x).detach(), rtol=1e-4, atol=1e-5)
    out = torch.empty(3, 4)
    assert net(x, out=out) is out
    torch.testing.assert_close(out, module(x).detach(), rtol=1e-4, atol=1e-5)
    assert net._addresses(x) == [x.data_ptr()]
    with pytest.raises(ts.ArgumentError, match="example_inputs"):
        ts.compile(module, progress=False)
    shapes = ({0: torch.export.Dim("batch", min=1, max=32)},)
    # the exporter takes an extent of 1 for one that never changes
    options = {"example_inputs": (x,), "dynamic_shapes": shapes}
    net = ts.compile(module, tmp_path / "open", **options, trials=0, progress=False)
    for rows in (1, 7, 32):
        x = torch.randn(rows, 8)
        torch.testing.assert_close(torch.from_numpy(net(x)), module(x).detach(), rtol=1e-4, atol=1e-5)


def test_products_are_computed_in_bf16_where_that_is_asked_for():
    module, x = mlp(), torch.randn(3, 8)
    fast = torch.compile(module, backend="tilescribe", options={**OPTIONS, "precision": "bf16"})
    with torch.no_grad():
        expected, found = module(x), fast(x)
    assert dynamo.fallbacks() == ()
    torch.testing.assert_close(found, expected, rtol=0.02, atol=0.02)
    assert (found - expected).abs().max() > 1e-5


def test_batches_of_any_size_need_one_compilation(monkeypatch):
    count = []
    compile_once = dynamo.compile
    monkeypatch.setattr(dynamo, "compile", lambda *given, **options: count.append(1) or compile_once(*given, **options))
    module = mlp()
    function = compiled(module, dynamic=True)
    with torch.no_grad():
        for rows in (2, 5, 32, 3):
            x = torch.randn(rows, 8)
            torch.testing.assert_close(function(x), module(x), rtol=1e-4, atol=1e-5)
    assert len(count) == 1 and not dynamo.fallbacks()


def test_a_batch_beyond_the_range_widens_it():
    module = mlp()
    function = compiled(module, dynamic=True)
    with torch.no_grad():
        for rows in (2, 100, 3, 128, 300):
            x = torch.randn(rows, 8)
            torch.testing.assert_close(function(x), module(x), rtol=1e-4, atol=1e-5)
    assert not dynamo.fallbacks(), dynamo.fallbacks()


def test_a_graph_that_is_known_is_taken_from_the_cache():
    with torch.no_grad():
        x = torch.randn(2, 8)
        module = mlp()
        compiled(module)(x)
        torch._dynamo.reset()
        told = []
        again = torch.compile(module, backend="tilescribe", options={"trials": 0, "progress": told.append})
        torch.testing.assert_close(again(x), module(x), rtol=1e-4, atol=1e-5)
    assert not told, "nothing was compiled"


def test_a_weight_that_changes_is_seen():
    module = torch.nn.Linear(4, 4).eval()
    function = compiled(module)
    x = torch.randn(3, 4)
    with torch.no_grad():
        function(x)
        module.weight.mul_(2)
        with pytest.warns(UserWarning, match="a weight was changed"):
            torch.testing.assert_close(function(x), module(x), rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(function(x), module(x), rtol=1e-4, atol=1e-5)


def test_what_needs_gradients_runs_as_it_is():
    module = mlp()
    x = torch.randn(3, 8)
    with pytest.warns(UserWarning, match="gradients"):
        compiled(module)(x).sum().backward()
    assert module[0].weight.grad is not None
    assert len(dynamo.fallbacks()) == 1


def test_what_cannot_be_compiled_runs_as_it_is_and_is_told_once():
    def function(x, m):
        return torch.linalg.svdvals(x) + m

    f = compiled(function)
    x = torch.randn(4, 4)
    with torch.no_grad(), warnings.catch_warnings(record=True) as told:
        warnings.simplefilter("always")
        for m in (1.0, 2.0):
            torch.testing.assert_close(f(x, torch.full((4,), m)), function(x, m), rtol=1e-4, atol=1e-5)
    assert len([it for it in told if "tilescribe" in str(it.message)]) == 1
    assert dynamo.fallbacks()


def test_graph_breaks_are_told():
    def function(x):
        y = torch.relu(x) * 2
        torch._dynamo.graph_break()
        return y + 1

    x = torch.randn(4, 4)
    with torch.no_grad(), pytest.warns(UserWarning, match="in parts"):
        torch.testing.assert_close(compiled(function)(x), function(x))


def test_what_is_written_in_place_is_not_lost():
    def function(x, total):
        total.add_(x)
        return total * 2

    x, total = torch.ones(4), torch.zeros(4)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        f = compiled(function)
        for count in (1, 2, 3):
            torch.testing.assert_close(f(x, total), torch.full((4,), 2.0 * count))
            torch.testing.assert_close(total, torch.full((4,), float(count)))


def test_arguments_that_are_numbers_and_views():
    def function(x, scale, rows):
        return (x[:rows] * scale, None, x.t())

    x = torch.randn(6, 4)
    f = compiled(function)
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for scale, rows in ((2.0, 3), (3.0, 3), (2.0, 4), (2.0, 5)):
            ours, theirs = f(x, scale, rows), function(x, scale, rows)
            assert ours[1] is None
            torch.testing.assert_close(ours[0], theirs[0])
            torch.testing.assert_close(ours[2], theirs[2])
            every_other = torch.randn(12, 4)[::2]
            torch.testing.assert_close(f(every_other, scale, rows)[0], function(every_other, scale, rows)[0])


def test_a_view_of_an_input_stays_one():
    def function(x):
        return x.t(), x + 1

    x = torch.zeros(2, 3)
    with torch.no_grad(), pytest.warns(UserWarning, match="a view of an input"):
        view, _ = compiled(function)(x)
    view[0, 0] = 5
    assert x[0, 0] == 5


def test_bfloat16_comes_and_goes():
    module, x = mlp().bfloat16(), torch.randn(3, 8).bfloat16()
    with torch.no_grad():
        y = compiled(module)(x)
        assert y.dtype == torch.bfloat16
        torch.testing.assert_close(y, module(x), rtol=3e-2, atol=3e-2)


def test_published_modules_are_right():
    torchvision = pytest.importorskip("torchvision")
    transformers = pytest.importorskip("transformers")
    net = torchvision.models.mobilenet_v3_small(weights=None).eval()
    config = transformers.BertConfig(
        vocab_size=100, hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
    )
    bert = transformers.BertModel(config).eval()
    ids = torch.randint(0, 100, (2, 9))
    with torch.no_grad():
        x = torch.randn(1, 3, 96, 96)
        torch.testing.assert_close(compiled(net)(x), net(x), rtol=1e-3, atol=1e-4)
        ours, theirs = compiled(bert)(ids), bert(ids)
        torch.testing.assert_close(ours.last_hidden_state, theirs.last_hidden_state, rtol=1e-3, atol=1e-4)
        torch.testing.assert_close(ours.pooler_output, theirs.pooler_output, rtol=1e-3, atol=1e-4)
    assert not dynamo.fallbacks(), dynamo.fallbacks()


def test_a_text_model_is_taken_by_name(tmp_path):
    transformers = pytest.importorskip("transformers")
    tokenizers = pytest.importorskip("tokenizers")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "one", "text", "and", "another"]
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel({word: at for at, word in enumerate(words)}, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    fast = transformers.PreTrainedTokenizerFast(tokenizer_object=tokenizer, pad_token="[PAD]", unk_token="[UNK]")
    fast.model_input_names = ["input_ids", "attention_mask"]
    fast.save_pretrained(tmp_path / "model")
    config = transformers.BertConfig(
        vocab_size=len(words), hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64
    )
    model = transformers.BertModel(config).eval()
    model.save_pretrained(tmp_path / "model")
    net = ts.compile(tmp_path / "model", tmp_path / "net", trials=0, progress=False)
    assert [spec.name for spec in net.inputs] == ["input_ids", "attention_mask"]
    for texts in (["one text"], ["one text", "and another text", "text"]):
        tokens = fast(texts, padding=True, return_tensors="pt")
        with torch.no_grad():
            theirs = model(**tokens).last_hidden_state
        ours = net(dict(tokens))[0]
        np.testing.assert_allclose(ours, theirs.numpy(), rtol=1e-3, atol=1e-4)
