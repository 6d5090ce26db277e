"""The page and its charts: self-contained, escaped, the same for the same runs."""

import re
from html.parser import HTMLParser
from xml.etree import ElementTree

import matplotlib as mpl
import pytest

from fedshift.report import Report, plots
from fedshift.report.read import record
from tests.report import made_up

VOID = {"meta", "link", "br", "hr", "img", "input"}
NASTY = "<b>$a_$ & _x"


@pytest.fixture(scope="module")
def pages():
    runs = [made_up.run(m, s, personal=m == "local") for m in ("fedavg", "local") for s in (0, 1)]
    return Report([runs[0]]).html("best-val"), Report(runs).html("top5-test")


def test_nothing_comes_from_elsewhere(pages):
    for page in pages:
        assert "<script" not in page and "@import" not in page and "<link" not in page
        for address in re.findall(r'(?:src|href)="([^"]*)"', page):
            assert address.startswith("#")
        assert not re.findall(r"url\((?!#)", page)


def test_tags_are_balanced_and_ids_unique(pages):
    class Check(HTMLParser):
        def __init__(self):
            super().__init__()
            self.open, self.ids = [], []

        def handle_starttag(self, tag, attrs):
            self.ids += [v for k, v in attrs if k == "id"]
            if tag not in VOID:
                self.open.append(tag)

        def handle_startendtag(self, tag, attrs):
            self.ids += [v for k, v in attrs if k == "id"]

        def handle_endtag(self, tag):
            assert self.open.pop() == tag

    for page in pages:
        check = Check()
        check.feed(page)
        assert not check.open and len(check.ids) == len(set(check.ids))
        assert set(re.findall(r'(?:url\(|href=")#([^)"]+)', page)) <= set(check.ids)


def test_the_page_says_rule_protocol_and_versions(pages):
    one, many = pages
    assert "Selection: <b>best-val</b>" in one and "optimistic" not in one
    assert "Such scores are optimistic" in many and "2 seeds, mean ± standard deviation" in many
    for text in ("<dt>lr</dt><dd>0.01</dd>", "<dt>torch</dt><dd>2.13.0</dd>", "digits-cnn"):
        assert text in one and text in many
    assert many.count("<summary>") == 4 and "Score against traffic" in many
    assert "Training loss" in one and "personal models" in many


def test_text_of_users_is_escaped():
    lines = [
        {"round": 1, "client": NASTY, "test": 0.5},
        {"round": 1, "client": None, "loss": {NASTY: 1.0, "ce": 2.0}},
        {"warnings": [NASTY]},
    ]
    config = {"data": NASTY, "model": NASTY, "protocol": {NASTY: NASTY}}
    runs = [record({**config, "method": m}, lines) for m in (NASTY, "_b")]
    for page in (Report(runs).html(), Report(runs[:1]).html()):
        assert "<b>$" not in page and page.count("&lt;b&gt;$a_$ &amp; _x") > 5


def test_equal_runs_give_equal_pages_and_no_date(pages):
    assert Report([made_up.run()]).html("best-val") == pages[0]
    assert not re.search(r"\b20\d\d-\d\d-\d\d", pages[0])


def test_charts_are_valid_take_the_colour_of_the_page_and_leave_no_settings():
    before = dict(mpl.rcParams)
    runs = [made_up.run("fedavg", s, unseen=True) for s in (0, 1)]
    for svg in (plots.curves(runs), plots.client_dots(runs), plots.losses(runs[0])):
        ElementTree.fromstring(svg)
        assert "currentColor" in svg and plots._INK not in svg
    assert dict(mpl.rcParams) == before


def test_a_method_has_one_colour_in_every_chart():
    runs = [made_up.run("fedavg"), made_up.run("fedbn", personal=True)]
    colour = plots.PALETTE[1].lower()
    for svg in (plots.curves(runs), plots.curves(runs, view="personal"), plots.traffic(runs)):
        assert colour in svg.lower()
    assert plots.PALETTE[0].lower() not in plots.curves(runs, view="personal").lower()


def test_many_methods_one_round_and_nothing_measured_can_be_drawn():
    runs = [made_up.run(f"method {k}", rounds=1) for k in range(16)]
    assert "method 15" in plots.curves(runs)
    assert "not measured" in plots.curves([record({}, [])], "val")


def test_a_band_shows_the_spread_over_seeds_only_where_there_are_seeds():
    one, two = ([made_up.run(seed=s) for s in range(n)] for n in (1, 2))
    assert "opacity: 0.18" not in plots.curves(one) and "opacity: 0.18" in plots.curves(two)
