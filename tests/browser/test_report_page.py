"""The report in a real browser: it fetches nothing, complains about nothing, and answers to a hand."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from nbsr_platform.report import StudyResults, write_report
from nbsr_platform.study.study import Study
from nbsr_platform.trials.trial import grid
from pages import Browser
from selenium.webdriver import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.support.select import Select
from toys import make_trial, train

from benchmarks.report import made_up_result, made_up_search

MARKUP = "</script><script>window.pwned = 1</script><img src=x onerror=window.pwned=1>"
EDGE_TOLERANCE = 1.5  # pixels: fonts are measured in fractions


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Trained toys (they abstain, they are wrong, they are right) and a search, in one page."""
    study = Study.from_dict({"name": "toys", "domain": "toys:Toy", "seeds": 2, "models": {"nbsr": {}, "mlp": {}}})
    finished = []
    for trial in grid(study, "none"):
        made = make_trial(trial.kind, trial.seed, evaluation={"audits": 24, "max_vacuity": 0.3})
        result = train(made)[2]
        result.data["source"] = MARKUP
        finished.append((made, result))
    for _, result in finished:
        for audit in result.audits[:1]:
            audit["true"] = MARKUP
    toys = StudyResults(study, finished, wanted=4, command="nbsr run toys.yaml")
    path = tmp_path_factory.mktemp("report") / "index.html"
    searched = made_up_search(40, random.Random(0))
    more = {"objective.gamma": 0.01, "training.learning_rate": 0.00312, "experts.activation": "exp", "graph.depth": 3}
    proposals = [replace(each, parameters={**each.parameters, **more}) for each in searched.proposals]
    write_report(path, [toys, replace(searched, proposals=proposals), decomposed()], "toys & a search")
    return path.as_uri()


def decomposed() -> StudyResults:
    """Models of several depths and widths on training sets of their own, against a known posterior."""
    chance = random.Random(0)
    study = Study.load(Path(__file__).parents[2] / "studies" / "theory" / "bias_variance.yaml", ["seeds=4"])
    finished = []
    for trial in grid(study, "none"):
        result = made_up_result(trial, chance)
        likely = [chance.uniform(0.3, 0.7) for _ in range(20)]
        columns = {"truth": [0.5] * 20, "deep": likely, "fast": [0.9 * p for p in likely]}
        rows = [{name: [column[n], 1 - column[n]] for name, column in columns.items()} for n in range(20)]
        finished.append((trial, replace(result, tables={"posterior": rows}, audits=[])))
    return StudyResults(study, finished, wanted=len(finished))


def unfolded(browser: Browser, report: str, **options: Any) -> None:
    """The page with the plots of all its studies shown, as by hand: each is drawn when there is room for it."""
    browser.open(report, **options)
    for summary in browser.driver.find_elements(By.CSS_SELECTOR, "details.more > summary"):
        summary.click()
    browser.run("return new Promise(done => requestAnimationFrame(() => requestAnimationFrame(() => done())))")


@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [1280, 400])
def test_it_opens_clean_and_fits(browser: Browser, report: str, width: int, dark: bool) -> None:
    unfolded(browser, report, width=width, dark=dark)
    figures = browser.run(
        "return [...document.querySelectorAll('figure')].map(f => f.querySelectorAll('.plot > *').length)"
    )
    assert len(figures) == 22
    assert all(figures), "every plot is drawn"
    assert browser.complaints() == []
    asked = [address for address in browser.requests() if not address.startswith("data:")]
    assert asked == [report], "one file and nothing else"
    assert browser.run("return document.documentElement.scrollWidth") <= width, "nothing sticks out"
    assert browser.run("return window.pwned") is None
    theme = browser.run("return getComputedStyle(document.body).backgroundColor")
    assert (theme == "rgb(255, 255, 255)") is not dark


@pytest.mark.parametrize("width", [1280, 400])
def test_labels_are_neither_cut_off_nor_on_top_of_each_other(browser: Browser, report: str, width: int) -> None:
    unfolded(browser, report, width=width)
    cut_off = browser.run(
        """
        const out = [];
        for (const root of document.querySelectorAll('.panel svg[role=img]')) {
            const box = root.getBoundingClientRect();
            for (const text of root.querySelectorAll('text')) {
                const t = text.getBoundingClientRect();
                if (t.left < box.left - arguments[0] || t.right > box.right + arguments[0] || t.bottom > box.bottom + 3)
                    out.push(text.textContent);
            }
        }
        return out;
        """,
        EDGE_TOLERANCE,
    )
    assert cut_off == []
    overlapping = browser.run(
        """
        const out = [];
        for (const root of document.querySelectorAll('.panel svg[role=img]')) {
            const boxes = [...root.querySelectorAll('text')].map(t => [t.textContent, t.getBoundingClientRect()]);
            for (const [i, [a, p]] of boxes.entries()) for (const [b, q] of boxes.slice(i + 1)) {
                const x = Math.min(p.right, q.right) - Math.max(p.left, q.left);
                const y = Math.min(p.bottom, q.bottom) - Math.max(p.top, q.top);
                if (x > arguments[0] && y > 4) out.push(a + ' | ' + b);
            }
        }
        return out;
        """,
        EDGE_TOLERANCE,
    )
    assert overlapping == []


def test_hovering_over_a_point_names_trial_and_threshold(browser: Browser, report: str) -> None:
    unfolded(browser, report)
    plot = browser.driver.find_element(By.CSS_SELECTOR, "figure[data-kind=frontier] svg[role=img]")
    point = plot.find_elements(By.CSS_SELECTOR, "circle[r='2.6']")[0]
    ActionChains(browser.driver).scroll_to_element(plot).move_to_element(point).perform()
    tip = browser.driver.find_element(By.ID, "tip")
    assert tip.is_displayed()
    assert tip.text.startswith("nbsr seed ")
    assert "η = " in tip.text
    assert "ECE" in tip.text
    ActionChains(browser.driver).move_to_element(browser.driver.find_element(By.TAG_NAME, "h1")).perform()
    assert not tip.is_displayed()


def test_the_pareto_set_shows_every_parameter_without_scrolling(browser: Browser, report: str) -> None:
    unfolded(browser, report)
    hidden = "const w = document.querySelector('td.settings').closest('.wide'); return w.scrollWidth - w.clientWidth"
    assert browser.run(hidden) <= 0


def test_axis_and_legend_can_be_switched(browser: Browser, report: str) -> None:
    unfolded(browser, report)
    figure = browser.driver.find_element(By.CSS_SELECTOR, "figure[data-kind=frontier]")
    said = figure.find_element(By.TAG_NAME, "figcaption").text
    assert "otherwise dashed levels" in said, "the baseline has no depth: no cross is drawn for it"
    assert "mlp (mean, no mean depth)" in [button.text for button in figure.find_elements(By.TAG_NAME, "button")]
    Select(figure.find_element(By.TAG_NAME, "select")).select_by_visible_text("ECE")
    assert "ECE" in [text.text for text in figure.find_elements(By.TAG_NAME, "text")]
    before = len(figure.find_elements(By.CSS_SELECTOR, "svg[role=img] path, svg[role=img] circle"))
    figure.find_element(By.CSS_SELECTOR, ".legend button").click()
    after = len(figure.find_elements(By.CSS_SELECTOR, "svg[role=img] path, svg[role=img] circle"))
    assert after < before


def test_bias_and_variance_can_be_drawn_against_any_option(browser: Browser, report: str) -> None:
    unfolded(browser, report)
    figure = browser.driver.find_element(By.CSS_SELECTOR, "figure[data-kind=decomposition]")
    assert [title.text for title in figure.find_elements(By.TAG_NAME, "h4")] == [
        f"{term} (nats)" for term in ("bias", "variance", "risk")
    ]
    for option, other in (("graph.depth", "graph.width"), ("graph.width", "graph.depth")):
        Select(figure.find_element(By.CSS_SELECTOR, "select[aria-label=against]")).select_by_visible_text(option)
        assert option in [text.text for text in figure.find_elements(By.TAG_NAME, "text")]
        assert f"{other} 2" in [button.text for button in figure.find_elements(By.CSS_SELECTOR, ".legend button")]
    Select(figure.find_element(By.CSS_SELECTOR, "select[aria-label=walks]")).select_by_visible_text("fast")


def test_a_walk_lights_up_on_the_graph(browser: Browser, report: str) -> None:
    unfolded(browser, report)
    figure = browser.driver.find_element(By.CSS_SELECTOR, "figure[data-kind=walks]")
    shown = Select(figure.find_element(By.CSS_SELECTOR, "select[aria-label=show]"))
    kinds = [option.text for option in shown.options]
    assert kinds[0] == "all"
    assert {"right", "wrong"} <= set(kinds)
    samples = Select(figure.find_element(By.CSS_SELECTOR, "select[aria-label=sample]"))
    assert len(samples.options) == 24
    for kind in kinds[1:]:
        Select(figure.find_element(By.CSS_SELECTOR, "select[aria-label=show]")).select_by_visible_text(kind)
        assert figure.find_element(By.CSS_SELECTOR, ".verdict").text == kind
        nodes = [head.text.partition(". ")[2] for head in figure.find_elements(By.CSS_SELECTOR, ".step h4")]
        graph = figure.find_element(By.CSS_SELECTOR, "svg[role=img]")
        assert graph.get_attribute("aria-label") == f"walk: {', '.join(nodes)}"
        assert len(graph.find_elements(By.CSS_SELECTOR, "path.lit")) == len(nodes) == 2
        assert figure.find_elements(By.CSS_SELECTOR, ".bars i")
        heads = [head.text for head in figure.find_elements(By.CSS_SELECTOR, ".ledger thead th")]
        assert heads[1:4] == ["before", "+ evidence", "= α"]
        assert heads[5].startswith("calibrated, T = ")
        for row in figure.find_elements(By.CSS_SELECTOR, ".ledger tbody tr"):
            before, added, alpha = (float(cell.text) for cell in row.find_elements(By.TAG_NAME, "td")[:3])
            assert before + added == pytest.approx(alpha, abs=0.02)
    Select(figure.find_element(By.CSS_SELECTOR, "select[aria-label=show]")).select_by_visible_text("all")
    first = figure.find_element(By.CSS_SELECTOR, ".walk strong").text
    figure.find_elements(By.CSS_SELECTOR, ".controls button")[1].click()
    assert figure.find_element(By.CSS_SELECTOR, ".walk strong").text != first
    assert browser.run("return document.activeElement.textContent") == "next ▶", "the hand stays where it was"
    assert browser.complaints() == []


def test_the_theme_can_be_changed_by_hand(browser: Browser, report: str) -> None:
    unfolded(browser, report, dark=True)
    browser.driver.find_element(By.ID, "theme").click()
    assert browser.run("return getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"


def test_it_is_drawn_anew_when_the_window_changes(browser: Browser, report: str) -> None:
    unfolded(browser, report)
    width = "return document.querySelector('figure[data-kind=frontier] svg[role=img]').getBoundingClientRect().width"
    wide = browser.run(width)
    browser.resize(400, 800)
    browser.run("return new Promise(done => setTimeout(done, 300))")
    assert browser.run(width) < min(wide, 400)


def test_a_picture_is_not_blank(browser: Browser, report: str, tmp_path: Path) -> None:
    from PIL import Image

    unfolded(browser, report)
    with Image.open(browser.picture(tmp_path / "report.png", full=True)) as picture:
        assert picture.size[0] == 1280
        assert len(picture.convert("RGB").resize((160, 1200)).getcolors(1 << 20)) > 100
