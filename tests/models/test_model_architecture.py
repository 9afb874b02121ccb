"""Architecture: every way to say a model, and every way to say it wrong."""

import functools
import os
import subprocess
import sys

import pytest
import torch
from safetensors.torch import save_file
from torch import nn

from mutua import Architecture, InputError
from mutua.models import describe, names, register
from mutua.models.registry import _factories

SHAPE = {"channels": 1, "size": 8, "classes": 3}


def build(value, seed=0, **changes):
    return Architecture.of(value).build(**(SHAPE | changes), seed=seed)


def same(a, b):
    a, b = a.state_dict(), b.state_dict()
    return list(a) == list(b) and all(torch.equal(a[k], b[k]) for k in a)


class Own(nn.Module):
    """A user's model."""

    def __init__(self, channels, size, classes):
        super().__init__()
        self.out = nn.Linear(channels * size * size, classes)

    def forward(self, x):
        return self.out(x.flatten(1))


def of_classes(classes):
    return nn.Linear(5, classes)


@pytest.fixture
def registry():
    """The registry, put back as it was."""
    before = dict(_factories)
    yield
    _factories.clear()
    _factories.update(before)


# What `of` takes


def test_of_takes_names_objects_dicts_and_itself():
    assert Architecture.of("mlp") == Architecture(name="mlp")
    made = Architecture.of({"name": "mlp", "width": 0.5, "share": ["fc1"]})
    assert (made.name, made.width, made.share, made.init) == ("mlp", 0.5, ["fc1"], None)
    assert Architecture.of(made) is made
    module = Own(1, 8, 3)
    assert Architecture.of(module).name is module
    assert Architecture.of(Own).name is Own
    assert Architecture.of(of_classes).name is of_classes


def test_it_is_frozen():
    with pytest.raises(InputError, match="frozen"):
        Architecture.of("mlp").width = 2.0


@pytest.mark.parametrize(
    ("value", "label"),
    [
        ("lenet5", "lenet5"),
        ("torch.nn:Linear", "torch.nn:Linear"),
        (Own, "Own"),
        (of_classes, "of_classes"),
        (Own(1, 8, 3), "Own"),
        (functools.partial(of_classes), "partial"),
    ],
)
def test_labels(value, label):
    assert Architecture.of(value).label == label


# Seeds


@pytest.mark.parametrize("value", ["cnn1", Own, of_classes])
def test_the_seed_alone_decides(value):
    torch.manual_seed(11)
    first = build(value, seed=5)
    torch.manual_seed(12)
    assert same(first, build(value, seed=5))
    assert not same(first, build(value, seed=6))


def test_the_global_generator_is_untouched():
    torch.manual_seed(3)
    expected = torch.rand(4)
    torch.manual_seed(3)
    build("lenet5", size=28)
    assert torch.equal(torch.rand(4), expected)


# Factories, classes, instances


def test_a_factory_gets_what_it_accepts():
    seen = {}

    def nothing():
        return nn.Linear(2, 2)

    def keyword_only(*, classes, depth=1):
        seen["keyword_only"] = (classes, depth)
        return nn.Linear(2, classes)

    def everything(**given):
        seen["everything"] = given
        return nn.Linear(2, 2)

    class Called:
        def __call__(self, size):
            seen["called"] = size
            return nn.Linear(2, 2)

    assert isinstance(build(nothing), nn.Linear)
    build(keyword_only)
    build(everything)
    build(Called(), size=(8, 9))
    assert seen == {"keyword_only": (3, 1), "everything": SHAPE, "called": (8, 9)}
    assert build(functools.partial(Own, size=4)).out.in_features == 64


def test_a_class_is_built_for_the_data():
    assert build(Own)(torch.zeros(2, 1, 8, 8)).shape == (2, 3)


def test_an_instance_is_copied_with_its_weights():
    module = Own(1, 8, 3)
    copied = build(module, seed=9)
    assert same(copied, module)
    with torch.no_grad():
        copied.out.weight.zero_()
    assert module.out.weight.abs().sum() > 0


def test_the_current_folder_can_be_imported_from(tmp_path, monkeypatch):
    package = tmp_path / "own_nets_cwd"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "nets.py").write_text(
        "import torch\n\ndef make(classes):\n    return torch.nn.Linear(4, classes)\n"
    )
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [p for p in sys.path if p])
    architecture = Architecture.of("own_nets_cwd.nets:make")
    assert architecture.label == "own_nets_cwd.nets:make"
    assert architecture.build(**SHAPE, seed=0).out_features == 3
    assert sys.path[-1] == str(tmp_path)


def test_the_current_folder_never_shadows(tmp_path, monkeypatch):
    (tmp_path / "numpy.py").write_text("raise RuntimeError('shadowed')")
    monkeypatch.chdir(tmp_path)
    before = list(sys.path)
    with pytest.raises(InputError, match="module numpy has no 'make'"):
        build("numpy:make")
    assert sys.path == before


# Registration


def test_users_register_models(registry):
    @register("own-net")
    def make(channels, size, classes, width=1.0):
        """A net of one's own.

        More about it.
        """
        return nn.Linear(round(10 * width), classes)

    assert "own-net" in names()
    assert describe("own-net") == "A net of one's own."
    assert build("own-net").in_features == 10
    assert build({"name": "own-net", "width": 2}).in_features == 20
    register("own-net")(make)  # the same thing again, as in a notebook


def test_a_name_is_given_once(registry):
    with pytest.raises(InputError, match="'lenet5' is taken"):
        register("lenet5")(of_classes)
    with pytest.raises(InputError, match="without a colon"):
        register("a:b")(of_classes)


def test_a_registered_model_without_width_refuses_one(registry):
    register("narrow")(of_classes)
    assert build("narrow").out_features == 3
    with pytest.raises(InputError, match=r"models.width: 2.0, but 'narrow' takes no width"):
        build({"name": "narrow", "width": 2.0})


# Starting weights


@pytest.mark.parametrize("kind", ["safetensors", "pt"])
def test_starting_weights(tmp_path, kind):
    source = build("resnet18", seed=1) if kind == "pt" else build("cnn1", seed=1)
    name = "resnet18" if kind == "pt" else "cnn1"
    path = tmp_path / f"w.{kind}"
    (save_file if kind == "safetensors" else torch.save)(source.state_dict(), path)
    assert same(build({"name": name, "init": str(path)}, seed=2), source)


def spoilt(change):
    weights = {k: v.clone() for k, v in build("cnn1").state_dict().items()}
    change(weights)
    return weights


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda w: w.pop("conv2.bias"), "has no entry 'conv2.bias'"),
        (lambda w: w.update(extra=torch.zeros(1)), "has an entry 'extra', which the model lacks"),
        (
            lambda w: w.update({"head.weight": torch.zeros(4, 120)}),
            r"'head.weight' in .* has shape \(4, 120\), the model's has \(3, 120\)",
        ),
    ],
)
def test_weights_that_do_not_fit(tmp_path, change, message):
    path = tmp_path / "w.safetensors"
    save_file(spoilt(change), path)
    with pytest.raises(InputError, match=message):
        build({"name": "cnn1", "init": path})


def test_files_that_hold_no_weights(tmp_path):
    with pytest.raises(InputError, match=r"models.init: no file .*none.pt"):
        build({"name": "cnn1", "init": tmp_path / "none.pt"})
    for name in ("bad.pt", "bad.safetensors"):
        (tmp_path / name).write_bytes(b"not weights at all")
        with pytest.raises(InputError, match="holds no readable weights") as error:
            build({"name": "cnn1", "init": tmp_path / name})
        assert "\n" not in str(error.value)
    torch.save({"state_dict": {}, "epoch": 3}, tmp_path / "checkpoint.pt")
    with pytest.raises(InputError, match="is not a state_dict"):
        build({"name": "cnn1", "init": tmp_path / "checkpoint.pt"})


def test_a_pickle_never_runs(tmp_path):
    class Evil:
        def __reduce__(self):
            return os.mkdir, (str(tmp_path / "ran"),)

    torch.save({"conv1.weight": Evil()}, tmp_path / "evil.pt")
    with pytest.raises(InputError, match="holds no readable weights"):
        build({"name": "cnn1", "init": tmp_path / "evil.pt"})
    assert not (tmp_path / "ran").exists()


# Mistakes


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("lenet", "models: 'lenet' is not a model; did you mean 'lenet5'? known: alexnet, cnn-5x5, "),
        ("LeNet5", "models: 'LeNet5' is not a model; did you mean 'lenet5'? "),
        ({"name": "zzz"}, "models: 'zzz' is not a model; known: "),
        (3, "models.name: 3; give a model's name, 'package.module:factory', a factory or an nn.Module"),
        ({"width": 2}, "models.name: missing; give a model's name"),
        ({"name": "mlp", "widht": 2}, "models.widht: no such field; did you mean 'width'?"),
        ({"name": "mlp", "width": 0}, "models.width: 0; give a number above 0"),
        ({"name": "mlp", "width": float("inf")}, "models.width: inf; give a number above 0"),
        ({"name": "mlp", "width": float("nan")}, "models.width: nan; give a number above 0"),
        ({"name": "mlp", "width": "wide"}, "models.width: 'wide'; give a number above 0"),
        ({"name": "mlp", "share": "conv1"}, "models.share: 'conv1'; give all, body, head or a list"),
        ({"name": "mlp", "init": 3}, "models.init: 3; give the path of a safetensors or state_dict file"),
        ({"name": Own, "width": 2}, "models.width: 2.0 for 'Own'; only registered models take one"),
        ({"name": "torch.nn:Linear", "width": 2}, "models.width: 2.0 for 'torch.nn:Linear'; only"),
        ({"name": nn.Linear(1, 1), "width": 2}, "models.width: 2.0 for 'Linear'; only"),
    ],
)
def test_a_wrong_description_says_what_is_wrong(value, message):
    with pytest.raises(InputError) as error:
        Architecture.of(value)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def test_the_constructor_speaks_the_same_way():
    with pytest.raises(InputError, match=r"models.width: -1; give a number above 0"):
        Architecture(name="mlp", width=-1)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ("no_such_package.nets:build", "cannot be imported: No module named 'no_such_package'"),
        ("torch.no_such:build", "cannot be imported: No module named 'torch.no_such'"),
        ("torch.nn:no_such", "module torch.nn has no 'no_such'"),
        ("torch:__version__", "'torch:__version__' is a TorchVersion; give a factory, class or nn.Module"),
        ("torch.nn:", "is not of the form 'package.module:name'"),
        (":Linear", "is not of the form"),
        ("..torch:nn", "is not of the form"),
        ("__import__('os'):system", "is not of the form"),
        (lambda: 3, "'<lambda>' made a int; it must make an nn.Module"),
        (dict, "'dict' made a dict; it must make an nn.Module"),
        (nn.Linear, "'Linear': missing a required argument: 'in_features'; mutua gives channels, size"),
        (lambda channels, /: None, "'<lambda>': .*'channels'.*; mutua gives"),
    ],
)
def test_what_cannot_be_built_says_why(value, message):
    with pytest.raises(InputError, match=message) as error:
        Architecture.of(value).build(**SHAPE, seed=0)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("wrong", [{"channels": 0}, {"size": 0}, {"size": (8, 0)}, {"classes": 0}])
def test_nothing_to_build_for(wrong):
    with pytest.raises(InputError, match="each must be 1 or more"):
        build("mlp", **wrong)


def test_errors_inside_a_users_factory_are_the_users():
    def broken():
        raise KeyError("inside")

    with pytest.raises(KeyError):
        build(broken)


def test_importing_models_is_light():
    heavy = "{'torchvision', 'safetensors', 'matplotlib', 'ray', 'flwr', 'pandas', 'sklearn', 'scipy'}"
    code = f"import sys, mutua.models; sys.exit(', '.join({heavy} & set(sys.modules)) or 0)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("misspelt_nets", "def x(:", "SyntaxError: invalid syntax"),
        ("raising_nets", "raise ValueError('one\\ntwo')", "ValueError: one two"),
    ],
)
def test_a_module_that_cannot_be_read_is_one_line(tmp_path, monkeypatch, name, text, said):
    (tmp_path / f"{name}.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(InputError, match=f"cannot be imported: {said}"):
        Architecture.of(f"{name}:build").build(channels=1, size=8, classes=3, seed=0)
