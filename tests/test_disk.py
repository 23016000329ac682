"""Files are replaced as a whole, or not at all."""

import errno
import os

import pytest

from tfm import disk
from tfm.cli import explain
from tfm.config.names import UserError


def test_a_failed_write_leaves_the_file_before(tmp_path, monkeypatch):
    """Such as the page of `tfm explain` when the disk is full."""
    page = tmp_path / "page.html"
    explain._write(page, b"before")
    (tmp_path / "link.html").symlink_to(page)
    explain._write(tmp_path / "link.html", b"through a link")
    assert page.read_bytes() == b"through a link"
    assert (tmp_path / "link.html").is_symlink()

    def full(_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(UserError, match="cannot write .*page.html: No space left on device"):
        explain._write(page, b"after")
    assert page.read_bytes() == b"through a link"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link.html", "page.html"]


def test_a_device_is_written_to_and_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    reader = os.open(tmp_path / "pipe", os.O_RDONLY | os.O_NONBLOCK)
    explain._write(tmp_path / "pipe", b"page")
    assert os.read(reader, 9) == b"page"
    os.close(reader)


def test_a_planted_link_is_not_written_through(tmp_path):
    (tmp_path / "mine").write_text("mine")
    (tmp_path / f".a.{os.getpid()}").symlink_to(tmp_path / "mine")
    disk.write_file(tmp_path / "a", b"new")
    (tmp_path / "b").symlink_to(tmp_path / "mine")
    disk.write_file(tmp_path / "b", b"new")
    assert (tmp_path / "mine").read_text() == "mine"
    assert [(tmp_path / name).read_bytes() for name in "ab"] == [b"new"] * 2


def test_nothing_is_truncated_by_opening(tmp_path):
    (tmp_path / "a").write_text("content")
    for mode in ("ab", "wb", "r+b"):
        disk.open_file(tmp_path / "a", mode, tmp_path).close()
    assert (tmp_path / "a").read_text() == "content"
