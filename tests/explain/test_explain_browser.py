"""The page of `tfm explain` in a real browser: every control, by mouse and by keyboard."""

import dataclasses
import pathlib
import time
import xml.etree.ElementTree as ET

import numpy as np
import pytest

from tests.explain.explained import loaded
from tfm.explain.explain import Next, explain
from tfm.explain.passage import Continuation

pytest.importorskip("selenium.webdriver", reason="needs the extra `browser`: selenium")
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select

from tests.explain import in_browser
from tests.explain.in_browser import (
    bars,
    cell,
    click,
    drawn,
    every,
    leave,
    one,
    opened,
    pixels,
    press,
    saved,
    slide,
    state,
    to_bars,
    written,
)

pytestmark = pytest.mark.ci
if not (in_browser.CHROMIUM and in_browser.DRIVER):
    pytest.skip("needs chromium and chromedriver on the PATH", allow_module_level=True)

EVIL = "<script>window.ran = 1</script>"
TEXT = "3 7 5 3 9 4"
# softmax((3, 1, −3) / T)
BARS = {1: (0.8789, 0.1189, 0.0022), 0.5: (0.9820, 0.0180, 0.0000), 2: (0.7054, 0.2595, 0.0351)}


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    driver = in_browser.started(tmp_path_factory.mktemp("browser"))
    yield driver
    driver.quit()


@pytest.fixture(autouse=True)
def nothing_is_wrong(browser):
    """No error is in the console, and no text was run as a script."""
    browser.get_log("browser")
    yield
    assert browser.get_log("browser") == []
    assert browser.execute_script("return window.ran === undefined")


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")

    def turned(params):
        out = params["decoder"]["layers"]["attention"]["query"]
        out["kernel"] = -out["kernel"]
        return params

    options = {"position": {"scheme": "learned"}}
    return [
        explain(loaded(folder, "decoder", change, name, **options), TEXT)
        for name, change in (("one", None), ("two", turned))
    ]


@pytest.fixture(scope="module")
def small(tmp_path_factory, runs):
    """One run, whose first token is a script, and whose next token is one of three."""
    one = dataclasses.replace(
        runs[0],
        text=f"{EVIL} {TEXT}",
        sequences={"tokens": [(EVIL, 3), *runs[0].sequences["tokens"][1:]]},
        next=Next(
            rows=[5], start=5, follows=True, written="tokens",
            logits=np.array([[1.0, 3.0, -3.0]], np.float32),
            names={0: "b", 1: "a", 2: EVIL, 3: "d"}, classes=False,
            continuations=[Continuation([1, 3], [0.88, 0.5])],
        ),
    )  # fmt: skip
    return written(tmp_path_factory.mktemp("page"), [one])


@pytest.fixture(scope="module")
def both(tmp_path_factory, runs):
    return written(tmp_path_factory.mktemp("both"), runs)


def test_text_is_shown_and_never_run(browser, small):
    opened(browser, small)
    assert EVIL in one(browser, "#text").text
    assert one(browser, ".piece b").text == EVIL.replace(" ", "·")
    assert len(every(browser, "script")) == 2
    opened(browser, small, "view=attention")
    assert one(browser, "#strip-rows .token").text == EVIL.replace(" ", "·")


def test_the_sliders_change_the_bars(browser, small):
    to_bars(browser, small)
    assert bars(browser) == list(BARS[1])
    assert [bar.text for bar in every(browser, ".bar b")] == ["a", "b", EVIL.replace(" ", "·")]
    for temperature in (0.5, 2):
        slide(browser, "temperature", temperature)
        assert bars(browser) == list(BARS[temperature])
    slide(browser, "topk", 2)
    a, b, _ = BARS[2]
    np.testing.assert_allclose(bars(browser), [a / (a + b), b / (a + b), 0], atol=1e-4)
    assert len(every(browser, ".bar.cut")) == 1
    slide(browser, "topk", 0)
    slide(browser, "topp", 0.7)  # the first alone reaches it
    assert bars(browser) == [1, 0, 0]
    slide(browser, "topp", 0.75)
    np.testing.assert_allclose(bars(browser), [a / (a + b), b / (a + b), 0], atol=1e-4)
    click(browser, one(browser, "#reset-bars"))
    assert bars(browser) == list(BARS[1])


def test_the_next_token_can_be_picked(browser, small):
    to_bars(browser, small)
    click(browser, one(browser, ".bar"))
    assert state(browser, "pick") == 1
    assert [chip.text.split() for chip in every(browser, ".goes-on .token")] == [
        ["a", "0.88"],
        ["d", "0.50"],
    ]
    click(browser, every(browser, ".bar")[1])
    assert "knows how the 1 most probable" in one(browser, ".goes-on").text
    click(browser, every(browser, ".bar")[1])
    assert state(browser, "pick") is None
    assert not every(browser, ".goes-on .token")


def test_a_token_is_pinned_and_unpinned(browser, small, runs):
    opened(browser, small, "view=attention")
    before = pixels(browser, one(browser, "#map"))
    token = every(browser, "#strip-rows .token")[3]
    click(browser, token)
    assert state(browser, "row") == 3
    assert "pinned" in token.get_attribute("class")
    assert "row=3" in browser.current_url
    ranking = one(browser, ".two .card:nth-child(2)").text.split("\n")
    weights_NHS = runs[0].looks[0].site.arrays["weights_NHTS"][:, :, 3]
    n, h, _s = np.unravel_index(weights_NHS.argmax(), weights_NHS.shape)
    assert ranking[0] == "What heads look at most, from 3"
    assert ranking[1] == f"layer {n}, head {h}"
    assert any(line.endswith(f"{weights_NHS.max():.3f}") for line in ranking[2:5])
    assert pixels(browser, one(browser, "#map")) != before
    click(browser, token)
    assert state(browser, "row") is None
    click(browser, token)
    press(browser, Keys.ESCAPE)
    assert state(browser, "row") is None
    assert "row" not in browser.current_url
    assert not every(browser, ".pinned")


def test_hover_previews_and_a_click_pins(browser, small, runs):
    opened(browser, small, "view=attention&layer=1&head=1")
    canvas = one(browser, "#map")
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", canvas)
    cell(browser, canvas, 4, 2).perform()
    drawn(browser)
    weight = runs[0].looks[0].site.arrays["weights_NHTS"][1, 1, 4, 2]
    tip = one(browser, "#tip")
    assert tip.text == f"9 → 5\nweights {weight:.3f}"
    best = runs[0].looks[0].site.arrays["weights_NHTS"][1, 1, 4].max()
    assert f"{best:.3f}" in one(browser, ".center .readout").text
    assert state(browser, "row") is None
    cell(browser, canvas, 4, 2).click().perform()
    drawn(browser)
    assert (state(browser, "row"), state(browser, "col")) == (4, 2)
    ranking = one(browser, ".two .card:nth-child(2)").text
    assert "Heads that look from 9 to 5" in ranking
    every_head = runs[0].looks[0].site.arrays["weights_NHTS"][:, :, 4, 2]
    n, h = np.unravel_index(every_head.argmax(), every_head.shape)
    assert f"layer {n}, head {h}" in ranking.split("\n")[1]
    cell(browser, canvas, 1, 3).perform()
    assert one(browser, "#tip").text.endswith("hidden by the mask")
    leave(browser)
    assert not tip.is_displayed()
    click(browser, one(browser, "#clear"))
    assert state(browser, "row") is None
    lines = one(browser, "#lines")
    before = pixels(browser, lines)
    ActionChains(browser).move_to_element_with_offset(lines, -lines.size["width"] // 3, 0).perform()
    drawn(browser)
    assert pixels(browser, lines) != before
    ActionChains(browser).click().perform()
    drawn(browser)
    assert state(browser, "row") is not None


def test_every_map_and_every_head_can_be_chosen(browser, small, runs):
    opened(browser, small, "view=attention")
    seen = set()
    names = [button.get_attribute("data-value") for button in every(browser, "#choose-map button")]
    assert names == ["weights", "value", "logits", "mask", "content_content", "content_position",
                     "position_content", "position_position"]  # fmt: skip
    for name in names:
        click(browser, one(browser, f"#choose-map [data-value={name}]"))
        assert state(browser, "map") == name
        pressed = one(browser, f"#choose-map [data-value={name}]").get_attribute("aria-pressed")
        assert pressed == "true"
        seen.add(pixels(browser, one(browser, "#map")))
    assert len(seen) == len(names)
    click(browser, one(browser, "#choose-map [data-value=weights]"))
    for layer in range(2):
        for head in range(2):
            button = one(browser, f"[data-layer='{layer}'][data-head='{head}']")
            click(browser, button)
            assert button.get_attribute("aria-pressed") == "true"
            found = runs[0].looks[0].heads[layer][head]
            assert one(browser, "#tag").text == found["tag"]
            table = one(browser, ".measures").text
            assert f"{found['entropy']:.2f} bits" in table
            assert f"{abs(found['silenced']):.4f}" in table


def test_a_link_reopens_the_view(browser, small):
    opened(browser, small, "view=attention")
    click(browser, one(browser, "[data-layer='1'][data-head='1']"))
    click(browser, one(browser, "#choose-map [data-value=logits]"))
    click(browser, every(browser, "#strip-rows .token")[4])
    leave(browser)
    link, shown = browser.current_url, pixels(browser, one(browser, "#map"))
    opened(browser, link.split("#")[0], link.split("#")[1])
    assert [state(browser, name) for name in ("view", "layer", "head", "map", "row")] == [
        "attention", 1, 1, "logits", 4,
    ]  # fmt: skip
    leave(browser)
    assert pixels(browser, one(browser, "#map")) == shown
    browser.execute_script("location.hash = 'view=attention&layer=0&map=mask'")
    drawn(browser)
    assert (state(browser, "layer"), state(browser, "map")) == (0, "mask")
    # What a link asks for that is not there is left out.
    opened(browser, small, "view=nothing&layer=99&map=<b>&row=-1&temperature=x&theme=blue")
    assert [state(browser, name) for name in ("view", "layer", "map", "row", "temperature")] == [
        "walk", 0, "weights", None, 1,
    ]  # fmt: skip


def test_all_by_keyboard(browser, small):
    opened(browser, small)
    press(browser, "2")
    assert state(browser, "view") == "attention"
    press(browser, "]")
    press(browser, ".")
    assert (state(browser, "layer"), state(browser, "head")) == (1, 1)
    press(browser, "[")
    press(browser, ",")
    assert (state(browser, "layer"), state(browser, "head")) == (0, 0)
    press(browser, "m")
    assert state(browser, "map") == "value"
    one(browser, "[data-layer='0'][data-head='0']").send_keys(Keys.ARROW_RIGHT)
    drawn(browser)
    assert state(browser, "head") == 1
    canvas = one(browser, "#map")
    for key in (Keys.ARROW_DOWN, Keys.ARROW_DOWN, Keys.ARROW_RIGHT):
        canvas.send_keys(key)
        drawn(browser)
    assert (state(browser, "row"), state(browser, "col")) == (1, 1)
    press(browser, Keys.ESCAPE)
    assert state(browser, "row") is None
    press(browser, "?")
    assert one(browser, "#help").is_displayed()
    press(browser, Keys.ESCAPE)
    assert not one(browser, "#help").is_displayed()
    press(browser, "1")
    assert state(browser, "view") == "walk"


def test_the_walk_follows_layer_head_and_token(browser, small, runs):
    opened(browser, small)
    q = runs[0].forward.sides["decoder"]["q_NTHK"]
    for layer, head, row in ((0, 0, 2), (1, 1, 4)):
        for name, value in (("layer", layer), ("head", head), ("token", row)):
            Select(one(browser, f"#choose-{name}")).select_by_value(str(value))
            drawn(browser)
        one_card = one(browser, "#stage-qkv")
        browser.execute_script("arguments[0].scrollIntoView()", one_card)
        time.sleep(0.1)
        drawn(browser)
        shown = one(browser, "#stage-qkv .values").text.strip("[]").replace("−", "-").split(", ")
        shown = [float(x) for x in shown]
        np.testing.assert_allclose(shown, q[layer, row, head], rtol=1e-3, atol=5e-4)
    titles = [card.text for card in every(browser, ".stage h2")]
    assert titles[0] == "Text → pieces → ids"
    assert titles[-1] == "What comes next"
    assert "q_NHTK = 2 × 2 × 6 × 4" in one(browser, "#stage-qkv .shape").text
    piece = every(browser, ".piece")[1]
    click(browser, piece)
    assert state(browser, "row") == 1
    click(browser, one(browser, "#stage-mask button"))
    assert (state(browser, "view"), state(browser, "map")) == ("attention", "mask")


@pytest.mark.parametrize("view", ["walk", "attention"])
def test_a_view_is_saved_as_svg_and_png(browser, small, view):
    opened(browser, small, f"view={view}")
    click(browser, one(browser, "#save-svg"))
    root = ET.parse(saved(browser, f"{view}.svg")).getroot()
    texts = [text.text for text in root.iter("{http://www.w3.org/2000/svg}text")]
    assert any(text.startswith("<script>") for text in texts)
    assert len(list(root.iter("{http://www.w3.org/2000/svg}image"))) >= 5
    assert not list(root.iter("{http://www.w3.org/2000/svg}script"))
    click(browser, one(browser, "#save-png"))
    content = saved(browser, f"{view}.png").read_bytes()
    assert content.startswith(b"\x89PNG")
    width, height = (int.from_bytes(content[at : at + 4]) for at in (16, 20))
    assert (width, height) == (2 * int(root.get("width")), 2 * int(root.get("height")))


def test_two_runs_and_their_difference(browser, both, runs):
    opened(browser, both, "view=attention&layer=1&head=0")
    canvases = [one(browser, selector) for selector in ("#map", "#map-1", "#map-2")]
    a, b = (run.looks[0].site.arrays["weights_NHTS"][1, 0, 3, 1] for run in runs)
    for canvas, wanted in zip(canvases, (a, b, b - a), strict=True):
        browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", canvas)
        cell(browser, canvas, 3, 1).perform()
        shown = one(browser, "#tip").text.split()[-1].replace("−", "-")
        np.testing.assert_allclose(float(shown), wanted, atol=1e-3)
    before = pixels(browser, one(browser, "#lines"))
    click(browser, one(browser, "#choose-run [data-value='1']"))
    assert state(browser, "run") == 1
    assert pixels(browser, one(browser, "#lines")) != before


def test_light_and_dark(browser, small):
    def media(value, wanted):
        """The background when the system asks for `value`, once the page is as `wanted`."""
        feature = [{"name": "prefers-color-scheme", "value": value}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": feature})
        for _ in range(100):
            drawn(browser)
            theme = browser.execute_script("return document.documentElement.dataset.theme")
            if theme == wanted:
                break
        return browser.execute_script("return getComputedStyle(document.body).backgroundColor")

    opened(browser, small, "view=attention")
    light, dark = media("light", "light"), media("dark", "dark")
    assert light != dark
    assert media("light", "light") == light
    button = one(browser, "#theme")
    for wanted in ("light", "dark", "auto"):
        click(browser, button)
        assert state(browser, "theme") == wanted
        assert wanted.replace("auto", "system") in button.text
        if wanted == "dark":
            assert media("light", "dark") == dark


@pytest.mark.parametrize("width", [380, 800, 1600])
@pytest.mark.parametrize("view", ["walk", "attention"])
def test_narrow_and_wide(browser, both, view, width):
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    try:
        opened(browser, both, f"view={view}")
        wide = browser.execute_script("return document.documentElement.scrollWidth")
        assert wide <= width
    finally:
        browser.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})


def test_gates_over_time(browser, tmp_path):
    run = loaded(tmp_path, "recurrent", cell="lstm")
    found = explain(run, TEXT)
    uri = written(tmp_path, [found])
    opened(browser, uri, "row=2")
    card = one(browser, "#stage-gates")
    browser.execute_script("arguments[0].scrollIntoView()", card)
    time.sleep(0.2)
    drawn(browser)
    shown = one(browser, "#stage-gates .values").text.strip("[]").split(", ")
    gate_TH = found.forward.sides["recurrent"]["gate_i_NTH"][0]
    np.testing.assert_allclose([float(x) for x in shown], gate_TH[2], rtol=1e-3, atol=5e-4)
    press(browser, "2")
    assert "no weights between tokens" in one(browser, "#view-attention").text


def test_the_sides_of_an_encoder_decoder(browser, tmp_path):
    run = loaded(tmp_path, "encoder_decoder", position={"scheme": "relative"})
    uri = written(tmp_path, [explain(run, TEXT, target="5 6 7")])
    opened(browser, uri, "view=attention")
    sites = every(browser, "#choose-site button")
    assert [site.text for site in sites] == [
        "Encoder: self-attention", "Decoder: self-attention", "Cross-attention, target → source",
    ]  # fmt: skip
    assert len(every(browser, "#choose-map [data-value=bias]")) == 1
    click(browser, sites[2])
    assert len(every(browser, "#strip-rows .token")) == 4
    assert len(every(browser, "#strip-cols .token")) == 6
    click(browser, every(browser, "#strip-cols .token")[5])
    assert (state(browser, "row"), state(browser, "col")) == (None, 5)
    click(browser, every(browser, "#choose-site button")[0])
    assert (state(browser, "site"), state(browser, "col")) == (0, None)
    press(browser, "1")
    assert not every(browser, "#stage-cross_weights")
    Select(one(browser, "#choose-walk")).select_by_visible_text("Decoder")
    drawn(browser)
    assert every(browser, "#stage-cross_weights")
    assert [piece.text.split()[0] for piece in every(browser, ".piece")] == ["1", "5", "6", "7"]


def test_512_tokens(browser, tmp_path):
    run = loaded(
        tmp_path, "decoder", width=32, layers=4, max_length=512, attention={"heads": 4},
        position={"scheme": "rotary"},
    )  # fmt: skip
    ids = np.random.default_rng(0).integers(3, 13, 512)
    uri = written(tmp_path, [explain(run, " ".join(map(str, ids)))])
    assert pathlib.Path(uri.removeprefix("file://")).stat().st_size < 10_000_000
    opened(browser, uri, "view=attention")
    assert len(every(browser, "#strip-rows .token")) == 512
    times = browser.execute_async_script("""
        const done = arguments[0];
        (async () => {
          const times = [];
          for (const change of [{layer: 3}, {head: 2}, {map: "logits"}, {row: 400}, {row: 17}]) {
            const begin = performance.now();
            tfmExplain.set(change);
            await tfmExplain.drawn();
            times.push(performance.now() - begin);
          }
          done(times);
        })();""")
    print("512 tokens, milliseconds of a change:", [round(x) for x in times])
    now = [state(browser, name) for name in ("layer", "head", "map", "row")]
    assert now == [3, 2, "logits", 17]
    opened(browser, uri)
    assert one(browser, "#stage-pieces").is_displayed()


def test_a_run_without_attention_beside_one_with_it(browser, tmp_path, runs):
    other = explain(loaded(tmp_path, "decoder", name="still", mixer="none"), TEXT)
    for found in ([runs[0], other], [other, runs[0]]):
        uri = written(tmp_path, found)
        for number in (0, 1):
            opened(browser, uri, f"view=attention&run={number}")
            assert state(browser, "run") == found.index(runs[0])
            assert "still has no weights between tokens" in one(browser, "#view-attention").text
            assert len(every(browser, ".head")) == 4


def test_numbers_of_8_bits_are_marked(browser, tmp_path):
    found = explain(loaded(tmp_path, "decoder", max_length=128), " ".join(["3 7 5 9"] * 24))
    opened(browser, written(tmp_path, [found]), "view=attention&row=50&col=2")
    assert "stored in 8 bits" in one(browser, "#notes").text
    text = one(browser, ".readout").text
    weight = found.looks[0].site.arrays["weights_NHTS"][0, 0, 50, 2]
    shown = text.rpartition("≈")[2]
    assert float(shown) == pytest.approx(weight, rel=0.1)
    assert text.count("≈") == 4


def test_any_token_and_layer_of_a_side_can_be_chosen(browser, tmp_path):
    run = loaded(tmp_path, "seq2seq", layers=2, attention={"heads": 1, "score": "additive"})
    uri = written(tmp_path, [explain(run, "3 7 5 3 9 4", target="4 5")])
    opened(browser, uri)
    Select(one(browser, "#choose-walk")).select_by_visible_text("Encoder")
    drawn(browser)
    Select(one(browser, "#choose-token")).select_by_index(6)  # after "none"
    drawn(browser)
    assert state(browser, "row") == 5
    Select(one(browser, "#choose-layer")).select_by_index(1)
    drawn(browser)
    assert (state(browser, "layer"), state(browser, "row")) == (1, 5)


def test_the_focus_stays_where_it_was(browser, small):
    active = "return document.activeElement"
    opened(browser, small)
    one(browser, "#choose-layer").send_keys(Keys.ARROW_DOWN)
    drawn(browser)
    assert state(browser, "layer") == 1
    assert browser.execute_script(active).get_attribute("id") == "choose-layer"
    to_bars(browser, small)
    every(browser, ".bar")[1].send_keys(Keys.ENTER)
    drawn(browser)
    assert browser.execute_script(active).get_attribute("data-id") == "0"
    opened(browser, small, "view=attention")
    one(browser, "#choose-map [data-value=logits]").send_keys(Keys.ENTER)
    drawn(browser)
    assert browser.execute_script(active).get_attribute("data-value") == "logits"
