"""The grid world: views, moves, the expert, maps and the gymnasium environment, against plain references."""

from __future__ import annotations

import warnings

import gymnasium
import networkx as nx
import numpy as np
import pytest
import torch
from gymnasium.utils.env_checker import check_env
from torch import Tensor

import nbsr_core as nbsr
import nbsr_core.domains.navigation
from nbsr_core.domains.navigation import keyframes
from nbsr_core.domains.navigation.environment import GridWorld
from nbsr_core.domains.navigation.expert import UNREACHABLE, best_actions, distances
from nbsr_core.domains.navigation.maps import NEAREST_ALIEN, demonstrations, obstacle_fields, t_mazes, with_aliens
from nbsr_core.domains.navigation.rollout import Decision, run_episodes
from nbsr_core.domains.navigation.tasks import NavigationData, load
from nbsr_core.domains.navigation.world import CHANNELS, MOVES, Cell, Maps, look, move

BLOCKS = {Cell.WALL, Cell.OBSTACLE, Cell.CUE_LEFT, Cell.CUE_RIGHT}


def generator(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def both_kinds(count: int = 20) -> list[Maps]:
    return [t_mazes(count, generator()), obstacle_fields(count, generator(), 0.3)]


class Following:
    """Does what it is told, step by step; halts where it is told -1."""

    def __init__(self, actions: Tensor) -> None:
        self.actions, self.step = actions, 0

    def decide(self, frames: Tensor, state: Tensor | None, eta: object, max_vacuity: object) -> tuple[Decision, Tensor]:
        rows = torch.arange(len(self.actions)).unsqueeze(0) if state is None else state
        told = self.actions[rows[0], min(self.step, self.actions.shape[1] - 1)]
        self.step += 1
        return Decision(told.clamp_min(0), told < 0, torch.zeros_like(told)), rows


@pytest.mark.parametrize("maps", both_kinds(), ids=["tmaze", "obstacles"])
def test_distances_are_shortest_paths(maps: Maps) -> None:
    steps = distances(maps)
    for number in range(len(maps)):
        cells = maps.cells[number]
        graph = nx.grid_2d_graph(*cells.shape)
        barred = [p for p in graph if int(cells[p]) in BLOCKS | {Cell.TRAP}]
        graph.remove_nodes_from(barred)
        goal = tuple(maps.goal()[number].tolist())
        expected = nx.single_source_shortest_path_length(graph, goal)
        for place in np.ndindex(*cells.shape):
            assert int(steps[number][place]) == expected.get(place, UNREACHABLE)


@pytest.mark.parametrize("maps", both_kinds(), ids=["tmaze", "obstacles"])
def test_the_expert_arrives_by_a_shortest_way(maps: Maps) -> None:
    frames, actions = demonstrations(maps)
    length = distances(maps)[torch.arange(len(maps)), maps.start[:, 0], maps.start[:, 1]]
    assert (actions >= 0).sum(1).equal(length)
    walked = run_episodes(Following(actions), maps)
    assert bool(walked.success.all())
    assert walked.steps.equal(length)
    torch.testing.assert_close(walked.frames, frames, equal_nan=True)
    assert walked.expert.equal(actions)
    assert walked.figures()["success"] == 1.0


@pytest.mark.parametrize("maps", both_kinds(), ids=["tmaze", "obstacles"])
def test_a_view_is_what_stands_around(maps: Maps) -> None:
    position = maps.start
    view, goal = look(maps, position), maps.goal()
    for number in range(len(maps)):
        row, column = position[number].tolist()
        seen_goal = False
        for dy in range(-2, 3):
            for dx in range(-2, 3):
                y, x = row + dy, column + dx
                inside = 0 <= y < 11 and 0 <= x < 11
                cell = int(maps.cells[number, y, x]) if inside else int(Cell.WALL)
                shown = view[number, :, dy + 2, dx + 2]
                assert bool(shown[0]) == (cell in BLOCKS - {Cell.OBSTACLE})
                assert bool(shown[1]) == (cell == Cell.OBSTACLE)
                assert bool(shown[2]) == (cell == Cell.CUE_LEFT)
                assert bool(shown[3]) == (cell == Cell.CUE_RIGHT)
                seen_goal |= cell == Cell.GOAL
                if cell in (Cell.GOAL, Cell.TRAP):
                    assert float(shown[4]) == 1.0
        if maps.compass and not seen_goal:
            mark = (view[number, 4] == 0.5).nonzero().tolist()
            offset = (goal[number] - position[number]).clamp(-2, 2) + 2
            assert mark == [offset.tolist()]
    assert float(view[:, 5].abs().sum()) == 0


def test_whoever_bumps_stays() -> None:
    maps = t_mazes(50, generator(3))
    moved = move(maps, maps.start, torch.full((50,), 1))  # below the start is no way
    assert bool(moved.bumped.all())
    assert moved.position.equal(maps.start)
    stuck = run_episodes(Following(torch.ones(50, 1, dtype=torch.int64)), maps, step_limit=7)
    assert bool((stuck.bumps == 7).all())
    assert stuck.figures()["lost"] == 1.0
    assert stuck.figures()["success"] == 0.0


def test_the_sign_decides_and_the_doors_look_alike() -> None:
    maps = t_mazes(300, generator(1))
    left = (maps.cells == Cell.CUE_LEFT).flatten(1).any(1)
    assert bool((left ^ (maps.cells == Cell.CUE_RIGHT).flatten(1).any(1)).all())
    assert 0.35 < float(left.float().mean()) < 0.65
    on_the_left = maps.goal()[:, 1] < maps.start[:, 1]
    assert on_the_left.equal(left)
    swapped = maps.cells.clone()
    swapped[maps.cells == Cell.GOAL], swapped[maps.cells == Cell.TRAP] = int(Cell.TRAP), int(Cell.GOAL)
    other = Maps(swapped, maps.start, compass=False)
    for row in range(11):
        place = torch.stack([torch.full((300,), row), maps.start[:, 1]], dim=1)
        assert look(maps, place).equal(look(other, place))
    wrong = demonstrations(other)[1]
    assert run_episodes(Following(wrong), maps).figures()["wrong_door"] == 1.0


@pytest.mark.parametrize("maps", both_kinds(200), ids=["tmaze", "obstacles"])
def test_aliens_stand_on_the_way_and_beyond_the_first_view(maps: Maps) -> None:
    infested = with_aliens(maps, generator(5), 3.0)
    assert len(infested) > 150
    assert bool(((infested.cells == Cell.ALIEN).flatten(1).sum(1) == 1).all())
    cleaned = infested.cells.clone()
    cleaned[infested.cells == Cell.ALIEN] = int(Cell.FLOOR)
    before = Maps(cleaned, infested.start, infested.compass)
    actions = demonstrations(before)[1]
    blind = run_episodes(Following(actions), infested)
    assert blind.figures()["crashes"] == 1.0
    assert int(blind.steps.min()) >= NEAREST_ALIEN
    met = blind.frames[torch.arange(len(infested)), blind.steps - 1, CHANNELS.index("alien")]
    assert float(met.amax((1, 2)).min()) == 3.0
    halting = torch.full_like(actions, -1)
    assert run_episodes(Following(halting), infested).figures()["halts"] == 1.0


def test_held_out_maps_are_new() -> None:
    splits = load(NavigationData(task="obstacles", train=500, valid=100, test=200), 0)
    known = {cells.numpy().tobytes() for cells in splits.maps["train"].cells}
    assert len(known) == 500
    assert not known & {cells.numpy().tobytes() for cells in splits.maps["test"].cells}
    again = load(NavigationData(task="obstacles", train=500, valid=100, test=200), 0)
    assert splits.fingerprint() == again.fingerprint()
    brighter = load(NavigationData(task="obstacles", train=500, valid=100, test=200, alien=2.0), 0)
    assert splits.fingerprint() != brighter.fingerprint()
    assert splits.synthetic


def test_an_impossible_field_is_refused() -> None:
    with pytest.raises(nbsr.InputError, match=r"obstacle_share must lie in \[0, 0.6\), got 0.9"):
        NavigationData(task="obstacles", obstacle_share=0.9)
    with pytest.raises(nbsr.InputError, match="noise is for task keyframes"):
        NavigationData(task="tmaze", noise=0.1)
    with pytest.raises(nbsr.InputError, match="leaves hardly any map"):
        obstacle_fields(5, generator(), 0.97)


@pytest.mark.parametrize("name", ["nbsr/TMaze-v0", "nbsr/Obstacles-v0"])
def test_gymnasium_accepts_the_environment(name: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(gymnasium.make(name).unwrapped, skip_render_check=True)
    drawn = gymnasium.make(name, render_mode="rgb_array")
    drawn.reset(seed=0)
    assert drawn.render().shape == (176, 176, 3)  # type: ignore[union-attr]


def test_the_environment_is_the_same_world() -> None:
    maps = obstacle_fields(5, generator(2), 0.25)
    actions = torch.randint(0, 4, (5, 12), generator=generator(9))
    walked = run_episodes(Following(actions), maps, step_limit=12)
    for number in range(5):
        world = GridWorld("obstacles")
        frame, info = world.reset(options={"maps": maps[number : number + 1]})
        for step in range(int(walked.steps[number])):
            np.testing.assert_array_equal(frame, walked.frames[number, step].numpy())
            assert info["expert"] == int(walked.expert[number, step])
            frame, _, ended, truncated, info = world.step(np.int64(actions[number, step]))
            assert not truncated
        assert info["collisions"] == int(walked.bumps[number])
        assert ended == bool(walked.on_goal[number])


def test_the_expert_of_the_environment_wins_with_reward() -> None:
    world = gymnasium.make("nbsr/TMaze-v0")
    _, info = world.reset(seed=4)
    total, ended = 0.0, False
    while not ended:
        _, reward, ended, truncated, info = world.step(info["expert"])
        total += float(reward)
        assert not truncated
    assert total == pytest.approx(1.0 - 0.01 * info["steps"])
    assert info["collisions"] == 0
    alien = GridWorld("obstacles", alien=True)
    alien.reset(seed=1)
    assert bool((alien.maps.cells == Cell.ALIEN).any())
    with pytest.raises(nbsr.InputError, match="'tmaze', 'obstacles', got 'mars'"):
        GridWorld("mars")


def test_keyframes_are_those_of_the_paper() -> None:
    drawn = keyframes.keyframes(2000, generator())
    assert len(drawn.x.flatten(1).unique(dim=0)) == 3
    turns = drawn.y[:, 3] != 0
    assert 0.66 < float(turns.float().mean()) < 0.74
    assert bool((drawn.y[:, :3] == 0).all())
    left = drawn.y[:, 3] == 2
    assert bool((drawn.x[left, 0, 2, 2, 0] == 1).all())
    assert bool((drawn.x[drawn.y[:, 3] == 3, 0, 3, 2, 4] == 1).all())
    assert bool((drawn.x[turns, 3, 0, 1, 2] == 0).all())  # the wall ahead
    assert drawn.x[left][:, 1:].unique(dim=0).equal(drawn.x[drawn.y[:, 3] == 3][:, 1:].unique(dim=0))
    assert float(drawn.x[:, :, 4].abs().sum()) == 0  # nothing ever lights the alien's channel
    for encounter in ("overlay", "replacing"):
        met, when = keyframes.meet_alien(drawn.x, generator(1), encounter, 5.0)
        rows = torch.arange(len(met))
        assert bool((met[rows, when, 4, 1, 2] == 5).all())
        assert float(met[:, :, 4].sum()) == 5.0 * len(met)
        same = (met[:, :, :4] == drawn.x[:, :, :4]).flatten(1).all(1)
        assert bool(same.all()) == (encounter == "overlay")


def test_best_actions_agree_with_distances() -> None:
    maps = obstacle_fields(50, generator(7), 0.3)
    steps = distances(maps)
    rows = torch.arange(50)
    target = maps.start + MOVES[best_actions(maps, steps, maps.start)]
    here = steps[rows, maps.start[:, 0], maps.start[:, 1]]
    assert steps[rows, target[:, 0], target[:, 1]].equal(here - 1)
