"""A page in Chromium: opening it, pointing, clicking, pressing keys, and reading what it shows."""

import pathlib
import shutil
import time

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.action_chains import ActionChains
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys

from tfm.explain import page

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome")
DRIVER = shutil.which("chromedriver")


def started(folder):
    """A browser with a profile of its own, that saves into `folder`."""
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in (
        "--headless", "--no-sandbox", "--disable-gpu", "--no-first-run",
        "--disable-background-networking", "--disable-dev-shm-usage", "--window-size=1300,1000",
        f"--user-data-dir={folder / 'profile'}",
    ):  # fmt: skip
        options.add_argument(argument)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=Service(DRIVER))
    driver.downloads = folder / "downloads"
    allow = {"behavior": "allow", "downloadPath": str(driver.downloads)}
    driver.execute_cdp_cmd("Browser.setDownloadBehavior", allow)
    return driver


def written(folder, found):
    path = folder / "page.html"
    path.write_text(page.page(found)[0])
    return path.as_uri()


def opened(browser, uri, view=""):
    browser.get("about:blank")
    browser.get(f"{uri}#{view}")
    drawn(browser)
    return browser


def drawn(browser):
    wait = "const done = arguments[0]; setTimeout(() => tfmExplain.drawn().then(done), 30)"
    browser.execute_async_script(wait)


def state(browser, name):
    return browser.execute_script(f"return tfmExplain.state.{name}")


def one(browser, selector):
    return browser.find_element(By.CSS_SELECTOR, selector)


def every(browser, selector):
    return browser.find_elements(By.CSS_SELECTOR, selector)


def press(browser, *keys):
    ActionChains(browser).send_keys(*keys).perform()
    drawn(browser)


def click(browser, element):
    browser.execute_script("arguments[0].scrollIntoView({block: 'center'})", element)
    element.click()
    drawn(browser)


def leave(browser):
    """The mouse to where nothing is."""
    ActionChains(browser).move_to_element(one(browser, "#text")).perform()
    drawn(browser)


def pixels(browser, canvas):
    return browser.execute_script("return arguments[0].toDataURL()", canvas)


def cell(browser, canvas, row, col):
    """The mouse to the middle of a cell of a heat map."""
    box = browser.execute_script("return arguments[0].figure.box", canvas)
    x, y = box["left"] + (col + 0.5) * box["cell"], box["top"] + (row + 0.5) * box["height"]
    size = canvas.size
    return ActionChains(browser).move_to_element_with_offset(
        canvas, round(x - size["width"] / 2), round(y - size["height"] / 2)
    )


def saved(browser, name):
    path = pathlib.Path(browser.downloads) / name
    for _ in range(100):
        if path.exists() and path.stat().st_size:
            return path
        time.sleep(0.05)
    raise AssertionError(f"{name} was not saved")


def to_bars(browser, uri):
    """They are drawn when they come near the screen."""
    opened(browser, uri)
    browser.execute_script("document.querySelector('.bars').scrollIntoView()")
    for _ in range(100):
        if every(browser, ".bar"):
            break
        time.sleep(0.05)


def bars(browser):
    drawn(browser)
    found = every(browser, ".bar")
    return [float(bar.get_attribute("data-p")) for bar in found]


def slide(browser, name, value):
    """The slider to a value, by the keys."""
    slider = one(browser, f"#slider-{name}")
    step = float(slider.get_attribute("step"))
    for _ in range(200):
        away = value - float(slider.get_attribute("value"))
        if abs(away) < step / 2:
            break
        slider.send_keys(Keys.ARROW_RIGHT if away > 0 else Keys.ARROW_LEFT)
    drawn(browser)
    assert abs(state(browser, name) - value) < 1e-9
