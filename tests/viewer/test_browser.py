"""The viewer in a real Chromium: pages, live updates, keyboard, themes, hostile texts, and no request to another host."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from contextlib import contextmanager

import pytest

import ckpt_observe

pytestmark = pytest.mark.browser
sync_api = pytest.importorskip("playwright.sync_api")
CHROMIUM = shutil.which("chromium") or "/usr/bin/chromium"
HOSTILE = "<img src=x onerror=alert(1)>\"'><script>alert(2)</script>"
SAVE_FOREVER = """
import sys, threading, ckpt_observe
ckpt_observe.observe(exporters="local")
with ckpt_observe.task("train", id="killed-run"), ckpt_observe.checkpoint("save", id="cut-short", step=5) as save, save.phase("write"):
    print("saving", flush=True)
    threading.Event().wait()
"""


@pytest.fixture
def environment(tmp_path):
    return {**os.environ, "CKPT_OBSERVE_DIR": str(tmp_path / "state"), "CKPT_OBSERVE_PAGES_DIR": str(tmp_path / "pages")}


@pytest.fixture
def address(environment):
    """The address that `ckpt-observe ui` prints, while it runs."""
    with running_viewer(environment, "ui", "--no-browser") as address:
        yield address


@contextmanager
def running_viewer(environment, *arguments):
    """Run a command that ends in the viewer; the address that it prints."""
    command = [sys.executable, "-m", "ckpt_observe", *arguments]
    with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield next(match[0] for line in process.stdout if (match := re.search(r"http://\S+", line)))
        finally:
            process.terminate()


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
        )
        yield browser
        browser.close()


@pytest.fixture
def open_page(browser, address):
    """A function that opens the viewer. Afterwards, everything that went wrong in the page is an error of the test."""
    contexts, problems = [], []

    def open_page(path="", **options):
        context = browser.new_context(viewport={"width": 1400, "height": 1000}, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: problems.append(message.text) if message.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: problems.append(str(error)))
        page.on("dialog", lambda dialog: (problems.append(f"dialog {dialog.message}"), dialog.dismiss()))
        page.on("request", lambda request: None if "//127.0.0.1:" in request.url else problems.append(f"request to {request.url}"))
        page.goto(f"{address}{path}")
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert problems == []


def expect(locator):
    return sync_api.expect(locator)


def test_token_leaves_the_address(open_page):
    """The token is not in the address of the browser, and an empty directory says what to do."""
    page = open_page()
    expect(page.get_by_role("heading", name="Nothing recorded yet")).to_be_visible()
    assert "token" not in page.url


def test_demo(open_page, environment):
    """The traces of the demo: the overview names the failures, and the waterfall the interrupted phase."""
    subprocess.run([sys.executable, "-m", "ckpt_observe", "demo"], env=environment, check=True, capture_output=True)
    page = open_page()
    expect(page.get_by_text("ProcessDied: process")).to_be_visible()
    expect(page.get_by_text("Leave the value out of the state")).to_be_visible()
    page.get_by_role("link", name="checkpoint.save").first.click()
    expect(page.get_by_role("heading", name="task demo-agent")).to_be_visible()
    expect(page.get_by_role("row", name="interrupted in write").first).to_be_visible()
    expect(page.locator(".gap").first).to_be_attached()  # the start of the process that is killed
    page.get_by_role("button", name="Fold gaps").click()
    expect(page.locator(".gap")).to_have_count(0)
    page.get_by_role("row", name="checkpoint.restore").click()
    page.get_by_role("link", name="Go to the save that it came from").click()
    expect(page.locator("[aria-selected=true]")).to_contain_text("checkpoint.save")


def test_demo_ends_in_the_viewer(browser, environment):
    """`ckpt-observe demo --ui` shows its trace in the browser."""
    with running_viewer({**environment, "BROWSER": "true"}, "demo", "--ui") as address:
        page = browser.new_page()
        page.goto(address)
        expect(page.get_by_text("demo-agent (run-1)").first).to_be_visible()
        page.close()


def test_killed_save_turns_interrupted_without_a_reload(open_page, environment):
    """A save appears while it runs, with its phase. When its process is killed, it becomes interrupted on the same page."""
    page = open_page()
    with running_save(environment) as process:
        row = page.get_by_role("row", name="checkpoint.save").first
        expect(row).to_contain_text("running in write", timeout=30_000)
        page.evaluate("window.isSamePage = true")
        row.get_by_role("link").first.click()
        bar = page.locator("[aria-selected=true] .bar")
        expect(bar).to_have_attribute("data-outcome", "running", timeout=30_000)
        process.kill()
        expect(bar).to_have_attribute("data-outcome", "interrupted", timeout=30_000)
    assert page.evaluate("window.isSamePage") is True


@contextmanager
def running_save(environment):
    with subprocess.Popen([sys.executable, "-c", SAVE_FOREVER], env=environment, stdout=subprocess.PIPE) as process:
        try:
            assert process.stdout.readline() == b"saving\n"
            yield process
        finally:
            process.kill()


def test_paused_page_does_not_change(open_page, record):
    """While paused, nothing changes; afterwards the page is up to date."""
    page = open_page("#/history")
    expect(page.get_by_text("● live")).to_be_visible()
    page.get_by_role("button", name="Pause").click()
    expect(page.get_by_text("paused")).to_be_visible()
    record(lambda _: save("while-paused"))
    assert page.get_by_text("while-paused").count() == 0
    page.get_by_role("button", name="Resume").click()
    expect(page.get_by_text("while-paused").first).to_be_visible(timeout=30_000)


def save(id, **options):
    with ckpt_observe.checkpoint("save", id=id, **options):
        pass


def test_filters_and_search(open_page, training):
    """Facets and search narrow the history, and the address is a link to the same view."""
    page = open_page("#/history")
    rows = page.locator("tbody tr")
    expect(rows).to_have_count(4)
    page.get_by_role("link", name="error", exact=True).click()
    expect(rows).to_have_count(1)
    assert "outcome=error" in page.url
    page.get_by_role("link", name="Remove all filters").click()
    expect(rows).to_have_count(4)
    page.get_by_label("Search id, name or error").fill("SerializationError")
    expect(rows).to_have_count(1)
    page.reload()
    expect(rows).to_have_count(1)


def test_checkpoint_page(open_page, training):
    """A checkpoint shows sizes as a treemap with a table, growth, and the difference to another save."""
    page = open_page("#/history?outcome=ok")
    page.locator("tbody tr").first.get_by_role("link").last.click()
    treemap = page.locator("svg.treemap")
    expect(treemap).to_have_attribute("aria-label", re.compile("weights: 3.0 kB"))
    expect(page.locator("svg.growth circle")).to_have_count(3)
    change = page.get_by_role("region", name=re.compile("compared with step 2")).get_by_role("row", name="weights")
    expect(change).to_contain_text("grew by 1.0 kB")
    page.get_by_label("Compared with", exact=True).select_option("step 1")
    expect(page.get_by_role("region", name=re.compile("compared with step 1"))).to_contain_text("grew by 2.0 kB")


def test_ranks_side_by_side(open_page, record):
    """The ranks of a distributed save are in one table, with the time of each phase."""

    def work(_watch):
        with ckpt_observe.task("train", id="run-1"):
            for rank in (0, 1):
                with ckpt_observe.checkpoint("save", step=1, attributes={"checkpoint.rank": rank}) as operation, operation.phase("write"):
                    pass

    record(work)
    page = open_page("#/history")
    page.locator("tbody tr").first.get_by_role("link").first.click()
    ranks = page.get_by_role("region", name="Ranks side by side")
    expect(ranks.locator("tbody tr")).to_have_count(2)
    expect(ranks.get_by_role("columnheader", name="write")).to_be_visible()


def test_keyboard(open_page, training):
    """The waterfall is usable with the keyboard: next error, movement, details, zoom."""
    page = open_page("#/history?outcome=ok")
    page.locator("tbody tr").first.get_by_role("link").first.click()
    page.locator("#waterfall").focus()
    selected = page.locator("[aria-selected=true]")
    page.keyboard.press("e")
    expect(selected).to_contain_text("failed in serialize")
    page.keyboard.press("ArrowUp")
    expect(selected).not_to_contain_text("failed in serialize")
    width = page.locator("[aria-selected=true] .bar").evaluate("bar => bar.getBoundingClientRect().width")
    for _ in range(3):
        page.keyboard.press("+")
    assert page.locator("[aria-selected=true] .bar").evaluate("bar => bar.getBoundingClientRect().width") >= width
    page.keyboard.press("Enter")
    expect(page.locator("#details")).to_be_focused()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_accessibility(open_page, training, scheme):
    """axe finds nothing serious on any page, in both themes."""
    axe = pytest.importorskip("axe_playwright_python.sync_playwright").Axe()
    page = open_page(color_scheme=scheme)
    expect(page.get_by_role("heading", name="Overview")).to_be_visible()
    links = {name: f"#/{name}" for name in ("overview", "history", "timeline", "libraries")}
    links["trace"] = page.locator("tbody a[href*=trace]").first.get_attribute("href")
    links["checkpoint"] = page.locator("tbody a[href*=checkpoint]").first.get_attribute("href")
    for name, link in links.items():
        page.evaluate("link => { location.hash = link }", link)
        expect(page.locator("main")).to_have_attribute("data-page", name)
        serious = [violation for violation in axe.run(page).response["violations"] if violation["impact"] in ("serious", "critical")]
        assert [(violation["id"], violation["nodes"][0]["html"]) for violation in serious] == [], name


def test_theme_button(open_page):
    """The theme can be chosen, and is kept."""
    page = open_page(color_scheme="light")
    page.get_by_role("button", name="Theme: auto").click()
    page.get_by_role("button", name="Theme: light").click()
    page.reload()
    expect(page.get_by_role("button", name="Theme: dark")).to_be_visible()
    assert page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(18, 22, 27)"


def test_hostile_texts_are_shown_as_text(open_page, record):
    """Whatever a program can set is shown as text: ids, names, keys, messages, paths. A dialog or a violated policy fails the test."""

    def work(_watch):
        attributes = {
            "checkpoint.location": HOSTILE,
            HOSTILE: HOSTILE,
            "checkpoint.state.key_names": [HOSTILE],
            "checkpoint.state.key_sizes": [10],
        }
        with ckpt_observe.task(HOSTILE, id=HOSTILE, user=HOSTILE, session=HOSTILE), pytest.raises(ValueError):
            save(HOSTILE, attributes=attributes)
            with ckpt_observe.checkpoint("save", id=HOSTILE, attributes=attributes) as operation, operation.phase("write"):
                raise ValueError(HOSTILE)

    record(work)
    page = open_page()
    expect(page.get_by_text(f"ValueError: {HOSTILE}").first).to_be_visible()
    for name in ("History", "Timeline", "Overview"):
        show(page, name)
        expect(page.locator("main").get_by_text(HOSTILE[:25]).first).to_be_attached()  # the timeline shortens names
    for selector in ("tbody a[href*=trace]", "tbody a[href*=checkpoint]"):
        show(page, "History")
        page.locator(selector).first.click()
        expect(page.locator("main h1")).to_contain_text(HOSTILE)
    assert page.locator("main img, main script").count() == 0


@pytest.mark.parametrize("path", ["#/constructor", "#/%"])
def test_odd_address(open_page, path):
    """An address that no page has shows the overview."""
    page = open_page(path)
    expect(page.locator("main h1")).to_be_visible()


def show(page, name):
    """Go to a page of the navigation, and wait for it."""
    page.get_by_role("link", name=name, exact=True).click()
    expect(page.locator("main h1")).to_have_text(name)


def test_link_without_a_session(browser, address):
    """A deep link that is opened without a session explains how to get one."""
    page = browser.new_page()
    page.goto(f"{address.partition('?')[0]}#/history")
    expect(page.get_by_text("This page needs a session")).to_be_visible()
    page.close()
